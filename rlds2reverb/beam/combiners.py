"""Beam combiners of statistics that are exact: they do not depend on how a dataset is divided into parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from rlds2reverb.datasets.moments import ObservationMoments
from rlds2reverb.datasets.summary import SummaryParts
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import Nest


class MergeFn(beam.CombineFn):
    """Combines episodes into an object with `add` and `merge`, such as the `Clipping` of actions."""

    def __init__(self, create: Callable[[], Any]):
        """
        Args:
          create: function that returns an object without episodes.
        """
        super().__init__()
        self._create = create

    def create_accumulator(self, *args: Any, **kwargs: Any) -> Any:
        """Implements `CombineFn.create_accumulator`."""
        return self._create()

    def add_input(self, mutable_accumulator: Any, element: Episode, *args: Any, **kwargs: Any) -> Any:
        """Implements `CombineFn.add_input`."""
        mutable_accumulator.add(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Implements `CombineFn.merge_accumulators`."""
        total = self.create_accumulator()
        for accumulator in accumulators:
            total.merge(accumulator)
        return total

    def extract_output(self, accumulator: Any, *args: Any, **kwargs: Any) -> Any:
        """Implements `CombineFn.extract_output`."""
        return accumulator


class MomentsFn(MergeFn):
    """Combines episodes into `ObservationMoments`, whose mean and standard deviation are exact."""

    def __init__(self, spec: Nest):
        """
        Args:
          spec: nest of specs of one observation.
        """
        super().__init__(functools.partial(ObservationMoments, spec))


class SummaryFn(MergeFn):
    """Combines episodes into `SummaryParts`, whose `finish` returns the `Summary` of the dataset."""

    def __init__(self) -> None:
        super().__init__(SummaryParts)


@dataclass
class ReturnRange:
    """The lowest and the highest undiscounted return of some episodes."""

    lowest: float = float("inf")
    highest: float = float("-inf")

    def add(self, episode: Episode) -> None:
        """Adds an episode."""
        if episode.num_steps:
            self.merge(ReturnRange(episode.total_reward, episode.total_reward))

    def merge(self, other: ReturnRange) -> None:
        """Adds the episodes of a second range."""
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)


class ReturnRangeFn(MergeFn):
    """Combines episodes into the pair of their lowest and highest undiscounted return; `(inf, -inf)` without steps."""

    def __init__(self) -> None:
        super().__init__(ReturnRange)

    def extract_output(self, accumulator: ReturnRange, *args: Any, **kwargs: Any) -> tuple[float, float]:
        """Implements `CombineFn.extract_output`."""
        return accumulator.lowest, accumulator.highest
