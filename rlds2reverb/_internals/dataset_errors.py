"""Errors of Python code inside a `tf.data` dataset, raised as exceptions of their own types.

TensorFlow reports an exception of such code as an `OpError`, and logs the traceback. Here the code returns a reason
instead, the graph fails with that reason, and `translate_error` converts the failure to an exception again.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError

from .versions import require_tested

require_tested("tensorflow", tf.__version__, feature="sampling with tf.data")

_TYPES: dict[str, type[Exception]] = {
    error.__name__: error for error in (ServerUnavailableError, SpecMismatchError, TimeoutError)
}
#: The text of an assertion, in which TensorFlow escapes quotes, backslashes and line breaks.
_REASON = re.compile(rf"({'|'.join(_TYPES)}): (.*?)\]?(?:\n|$)")


def describe_error(error: Exception) -> str:
    """Returns the reason with which a graph can fail, so that `translate_error` returns an equal exception."""
    if type(error).__name__ not in _TYPES:
        raise TypeError(f"error must be one of {', '.join(_TYPES)}, got {error!r}")
    return f"{type(error).__name__}: {error}"


def require_no_reason(reason: tf.Tensor) -> tf.Operation:
    """Returns an operation that fails with a reason (string `[]`) unless it is empty, and logs nothing."""
    return tf.debugging.Assert(tf.equal(reason, ""), [reason])


def translate_error(error: Exception) -> Exception | None:
    """Returns the exception that made a dataset fail, or None if the error has a different cause.

    Args:
      error: `tf.errors.OpError` raised by an iterator of `sample_dataset`, `mixed_dataset` or a replay buffer's
        `dataset`, or by a graph that reads one.

    Returns:
      `ServerUnavailableError` if no server returned samples in time; `TimeoutError` if a buffer refused to sample for
      too long; `SpecMismatchError` if an agent cannot use the data, or an item does not match the table's signature.
    """
    match = _REASON.search(getattr(error, "message", ""))
    if match is None:
        return None
    name, reason = match.groups()
    return _TYPES[name](reason.encode("latin-1", "backslashreplace").decode("unicode_escape"))


class _Iterator(iterator_ops.OwnedIterator):
    """An iterator over a dataset that raises translated errors."""

    def _next_internal(self) -> Any:
        try:
            return super()._next_internal()
        except tf.errors.OpError as error:
            translated = translate_error(error)
            if translated is None:
                raise
            raise translated from None


class TranslatedDataset(tf.data.Dataset):
    """A dataset whose iterators raise translated errors, as do those of its `map`, `batch`, `take` and so on."""

    def __init__(self, dataset: tf.data.Dataset):
        self._dataset = dataset
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """The spec of an element."""
        return self._dataset.element_spec

    def __iter__(self) -> Any:
        return _Iterator(self) if tf.executing_eagerly() else super().__iter__()


def _wrap_result(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that translates the errors of the dataset that it returns."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        return TranslatedDataset(result) if isinstance(result, tf.data.Dataset) else result

    return call


for _name, _method in vars(tf.data.Dataset).items():
    if inspect.isfunction(_method) and not _name.startswith("_") and _name not in vars(TranslatedDataset):
        setattr(TranslatedDataset, _name, _wrap_result(_method))
