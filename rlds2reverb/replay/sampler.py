"""Prioritized sampling: when a sample is refused, which elements it contains, and importance weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .configs import BufferConfig
from .element_table import ElementTable, count_earlier
from .sampled_batches import SampleRefusal
from .trees import SumTree

#: Tolerance of ratios and rates, in elements: rounding (49 * (1 / 49) < 1) must not refuse a sample that is due.
_TOLERANCE = 1e-6


def require_possible(holder: str, config: BufferConfig, size: int) -> None:
    """Raises `ValueError` if the size is invalid, or so large that every sample of this size would be refused."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
        raise ValueError(f"size must be an integer >= 0, got {size}")
    required, because, remedy = _find_required_count(config, size)
    if required > config.max_size:
        raise ValueError(
            f"a sample of {size} requires {required} elements{because}, but {holder} has max_size {config.max_size}; "
            f"reduce the size, increase max_size{remedy}"
        )
    if config.max_use is not None and size > config.max_use * config.max_size:
        raise ValueError(
            f"{holder} can never return a sample of {size} with max_use {config.max_use} and max_size "
            f"{config.max_size}; reduce the size or increase one of them"
        )


def _find_required_count(config: BufferConfig, size: int) -> tuple[int, str, str]:
    """Returns how many elements a sample requires, the option that says so, and what to do about that option."""
    by_ratio = math.ceil(config.sample_min_limit_ratio * size - _TOLERANCE)
    if not config.with_replacement and size >= by_ratio:
        return size, " (with_replacement=False)", ", or set with_replacement=True"
    if by_ratio > 1:
        ratio = f" (sample_min_limit_ratio={config.sample_min_limit_ratio:g})"
        return by_ratio, ratio, ", or lower sample_min_limit_ratio"
    return 1, "", ""


@dataclass(frozen=True)
class Candidates:
    """The elements that a sample can contain, which are enough for it.

    Attributes:
      tree: probability of each candidate, up to a common factor.
      slots: int64 `[M]`, slots of the tree's leaves; None if each leaf is its own slot.
      limits: int64 `[M]` or longer, how often the element of each leaf can occur in a batch; None for no limit.
    """

    tree: SumTree
    slots: np.ndarray | None = None
    limits: np.ndarray | None = None

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Samples elements; returns their slots, int64 `[size]`, in the order in which they were sampled."""
        sampled = _sample_leaves(self.tree, size, rng, self.limits)
        return sampled if self.slots is None else self.slots[sampled]


def select_candidates(
    table: ElementTable, config: BufferConfig, size: int, sample_count: int, sample_range: slice | None, holder: str
) -> Candidates | SampleRefusal:
    """Selects the candidates for a sample, or refuses it.

    Args:
      table: bookkeeping of the elements.
      config: configuration of the buffer.
      size: number of elements to sample.
      sample_count: number of elements sampled up to now.
      sample_range: positions of the candidates, the oldest element being at 0; None for all.
      holder: name of the buffer in the reason.
    """
    if not size:
        return Candidates(table.sum_tree)
    if reason := _find_refusal(table, config, size, sample_count, holder):
        return SampleRefusal(reason)
    limits = table.limits
    if sample_range is None:
        return Candidates(table.sum_tree, limits=limits)
    slots = table.select_numbers(sample_range) % table.max_size
    probabilities = table.sum_tree.leaves[slots]
    limits = None if limits is None else limits[slots]
    available = np.count_nonzero(probabilities) * size if limits is None else int(limits.sum())
    if available < size:
        return SampleRefusal(f"{holder} can sample only {available} of {size} elements from {sample_range}; widen it")
    tree = SumTree(len(slots))
    tree.set(slice(0, len(slots)), probabilities)
    return Candidates(tree, slots, limits)


def _find_refusal(table: ElementTable, config: BufferConfig, size: int, sample_count: int, holder: str) -> str:
    """Returns why a sample of at least one element is refused, or ''."""
    required, because, remedy = _find_required_count(config, size)
    if table.count < required:
        return (
            f"{holder} has {table.count} elements, but a sample of {size} requires {required}{because}; push more"
            f"{remedy}"
        )
    has_candidates = table.sum_tree.root > 0
    available = size if table.limits is None else table.limit_sum
    if not has_candidates or (not config.with_replacement and available < size):
        return (
            f"{holder} has {available if has_candidates else 0} elements with a priority above 0, too few for a sample "
            f"of {size}; push more or update priorities"
        )
    if available < size:
        return (
            f"the elements of {holder} can be sampled {available} more times (max_use={config.max_use}), too few for a "
            f"sample of {size}; push more"
        )
    min_rate = config.push_sample_rate_limit[0]
    if exceeds_rate(table.next_number, sample_count + size, min_rate):
        return (
            f"{holder} has {table.next_number} elements pushed and {sample_count} sampled; sampling {size} more would "
            f"leave fewer than {min_rate:g} pushed per sampled element (push_sample_rate_limit); push more"
        )
    return ""


def exceeds_rate(push_count: int, sample_count: int, min_rate: float) -> bool:
    """Returns whether `push_count / sample_count` is below the minimum rate."""
    return bool(min_rate) and sample_count > push_count / min_rate + _TOLERANCE


def _sample_leaves(tree: SumTree, size: int, rng: np.random.Generator, limits: np.ndarray | None) -> np.ndarray:
    """Samples leaves sequentially with probabilities proportional to their values.

    A leaf that has reached its maximum count is excluded: the next one is sampled from the others in proportion. This
    equals sampling with replacement and rejecting leaves above their maximum. So this function samples the missing
    leaves, rejects those above their maximum, sets the leaves that reached it to 0, and repeats; finally it restores
    them.

    Args:
      tree: tree with at least one leaf above 0.
      size: number of leaves to sample.
      rng: random generator.
      limits: how often each leaf can be sampled, at least `size` in total; None for no limit.

    Returns:
      int64 `[size]`, positions of the leaves in the order in which they were sampled.
    """
    sampled = tree.find(rng.random(size))
    if limits is None or limits[sampled].min() >= size:
        return sampled
    excluded, values = [sampled[:0]], [np.zeros(0)]
    try:
        while True:
            earlier, allowed = count_earlier(sampled), limits[sampled]
            accepted = earlier < allowed
            if accepted.all():
                return sampled
            exhausted = sampled[earlier + 1 == allowed]
            exhausted = exhausted[tree.leaves[exhausted] > 0]
            excluded.append(exhausted)
            values.append(tree.leaves[exhausted])
            tree.set(exhausted, 0.0)
            sampled = sampled[accepted]
            sampled = np.append(sampled, tree.find(rng.random(size - len(sampled))))
    finally:
        tree.set(np.concatenate(excluded), np.concatenate(values))


def importance_weights(powers: np.ndarray, beta: float, min_power: float) -> np.ndarray:
    """Computes importance weights, float64 `[B]` in (0, 1].

        w_i = (N P_i)^-beta / max_j (N P_j)^-beta = (p_i^alpha / min_j p_j^alpha)^-beta

    Schaul et al. 2016, arXiv:1511.05952, section 3.4. N and the sum in P cancel. DI-engine takes the minimum over all
    elements of the buffer, the code of the paper over the batch.

    Args:
      powers: float64 `[B]`, p^alpha of the sampled elements.
      beta: exponent, in [0, 1].
      min_power: minimum of p^alpha, above 0.
    """
    return (powers / min_power) ** -beta
