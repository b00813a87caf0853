"""Mean and standard deviation of the observations of a dataset, for transforms and agents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import tree

from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import Nest, leaves, path_name

from .exact_sums import UNIT_BITS, sum_exactly, sum_squares_exactly

#: Added to standard deviations (Fujimoto & Gu 2021, section 5: "a small normalization constant" of 1e-3).
STD_EPS = 1e-3
_MAX_LISTED_PLACES = 8
#: Maximum size of observations that networks learn well from without normalisation.
MAX_SIZE = 10.0
#: The limit of numbers whose squares are computed exactly.
_MAX_VALUE = 2.0**500


class LeafMoments:
    """Mean and standard deviation of one float array, element by element.

    The sums of the elements and of their squares are exact (see `exact_sums`), and mean and variance are rounded once,
    so that they depend neither on the order of the rows nor on how these are divided into parts. The standard deviation
    of a constant element is exactly 0, and its mean exactly that constant.
    """

    def __init__(self, shape: tuple[int, ...]):
        """Starts without rows, which have this shape."""
        self._shape = shape
        self._count = 0
        self._sum = self._squares = np.zeros(math.prod(shape), object)
        self._is_usable = np.ones(math.prod(shape), bool)
        self._max_size = np.zeros(math.prod(shape))

    def add(self, rows: np.ndarray) -> None:
        """Adds rows `[T, ...]`."""
        rows = rows.reshape(len(rows), len(self._sum)).astype(np.float64)
        usable = np.abs(rows) < _MAX_VALUE
        rows = np.where(usable, rows, 0.0)
        self._count += len(rows)
        self._max_size = np.maximum(self._max_size, np.abs(rows).max(axis=0, initial=0.0))
        self._is_usable = self._is_usable & usable.all(axis=0)
        self._sum = self._sum + sum_exactly(rows)
        self._squares = self._squares + sum_squares_exactly(rows)

    def merge(self, other: LeafMoments) -> None:
        """Adds the rows that were added to other moments."""
        self._count += other._count
        self._sum = self._sum + other._sum
        self._squares = self._squares + other._squares
        self._is_usable = self._is_usable & other._is_usable
        self._max_size = np.maximum(self._max_size, other._max_size)

    def as_dict(self) -> dict[str, Any]:
        """Returns the exact sums as plain values, for JSON."""
        names = ("sum", "squares", "is_usable", "max_size")
        arrays = {name: getattr(self, f"_{name}") for name in names}
        return {"shape": self._shape, "count": self._count, **{name: array.tolist() for name, array in arrays.items()}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LeafMoments:
        """Creates moments from the values of `as_dict`."""
        moments = cls(tuple(values["shape"]))
        moments._count, moments._is_usable = values["count"], np.array(values["is_usable"], bool)
        moments._sum, moments._squares = (np.array(values[name], object) for name in ("sum", "squares"))
        moments._max_size = np.array(values["max_size"])
        return moments

    @property
    def is_finite(self) -> bool:
        """True if all rows are free of NaN, Inf, and numbers above 1e150, whose squares would overflow."""
        return bool(np.isfinite(self.std).all())

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean of each element, float64; NaN for elements that are not finite in all rows."""
        return self._round(self._sum * self._share)

    @cached_property
    def std(self) -> np.ndarray:
        """The standard deviation of each element, float64; NaN for elements that are not finite in all rows."""
        variance = self._round(self._squares * self._share - (self._sum * self._share) ** 2)
        return np.sqrt(np.maximum(variance, 0))  # The squares of numbers below 1e-150 are rounded.

    @property
    def max_size(self) -> np.ndarray:
        """The largest absolute value of each element, float64."""
        return self._max_size.reshape(self._shape)

    @property
    def _share(self) -> Fraction:
        """The share of one row in the mean, in the units of the sums."""
        return Fraction(1, self._count << UNIT_BITS)

    def _round(self, fractions: np.ndarray) -> np.ndarray:
        return np.where(self._is_usable, fractions.astype(np.float64), np.nan).reshape(self._shape)

    def divisor(self, eps: float = STD_EPS) -> np.ndarray:
        """Returns `std + eps`, or infinity for constant elements, so that a division makes them 0 for any eps."""
        return np.where(self.std > 0, self.std + eps, np.inf)


