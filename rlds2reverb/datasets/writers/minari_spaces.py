"""Gymnasium spaces for a Minari dataset: those of its source where they describe the data, else unbounded ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.types.nest_paths import Keys, find_leaves, get_part, replace_part
from rlds2reverb.types.spaces import add_bounds
from rlds2reverb.types.specs import ArraySpec


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
