"""The errors of datasets of samples inside a TensorFlow graph."""

from rlds2reverb._internals.dataset_errors import translate_error as translate_error