class ObservationMoments:
    """Moments of each float leaf of the observations, without the final observation of each episode.

    Other leaves, such as images of integers, have no moments, because they are never normalised.
    """

    def __init__(self, spec: Nest):
        """Starts without observations.

        Args:
          spec: nest of specs of one observation.
        """
        self.spec = spec
        self.leaves = [LeafMoments(leaf.shape) if leaf.dtype.kind == "f" else None for leaf in tree.flatten(spec)]
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
        moments.require_usable(name)
        return moments

    def require_usable(self, name: str) -> None:
        """Raises `ValueError` if there are no transitions, or an observation contains NaN or Inf.

        Args:
          name: name of the dataset, for messages.
        """
        if not self.num_transitions:
            raise ValueError(f"{name} has no transitions, so that the mean of its observations is undefined")
        if not all(leaf.is_finite for leaf in self.leaves if leaf is not None):
            raise ValueError(f"{name} has NaN or Inf in its observations; validate the data first")

    def add(self, episode: Episode) -> None:
        """Adds the observations of an episode."""
        self.add_batch(EpisodeBatch([episode]))

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds the observations of some episodes."""
        has_action = mark_transitions(batch.num_steps)
        self.num_transitions += int(has_action.sum())
        for column, leaf in zip(tree.flatten(batch.steps[fields.OBSERVATION]), self.leaves, strict=True):
            if leaf is not None:
                leaf.add(column[has_action])

    def merge(self, other: ObservationMoments) -> None:
        """Adds the observations that were added to other moments with the same spec."""
        self.num_transitions += other.num_transitions
        for leaf, other_leaf in zip(self.leaves, other.leaves, strict=True):
            if leaf is not None and other_leaf is not None:
                leaf.merge(other_leaf)

    def as_dict(self) -> dict[str, Any]:
        """Returns the moments as plain values, for JSON."""
        return {"leaves": [leaf and leaf.as_dict() for leaf in self.leaves], "num_transitions": self.num_transitions}

    @classmethod
    def from_dict(cls, spec: Nest, values: dict[str, Any]) -> ObservationMoments:
        """Creates moments from the values of `as_dict`, and the spec of an observation."""
        moments = cls(spec)
        moments.leaves = [leaf and LeafMoments.from_dict(leaf) for leaf in values["leaves"]]
        moments.num_transitions = values["num_transitions"]
        return moments

    def agent_statistics(self, eps: float = STD_EPS) -> tuple[Nest, Nest]:
        """Returns what agents subtract and divide by: two nests of float64, 0 and 1 for leaves without moments."""
        means, divisors = [], []
        for leaf, spec in zip(self.leaves, tree.flatten(self.spec), strict=True):
            means.append(np.zeros(spec.shape) if leaf is None else leaf.mean)
            divisors.append(np.ones(spec.shape) if leaf is None else leaf.divisor(eps))
        return tree.unflatten_as(self.spec, means), tree.unflatten_as(self.spec, divisors)

    def describe_constants(self) -> list[str]:
        """Returns a sentence for each leaf that has constant elements."""
        notes = []
        for (path, _), leaf in zip(leaves({fields.OBSERVATION: self.spec}), self.leaves, strict=True):
            if leaf is not None and (leaf.std == 0).any():
                where = _list_places(leaf.std == 0)
                notes.append(f"{path_name(path, 'step')} is constant{where} and was normalised to zeros there")
        return notes

    def describe_large(self) -> list[str]:
        """Returns a description of each leaf with elements above 10 in size: where, and the largest size."""
        pairs = zip(leaves({fields.OBSERVATION: self.spec}), self.leaves, strict=True)
        return [
            f"{path_name(path, 'step')}{_list_places(leaf.max_size > MAX_SIZE)}, up to {leaf.max_size.max():.4g}"
            for (path, _), leaf in pairs
            if leaf is not None and (leaf.max_size > MAX_SIZE).any()
        ]


def _list_places(is_listed: np.ndarray) -> str:
    """Returns the first of the elements of an array that are marked, such as ' at [0], [3]'; '' for a number."""
    places = [list(map(int, place)) for place in np.argwhere(is_listed)]
    num_more = len(places) - _MAX_LISTED_PLACES
    more = f" and {num_more} more places" if num_more > 0 else ""
    return "" if not is_listed.ndim else f" at {', '.join(map(str, places[:_MAX_LISTED_PLACES]))}{more}"


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
