"""Blocks of episodes as checks read them: the transitions of consecutive episodes, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import leaves, path_name

from ..moments import mark_transitions

#: Minimum edge of an image, in pixels.
_MIN_EDGE = 16
_MAX_COMPARED = 256
#: Minimum number of transitions of a dataset to call something constant or exceptional.
MIN_ROWS = 20
_ABOUT_EPISODES = {fields.DISCOUNT, *fields.FLAG_FIELDS}


@dataclass(frozen=True)
class Field:
    """One field of the steps.

    Attributes:
      path: its path.
      column: its rows `[R, ...]` of all steps.
      rows: its rows `[M, ...]` of the steps with a transition.
      is_first: bool `[M]`, whether a transition is the first of its episode.
    """

    path: tuple[Any, ...]
    column: np.ndarray
    rows: np.ndarray
    is_first: np.ndarray

    @property
    def name(self) -> str:
        """The name of the field, such as "observation['state']"."""
        return path_name(self.path[1:], self.path[0])

    @property
    def group(self) -> str:
        """The field of RLDS that contains it, such as 'observation'."""
        return str(self.path[0])

    @cached_property
    def flat(self) -> np.ndarray:
        """The rows as `[M, D]`."""
        return self.rows.reshape(len(self.rows), -1) if self.rows.size else np.zeros((len(self.rows), 0))

    @property
    def is_text(self) -> bool:
        """True if the field has strings."""
        return self.rows.dtype.kind in "OSU"

    @property
    def is_image(self) -> bool:
        """True if the field has images, `[H, W]` or `[H, W, channels]` of bytes, uint16 or floats (with channels)."""
        shape = self.rows.shape[1:]
        if self.rows.dtype not in (np.uint8, np.uint16) and (self.rows.dtype.kind != "f" or len(shape) != 3):
            return False
        return len(shape) in (2, 3) and sum(size >= _MIN_EDGE for size in shape) >= 2

    @property
    def is_depth(self) -> bool:
        """True if the field has images of distances rather than of brightness: uint16, or floats with one channel."""
        is_metres = self.rows.dtype.kind == "f" and self.rows.shape[3:] == (1,)
        return self.is_image and (self.rows.dtype == np.uint16 or is_metres)

    @property
    def is_float(self) -> bool:
        """True if the field has floats that are not images."""
        return self.rows.dtype.kind == "f" and not self.is_image and self.flat.shape[1] > 0

    @cached_property
    def repeats(self) -> np.ndarray:
        """Which transitions have the same value as the one before them in their episode, bool `[M]`."""
        rows = self.flat
        # Most rows of images already differ in a few of their numbers.
        few = rows[:, :: 1 + rows.shape[1] // _MAX_COMPARED]
        is_same = np.zeros(len(rows), bool)
        is_same[1:] = (few[1:] == few[:-1]).all(axis=1)
        is_same &= ~self.is_first
        if few.shape[1] < rows.shape[1]:
            found = np.flatnonzero(is_same)
            is_same[found] = [np.array_equal(rows[row], rows[row - 1]) for row in found]
        return is_same


class Block:
    """The transitions of some consecutive episodes.

    The last step of an episode is no transition and not in `rows`: its action and reward mean nothing, and many formats
    fill its observation with zeros or with that of the step before.

    Attributes:
      batch: the episodes.
      lengths: int64 `[E]`, number of transitions of each episode.
      num_stored: int64 `[E]`, the same with those that were dropped.
      has_transitions: bool `[E]`, which episodes have transitions; F of them do.
      last_steps: int64 `[E]`, the rows of `[R]` with the last step of each episode.
      is_terminal: bool `[E]`, which episodes end in a terminal state.
      positions: int64 `[M]`, position in the batch of the episode of each transition.
      step_numbers: int64 `[M]`, step of each transition in its episode.
      is_first: bool `[M]`, whether a transition is the first of its episode.
      numbers: int64 `[M]`, the number of each transition's episode among the F with transitions.
      starts: int64 `[F]`, rows of `[M]` at which these episodes start, for NumPy's `reduceat`.
      fields: all fields apart from the discount and the flags.
    """

    def __init__(self, batch: EpisodeBatch):
        """Finds the transitions of a batch, whose columns have equal lengths."""
        self.batch = batch
        num_steps = batch.num_steps
        self.lengths = np.maximum(num_steps - 1, 0)
        self.num_stored = self.lengths + self.get_flags("dropped_last_transition")
        self.has_transitions = self.lengths > 0
        self.last_steps = np.cumsum(num_steps) - 1
        self.is_terminal = np.asarray(batch.steps[fields.IS_TERMINAL], bool)[self.last_steps]
        self.positions = np.repeat(np.arange(len(num_steps)), self.lengths)
        starts = np.cumsum(self.lengths) - self.lengths
        self.step_numbers = np.arange(len(self.positions)) - starts[self.positions]
        self.is_first = self.step_numbers == 0
        self.numbers = np.cumsum(self.is_first) - 1
        self.starts = np.flatnonzero(self.is_first)
        rows = slice(0, num_steps[0] - 1) if len(num_steps) == 1 else mark_transitions(num_steps)
        columns = [(path, column) for path, column in leaves(batch.steps) if path[0] not in _ABOUT_EPISODES]
        self.fields = [Field(path, column, column[rows], self.is_first) for path, column in columns]

    def select(self, *groups: str) -> list[Field]:
        """Returns the fields within some of RLDS's fields."""
        return [field for field in self.fields if field.group in groups]

    def get_index(self, position: int) -> int:
        """Returns the index in the dataset of an episode of the batch."""
        return self.batch.episodes[int(position)].index

    def get_flags(self, name: str) -> np.ndarray:
        """Returns the values of an attribute of the episodes, bool `[E]`."""
        return np.array([getattr(episode, name) for episode in self.batch.episodes], bool)

    def spread(self, values: np.ndarray, missing: Any = False) -> np.ndarray:
        """Returns values `[F]` of the episodes with transitions as values of all episodes, `[E]`."""
        result = np.full(len(self.lengths), missing, values.dtype)
        result[self.has_transitions] = values
        return result

    @property
    def has_scalar_rewards(self) -> bool:
        """True if the reward of a step is a number."""
        reward = self.batch.steps[fields.REWARD]
        return isinstance(reward, np.ndarray) and reward.ndim == 1 and reward.dtype.kind in "fiub"
