"""Selects Keras 2, which TF-Agents requires, for TensorFlow.

Since TensorFlow 2.16, `tf.keras` is Keras 3 unless the environment variable TF_USE_LEGACY_KERAS selects the package
tf-keras, a Keras 2. TensorFlow 2.15 contains Keras 2, and with the variable it would require tf-keras nevertheless.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys

_VARIABLE = "TF_USE_LEGACY_KERAS"
_TRUE = ("1", "true", "True")


def select_keras_2() -> None:
    """Sets the environment variable so that `tf.keras` will be Keras 2; child processes inherit it.

    It must be called before `tf.keras` is used for the first time, but TensorFlow may be imported already. A value that
    the user has set is kept, except that the variable is deleted if TensorFlow contains Keras 2 and tf-keras is not
    installed.
    """
    if _installs_keras_3():
        if os.environ.setdefault(_VARIABLE, "1") in _TRUE:
            _redirect_imported_tensorflow()
    elif importlib.util.find_spec("tf_keras") is None:
        os.environ.pop(_VARIABLE, None)


def require_keras_2() -> None:
    """Checks that TensorFlow's Keras is Keras 2.

    Raises:
      ImportError: If it is Keras 3, because `tf.keras` was used before rlds2reverb was imported, or the user has
        chosen it.
    """
    import tensorflow as tf

    # TF-Agents imports it in this way, too.
    if not issubclass(importlib.import_module("tensorflow.keras.layers").Layer, tf.Module):
        raise ImportError(
            "tf.keras is Keras 3, but TF-Agents requires Keras 2; import rlds2reverb before you use tf.keras, or set "
            f"{_VARIABLE}=1 in the environment before Python starts"
        )


def _redirect_imported_tensorflow() -> None:
    """Makes a TensorFlow that was imported before import Keras 2, unless its Keras 3 has been used.

    TensorFlow reads the variable again when `tf.keras` is used, but has set the path of `tensorflow.keras` already.
    """
    tensorflow, found = sys.modules.get("tensorflow"), importlib.util.find_spec("tf_keras")
    is_used = getattr(vars(tensorflow).get("keras"), "_tfll_initialized", True) if tensorflow else True
    if tensorflow and not is_used and "tensorflow.keras" not in sys.modules and found and found.origin:
        tensorflow.__path__.insert(0, os.path.join(os.path.dirname(found.origin), "api", "_v2"))


def _installs_keras_3() -> bool:
    try:
        return int(importlib.metadata.version("keras").partition(".")[0]) >= 3
    except importlib.metadata.PackageNotFoundError:  # TensorFlow is not installed either.
        return False
