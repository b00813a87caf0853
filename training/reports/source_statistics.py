"""Statistics for a report on a dataset, collected in one pass: its summary, a sample of steps, and problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.datasets.summary import SummaryParts
from rlds2reverb.errors import Problem
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import find_problems
from rlds2reverb.types.specs import Nest, leaves, make_step_spec, path_name

#: Number of steps in the sample; twice as many are held while the dataset is read.
SAMPLE_SIZE = 20_000
#: Maximum number of columns of observations and of actions in the sample.
_MAX_COLUMNS = 256
#: Edge, in pixels, to which images are thinned out where they stand for the state.
_IMAGE_EDGE = 12
_MAX_PROBLEMS = 50


class StepSample(NamedTuple):
    """A uniform random sample of the steps that are followed by another one.

    Attributes:
      observations: float32 [N, D]; images are thinned out, and used only if there is nothing else.
      actions: float32 [N, A].
      rewards: float32 [N, R].
      episodes: int64 [N], position of each step's episode.
      ranks: float64 [N], random numbers, the lowest of all steps.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    episodes: np.ndarray
    ranks: np.ndarray


@dataclass
class SourceStatistics:
    """The collected statistics; call `add_batch` with all episodes.

    Attributes:
      parts: the summary of the episodes up to now.
      problems: the first problems found.
      num_problems: number of problems found.
      invalid: positions of the first episodes with problems.
      num_steps: number of steps that are followed by another one.
    """

    parts: SummaryParts = field(default_factory=SummaryParts)
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0
    invalid: list[int] = field(default_factory=list)
    num_steps: int = 0
    _step_spec: Nest = None
    _layout: _StepLayout | None = None
    _rows: list[StepSample] = field(default_factory=list)
    _highest_rank: float = 1.0
    _random: Any = field(default_factory=lambda: np.random.default_rng(0))

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds the next episodes, valid or not."""
        position = len(self.parts.episodes)
        self.parts.add_batch(batch)
        self._check(batch, position)
        if self._step_spec is not None:
            self._add_steps(batch, position)

    @property
    def returns(self) -> np.ndarray:
        """The return of each episode, float64 [N]; NaN for empty ones."""
        totals = (episode.total_reward for episode in self.parts.episodes)
        return np.array([np.nan if total is None else total for total in totals])

    @property
    def lengths(self) -> np.ndarray:
        """The number of transitions of each episode, int64 [N]."""
        return np.array([episode.num_transitions for episode in self.parts.episodes])

    @property
    def ends(self) -> np.ndarray:
        """How each episode ends, [N]; see `EpisodeSummary`."""
        return np.array([episode.end for episode in self.parts.episodes])

    @property
    def sample(self) -> StepSample:
        """The sample, in the order of the steps."""
        if not self._rows:
            empty = np.zeros((0, 0), np.float32)
            return StepSample(empty, empty, empty, np.zeros(0, np.int64), np.zeros(0))
        self._shrink()
        return self._rows[0]

    @property
    def column_names(self) -> tuple[list[str], ...]:
        """The names of the columns of observations, actions and rewards in the sample."""
        return ([], [], []) if self._layout is None else self._layout.names

    @property
    def uses_images(self) -> bool:
        """True if the observations in the sample are thinned-out images."""
        return self._layout is not None and self._layout.uses_images

    def _check(self, batch: EpisodeBatch, position: int) -> None:
        if self._step_spec is None:
            first = next((episode for episode in batch.episodes if episode.num_steps), None)
            self._step_spec = None if first is None else make_step_spec(first.steps)
            self._layout = None if self._step_spec is None else _StepLayout(self._step_spec)
        if batch.is_valid(self._step_spec):
            return
        for offset, episode in enumerate(batch.episodes):
            if found := find_problems(episode, self._step_spec):
                self.problems += found[: _MAX_PROBLEMS - len(self.problems)]
                self.num_problems += len(found)
                if len(self.invalid) < _MAX_PROBLEMS:
                    self.invalid.append(position + offset)

    def _add_steps(self, batch: EpisodeBatch, position: int) -> None:
        """Adds a random part of the steps: those whose random rank is below a limit that falls as the sample grows."""
        columns = [column for _, column in leaves(batch.steps)]
        num_rows = int(batch.num_steps.sum())
        if self._layout is None or any(len(column) != num_rows for column in columns):
            return
        if make_step_spec(batch.steps) != self._step_spec:
            return
        is_followed = np.ones(num_rows, bool)
        is_followed[np.cumsum(batch.num_steps)[batch.num_steps > 0] - 1] = False
        self.num_steps += int(is_followed.sum())
        ranks = self._random.random(num_rows)
        rows = np.flatnonzero(is_followed & (ranks < self._highest_rank))
        episodes = np.repeat(np.arange(position, position + len(batch.episodes)), batch.num_steps)
        observations, actions, rewards = self._layout.select(batch.steps, rows)
        self._rows.append(StepSample(observations, actions, rewards, episodes[rows], ranks[rows]))
        if sum(len(kept.ranks) for kept in self._rows) > 2 * SAMPLE_SIZE:
            self._shrink()
            self._highest_rank = float(self._rows[0].ranks.max(initial=0.0))

    def _shrink(self) -> None:
        """Keeps the `SAMPLE_SIZE` steps of the lowest ranks."""
        columns = [np.concatenate(column) for column in zip(*self._rows, strict=True)]
        kept = np.sort(np.argsort(columns[-1])[:SAMPLE_SIZE])
        self._rows = [StepSample(*[column[kept] for column in columns])]


class _StepLayout:
    """The columns of a step that are sampled.

    Attributes:
      names: names of the columns of observations, actions and rewards.
      uses_images: whether the observations are images.
    """

    def __init__(self, step_spec: Nest):
        numeric = {
            name: [(path, spec) for path, spec in leaves(step_spec[name]) if spec.dtype.kind in "biuf"]
            for name in (fields.OBSERVATION, fields.ACTION, fields.REWARD)
        }
        vectors = [(path, spec) for path, spec in numeric[fields.OBSERVATION] if not is_image(spec.shape, spec.dtype)]
        self.uses_images = bool(numeric[fields.OBSERVATION]) and not vectors
        self._columns = {**numeric, fields.OBSERVATION: vectors or numeric[fields.OBSERVATION]}
        self.names = tuple(_name_columns(name, columns) for name, columns in self._columns.items())

    def select(self, steps: Nest, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the observations, actions and rewards of some rows, each float32 `[N, columns]`."""
        for name, columns in self._columns.items():
            found = dict(leaves(steps[name]))
            parts = [_flatten(found[path], rows, thin_out=self.uses_images) for path, _ in columns]
            yield np.concatenate([np.zeros((len(rows), 0), np.float32), *parts], 1)[:, :_MAX_COLUMNS]


