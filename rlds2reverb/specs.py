"""Shapes and dtypes of nests of columns, and how to say where two of them differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SpecMismatchError

#: A nest (dicts, tuples, named tuples) whose leaves are arrays, or specs of arrays.
Nest = Any


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array; `None` in the shape stands for any size."""

    shape: tuple[int | None, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return describe(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of one array; `ValueError` where a size is not known."""
        if None in self.shape:
            raise ValueError(f"{self} has no fixed size")
        return self.dtype.itemsize * math.prod(size or 0 for size in self.shape)


def describe(spec: Any) -> str:
    """Returns a spec (ours or TensorFlow's) or an array in words, such as `float32 [17]`."""
    dtype = getattr(spec.dtype, "name", str(spec.dtype))
    if dtype == "object":
        dtype = "string"
    shape = ", ".join("?" if size is None else str(size) for size in tuple(spec.shape))
    return f"{dtype} [{shape}]"


def path_name(path: Iterable[Any], root: str = "step") -> str:
    """Returns the place of a leaf as Python code: `step['observation']['joint_pos']`."""
    return root + "".join(f"[{key!r}]" for key in path)


def leaves(nest: Nest) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the leaves of a nest with their paths, as `tree.flatten_with_path` does, several times as fast."""
    return _leaves(nest, ())


def _leaves(nest: Nest, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(nest, (np.ndarray, ArraySpec)):
        return [(path, nest)]
    if type(nest) is dict:
        return [leaf for key in sorted(nest) for leaf in _leaves(nest[key], (*path, key))]
    if isinstance(nest, tuple):
        names = getattr(nest, "_fields", range(len(nest)))
        return [leaf for name, part in zip(names, nest, strict=True) for leaf in _leaves(part, (*path, name))]
    return [((*path, *inner), leaf) for inner, leaf in tree.flatten_with_path(nest)]


def map_structure(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """Returns the nest of what the function makes of each leaf, as `tree.map_structure`, several times as fast."""
    if isinstance(nest, (np.ndarray, ArraySpec)):
        return function(nest)
    if type(nest) is dict:
        return {key: map_structure(function, part) for key, part in nest.items()}
    if isinstance(nest, tuple):
        parts = [map_structure(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return tree.map_structure(function, nest)


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns arrays `[T, ...]` one after the other along their first axis; a single one as it is, not a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def make_step_spec(columns: Nest) -> Nest:
    """Returns the spec of one step of a nest of columns `[T, ...]`: their dtypes, and shapes without the first axis."""
    return map_structure(lambda column: ArraySpec(tuple(column.shape[1:]), column.dtype), columns)


def to_tensor_spec(spec: Nest, leading: Sequence[int | None] = ()) -> Nest:
    """Returns the same nest as `tf.TensorSpec`s, with axes put in front; arrays of objects become strings."""
    import tensorflow as tf

    def convert(leaf: ArraySpec) -> tf.TensorSpec:
        dtype = tf.string if leaf.dtype.kind in "OSU" else tf.as_dtype(leaf.dtype)
        return tf.TensorSpec((*leading, *leaf.shape), dtype)

    return tree.map_structure(convert, spec)


def _same_leaf(got: Any, wanted: Any) -> bool:
    if np.dtype(_numpy_dtype(got)) != np.dtype(_numpy_dtype(wanted)):
        return False
    got_shape, wanted_shape = tuple(got.shape), tuple(wanted.shape)
    return len(got_shape) == len(wanted_shape) and all(
        want is None or have == want for have, want in zip(got_shape, wanted_shape, strict=True)
    )


def _numpy_dtype(leaf: Any) -> Any:
    return getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)


def require_match(got: Nest, wanted: Nest, *, holder: str, advice: str, root: str = "step") -> None:
    """Checks that two nests of specs have the same paths, dtypes and shapes.

    Args:
      got: nest of specs (or arrays) at hand.
      wanted: nest of specs that is expected; a `None` in its shapes allows any size.
      holder: what expects it, for the message, such as "table 'replay'".
      advice: what the user can do about it.
      root: name of the nest in the message.

    Raises:
      SpecMismatchError: naming the first path that differs, what it is and what was expected.
    """
    got_leaves, wanted_leaves = leaves(got), leaves(wanted)
    got_paths, wanted_paths = [path for path, _ in got_leaves], [path for path, _ in wanted_leaves]
    missing = [path_name(path, root) for path in wanted_paths if path not in got_paths]
    extra = [path_name(path, root) for path in got_paths if path not in wanted_paths]
    if missing or extra:
        parts = [f"missing {', '.join(missing)}"] if missing else []
        parts += [f"unexpected {', '.join(extra)}"] if extra else []
        raise SpecMismatchError(f"the data do not match {holder}: {'; '.join(parts)}; {advice}")
    for (path, have), (_, want) in zip(got_leaves, wanted_leaves, strict=True):
        if not _same_leaf(have, want):
            raise SpecMismatchError(
                f"{path_name(path, root)} is {describe(have)}, but {holder} expects {describe(want)}; {advice}"
            )
