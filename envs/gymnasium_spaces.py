"""Gymnasium's spaces as specs, and the conversion of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.types.spaces import make_array_space
from rlds2reverb.types.specs import ArraySpec, Nest

from .env_specs import BoundedArraySpec, cast

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of these are supported"
#: The limits of floats and of bools.
_LIMITS: dict[str, Any] = {"f": (-np.inf, np.inf), "b": (0, 1)}


def make_spec(space: Any, *, name: str = "observation", left_out: list[str] | None = None) -> Nest:
    """Returns the specs of the values of a space.

    Args:
      space: a Gymnasium space, or one of the unmaintained gym. Discrete spaces become integers from `start` to
        `start + n - 1`, MultiBinary ones integers 0 and 1, and Box spaces arrays with the bounds of the space; floats
        become float32. Tuple and Dict spaces become tuples and dicts.
      name: name of the nest in messages.
      left_out: list that receives the message about each part of a Dict that is not supported, and therefore left out;
        None to raise it. One part must be supported.

    Returns:
      A nest of `BoundedArraySpec`s.

    Raises:
      TypeError: If the space, or one inside of it, is of a different kind; the message names the path.
    """
    kind = type(space).__name__
    if kind == "Dict":
        return _make_dict_spec(space.spaces, name, left_out)
    if kind == "Tuple":
        return tuple(make_spec(part, name=f"{name}[{index}]") for index, part in enumerate(space.spaces))
    if kind == "Discrete":
        start = int(getattr(space, "start", 0))
        return BoundedArraySpec((), np.dtype(space.dtype), start, start + int(space.n) - 1)
    if kind == "MultiDiscrete":
        low = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        return BoundedArraySpec(tuple(space.shape), np.dtype(space.dtype), low, low + space.nvec - 1)
    if kind == "MultiBinary":
        return BoundedArraySpec(tuple(space.shape), np.dtype(space.dtype), 0, 1)
    if kind == "Box":
        dtype = np.dtype(np.float32) if space.dtype.kind == "f" else np.dtype(space.dtype)
        return BoundedArraySpec(tuple(space.shape), dtype, space.low, space.high)
    raise TypeError(f"the {name} space must be one of the supported kinds, got {space}; {_SUPPORTED}")


def _make_dict_spec(spaces: Any, name: str, left_out: list[str] | None) -> dict[str, Nest]:
    specs: dict[str, Nest] = {}
    errors: list[TypeError] = []
    for key, part in spaces.items():
        try:
            specs[key] = make_spec(part, name=f"{name}[{key!r}]", left_out=left_out)
        except TypeError as error:
            if left_out is None:
                raise
            errors.append(error)
    if errors and not specs:
        raise errors[0]
    if left_out is not None:
        left_out += map(str, errors)
    return specs


def make_space(spec: Any) -> Any:
    """Returns the Gymnasium space of a nest of specs, the inverse of `make_spec`.

    Raises:
      TypeError: If a spec has a dtype that no space has, such as string.
    """
    from gymnasium import spaces

    if isinstance(spec, dict):
        return spaces.Dict({key: make_space(part) for key, part in spec.items()})
    if isinstance(spec, tuple):
        return spaces.Tuple([make_space(part) for part in spec])
    if spec.dtype.kind not in "fiub":
        raise TypeError(f"specs must be numeric to become a space, got {spec}; convert or drop the field")
    if not isinstance(spec, BoundedArraySpec):
        limits = np.iinfo(spec.dtype) if spec.dtype.kind in "iu" else None
        low, high = (int(limits.min), int(limits.max)) if limits else _LIMITS[spec.dtype.kind]
        return spaces.Box(low, high, shape=spec.shape, dtype=spec.dtype.type)
    return make_array_space(spec, spec.minimum, spec.maximum)


def make_converter(spec: Nest) -> Callable[[Any], Nest]:
    """Returns a function that copies values of a space to arrays of the dtypes of its spec.

    Copies, because some environments return the same array in each step.
    """
    if isinstance(spec, ArraySpec):
        return _make_leaf_converter(spec.dtype)
    if isinstance(spec, dict):
        parts = {key: make_converter(part) for key, part in spec.items()}
        return lambda value: {key: convert(value[key]) for key, convert in parts.items()}
    converters = [make_converter(part) for part in spec]
    return lambda value: tuple(convert(part) for convert, part in zip(converters, value, strict=True))


def _make_leaf_converter(dtype: np.dtype) -> Callable[[Any], np.ndarray]:
    def convert(value: Any) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype is dtype:  # Several times as fast as the general case.
            return value.copy()
        return cast(value, dtype)

    return convert
