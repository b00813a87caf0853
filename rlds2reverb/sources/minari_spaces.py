"""Gymnasium spaces for a Minari dataset: those of its source where they describe the data, else unbounded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2reverb.specs import ArraySpec, Nest


def choose_space(spec: Nest, own: Any = None) -> Any:
    """Returns a space that contains the values of a spec.

    Args:
      spec: nest of `ArraySpec`s in dicts and tuples.
      own: the source's own space, or None. Parts of it that have other shapes or kinds than the spec are ignored, and
        so are bounds of a different dtype.

    Returns:
      A `gymnasium.Space`. Parts that the source does not describe are Boxes, with infinite bounds or those of their
      integer dtype. A string becomes a Text of length 1, whose limits the caller sets.
    """
    from gymnasium import spaces

    if isinstance(spec, Mapping):
        parts = own.spaces if isinstance(own, spaces.Dict) else {}
        return spaces.Dict({key: choose_space(part, parts.get(key)) for key, part in spec.items()})
    if isinstance(spec, tuple):
        own_parts = own.spaces if isinstance(own, spaces.Tuple) and len(own.spaces) == len(spec) else [None] * len(spec)
        return spaces.Tuple([choose_space(part, own_part) for part, own_part in zip(spec, own_parts, strict=True)])
    if _describes(own, spec):
        return own
    if spec.dtype == object:
        return spaces.Text(1)
    shape: Any = spec.shape
    dtype: Any = spec.dtype.type
    if spec.dtype.kind == "b":
        return spaces.Box(0, 1, shape, dtype)
    if spec.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    limits = np.iinfo(spec.dtype)
    return spaces.Box(limits.min, limits.max, shape, dtype)


def _describes(own: Any, spec: ArraySpec) -> bool:
    from gymnasium import spaces

    if not isinstance(own, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return False
    if tuple(own.shape or ()) != spec.shape:
        return False
    return own.dtype == spec.dtype if isinstance(own, spaces.Box) else spec.dtype.kind in "iu"


def map_space(function: Callable[[Any, tuple[Any, ...]], Any], space: Any, path: tuple[Any, ...] = ()) -> Any:
    """Returns a space with the results of a function in the place of its parts that are neither dicts nor tuples.

    Args:
      function: called with each part and its path.
      space: a `gymnasium.Space`.
      path: path of the space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: map_space(function, part, (*path, key)) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([map_space(function, part, (*path, key)) for key, part in enumerate(space.spaces)])
    return function(space, path)


def is_unbounded(space: Any) -> bool:
    """Returns whether a space consists of Boxes without bounds and Texts, and so tells only dtypes and shapes."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces
        return all(map(is_unbounded, parts.values() if isinstance(parts, Mapping) else parts))
    if isinstance(space, spaces.Box):
        if space.dtype is None or space.dtype.kind == "f":
            return not np.isfinite([space.low, space.high]).any()
        limits = (0, 1) if space.dtype.kind == "b" else (np.iinfo(space.dtype).min, np.iinfo(space.dtype).max)
        return bool((space.low == limits[0]).all() and (space.high == limits[1]).all())
    return isinstance(space, spaces.Text)
