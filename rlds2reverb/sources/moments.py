"""Mean and standard deviation of the observations of a dataset, for transforms and agents."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.episodes import Episode
from rlds2reverb.specs import Nest, leaves, path_name

#: Added to standard deviations (Fujimoto & Gu 2021, section 5: "a small normalization constant" of 1e-3).
STD_EPS = 1e-3
_MAX_LISTED_PLACES = 8


class LeafMoments:
    """Running mean and standard deviation of one float array, element by element.

    Batches of rows are combined as by Chan, Golub & LeVeque (1979), eq. 2.1, in float64, which does not cancel if the
    mean is much larger than the standard deviation. The standard deviation of a constant element is exactly 0, and its
    mean exactly that constant.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = np.float64(0)
        self._lowest, self._highest = np.float64(np.inf), np.float64(-np.inf)

    def add(self, rows: np.ndarray) -> None:
        """Adds rows `[T, ...]`."""
        if not len(rows):
            return
        rows = rows.astype(np.float64)
        count = self._count + len(rows)
        share = len(rows) / count
        delta = rows.mean(axis=0) - self._mean
        self._squares = self._squares + rows.var(axis=0) * len(rows) + delta**2 * self._count * share
        self._mean = self._mean + delta * share
        self._lowest = np.minimum(self._lowest, rows.min(axis=0))
        self._highest = np.maximum(self._highest, rows.max(axis=0))
        self._count = count

    @property
    def is_finite(self) -> bool:
        """Whether all rows are free of NaN and Inf."""
        return bool(np.isfinite(self._squares).all())

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean of each element, float64."""
        return np.where(self._lowest == self._highest, self._lowest, self._mean)

    @cached_property
    def std(self) -> np.ndarray:
        """The standard deviation of each element, float64."""
        return np.where(self._lowest == self._highest, 0, np.sqrt(self._squares / self._count))

    def divisor(self, eps: float = STD_EPS) -> np.ndarray:
        """Returns `std + eps`, or infinity for constant elements, so that a division makes them 0 for any eps."""
        return np.where(self.std > 0, self.std + eps, np.inf)


class ObservationMoments:
    """Running moments of each float leaf of the observations, without the final observation of each episode.

    Other leaves, such as images of integers, have no moments, because they are never normalised.
    """

    def __init__(self, spec: Nest):
        """Starts without observations.

        Args:
          spec: nest of specs of one observation.
        """
        self._spec = spec
        self.leaves = [LeafMoments() if leaf.dtype.kind == "f" else None for leaf in tree.flatten(spec)]
        self.num_transitions = 0

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode], spec: Nest, name: str) -> ObservationMoments:
        """Reads all episodes.

        Args:
          episodes: the episodes, valid or not.
          spec: nest of specs of one observation.
          name: name of the dataset, for messages.

        Raises:
          ValueError: If there are no transitions, or an observation contains NaN or Inf.
        """
        moments = cls(spec)
        for batch in batch_episodes(episodes):
            moments.add_batch(batch)
        if not moments.num_transitions:
            raise ValueError(f"{name} has no transitions, so that the mean of its observations is undefined")
        if not all(leaf.is_finite for leaf in moments.leaves if leaf is not None):
            raise ValueError(f"{name} has NaN or Inf in its observations; validate the data first")
        return moments

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds the observations of some episodes."""
        has_action = mark_transitions(batch.num_steps)
        self.num_transitions += int(has_action.sum())
        for column, leaf in zip(tree.flatten(batch.steps[fields.OBSERVATION]), self.leaves, strict=True):
            if leaf is not None:
                leaf.add(column[has_action])

    def agent_statistics(self, eps: float = STD_EPS) -> tuple[Nest, Nest]:
        """Returns what agents subtract and divide by: two nests of float32, 0 and 1 for leaves without moments."""
        specs = tree.flatten(self._spec)
        means = [
            np.zeros(spec.shape, np.float32) if leaf is None else leaf.mean.astype(np.float32)
            for leaf, spec in zip(self.leaves, specs, strict=True)
        ]
        divisors = [
            np.ones(spec.shape, np.float32) if leaf is None else leaf.divisor(eps).astype(np.float32)
            for leaf, spec in zip(self.leaves, specs, strict=True)
        ]
        return tree.unflatten_as(self._spec, means), tree.unflatten_as(self._spec, divisors)

    def describe_constants(self) -> list[str]:
        """Returns a sentence for each leaf that has constant elements."""
        notes = []
        for (path, _), leaf in zip(leaves({fields.OBSERVATION: self._spec}), self.leaves, strict=True):
            places = [] if leaf is None else [list(map(int, place)) for place in np.argwhere(leaf.std == 0)]
            if places:
                listed = ", ".join(map(str, places[:_MAX_LISTED_PLACES]))
                where = "" if places == [[]] else f" at {listed}"
                num_more = len(places) - _MAX_LISTED_PLACES
                more = f" and {num_more} more places" if num_more > 0 else ""
                notes.append(f"{path_name(path, 'step')} is constant{where}{more} and was normalised to zeros there")
        return notes


def mark_transitions(num_steps: np.ndarray) -> np.ndarray:
    """Returns which of the concatenated steps of several episodes have a next step: all but the last of each.

    Args:
      num_steps: int64 `[E]`, the number of steps of each episode.

    Returns:
      bool `[R]`.
    """
    has_next = np.ones(int(num_steps.sum()), bool)
    has_next[(np.cumsum(num_steps) - 1)[num_steps > 0]] = False
    return has_next
