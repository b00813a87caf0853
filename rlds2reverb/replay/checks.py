"""What is given to a buffer, checked before anything of it reaches the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.priorities import require_priorities
from rlds2reverb.tables import MAX_PRIORITY

from .elements import COLLECT_ITER, PRIORITY, UNIQUE_ID
from .ledger import UNKNOWN_ITER

#: Digits of a number that fits into 63 bits for sure.
_MOST_DIGITS = 18


def priorities_given(items: Sequence[Mapping[str, Any]], highest: float) -> np.ndarray:
    """Priorities of items that are pushed; who gives none gets the highest that there was before it.

    Args:
      items: each with or without `priority`.
      highest: priority so far.

    Returns:
      float64 `[N]`.

    Raises:
      ValueError: if one is no finite number from 0 to 1e12, naming the item.
    """
    priorities = np.empty(len(items), np.float64)
    for number, item in enumerate(items):
        given = item.get(PRIORITY)
        if given is not None:
            highest = max(highest, _priority(given, f"the priority of item {number}"))
        priorities[number] = highest if given is None else float(given)
    return priorities


def _priority(given: Any, what: str) -> float:
    try:
        priority = float(given)
    except (TypeError, ValueError):
        priority = math.nan
    if not 0 <= priority <= MAX_PRIORITY:  # nor is nan
        raise ValueError(f"{what} is {given}, expected a finite number in [0, {MAX_PRIORITY:g}]")
    return priority


def collect_iters_given(items: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The learner's iterations in which items were collected, int64 `[N]`; -1 for those that do not say.

    Raises:
      ValueError: if one is not an integer from -1, naming the item.
    """
    iters = np.full(len(items), UNKNOWN_ITER, np.int64)
    for number, item in enumerate(items):
        given = item.get(COLLECT_ITER)
        if given is not None:
            iters[number] = learner_iter(given, f"collect_iter of item {number}")
    return iters


def learner_iter(given: Any, what: str) -> int:
    """An iteration of the learner, or -1; raises `ValueError` for anything else."""
    value = given if isinstance(given, (int, float)) else np.asarray(given).reshape(-1)
    try:
        number = int(value) if isinstance(value, (int, float)) else int(value.item())
        if number == given and -1 <= number < 2**62:
            return number
    except (ValueError, OverflowError, TypeError):
        pass
    raise ValueError(f"{what} is {given}, expected an integer, or -1 where it is not known")


def updates_given(
    name: str, info: Mapping[str, Any], eps: float, *, lowest: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers and the priorities of an update.

    Args:
      name: of the buffer.
      info: `replay_unique_id` and `priority`, one of each an element.
      eps: which is added to the priorities afterwards.
      lowest: the lowest priority above 0 that the buffer takes, see `rules.lowest_priority`.

    Returns:
      int64 `[M]` and float64 `[M]`.

    Raises:
      ValueError: if there are not as many of both, an id is of another buffer or none, or a priority is no finite
        number from 0 to 1e12 with eps, or then above 0 and below the lowest.
    """
    if UNIQUE_ID not in info:
        raise ValueError(f"an update of buffer {name!r} lacks {UNIQUE_ID!r}; give the ids that sample gave")
    ids, given = list(info[UNIQUE_ID]), info[PRIORITY]
    try:
        priorities = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the priorities of an update are no numbers ({error}); give one for each id") from error
    if priorities.shape != (len(ids),):
        raise ValueError(
            f"an update of buffer {name!r} has {len(ids)} ids and priorities of shape {list(priorities.shape)}; give "
            "one priority for each id"
        )
    require_priorities(priorities, lambda place: str(ids[place]))
    require_priorities(priorities + eps, lambda place: f"{ids[place]} with eps")
    require_drawable(priorities + eps, lowest, lambda place: f"{ids[place]} with eps")
    return np.array([number_of(name, unique_id) for unique_id in ids], np.int64), priorities


def require_drawable(priorities: np.ndarray, lowest: float, whose: Callable[[int], str]) -> None:
    """Checks that priorities above 0 can be drawn, so that who counts them counts what a prioritized table draws from.

    Args:
      priorities: float64 `[N]`.
      lowest: see `rules.lowest_priority`.
      whose: says for the place of one whose priority it is.

    Raises:
      ValueError: if one is above 0 and below the lowest.
    """
    low = np.flatnonzero((priorities > 0) & (priorities < lowest))
    if len(low):
        raise ValueError(
            f"the priority of {whose(int(low[0]))} is {priorities[low[0]]}, so low that its power is 0 and it cannot "
            f"be drawn; give at least {lowest:.3g}, or 0 for an element that is never drawn"
        )


def number_of(name: str, unique_id: Any) -> int:
    """The number of an element of a buffer.

    Raises:
      ValueError: if the id is not of that buffer.
    """
    prefix, _, digits = str(unique_id).rpartition("_")
    if prefix != name or not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
        raise ValueError(f"{str(unique_id)!r} is no id of buffer {name!r}, expected one such as '{name}_12'")
    return int(digits)


def unique_id_of(name: str, number: int) -> str:
    """The id of an element: `NAME_NUMBER`."""
    return f"{name}_{number}"
