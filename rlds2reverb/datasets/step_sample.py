"""A uniform random sample of the steps of a dataset, as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import Nest, leaves, make_step_spec, path_name

from .moments import mark_transitions

#: Number of steps in the sample; twice as many are held while the dataset is read.
SAMPLE_SIZE = 20_000
#: Maximum number of columns of observations and of actions in the sample.
_MAX_COLUMNS = 256
#: Edge, in pixels, to which images are thinned out where they stand for the state.
_IMAGE_EDGE = 12


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


class StepSampler:
    """Samples steps while a dataset is read: those of the lowest random ranks.

    Attributes:
      num_steps: number of steps, up to now, that are followed by another one.
      names: names of the columns of observations, actions and rewards; empty without steps.
      uses_images: whether the observations are images.
    """

    def __init__(self) -> None:
        self.num_steps, self.uses_images = 0, False
        self.names: tuple[list[str], ...] = ([], [], [])
        self._spec: Nest = None
        self._paths: dict[str, list[tuple[Any, ...]]] = {}
        self._rows: list[StepSample] = []
        self._highest_rank, self._random = 1.0, np.random.default_rng(0)

    def add_batch(self, batch: EpisodeBatch, position: int) -> None:
        """Adds episodes, of which the first is at a position; batches of other steps than the first are skipped."""
        num_rows = int(batch.num_steps.sum())
        if not num_rows or any(len(column) != num_rows for _, column in leaves(batch.steps)):
            return
        spec = make_step_spec(batch.steps)
        if self._spec is None:
            self._spec = spec
            self._choose_columns(spec)
        if spec != self._spec:
            return
        is_followed = mark_transitions(batch.num_steps)
        self.num_steps += int(is_followed.sum())
        ranks = self._random.random(num_rows)
        rows = np.flatnonzero(is_followed & (ranks < self._highest_rank))
        episodes = np.repeat(np.arange(position, position + len(batch.episodes)), batch.num_steps)
        observations, actions, rewards = self._select(batch.steps, rows)
        self._rows.append(StepSample(observations, actions, rewards, episodes[rows], ranks[rows]))
        if sum(len(kept.ranks) for kept in self._rows) > 2 * SAMPLE_SIZE:
            self._highest_rank = float(self.finish().ranks.max())

    def finish(self) -> StepSample:
        """Returns the sample, in the order of the steps."""
        empty = np.zeros((0, 0), np.float32)
        rows = self._rows or [StepSample(empty, empty, empty, np.zeros(0, np.int64), np.zeros(0))]
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
        kept = np.sort(np.argsort(columns[-1])[:SAMPLE_SIZE])
        self._rows = [StepSample(*[column[kept] for column in columns])]
        return self._rows[0]

    def _choose_columns(self, spec: Nest) -> None:
        names = []
        for name in (fields.OBSERVATION, fields.ACTION, fields.REWARD):
            numeric = [(path, leaf) for path, leaf in leaves(spec[name]) if leaf.dtype.kind in "biuf"]
            vectors = [(path, leaf) for path, leaf in numeric if not is_image(leaf.shape, leaf.dtype)]
            if name == fields.OBSERVATION:
                self.uses_images = bool(numeric) and not vectors
            chosen = vectors or numeric if name == fields.OBSERVATION else numeric
            self._paths[name] = [path for path, _ in chosen]
            sizes = [(path, int(np.prod(leaf.shape))) for path, leaf in chosen]
            names.append([name_column(name, path, index, size) for path, size in sizes for index in range(size)])
        self.names = tuple(part[:_MAX_COLUMNS] for part in names)

    def _select(self, steps: Nest, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the observations, actions and rewards of some rows, each float32 `[N, columns]`."""
        for name, paths in self._paths.items():
            found = dict(leaves(steps[name]))
            parts = [self._flatten(found[path], rows) for path in paths]
            yield np.concatenate([np.zeros((len(rows), 0), np.float32), *parts], 1)[:, :_MAX_COLUMNS]

    def _flatten(self, column: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Returns rows of a column as float32 `[N, values]`; images are thinned out."""
        if self.uses_images and column.ndim >= 3:
            strides = [max(1, size // _IMAGE_EDGE) if size > 4 else 1 for size in column.shape[1:]]
            column = column[(slice(None), *(slice(None, None, stride) for stride in strides))]
        selected = column[rows]
        return selected.reshape(len(rows), int(np.prod(selected.shape[1:])))[:, :_MAX_COLUMNS].astype(np.float32)


def is_image(shape: Sequence[Any], dtype: np.dtype) -> bool:
    """Returns whether a field of one step is an image, `[H, W]` or `[H, W, channels]` of bytes."""
    has_channels = len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3, 4))
    return bool(dtype == np.uint8 and (len(shape) == 2 or has_channels) and min(shape[:2] or (0,)) > 0)


def name_column(name: str, path: tuple[Any, ...], index: int, size: int) -> str:
    """Returns a name such as "observation['joint_pos'][2]" for a column of a field."""
    return path_name(path, name) + (f"[{index}]" if size > 1 else "")
