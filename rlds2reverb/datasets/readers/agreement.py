"""Comparison of facts that a dataset states twice, such as the length of an episode in the metadata and in the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import Contradiction, Episode

#: By field, the names of two statements about it with their values: numbers, or arrays with a row per step. A value of
#: None is not stated.
Facts = Mapping[str, Mapping[str, Any]]


def find_contradictions(facts: Facts) -> Iterator[Contradiction]:
    """Yields a contradiction for each field whose values differ, with the first step in which they do."""
    for field, ((name, value), (other_name, other)) in ((field, stated.items()) for field, stated in facts.items()):
        if value is None or other is None:
            continue
        values, others = np.broadcast_arrays(np.atleast_1d(value), np.atleast_1d(other))
        steps = np.flatnonzero(values != others)
        if len(steps):
            message = f"{name} is {values[steps[0]]}, but {other_name} {others[steps[0]]}"
            is_shuffled = len(steps) > 1 and values.dtype.kind in "iuf" and np.array_equal(np.sort(values), others)
            check = "shuffled-rows" if is_shuffled else "contradiction"
            yield Contradiction(int(steps[0]) if np.ndim(value) else None, field, message, check)


def add_contradictions(episode: Episode, facts: Facts) -> Episode:
    """Returns an episode with the contradictions among some facts about it."""
    return replace(episode, contradictions=tuple(find_contradictions(facts)))


def require_agreement(where: str, facts: Facts, advice: str = "copy or download the dataset again") -> None:
    """Raises `SourceError` for the first field whose values differ."""
    for found in find_contradictions(facts):
        place = where if found.step is None else f"{where}, row {found.step:,}"
        raise SourceError(f"{place}: {found.message}; {advice}")
