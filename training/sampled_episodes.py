"""Transitions with goals from a table of whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets.steps.layout import Layout
from rlds2reverb.datasets.steps.step_columns import MemoryColumns, StepColumns
from rlds2reverb.learners.feeds import Feed
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.reverb.sampling import SamplePlan
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import Nest, map_structure
from rlds2reverb.types.trajectories import FIRST, LAST


class SampledEpisodes(Feed):
    """The items of episodes that are sampled from a table for each iteration.

    The items of a batch are sampled uniformly from all items of these episodes, and their random goals are states of
    the same episodes. Tables must contain the items of `TrajectoryEpisodes`.
    """

    def __init__(self, plan: SamplePlan, make_items: Callable[[StepColumns], StoredItems]):
        """Samples the first episodes, for the spec of the batches.

        Args:
          plan: how batches of episodes are sampled.
          make_items: function that returns the items of the first episodes, in batches of the size of this feed.
        """
        self._plan = plan
        self._samples: Any = None
        self._first = make_items(self._read_episodes())
        self.data_spec = self._first.data_spec

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`."""
        steps = range(first_step, first_step + count)
        batches = [self._first.replace_steps(self._read_episodes()).read(step, 1)[0] for step in steps]
        return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches), ()

    def to_experience(self, data: Nest) -> Nest:
        """Implements `Feed.to_experience`."""
        return self._first.to_experience(data)

    def close(self) -> None:
        """Ends the sampling; a later `read` begins again."""
        if self._samples is not None:
            self._samples.close()
        self._samples = None

    def _read_episodes(self) -> StepColumns:
        if self._samples is None:
            self._samples = self._plan.open()
        sample = next(self._samples)
        # Each episode is used once, since a copy of a state would not count as the same goal.
        identities = np.stack([sample.info.server, sample.info.key], dtype=np.uint64, casting="unsafe")
        kept = np.sort(np.unique(identities, axis=1, return_index=True)[1])
        trajectories, mask = map_structure(lambda column: column[kept], (sample.data, sample.info.mask))
        steps = {
            fields.OBSERVATION: trajectories.observation,
            fields.ACTION: trajectories.action,
            fields.REWARD: trajectories.reward,
            fields.DISCOUNT: trajectories.discount,
            fields.IS_FIRST: trajectories.step_type == FIRST,
            fields.IS_LAST: trajectories.step_type == LAST,
            fields.IS_TERMINAL: np.zeros(mask.shape, bool),  # Goals determine the ends that values do not cross.
        }
        rows = map_structure(lambda column: column[mask], steps)
        batch = EpisodeBatch.from_columns(rows, mask.sum(axis=1))
        columns = MemoryColumns(Layout.of_steps(batch.steps))
        columns.append(batch)
        return columns.finish()
