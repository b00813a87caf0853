"""Beam combiners of statistics that are exact: they do not depend on how a dataset is divided into parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam

from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.sources.moments import ObservationMoments
from rlds2reverb.sources.summary import SummaryParts
from rlds2reverb.specs import Nest


class MomentsFn(beam.CombineFn):
    """Combines episodes into `ObservationMoments`, whose mean and standard deviation are exact."""

    def __init__(self, spec: Nest):
        """
        Args:
          spec: nest of specs of one observation.
        """
        self._spec = spec

    def create_accumulator(self, *args: Any, **kwargs: Any) -> ObservationMoments:
        """Implements `CombineFn.create_accumulator`."""
        return ObservationMoments(self._spec)

    def add_input(
        self, mutable_accumulator: ObservationMoments, element: Episode, *args: Any, **kwargs: Any
    ) -> ObservationMoments:
        """Implements `CombineFn.add_input`."""
        mutable_accumulator.add_batch(EpisodeBatch([element]))
        return mutable_accumulator

    def merge_accumulators(
        self, accumulators: Iterable[ObservationMoments], *args: Any, **kwargs: Any
    ) -> ObservationMoments:
        """Implements `CombineFn.merge_accumulators`."""
        return _merge(self.create_accumulator(), accumulators)

    def extract_output(self, accumulator: ObservationMoments, *args: Any, **kwargs: Any) -> ObservationMoments:
        """Implements `CombineFn.extract_output`."""
        return accumulator


class ReturnRangeFn(beam.CombineFn):
    """Combines episodes into the pair of their lowest and highest undiscounted return; `(inf, -inf)` without steps."""

    def create_accumulator(self, *args: Any, **kwargs: Any) -> tuple[float, float]:
        """Implements `CombineFn.create_accumulator`."""
        return float("inf"), float("-inf")

    def add_input(
        self, mutable_accumulator: tuple[float, float], element: Episode, *args: Any, **kwargs: Any
    ) -> tuple[float, float]:
        """Implements `CombineFn.add_input`."""
        if not element.num_steps:
            return mutable_accumulator
        total = element.total_reward
        return min(mutable_accumulator[0], total), max(mutable_accumulator[1], total)

    def merge_accumulators(
        self, accumulators: Iterable[tuple[float, float]], *args: Any, **kwargs: Any
    ) -> tuple[float, float]:
        """Implements `CombineFn.merge_accumulators`."""
        lowest, highest = zip(self.create_accumulator(), *accumulators, strict=True)
        return min(lowest), max(highest)

    def extract_output(self, accumulator: tuple[float, float], *args: Any, **kwargs: Any) -> tuple[float, float]:
        """Implements `CombineFn.extract_output`."""
        return accumulator


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
        return _merge(self.create_accumulator(), accumulators)

    def extract_output(self, accumulator: Any, *args: Any, **kwargs: Any) -> Any:
        """Implements `CombineFn.extract_output`."""
        return accumulator


class SummaryFn(MergeFn):
    """Combines episodes into `SummaryParts`, whose `finish` returns the `Summary` of the dataset."""

    def __init__(self) -> None:
        super().__init__(SummaryParts)


def _merge(total: Any, accumulators: Iterable[Any]) -> Any:
    for accumulator in accumulators:
        total.merge(accumulator)
    return total
