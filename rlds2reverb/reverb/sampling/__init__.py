"""Sampling: from tables on one or more Reverb servers to batches with importance weights, and new priorities back.

The names are imported on first use, so that those without `tf.data` do not import TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
