"""Validation of pushed items and updates, before they change a buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.types.arguments import require_keys
from rlds2reverb.types.priorities import require_priorities as require_valid, to_float64
from rlds2reverb.types.sample_info import DATASET_INDEX, PRIORITY, UNIQUE_ID, UPDATE_KEYS, SampleInfo, make_update
from rlds2reverb.types.tables import MAX_PRIORITY

from .configs import UNKNOWN_ITER, BufferConfig
from .item_spec import COLLECT_ITER, get_fields
from .sampled_batches import Batch

#: Any number of this many digits fits in 63 bits.
_MAX_DIGITS = 18

# --- pushes


def read_item_options(items: Sequence[Any]) -> tuple[np.ndarray | None, np.ndarray]:
    """Returns the priorities and collection iterations of items.

    Returns:
      Priorities, float64 `[N]`, NaN for items without one, or None if no item has one; and the learner iterations in
      which they were collected, int64 `[N]`, -1 if unknown.

    Raises:
      TypeError: If an item is not a mapping.
      ValueError: If a priority is not a finite number from 0 to 1e12, or an iteration is not an integer >= -1.
    """
    if set(map(type, items)) != {dict}:
        for item in items:
            get_fields(item)  # Raises TypeError if it is not a mapping.
    values, iters = [item.get(PRIORITY) for item in items], [item.get(COLLECT_ITER) for item in items]
    priorities = None
    if set(map(type, values)) != {type(None)}:  # `values.count(None)` would compare arrays with None.
        priorities = np.array([np.nan if value is None else _read_priority(value, i) for i, value in enumerate(values)])
    if set(map(type, iters)) == {type(None)}:
        return priorities, np.full(len(iters), UNKNOWN_ITER)
    numbers = [read_learner_iter(value, f"collect_iter of item {i}") for i, value in enumerate(iters)]
    return priorities, np.array(numbers, np.int64)


def read_column_options(priorities: Any, iters: Any, count: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Does the same as `read_item_options` for values that are given once for all `count` items, or one per item."""
    if priorities is not None:
        try:
            priorities = np.broadcast_to(to_float64(priorities), (count,))
        except (TypeError, ValueError) as error:
            raise ValueError(f"priorities must be one number, or one per item for {count} items: {error}") from error
        require_valid(priorities, lambda index: f"item {index}")
    numbers = np.asarray(UNKNOWN_ITER if iters is None else iters)
    if numbers.dtype.kind not in "iu" or numbers.shape not in ((), (count,)) or (numbers < UNKNOWN_ITER).any():
        raise ValueError(f"collect_iters must be one integer >= -1, or one per item for {count} items, got {iters}")
    return priorities, np.broadcast_to(numbers.astype(np.int64), (count,))


def _read_priority(value: Any, item_number: int) -> float:
    try:
        priority = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        priority = math.nan
    if not 0 <= priority <= MAX_PRIORITY:  # NaN fails as well.
        raise ValueError(
            f"the priority of item {item_number} must be a finite number in [0, {MAX_PRIORITY:g}], got {value!r}"
        )
    return priority


def fill_missing_priorities(priorities: np.ndarray | None, count: int, highest: float) -> np.ndarray:
    """Replaces missing priorities by the highest one before them: with 2 before, ?, 1, 5, ? become 2, 1, 5, 5.

    Args:
      priorities: float64 `[count]`, NaN if missing; None if all are.
      count: number of items.
      highest: highest priority before these.
    """
    if priorities is None:
        return np.full(count, highest)
    missing = np.isnan(priorities)
    maxima = np.maximum.accumulate(np.where(missing, highest, np.maximum(priorities, highest)))
    return np.where(missing, maxima, priorities)


