"""Gymnasium spaces of observations and actions: their bounds in specs, and their description in metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .specs import ArraySpec, Nest

#: Maximum number of elements of a space that a file may describe.
_MAX_ELEMENTS = 1 << 22


def action_bounds(space: Any) -> tuple[Any, Any]:
    """Returns the elementwise minimum and maximum of the elements of a `Box` or discrete space."""
    if hasattr(space, "low"):
        return space.low, space.high
    if hasattr(space, "nvec"):
        return space.start, space.start + space.nvec - 1
    if hasattr(space, "start"):
        return space.start, space.start + space.n - 1
    return 0, 1


def add_bounds(spec: Nest, space: Any, *, of_categories: bool = False) -> Nest:
    """Returns a nest of `ArraySpec`s with the bounds of a space.

    Args:
      spec: the nest, in dicts and tuples.
      space: a `gymnasium.Space`, or None. Parts of it that describe other shapes or kinds than the spec are ignored.
      of_categories: whether to add only those of Discrete and MultiDiscrete spaces.
    """
    parts = getattr(space, "spaces", None)
    if isinstance(spec, Mapping):
        parts = parts if isinstance(parts, Mapping) else {}
        return {key: add_bounds(part, parts.get(key), of_categories=of_categories) for key, part in spec.items()}
    if isinstance(spec, tuple):
        parts = parts if isinstance(parts, tuple) and len(parts) == len(spec) else (None,) * len(spec)
        pairs = zip(spec, parts, strict=True)
        return tuple(add_bounds(part, own, of_categories=of_categories) for part, own in pairs)
    is_category = hasattr(space, "nvec") or hasattr(space, "start")
    if not describes(space, spec) or (of_categories and not is_category):
        return spec
    low, high = (np.asarray(bound, spec.dtype) for bound in action_bounds(space))
    limits = find_limits(spec.dtype)
    if (low == limits[0]).all() and (high == limits[1]).all():
        return spec
    return replace(spec, minimum=_shorten(low), maximum=_shorten(high))


def find_limits(dtype: np.dtype) -> tuple[Any, Any]:
    """Returns the minimum and maximum of a dtype, between which a bound is none; of strings, the empty one twice."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return {"f": (-np.inf, np.inf), "b": (0, 1)}.get(dtype.kind, (b"", b""))


def describes(space: Any, spec: ArraySpec) -> bool:
    """Returns whether a space has bounds, and elements of the shape and kind (floats or integers) of a spec."""
    if not any(hasattr(space, name) for name in ("low", "n", "nvec")) or tuple(space.shape) != tuple(spec.shape):
        return False
    return spec.dtype.kind in ("f" if np.dtype(space.dtype).kind == "f" else "iu")


def _shorten(bound: np.ndarray) -> np.ndarray:
    """Returns a single number for an array of equal ones."""
    return bound.ravel()[0] if bound.size and (bound == bound.ravel()[0]).all() else bound


def dump_space(space: Any) -> str | None:
    """Returns the bounds of a space as text for `load_space`, or None if parts of it have none, such as strings."""
    try:
        return json.dumps(_describe(space))
    except (AttributeError, TypeError):
        return None


def _describe(space: Any) -> Any:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {"dict": {key: _describe(part) for key, part in parts.items()}}
    if isinstance(parts, tuple):
        return {"tuple": [_describe(part) for part in parts]}
    low, high = (_shorten(np.asarray(bound)).tolist() for bound in action_bounds(space))
    kind = {"kind": "MultiDiscrete"} if hasattr(space, "nvec") else {}
    return {"low": low, "high": high, "shape": list(space.shape), "dtype": space.dtype.name, **kind}


def load_space(text: Any) -> Any:
    """Returns the space of a text by `dump_space`, or None for anything else. A binary part is a Box."""
    try:
        return _make(json.loads(text))
    except (AttributeError, TypeError, ValueError, KeyError, AssertionError, OverflowError, RecursionError):
        return None


def _make(description: Any) -> Any:
    from gymnasium import spaces

    if "dict" in description:
        return spaces.Dict({key: _make(part) for key, part in description["dict"].items()})
    if "tuple" in description:
        return spaces.Tuple([_make(part) for part in description["tuple"]])
    shape: tuple[int, ...] = tuple(description["shape"])
    spec = ArraySpec(shape, np.dtype(description["dtype"]))
    if not 0 <= math.prod(shape) <= _MAX_ELEMENTS or spec.dtype.kind not in "fiub":
        raise ValueError(f"a space must have at most {_MAX_ELEMENTS} numbers, got {spec}")
    if description.get("kind") == "MultiDiscrete":
        low, high = (np.broadcast_to(np.array(description[end], spec.dtype), shape) for end in ("low", "high"))
        return spaces.MultiDiscrete(high - low + 1, spec.dtype.type, start=low)
    return make_array_space(spec, description["low"], description["high"])


def make_array_space(spec: ArraySpec, low: Any, high: Any) -> Any:
    """Returns the space of arrays within bounds, which can be broadcast to their shape: a `Discrete` or a `Box`."""
    from gymnasium import spaces

    if spec.dtype.kind in "iu" and not spec.shape and int(high) - int(low) < 2**31:
        return spaces.Discrete(int(high) - int(low) + 1, start=int(low))
    shape: Any = spec.shape
    low, high = (np.broadcast_to(np.array(bound, spec.dtype), shape) for bound in (low, high))
    return spaces.Box(low, high, shape, spec.dtype.type)


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
    return spaces.Box(*find_limits(spec.dtype), shape, dtype)
