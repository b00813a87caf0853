"""The kinds of replay buffers: one class in four configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlds2reverb._arguments import require_count
from rlds2reverb.specs import Nest

from .buffer import ReplayBuffer
from .configs import BufferConfig
from .item_spec import COLLECT_ITER, PRIORITY


class NaiveReplayBuffer(ReplayBuffer):
    """Elements are drawn uniformly, with or without replacement in a batch (`BufferConfig.replace`); `IS` is 1.

    Priorities are kept and can be updated, and nothing depends on them.
    """

    kind: ClassVar[str | None] = "naive"


class AdvancedReplayBuffer(ReplayBuffer):
    """Elements are drawn by priority (prioritized experience replay; Schaul et al. 2016, arXiv:1511.05952)."""

    kind: ClassVar[str | None] = "advanced"


class EpisodeReplayBuffer(ReplayBuffer):
    """Elements are episodes: dicts of columns `[T, ...]`, with another `T` each, at least 1.

    Without `BufferConfig.window` a sample has whole episodes. With it a sample has windows of so many consecutive
    steps, by default each window of all episodes with the same chance (`windows_over`). A shorter episode is not stored
    with `short_episodes='drop'` (its id is then empty); with 'pad' it is followed by rows of zeros, and each sampled
    item has a `mask`, bool `[window]`, True where there is a step; it cannot be pushed again before it is cut.
    """

    kind: ClassVar[str | None] = "episode"


class SequenceReplayBuffer(ReplayBuffer):
    """Elements are `BufferConfig.length` consecutive steps: dicts of columns `[length, ...]`.

    A spec that is given has that time axis too, else it raises `SpecMismatchError`.
    """

    kind: ClassVar[str | None] = "sequence"

    def append_episode(self, episode: Mapping[str, Any], *, period: int = 1) -> list[str]:
        """Adds the sequences of an episode that begin at steps 0, period, 2·period, ... and end within it.

        Steps that sequences share are stored once. An episode shorter than `length` gives none. (R2D2 keeps
        overlapping sequences: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement
        learning", section 2.3.)

        Args:
          episode: dict of columns `[T, ...]`, and with or without `priority` and `collect_iter`, those of all its
            sequences.
          period: steps between the beginnings of sequences.

        Returns:
          Their `replay_unique_id`s, in order.

        Raises:
          ValueError: if the period is out of its range.
          SpecMismatchError: if columns have different lengths; see `extend` as well.
        """
        require_count("period", period)
        numbers = self._add_sequences(episode, period, episode.get(PRIORITY), episode.get(COLLECT_ITER))
        return [f"{self.name}_{number}" for number in numbers.tolist()]


_CLASSES: tuple[type[ReplayBuffer], ...] = (
    NaiveReplayBuffer,
    AdvancedReplayBuffer,
    EpisodeReplayBuffer,
    SequenceReplayBuffer,
)


def make_buffer(
    name: str,
    config: BufferConfig,
    *,
    spec: Nest | None = None,
    folder: str | Path | None = None,
    checkpoint_root: str | Path | None = None,
    seed: int | None = None,
) -> ReplayBuffer:
    """The buffer of a configuration's kind; arguments as of `ReplayBuffer`."""
    (chosen,) = (kind for kind in _CLASSES if kind.kind == config.kind)
    return chosen(name, config, spec=spec, folder=folder, checkpoint_root=checkpoint_root, seed=seed)
