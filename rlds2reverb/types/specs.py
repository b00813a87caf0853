"""Specs: the shapes and dtypes of nests of arrays, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SpecMismatchError

#: A nest (dicts, tuples, named tuples) whose leaves are arrays, or specs of arrays.
Nest = Any


@dataclass(frozen=True)
class ArraySpec:
    """The shape and dtype of one array; `None` in the shape matches any size.

    The bounds, numbers or arrays that can be broadcast to the shape, are None if unknown; specs are equal without them.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype
    minimum: Any = field(default=None, compare=False, repr=False, kw_only=True)
    maximum: Any = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        # HDF5's float32 is equal to numpy's, but has a different repr, from which keys are derived.
        if isinstance(self.dtype, np.dtype) and not self.dtype.isbuiltin and self.dtype.names is None:
            object.__setattr__(self, "dtype", np.dtype(self.dtype.str))

    def __str__(self) -> str:
        return describe(self)

    @property
    def num_bytes(self) -> int:
        """The size of one array; raises `ValueError` if the shape contains `None`."""
        if None in self.shape:
            raise ValueError(f"cannot compute the size of {self} because a dimension is unknown")
        return self.dtype.itemsize * math.prod(size or 0 for size in self.shape)


def describe(spec: Any) -> str:
    """Formats a spec or an array as dtype and shape, such as `float32 [17]`, and a dict or tuple as 'a nest'."""
    if not hasattr(spec, "dtype"):
        return "a nest"
    dtype = getattr(spec.dtype, "name", str(spec.dtype))
    if dtype == "object":
        dtype = "string"
    shape = ", ".join("?" if size is None else str(size) for size in tuple(spec.shape))
    return f"{dtype} [{shape}]"


def path_name(path: Iterable[Any], root: str = "step") -> str:
    """Formats the path of a leaf as Python code: `step['observation']['joint_pos']`."""
    return root + "".join(f"[{key!r}]" for key in path)


def leaves(nest: Nest, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the leaves of a nest with their paths; several times as fast as `tree.flatten_with_path`.

    Args:
      nest: the nest.
      path: path of the nest itself, with which all paths begin.
    """
    if isinstance(nest, (np.ndarray, ArraySpec)):
        return [(path, nest)]
    if type(nest) is dict:
        return [leaf for key in sorted(nest) for leaf in leaves(nest[key], (*path, key))]
    if isinstance(nest, tuple):
        names = getattr(nest, "_fields", range(len(nest)))
        return [leaf for name, part in zip(names, nest, strict=True) for leaf in leaves(part, (*path, name))]
    return [((*path, *inner), leaf) for inner, leaf in tree.flatten_with_path(nest)]


def map_structure(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """Applies a function to each leaf of a nest; several times as fast as `tree.map_structure`."""
    if isinstance(nest, (np.ndarray, ArraySpec)):
        return function(nest)
    if type(nest) is dict:
        return {key: map_structure(function, part) for key, part in nest.items()}
    if isinstance(nest, tuple):
        parts = [map_structure(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return tree.map_structure(function, nest)


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates arrays `[T, ...]` along their first axis; returns a single array as is, without copying it."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def make_step_spec(columns: Nest) -> Nest:
    """Returns the spec of one step from columns `[T, ...]`: their dtypes, and shapes without the first axis."""
    return map_structure(lambda column: ArraySpec(tuple(column.shape[1:]), column.dtype), columns)


def cast_array(values: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns values in a different dtype, and which of them changed, bool like `values`, or None if none could.

    Floats are rounded; other values must not change.
    """
    if values.dtype == dtype:
        return values, None
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
        if values.dtype.kind == dtype.kind == "f":
            return cast, np.isfinite(cast) != np.isfinite(values)
        return cast, cast.astype(values.dtype) != values


def to_tensor_spec(spec: Nest, leading: Sequence[int | None] = ()) -> Nest:
    """Converts a nest of `ArraySpec`s to `tf.TensorSpec`s with `leading` axes, bounded if the bounds are known.

    The dtype object becomes string.
    """
    import tensorflow as tf

    def convert(leaf: ArraySpec) -> tf.TensorSpec:
        dtype = tf.string if leaf.dtype.kind in "OSU" else tf.as_dtype(leaf.dtype)
        return with_bounds(tf.TensorSpec((*leading, *leaf.shape), dtype), leaf)

    return tree.map_structure(convert, spec)


def with_bounds(spec: Any, bounded: Any) -> Any:
    """Returns a `tf.TensorSpec` with the bounds of a second spec, if that has any, whose shape its shape ends with."""
    if getattr(bounded, "minimum", None) is None:
        return spec
    from tensorflow.python.framework.tensor_spec import BoundedTensorSpec

    return BoundedTensorSpec(spec.shape, spec.dtype, bounded.minimum, bounded.maximum)


def leaf_matches(got: Any, expected: Any) -> bool:
    """Returns whether an array or spec has the dtype and shape of a spec, in which `None` matches any size."""
    if numpy_dtype_of(got) != numpy_dtype_of(expected):
        return False
    got_shape, expected_shape = tuple(got.shape), tuple(expected.shape)
    return len(got_shape) == len(expected_shape) and all(
        size is None or got_size == size for got_size, size in zip(got_shape, expected_shape, strict=True)
    )


def numpy_dtype_of(leaf: Any) -> np.dtype:
    """Returns the NumPy dtype of an array, an `ArraySpec` or a `tf.TensorSpec`."""
    return np.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))


def require_match(got: Nest, expected: Nest, *, holder: str, advice: str, root: str = "step") -> None:
    """Checks that two nests of specs have the same paths, dtypes and shapes.

    Args:
      got: actual nest of specs (or arrays).
      expected: expected nest of specs; `None` in a shape matches any size.
      holder: name of whatever has the expected spec, such as "table 'replay'", for the message.
      advice: suggestion for the user, which ends the message.
      root: name of the nest in the message.

    Raises:
      SpecMismatchError: If they differ; the message names the missing and unexpected paths, or the first path with a
        different dtype or shape.
    """
    got_leaves, expected_leaves = leaves(got), leaves(expected)
    got_paths, expected_paths = [path for path, _ in got_leaves], [path for path, _ in expected_leaves]
    missing = [path_name(path, root) for path in expected_paths if path not in got_paths]
    unexpected = [path_name(path, root) for path in got_paths if path not in expected_paths]
    if missing or unexpected:
        parts = [f"missing {', '.join(missing)}"] if missing else []
        parts += [f"unexpected {', '.join(unexpected)}"] if unexpected else []
        raise SpecMismatchError(f"the data do not match {holder}: {'; '.join(parts)}; {advice}")
    for (path, got_leaf), (_, expected_leaf) in zip(got_leaves, expected_leaves, strict=True):
        if not leaf_matches(got_leaf, expected_leaf):
            raise SpecMismatchError(
                f"{path_name(path, root)} is {describe(got_leaf)}, but {holder} expects {describe(expected_leaf)}; "
                f"{advice}"
            )
