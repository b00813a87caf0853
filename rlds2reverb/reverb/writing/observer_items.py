"""Writes the items of a TF-Agents Reverb observer with the bulk writer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tree

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.libraries.tf_agents import ObserverSettings
from rlds2reverb.types.episodes import require_same_spec
from rlds2reverb.types.items import Items
from rlds2reverb.types.specs import Nest, make_step_spec

from ..wire import keys
from ..wire.encoder import Encoder
from ..wire.item_blocks import ItemBlock, group_by_size
from .bulk_writer import BulkWriter
from .compatibility import TrialItem, find_incompatibility

_TIMEOUT_SECS = 30.0


def push_episodes(episodes: Iterable[Nest], observer: Any) -> None:
    """Writes trajectories in bulk, as the items that an observer would make of them.

    The observer's tables, lengths, stride, padding and priority apply; the observer itself is not changed.

    Args:
      episodes: trajectories `[N, ...]`, one whole episode each.
      observer: one of TF-Agents' three Reverb observers.

    Raises:
      ValueError: If the observer has another type or holds steps of an unfinished episode, or if an episode is longer
        than the observer's `max_sequence_length`.
      ServerUnavailableError: If the server does not accept items in time.
    """
    settings = ObserverSettings.from_observer(observer)
    errors: list[Exception] = []
    all_items = _stop_at_error(map(make_item_converter(settings), episodes), errors)
    first = next(all_items, None)
    if first is not None:
        specs = tree.flatten(make_step_spec(first.columns))
        blocks = _make_blocks(itertools.chain([first], all_items), settings.priority)
        first_block = next(blocks)
        if len(first_block.starts):
            trial = TrialItem(first_block.slice_items(0, 1), None, specs, squeeze=False)
            reason = find_incompatibility(observer.py_client, settings.tables, trial, timeout_secs=_TIMEOUT_SECS)
            if reason is not None:
                raise ValueError(f"the server does not support the bulk writer ({reason}); push with fast=False")
        writer = BulkWriter(observer.py_client, Encoder(specs, settings.tables), timeout_secs=_TIMEOUT_SECS)
        with contextlib.closing(writer):
            for group in group_by_size(itertools.chain([first_block], blocks)):
                writer.write(group)
            writer.flush()
    if errors:
        raise errors[0]


def _stop_at_error(all_items: Iterable[Items], errors: list[Exception]) -> Iterator[Items]:
    """Stops at the first episode that fails and appends its error, so that the episodes before it are stored."""
    try:
        yield from all_items
    except Exception as error:
        errors.append(error)


def _make_blocks(all_items: Iterable[Items], priority: float) -> Iterator[ItemBlock]:
    spec = None
    for index, items in enumerate(all_items):
        spec = spec or make_step_spec(items.columns)
        require_same_spec(items.columns, spec, index, advice="make all episodes alike, or push with fast=False")
        columns, priorities = tree.flatten(items.columns), np.full(len(items), priority)
        digest = keys.content_digest(items)
        yield ItemBlock.from_episode(columns, items.starts, items.lengths, priorities, digest=digest, episode=index)


def make_item_converter(settings: ObserverSettings) -> Callable[[Nest], Items]:
    """Returns a function that converts trajectories `[N, ...]` to an observer's items, one episode after another.

    It raises the `ValueError` of `push_episodes` for an episode that is too long.
    """
    if settings.kind == "episode":
        return lambda rows: _convert_whole(rows, settings.length, bypass=settings.bypass_long_episodes)
    if settings.kind == "stream":
        return _StreamWindows(settings.length, settings.stride)
    return TrajectoryWindows(settings.length, settings.stride, settings.padding).convert_rows


def _convert_whole(rows: Nest, max_length: int, *, bypass: bool) -> Items:
    length = len(rows.step_type)
    if length > max_length and not bypass:
        raise ValueError(
            f"an episode has {length} trajectories, but the observer's max_sequence_length is {max_length}; increase "
            "it, or skip such episodes (bypass_partial_episodes)"
        )
    num_items = 1 if 0 < length <= max_length else 0
    return Items(rows, np.zeros(num_items, np.int64), np.full(num_items, length, np.int64))


class _StreamWindows:
    """Windows that continue across the ends of episodes."""

    def __init__(self, length: int, stride: int):
        self._length, self._stride = length, stride
        self._held: Nest = None
        self._skip = 0

    def __call__(self, rows: Nest) -> Items:
        if self._held is not None:
            rows = tree.map_structure(lambda held, new: np.concatenate([held, new]), self._held, rows)
        num_rows = len(rows.step_type)
        starts = np.arange(self._skip, max(num_rows - self._length + 1, self._skip), self._stride, dtype=np.int64)
        num_held = min(num_rows, self._length - 1)
        next_start = self._skip + self._stride * len(starts)
        self._skip = next_start - (num_rows - num_held)
        self._held = tree.map_structure(lambda column: column[num_rows - num_held :], rows)
        return Items(rows, starts, np.full(len(starts), self._length, np.int64))
