"""How a buffer says no: to a sample, with a reason; to a push and to bad numbers, with an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.errors import RateLimitedError
from rlds2reverb.priorities import require_priorities
from rlds2reverb.tables import MAX_PRIORITY

from .batches import BatchInfo
from .configs import BufferConfig
from .element_table import ElementTable
from .item_spec import COLLECT_ITER, PRIORITY, UNIQUE_ID, fields_of
from .staleness import UNKNOWN_ITER

#: Elements that a rate or a ratio gives too early: rounding (49 * (1 / 49) < 1) refuses none that is due.
_ROUNDING = 1e-6
#: Digits of a number that fits into 63 bits for sure.
_MOST_DIGITS = 18


class SampleCheck(NamedTuple):
    """Whether a sample would be given now, and why not; true where it would.

    Attributes:
      allowed: whether it would.
      reason: a sentence; empty where it is allowed.
    """

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


# --- samples and pushes


def require_possible(holder: str, config: BufferConfig, size: int) -> None:
    """Raises `ValueError` if a sample of this size is none, or would be refused for ever."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
        raise ValueError(f"size is {size}, expected an integer of at least 0")
    needed = max(size, _needed(config, size))
    if needed > config.max_size:
        raise ValueError(
            f"a sample of {size} needs {needed} elements and {holder} holds {config.max_size} at most; give a smaller "
            "size or a larger max_size"
        )


def _needed(config: BufferConfig, size: int) -> int:
    """Elements that have to be there for a sample."""
    return max(1 if config.replace else size, math.ceil(config.sample_min_limit_ratio * size - _ROUNDING))


def refusal(holder: str, config: BufferConfig, ledger: ElementTable, size: int, num_sampled: int) -> str:
    """Why a sample of at least one element is refused, in a sentence; empty if it is not."""
    if ledger.count < (needed := _needed(config, size)):
        return f"{holder} has {ledger.count} elements, a sample of {size} needs {needed}: push more"
    if ledger.num_drawable < (1 if config.replace else size):
        return (
            f"{holder} has {ledger.num_drawable} elements of a priority above 0, too few for a sample of {size}: "
            "update or push"
        )
    if config.max_use is not None and ledger.uses_left < size:
        return f"{holder} has {ledger.uses_left} uses of its elements left, too few for a sample of {size}: push more"
    least = config.push_sample_rate_limit[0]
    return f"of {holder} {reason}" if (reason := rate_refusal(ledger.next_number, num_sampled, size, least)) else ""


def rate_refusal(num_pushed: int, num_sampled: int, size: int, least: float) -> str:
    """Why elements may not be sampled, or nothing: `pushed / (sampled + size)` has to be at least `least`."""
    if not least or num_sampled + size <= num_pushed / least + _ROUNDING:
        return ""
    return (
        f"{num_pushed} were pushed and {num_sampled} sampled; sampling {size} more would leave less than {least:g} "
        "pushed for each one sampled: push more"
    )


def require_rate(holder: str, num_pushed: int, num_sampled: int, size: int, most: float) -> None:
    """Raises `RateLimitedError` where `(pushed + size) / sampled` would be above `most`; never before the first sample."""
    if num_sampled and num_pushed + size > most * num_sampled:
        raise RateLimitedError(
            f"{holder} had {num_pushed} pushed and {num_sampled} sampled; pushing {size} more would be more than "
            f"{most:g} for each one sampled: sample first"
        )


# --- what is given


def known_of_items(items: Sequence[Any]) -> tuple[np.ndarray | None, np.ndarray]:
    """What items that are pushed say beside their fields.

    Returns:
      Priorities, float64 `[N]`, NaN for items that give none, or None if none does; and the learner's iterations in
      which they were collected, int64 `[N]`, -1 for those that do not say.

    Raises:
      TypeError: if one is not a mapping.
      ValueError: if a priority is not a finite number from 0 to 1e12, or an iteration is not an integer from -1, naming
        the item.
    """
    if set(map(type, items)) != {dict}:
        for item in items:
            fields_of(item)  # which complains where one is not a mapping
    given, iters = [item.get(PRIORITY) for item in items], [item.get(COLLECT_ITER) for item in items]
    priorities = None
    if set(map(type, given)) != {type(None)}:  # `count` would compare arrays with None
        priorities = np.array([np.nan if value is None else _priority(value, i) for i, value in enumerate(given)])
    if set(map(type, iters)) == {type(None)}:
        return priorities, np.full(len(iters), UNKNOWN_ITER)
    known = [learner_iter(value, f"collect_iter of item {i}") for i, value in enumerate(iters)]
    return priorities, np.array(known, np.int64)


def known_of_columns(priorities: Any, iters: Any, count: int) -> tuple[np.ndarray | None, np.ndarray]:
    """As `known_of_items`, for `count` items of which both are given as a number for all, or one for each."""
    if priorities is not None:
        try:
            priorities = np.broadcast_to(np.asarray(priorities, np.float64), (count,))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the priorities do not fit {count} items ({error}); give one, or one an item") from error
        require_priorities(priorities, lambda place: f"item {place}")
    known = np.asarray(UNKNOWN_ITER if iters is None else iters)
    if known.dtype.kind not in "iu" or known.shape not in ((), (count,)) or (known < UNKNOWN_ITER).any():
        raise ValueError(
            f"collect_iters are {iters}, expected an integer from -1 for all, or one for each of {count} items"
        )
    return priorities, np.broadcast_to(known.astype(np.int64), (count,))


