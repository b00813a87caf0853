"""Gymnasium spaces for a Minari dataset: those of its source where they describe the data, else unbounded ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2reverb.types.nest_paths import Keys, find_leaves, get_part, replace_part
from rlds2reverb.types.spaces import add_bounds, describes
from rlds2reverb.types.specs import ArraySpec, Nest


def choose_space(spec: Nest, own: Any = None) -> Any:
    """Returns a space that contains the values of a spec.

    Args:
      spec: nest of `ArraySpec`s in dicts and tuples.
      own: the source's own space, a dict of such spaces, or None. Parts of it that have other shapes or kinds than the
        spec are ignored, and so are bounds of a different dtype.

    Returns:
      A `gymnasium.Space`. Parts that the source does not describe are Boxes, with infinite bounds or those of their
      integer dtype. A string becomes a Text of length 1, whose limits the caller sets.
    """
    from gymnasium import spaces

    if isinstance(spec, Mapping):
        parts = own if isinstance(own, Mapping) else {}
        return spaces.Dict({key: choose_space(part, parts.get(key)) for key, part in spec.items()})
    if isinstance(spec, tuple):
        own_parts = own.spaces if isinstance(own, spaces.Tuple) and len(own.spaces) == len(spec) else [None] * len(spec)
        return spaces.Tuple([choose_space(part, own_part) for part, own_part in zip(spec, own_parts, strict=True)])
    if describes(own, spec) and (own.dtype == spec.dtype or not hasattr(own, "low")):
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


def map_space(function: Callable[[Any, Keys], Any], space: Any) -> Any:
    """Returns a space with the results of a function in the place of its parts that are neither dicts nor tuples.

    Args:
      function: called with each part, and with its keys as `keys`.
      space: a `gymnasium.Space`.
    """
    for keys, _ in find_leaves(space, None):
        space = replace_part(space, keys, functools.partial(function, keys=keys))
    return space


def is_unbounded(space: Any) -> bool:
    """Returns whether a space consists of Boxes without bounds and Texts, and so tells only dtypes and shapes."""
    parts = [get_part(space, keys) for keys, _ in find_leaves(space, None)]
    specs = [ArraySpec(tuple(part.shape or ()), np.dtype(part.dtype or object)) for part in parts]
    return all(add_bounds(spec, part).minimum is None for spec, part in zip(specs, parts, strict=True))
