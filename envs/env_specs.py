"""Specs of environments: shapes and dtypes with bounds, and the check of arrays against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, map_structure, path_name

_SPEC_ADVICE = "fix the environment or wrapper, or the spec that it returns (observation_spec or env_info_spec)"
#: Up to this size, lists of integers are compared faster than arrays.
_MAX_LISTED = 64


@dataclass(frozen=True, eq=False)
class BoundedArraySpec(ArraySpec):
    """The shape, dtype and bounds of one array.

    Attributes:
      minimum: lowest values, broadcast to the shape; -inf where there is no bound.
      maximum: highest values (inclusive), broadcast to the shape; inf where there is no bound.
    """

    minimum: Any = field(default=-np.inf)
    maximum: Any = field(default=np.inf)
    _uniform: Any = field(default=None, init=False, repr=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            shape: Any = self.shape
            bound = np.array(np.broadcast_to(getattr(self, name), shape))
            if self.dtype.kind == "f":
                limit = np.finfo(self.dtype)
                bound = np.where(np.isinf(bound), bound, np.clip(bound, limit.min, limit.max)).astype(self.dtype)
            bound.flags.writeable = False
            object.__setattr__(self, name, bound)
        # Comparing with two numbers is several times as fast as with arrays.
        bounds = [np.unique(bound) for bound in (self.minimum, self.maximum)]
        uniform = (bounds[0][0].item(), bounds[1][0].item()) if all(bound.size == 1 for bound in bounds) else None
        object.__setattr__(self, "_uniform", uniform)
        if not np.all(self.minimum <= self.maximum):
            raise ValueError(f"minimum must be <= maximum, got {self.minimum} and {self.maximum}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BoundedArraySpec)
            and (self.shape, self.dtype) == (other.shape, other.dtype)
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
        )

    def contains(self, array: np.ndarray) -> bool:
        """Returns whether all values of a nonempty array `[..., *shape]` are within the bounds; NaN is not."""
        if self._uniform is None:
            return bool(np.all(array >= self.minimum) and np.all(array <= self.maximum))
        low, high = self._uniform
        if array.size <= _MAX_LISTED and array.dtype.kind in "iu":
            values = array.ravel().tolist()
            return bool(low <= min(values) and max(values) <= high)
        return bool(low <= np.minimum.reduce(array, None) and np.maximum.reduce(array, None) <= high)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


def require_within(values: Nest, spec: Nest, *, name: str, advice: str, leading: tuple[int, ...] = ()) -> Nest:
    """Returns a copy of a nest of values in the dtypes of a spec, after checking structure, shapes and bounds.

    Args:
      values: nest of arrays or numbers. Integers and floats may have any width; floats are not accepted for integers.
      spec: nest of `ArraySpec`s, and of `BoundedArraySpec`s for arrays with bounds.
      name: name of the nest in messages, such as 'action'.
      advice: suggestion for the user, which ends messages.
      leading: axes before those of the spec, such as `(B,)` for a batch.

    Raises:
      SpecMismatchError: If the structure, a shape or a dtype differs; the message names the path.
      ValueError: If a value is NaN or outside its bounds; the message names the path, and the row in a batch.
    """
    if isinstance(spec, ArraySpec):
        return _convert_leaf(values, spec, name, advice, leading)
    if isinstance(spec, dict):
        if not isinstance(values, dict) or values.keys() != spec.keys():
            got = sorted(values) if isinstance(values, dict) else type(values).__name__
            raise SpecMismatchError(f"{name} must be a dict with the keys {sorted(spec)}, got {got}; {advice}")
        return {
            key: require_within(values[key], part, name=f"{name}[{key!r}]", advice=advice, leading=leading)
            for key, part in spec.items()
        }
    if not isinstance(values, (tuple, list)) or len(values) != len(spec):
        got = f"{len(values)}" if isinstance(values, (tuple, list)) else f"a {type(values).__name__}"
        raise SpecMismatchError(f"{name} must be a tuple of {len(spec)} values, got {got}; {advice}")
    return tuple(
        require_within(value, part, name=f"{name}[{index}]", advice=advice, leading=leading)
        for index, (value, part) in enumerate(zip(values, spec, strict=True))
    )


def _convert_leaf(value: Any, spec: ArraySpec, name: str, advice: str, leading: tuple[int, ...]) -> np.ndarray:
    shape = (*leading, *spec.shape)
    is_equal = type(value) is np.ndarray and value.dtype is spec.dtype and value.shape == shape and value.size
    if is_equal and (not isinstance(spec, BoundedArraySpec) or spec.contains(value)):
        return value.copy()  # The common case, which is much faster than the general one.
    array = np.asarray(value)
    is_exact = array.dtype.kind in "iub" or spec.dtype.kind == "f" == array.dtype.kind
    if array.shape != shape or not is_exact:
        expected = describe(ArraySpec(shape, spec.dtype))
        raise SpecMismatchError(f"{name} must be {expected}, got {describe(array)}; {advice}")
    if isinstance(spec, BoundedArraySpec) and array.size and not spec.contains(array):
        _raise_out_of_bounds(array, spec, name, advice, leading)
    result = array.astype(spec.dtype)
    if spec.dtype.kind != "f" and (is_changed := result != array).any():
        raise ValueError(f"{name} must be representable as {spec.dtype}, got {array[is_changed][0]}; {advice}")
    return result


def require_spec(values: Nest, spec: Nest, name: str, leading: tuple[int, ...] = ()) -> None:
    """Raises `SpecMismatchError` unless a nest of arrays has the structure, shapes and dtypes of a spec.

    Args:
      values: nest of arrays or NumPy scalars that an environment returned.
      spec: nest of `ArraySpec`s; strings may have any length up to that of the spec.
      name: name of the nest in messages, such as 'observation of environment 2'.
      leading: axes before those of the spec, such as `(B,)` for a batch.
    """
    if isinstance(spec, ArraySpec):
        dtype = getattr(values, "dtype", None)
        if (dtype is not spec.dtype and not _is_same(dtype, spec.dtype)) or values.shape != leading + spec.shape:
            expected, got = describe(ArraySpec((*leading, *spec.shape), spec.dtype)), _describe_value(values)
            raise SpecMismatchError(f"{name} must be {expected} as in its spec, got {got}; {_SPEC_ADVICE}")
    elif isinstance(spec, dict):
        if not isinstance(values, dict) or values.keys() != spec.keys():
            got = str(sorted(values)) if isinstance(values, dict) else _describe_value(values)
            expected = f"a dict with the keys {sorted(spec)}"
            raise SpecMismatchError(f"{name} must be {expected} as in its spec, got {got}; {_SPEC_ADVICE}")
        for key, part in spec.items():
            require_spec(values[key], part, f"{name}[{key!r}]", leading)
    elif not isinstance(values, tuple) or len(values) != len(spec):
        got = _describe_value(values)
        raise SpecMismatchError(f"{name} must be a tuple of {len(spec)} as in its spec, got {got}; {_SPEC_ADVICE}")
    else:
        for index, (value, part) in enumerate(zip(values, spec, strict=True)):
            require_spec(value, part, f"{name}[{index}]", leading)


def _is_same(dtype: np.dtype | None, expected: np.dtype) -> bool:
    is_string = dtype is not None and dtype.kind == expected.kind and dtype.kind in "US"
    return dtype == expected or (is_string and np.can_cast(dtype, expected, "safe"))


def _describe_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return describe(value) if hasattr(value, "dtype") else f"a {type(value).__name__}"


def cast(value: Any, dtype: np.dtype) -> np.ndarray:
    """Returns a copy of a value as an array of a dtype: floats are rounded, and other values do not change.

    Raises:
      TypeError: If the dtype of the value is of a different kind.
      ValueError: If the value is no array, or not representable in the dtype.
    """
    array = np.asarray(value)
    is_checked = isinstance(value, np.ndarray) or array.dtype.kind in "OSU"  # Python's numbers are those of any dtype.
    if is_checked and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"{array.dtype} is not {dtype}")
    result = array.astype(dtype)
    if dtype.kind != "f" and array.dtype != dtype and not np.array_equal(result, array):
        raise ValueError(f"{array} is not representable in {dtype}")
    return result


def read_array(value: Any, spec: ArraySpec, *, expected: str, advice: str) -> np.ndarray:
    """Returns a value as a new array of a spec.

    Args:
      value: number or array of an environment or of a function.
      spec: spec of the result; its bounds are not checked.
      expected: beginning of messages, such as 'choose_goal must return a goal'.
      advice: end of messages.

    Raises:
      SpecMismatchError: If the value has a different shape, or cannot be cast; see `cast`.
    """
    try:
        array = cast(value, spec.dtype)
    except (TypeError, ValueError) as error:
        raise SpecMismatchError(f"{expected} {describe(spec)}, got {value!r} ({error}); {advice}") from error
    if array.shape != spec.shape:
        raise SpecMismatchError(f"{expected} {describe(spec)}, got {describe(array)}; {advice}")
    return array


def read_reward(reward: Any, shape: tuple[int, ...], name: str) -> Any:
    """Returns a copy of a reward, or of a batch of them, in float32 and in a shape that differs only in axes of size 1.

    Args:
      reward: number or array.
      shape: shape of the result.
      name: name of the environment, for messages.

    Raises:
      SpecMismatchError: If the reward is no number, or has a different number of elements.
    """
    array = np.asarray(reward)
    if array.dtype.kind not in "fiub" or [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        expected = describe(ArraySpec(shape, np.dtype(np.float32))) if shape else "a number"
        raise SpecMismatchError(f"the reward of {name} must be {expected}, got {reward!r}; fix the environment")
    return array.astype(np.float32).reshape(shape)[()]


def _raise_out_of_bounds(
    array: np.ndarray, spec: BoundedArraySpec, name: str, advice: str, leading: tuple[int, ...]
) -> None:
    wrong = ~((array >= spec.minimum) & (array <= spec.maximum))
    index = tuple(int(part) for part in np.argwhere(wrong)[0])
    inner = index[len(leading) :]
    place = f" (row {index[0]})" if leading else ""
    element = f"{name}{list(inner)}" if inner else name
    raise ValueError(
        f"{element} must be in [{spec.minimum[inner]:g}, {spec.maximum[inner]:g}], got {array[index]}{place}; {advice}"
    )


def make_zeros(spec: Nest, leading: tuple[int, ...] = ()) -> Nest:
    """Returns a nest of zeros, or of the values closest to zero within the bounds, with `leading` axes."""

    def make(leaf: Any) -> np.ndarray:
        zeros = np.zeros((*leading, *leaf.shape), leaf.dtype)
        is_bounded = isinstance(leaf, BoundedArraySpec)
        return np.clip(zeros, leaf.minimum, leaf.maximum).astype(leaf.dtype) if is_bounded else zeros

    return map_structure(make, spec)


def sample_action(spec: Nest, random: np.random.Generator) -> Nest:
    """Returns a random action within its bounds; unbounded floats are normally distributed."""
    return map_structure(lambda leaf: _sample_leaf(leaf, random), spec)


def _sample_leaf(spec: ArraySpec, random: np.random.Generator) -> Any:
    if not isinstance(spec, BoundedArraySpec):
        raise TypeError(f"actions must have bounds to be sampled, got {spec}")
    shape: Any = spec.shape
    if spec.dtype.kind in "iu":
        return random.integers(spec.minimum, spec.maximum, shape, spec.dtype, endpoint=True)
    is_bounded = np.isfinite(spec.minimum) & np.isfinite(spec.maximum)
    low, high = np.where(is_bounded, spec.minimum, 0), np.where(is_bounded, spec.maximum, 1)
    values = np.where(is_bounded, random.uniform(low, high, shape), random.normal(size=shape))
    return np.clip(values, spec.minimum, spec.maximum).astype(spec.dtype)


def require_equal_specs(got: Any, expected: Any, *, holders: tuple[str, str], advice: str) -> None:
    """Checks that the specs of two time steps are equal, bounds included.

    Args:
      got: time step of specs of the second holder.
      expected: time step of specs of the first holder.
      holders: names of the two holders, such as `('environment 0', 'environment 3')`.
      advice: suggestion for the user, which ends messages.

    Raises:
      SpecMismatchError: If they differ; the message names the first path that differs.
    """
    for field_name in ("observation", "prev_action", "reward", "env_info"):
        first, second = (dict(leaves(getattr(spec, field_name))) for spec in (expected, got))
        for path in [*first, *second]:
            one, other = first.get(path), second.get(path)
            if one != other:
                place = path_name(path, field_name.removeprefix("prev_"))
                descriptions = ["nothing" if spec is None else describe_bounded(spec) for spec in (one, other)]
                raise SpecMismatchError(
                    f"{place} is {descriptions[0]} in {holders[0]}, but {descriptions[1]} in {holders[1]}; {advice}"
                )


def describe_bounded(spec: ArraySpec) -> str:
    """Formats a spec as dtype, shape and bounds, such as `float32 [3] in [-1, 1]`."""
    if not isinstance(spec, BoundedArraySpec):
        return describe(spec)
    if spec._uniform is None:
        return f"{describe(spec)} in [{spec.minimum.tolist()}, {spec.maximum.tolist()}]"
    low, high = spec._uniform
    return f"{describe(spec)} in [{low:g}, {high:g}]"