def _priority(given: Any, number: int) -> float:
    try:
        priority = float(given)
    except (TypeError, ValueError):
        priority = math.nan
    if not 0 <= priority <= MAX_PRIORITY:  # rejects NaN
        raise ValueError(f"the priority of item {number} is {given}, expected a finite number in [0, {MAX_PRIORITY:g}]")
    return priority


def filled_priorities(given: np.ndarray | None, count: int, highest: float) -> np.ndarray:
    """Priorities in which a missing one is the highest before it: after 2, the four ?, 1, 5, ? are 2, 1, 5, 5.

    Args:
      given: float64 `[N]`, NaN where missing; None if all are.
      count: N.
      highest: priority before them.
    """
    if given is None:
        return np.full(count, highest)
    missing = np.isnan(given)
    known = np.maximum.accumulate(np.where(missing, highest, np.maximum(given, highest)))
    return np.where(missing, known, given)


def require_drawable(priorities: np.ndarray, lowest: float, whose: Callable[[int], str]) -> None:
    """Raises `ValueError` if a priority is above 0 and below the lowest that can be drawn.

    Args:
      priorities: float64 `[N]`.
      lowest: see `BufferConfig.lowest_priority`.
      whose: says for the place of one whose priority it is.
    """
    if not len(priorities) or priorities.min() >= lowest:
        return
    low = np.flatnonzero((priorities > 0) & (priorities < lowest))
    if len(low):
        raise ValueError(
            f"the priority of {whose(int(low[0]))} is {priorities[low[0]]}, so low that its power is 0 and it cannot "
            f"be drawn; give at least {lowest:.3g}, or 0 for an element that is never drawn"
        )


def learner_iter(given: Any, what: str) -> int:
    """An iteration of the learner, -1 for None; raises `ValueError` for anything but an integer from -1."""
    if given is None:
        return UNKNOWN_ITER
    value = given if isinstance(given, (int, float)) else np.asarray(given).reshape(-1)
    try:
        number = int(value) if isinstance(value, (int, float)) else int(value.item())
        if number == given and UNKNOWN_ITER <= number < 2**62:
            return number
    except (ValueError, OverflowError, TypeError):
        pass
    raise ValueError(f"{what} is {given}, expected an integer, or -1 where it is not known")


def update_given(what: str, info: Mapping[str, Any] | BatchInfo, priority: Any) -> tuple[Any, Any, np.ndarray | None]:
    """What an update, named in words, says: ids, priorities, and whose the ids are; None for what it does not say.

    Raises:
      ValueError: if there are priorities without ids.
    """
    known = info._asdict() if isinstance(info, BatchInfo) else info
    given = known.get(PRIORITY) if priority is None else priority
    if given is not None and UNIQUE_ID not in known:
        raise ValueError(f"{what} lacks {UNIQUE_ID!r}; give the ids that sample gave")
    ids, owners = known.get(UNIQUE_ID, ()), known.get("buffer")
    ids = np.asarray(ids) if hasattr(ids, "__array__") else list(ids)
    return ids, given, None if owners is None else np.asarray(owners)


def numbers_given(name: str, ids: Any) -> np.ndarray:
    """The numbers of elements by their ids, int64 `[M]`: texts `NAME_NUMBER`, or integers as `sample_batch` gives them.

    Raises:
      ValueError: if one is not an id of that buffer.
    """
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return ids.reshape(-1).astype(np.int64)
    numbers = []
    for unique_id in ids:
        is_number = isinstance(unique_id, (int, np.integer)) and not isinstance(unique_id, bool)
        prefix, _, digits = ("", "", str(unique_id)) if is_number else str(unique_id).rpartition("_")
        if (
            (not is_number and prefix != name)
            or not (digits.isascii() and digits.isdigit())
            or len(digits) > _MOST_DIGITS
        ):
            raise ValueError(f"{str(unique_id)!r} is not an id of buffer {name!r}, expected one such as '{name}_12'")
        numbers.append(int(digits))
    return np.array(numbers, np.int64)


def priorities_updated(holder: str, given: Any, ids: Sequence[Any] | np.ndarray, config: BufferConfig) -> np.ndarray:
    """The priorities of an update, float64 `[M]`, to which `eps` is still to be added.

    Raises:
      ValueError: if there are not as many as ids, or one is, with `eps` or without, not a finite number from 0 to 1e12,
        or above 0 and too low to be drawn.
    """
    try:
        priorities = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the priorities of an update are not numbers ({error}); give one for each id") from error
    if priorities.shape != (len(ids),):
        raise ValueError(
            f"an update of {holder} has {len(ids)} ids and priorities of shape {list(priorities.shape)}; give one "
            "priority for each id"
        )
    if not len(priorities) or (
        priorities.min() >= config.lowest_priority and priorities.max() + config.eps <= MAX_PRIORITY
    ):
        return priorities  # which is most often so; NaN is not
    require_priorities(priorities, lambda place: f"{ids[place]}")
    require_priorities(priorities + config.eps, lambda place: f"{ids[place]} with eps")
    require_drawable(priorities + config.eps, config.lowest_priority, lambda place: f"{ids[place]} with eps")
    return priorities
