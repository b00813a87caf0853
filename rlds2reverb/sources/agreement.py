"""Comparison of facts that a dataset states twice, such as the length of an episode in the metadata and in the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.episodes import Contradiction, Episode
from rlds2reverb.errors import SourceError

#: The field, the name of one statement and its value, and the name of another one and its value: two numbers, or two
#: arrays with a row per step. A value of None is not stated.
Fact = tuple[str, str, Any, str, Any]


def find_contradictions(facts: Iterable[Fact]) -> Iterator[Contradiction]:
    """Yields a contradiction for each fact whose values differ, with the first step in which they do."""
    for field, name, value, other_name, other in facts:
        if value is None or other is None:
            continue
        values, others = np.broadcast_arrays(np.atleast_1d(value), np.atleast_1d(other))
        steps = np.flatnonzero(values != others)
        if len(steps):
            message = f"{name} is {values[steps[0]]}, but {other_name} {others[steps[0]]}"
            yield Contradiction(int(steps[0]) if np.ndim(value) else None, field, message)


def add_contradictions(episode: Episode, *facts: Fact) -> Episode:
    """Returns an episode with the contradictions among some facts about it."""
    return replace(episode, contradictions=tuple(find_contradictions(facts)))


def require_agreement(where: str, *facts: Fact) -> None:
    """Raises `SourceError` for the first fact whose values differ."""
    for found in find_contradictions(facts):
        place = where if found.step is None else f"{where}, row {found.step:,}"
        raise SourceError(f"{place}: {found.message}; copy or download the dataset again")
