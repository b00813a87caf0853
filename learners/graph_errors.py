"""Errors of an agent inside a graph, which TensorFlow raises as an `OpError`, as exceptions of this package."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from rlds2reverb.errors import SpecMismatchError

#: The text of an assertion, in which TensorFlow escapes quotes, backslashes and line breaks.
_REASON = re.compile(rf"{SpecMismatchError.__name__}: (.*?)\]?(?:\n|$)")


def require(condition: Any, error: SpecMismatchError) -> tf.Operation:
    """Returns an operation that fails unless a condition (bool `[]`) holds, so that `find_error` returns the error."""
    return tf.debugging.Assert(condition, [f"{type(error).__name__}: {error}"])


def find_error(error: tf.errors.OpError) -> Exception:
    """Returns the `SpecMismatchError` with which a graph failed, or the given error if it has a different cause."""
    match = _REASON.search(error.message)
    if match is None:
        return error
    return SpecMismatchError(match[1].encode("latin-1", "backslashreplace").decode("unicode_escape"))