def is_image(shape: Sequence[Any], dtype: np.dtype) -> bool:
    """Returns whether a field of one step is an image, `[H, W]` or `[H, W, channels]` of bytes."""
    has_channels = len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3, 4))
    return bool(dtype == np.uint8 and (len(shape) == 2 or has_channels) and min(shape[:2] or (0,)) > 0)


def name_column(name: str, path: tuple[Any, ...], index: int, size: int) -> str:
    """Returns a name such as "observation['joint_pos'][2]" for a column of a field."""
    return path_name(path, name) + (f"[{index}]" if size > 1 else "")


def _name_columns(name: str, columns: list[tuple[Any, Any]]) -> list[str]:
    sizes = {path: int(np.prod(spec.shape)) for path, spec in columns}
    names = [name_column(name, path, index, size) for path, size in sizes.items() for index in range(size)]
    return names[:_MAX_COLUMNS]


def _flatten(column: np.ndarray, rows: np.ndarray, *, thin_out: bool) -> np.ndarray:
    """Returns rows of a column as float32 `[N, values]`; images can be thinned out."""
    if thin_out and column.ndim >= 3:
        strides = [max(1, size // _IMAGE_EDGE) if size > 4 else 1 for size in column.shape[1:]]
        column = column[(slice(None), *(slice(None, None, stride) for stride in strides))]
    selected = column[rows]
    return selected.reshape(len(rows), int(np.prod(selected.shape[1:])))[:, :_MAX_COLUMNS].astype(np.float32)
