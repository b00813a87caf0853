"""Nests of a user's arrays, read as the batches that a policy receives, and policy states; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import ArgumentError, SpecMismatchError
from rlds2reverb.types.specs import Nest, cast_array, describe, leaves, numpy_dtype_of, path_name

#: Entry of the policy state of Decision Transformer.
_TARGET_RETURN = "target_return"


def read_batch(
    values: Nest, fields: Sequence[tuple[tuple[Any, ...], Any]], name: str
) -> tuple[list[np.ndarray], int | None]:
    """Returns the fields of a nest as arrays `[B, ...]` in the dtypes of their specs, and B.

    Args:
      values: nest of arrays or lists, each with or without a batch axis; other entries of dicts are ignored.
      fields: paths and specs of the fields, without the batch axis.
      name: name of the nest in messages, such as 'observation'.

    Returns:
      The arrays in the order of the fields, and B; None if the values have no batch axis, and the arrays one row.

    Raises:
      SpecMismatchError: If a field is missing, or has a different shape or kind, or if their batch axes differ.
      ValueError: If a value is not finite or not representable in the dtype.
    """
    arrays, sizes = [], {}
    for path, spec in fields:
        place = path_name(path, name)
        array = _get_array(values, path, place, spec)
        is_batch = array.ndim > len(spec.shape)
        sizes[place] = len(array) if is_batch else None
        arrays.append(_convert(array if is_batch else array[None], spec, place))
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{'none' if size is None else size} for {place}" for place, size in sizes.items())
        raise SpecMismatchError(f"all fields must have a batch axis of the same size, or none, got {counts}")
    return arrays, next(iter(sizes.values()), None)


def take_rows(rows: np.ndarray, size: int | None) -> Any:
    """Returns rows `[B, ...]`, or the only one if the size that `read_batch` returned is None."""
    return rows[0] if size is None else rows


def _get_array(values: Nest, path: Sequence[Any], place: str, spec: Any) -> np.ndarray:
    """Returns a leaf of the user's nest as an array, after checking its shape and its kind of numbers."""
    expected = f"{place} must be {describe(spec)}, or a batch of these"
    for key in path:
        try:
            values = getattr(values, key) if hasattr(values, "_fields") else values[key]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise SpecMismatchError(f"{expected}, but is missing in {_summarize(values)}") from None
    try:
        array = np.asarray(values)
    except ValueError:  # Lists of different lengths.
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise SpecMismatchError(f"{expected}, got {_summarize(values)}")
    is_rounded = array.dtype.kind == "f" and numpy_dtype_of(spec).kind in "biu"
    if is_rounded or array.shape not in (tuple(spec.shape), (len(array) if array.ndim else 0, *spec.shape)):
        raise SpecMismatchError(f"{expected}, got {describe(array)}")
    return array


def _convert(array: np.ndarray, spec: Any, place: str) -> np.ndarray:
    """Returns a batch in the dtype of a spec, after checking that its values are representable there."""
    cast, changed = cast_array(array, numpy_dtype_of(spec))
    low, high = (getattr(spec, name, None) for name in ("minimum", "maximum"))
    if low is not None and cast.dtype.kind in "iu":
        wrong, expected = (cast < low) | (cast > high), f"from {low} to {high}"
    else:
        wrong, expected = ~np.isfinite(cast), f"finite and representable as {spec.dtype.name}"
    indices = np.argwhere(wrong if changed is None else wrong | changed)
    if len(indices):
        row, *inner = map(int, indices[0])
        raise ValueError(f"{path_name(inner, place)} must be {expected}, got {array[(row, *inner)]} (row {row})")
    return cast


def require_stateless(state_spec: Nest) -> None:
    """Raises `ValueError` if a policy has a state."""
    if leaves(state_spec):
        raise ValueError(
            "predict requires a policy without a state; call action(time_step, state) in a loop, beginning with "
            "get_initial_state, or pass the policy to evaluate or record_episodes"
        )


def replace_target_return(state: Nest, target_return: float | None) -> Nest:
    """Returns an initial policy state with a different 'target_return'; unchanged if that is None.

    Raises:
      ArgumentError: If the state has no target return.
    """
    if target_return is None:
        return state
    if not isinstance(state, Mapping) or _TARGET_RETURN not in state:
        raise ArgumentError(
            "requires a policy whose state contains it, such as that of decision_transformer", about=_TARGET_RETURN
        )
    return {**state, _TARGET_RETURN: state[_TARGET_RETURN] * 0 + float(target_return)}


def list_fields(observation: Nest) -> str:
    """Describes the arrays of an observation, or their specs, with their paths."""
    return ", ".join(f"{path_name(path, '')} {describe(leaf)}".strip() for path, leaf in leaves(observation))


def _summarize(value: Any) -> str:
    """Describes a user's value in a few words."""
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value)) or 'no entries'}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return describe(value)
    return f"a {type(value).__name__}"
