"""The choice of the episodes that a run trains on, and of those that it holds out."""

from __future__ import annotations

import numpy as np

from rlds2reverb.errors import ArgumentError

from .steps.item_index import permute


def select_episodes(
    returns: np.ndarray, *, validation: float = 0.0, top_percent: float | None = None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns which episodes are trained on and which are held out, bool `[E]` each, and sentences about them.

    Chen et al. (2021), "Decision Transformer", section 5.1, clone the episodes with the highest returns: 10 %, 25 % and
    so on. Of episodes with equal returns, the earlier ones count as better. At least one is kept.

    Args:
      returns: `[E]`, the return of each episode.
      validation: share of the episodes to hold out.
      top_percent: percentage of the other episodes to keep; None for all of them.
      seed: seed of the choice of held-out episodes.

    Raises:
      ArgumentError: If a single episode would be held out.
    """
    notes = []
    is_held_out = find_held_out(len(returns), validation, seed)
    is_kept = ~is_held_out
    if validation:
        notes.append(f"{is_held_out.sum():,} of {len(is_held_out):,} episodes are held out")
    if top_percent is not None:
        ranked = np.flatnonzero(is_kept)[np.argsort(-returns[is_kept], kind="stable")]
        num_kept = max(1, round(len(ranked) * top_percent / 100))
        is_kept[ranked[num_kept:]] = False
        best = returns[ranked[:num_kept]]
        notes.append(
            f"training on the best {top_percent:g} % of episodes: {len(best):,} of {len(returns):,}, with "
            f"returns from {best.min():,.1f} to {best.max():,.1f}"
        )
    return is_kept, is_held_out, notes


def find_held_out(num_episodes: int, share: float, seed: int) -> np.ndarray:
    """Returns which episodes are held out, bool `[E]`: a share of them, at least one, or none for 0.

    The episodes are the first of a pseudo-random permutation that depends on the seed only; see `item_index.permute`.

    Raises:
      ArgumentError: If there is a single episode.
    """
    if not share:
        return np.zeros(num_episodes, bool)
    if num_episodes == 1:
        raise ArgumentError("requires at least 2 episodes, got 1", about="validation")
    count = min(max(round(share * num_episodes), 1), num_episodes - 1)
    return permute(np.arange(num_episodes), num_episodes, seed=seed, epoch=0) < count