def require_priorities(priorities: np.ndarray, config: BufferConfig, describe: Callable[[int], str]) -> None:
    """Raises `ValueError` for priorities outside [0, 1e12], or so low that their elements would never be sampled.

    Args:
      priorities: float64 `[M]`.
      config: configuration of the buffer.
      describe: function that names the owner of the priority at an index.
    """
    min_positive = config.min_positive_priority
    if not len(priorities) or (priorities.min() >= min_positive and priorities.max() <= MAX_PRIORITY):
        return  # Fast path for the common case; NaN does not take it.
    require_valid(priorities, describe)
    low = np.flatnonzero((priorities > 0) & (priorities < min_positive))
    if len(low):
        raise ValueError(
            f"the priority of {describe(int(low[0]))} must be at least {min_positive:.3g}, or 0 for an element that is "
            f"never sampled, got {priorities[low[0]]}; its power would be rounded to 0"
        )


def read_learner_iter(value: Any, name: str) -> int:
    """Returns a learner iteration, -1 for None; raises `ValueError` unless it is an integer >= -1."""
    try:
        number = UNKNOWN_ITER if value is None else int(value)
        if value is None or (number == value and UNKNOWN_ITER <= number < 2**62):
            return number
    except (ValueError, OverflowError, TypeError):
        pass
    raise ValueError(f"{name} must be an integer >= 0, or -1 if unknown, got {value}")


# --- updates


def read_update(
    holder: str, info: Any, td_errors: Any, priority: Any
) -> tuple[Any, np.ndarray, np.ndarray | None] | None:
    """Returns the arguments of an update in uniform types.

    Returns:
      An array or a list of `replay_unique_id`s; priorities, float64 `[M]`, one per id; and int `[M]`, the
      `SampleInfo.dataset_index` of a manager's batch, or None if a manager did not sample it. None in place of these
      if there are no priorities.

    Raises:
      TypeError: If the info is neither a mapping nor the info of a batch.
      ValueError: If a key is unknown, there are no ids, not one number as the priority of each id, or two kinds of
        priorities.
    """
    if isinstance(info, SampleInfo):
        info = make_update(info, info.priority)
    if not isinstance(info, Mapping):
        got = "a Batch; pass its info" if isinstance(info, Batch) else f"{type(info).__name__}"
        raise TypeError(f"info must be the info of a batch, or a dict with {UNIQUE_ID!r} and {PRIORITY!r}, got {got}")
    require_keys("info", info, UPDATE_KEYS)
    if td_errors is not None and priority is not None:
        raise ValueError("td_errors and priority cannot both be set; pass one of them")
    values = next((given for given in (td_errors, priority) if given is not None), info.get(PRIORITY))
    if values is None:
        return None
    if UNIQUE_ID not in info:
        raise ValueError(f"an update of {holder} requires {UNIQUE_ID!r}; pass the ids that sampling returned")
    ids = info[UNIQUE_ID]
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise ValueError(f"{UNIQUE_ID!r} must be a list of ids, got {ids!r}")
    ids = np.asarray(ids) if hasattr(ids, "__array__") else list(ids)
    try:
        priorities = to_float64(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the priorities of an update must be one number per id: {error}") from error
    if priorities.shape != (len(ids),):
        raise ValueError(
            f"an update of {holder} must have one priority per id, got {len(ids)} ids and priorities of shape "
            f"{list(priorities.shape)}"
        )
    owners = None if DATASET_INDEX not in info else np.asarray(info[DATASET_INDEX])
    return ids, priorities if td_errors is None else np.abs(priorities), owners


def read_ids(name: str, ids: Any) -> np.ndarray:
    """Returns element numbers, int64 `[M]`, for ids of a buffer: strings `NAME_NUMBER`, or integers.

    Raises:
      ValueError: If one is not an id of the buffer.
    """
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return ids.reshape(-1).astype(np.int64)
    numbers = []
    for unique_id in ids:
        is_number = isinstance(unique_id, (int, np.integer)) and not isinstance(unique_id, bool)
        prefix, _, digits = (name, "", str(unique_id)) if is_number else str(unique_id).rpartition("_")
        if prefix != name or not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
            raise ValueError(f"{str(unique_id)!r} is not an id of buffer {name!r}; its ids look like '{name}_12'")
        numbers.append(int(digits))
    return np.array(numbers, np.int64)
