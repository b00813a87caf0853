"""The items that a TF-Agents Reverb observer would write, for the bulk writer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tree

from rlds2reverb._encoding import keys
from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._encoding.item_blocks import ItemBlock, in_groups
from rlds2reverb._internals.tf_agents import ObserverSettings
from rlds2reverb.items import Items
from rlds2reverb.specs import Nest, make_step_spec, require_match
from rlds2reverb.trajectory_items import TrajectoryWindows

from .bulk_writer import BulkWriter
from .compatibility import TrialItem, why_bulk_writing_fails


def push_episodes(episodes: Iterable[Nest], observer: Any, *, timeout_secs: float = 30.0) -> None:
    """Writes trajectories in bulk, as the items that an observer would make of them.

    The observer's tables, lengths, stride, padding and priority are used; the observer itself stays as it is.

    Args:
      episodes: trajectories `[N, ...]` of one whole episode each.
      observer: one of TF-Agents' three Reverb observers.
      timeout_secs: how long to wait for the server.

    Raises:
      ValueError: if the observer is another one, holds steps of an unfinished episode, or an episode is longer than
        its `max_sequence_length`.
      ServerUnavailableError: if the server does not take items in time.
    """
    settings = _settings_of(observer)
    errors: list[Exception] = []
    made = _until_error(map(items_maker(settings), episodes), errors)
    first = next(made, None)
    if first is None:
        _raise_first(errors)
        return
    specs = tree.flatten(make_step_spec(first.columns))
    blocks = _blocks(itertools.chain([first], made), settings.priority)
    first_block = next(blocks)
    if len(first_block.starts):
        trial = TrialItem(first_block.part(0, 1), None, specs, squeeze=False)
        reason = why_bulk_writing_fails(observer.py_client, settings.tables, trial, timeout_secs=timeout_secs)
        if reason is not None:
            raise ValueError(f"the server does not understand the bulk writer ({reason}); push with fast=False")
    with BulkWriter(observer.py_client, Encoder(specs, settings.tables), timeout_secs=timeout_secs) as writer:
        for group in in_groups(itertools.chain([first_block], blocks)):
            writer.write(group)
        writer.flush()
    _raise_first(errors)


def _settings_of(observer: Any) -> ObserverSettings:
    settings = ObserverSettings.of(observer)
    if settings is None:
        raise ValueError(f"a {type(observer).__name__} is not one of TF-Agents' Reverb observers; push with fast=False")
    if settings.num_cached_steps:
        raise ValueError(
            f"the {type(observer).__name__} holds {settings.num_cached_steps} steps of an unfinished episode; call its "
            "reset(), or push with fast=False"
        )
    return settings


def _until_error(made: Iterable[Items], errors: list[Exception]) -> Iterator[Items]:
    """Ends where an episode fails, so that those before it are stored."""
    try:
        yield from made
    except Exception as error:
        errors.append(error)


def _raise_first(errors: Sequence[Exception]) -> None:
    if errors:
        raise errors[0]


def _blocks(made: Iterable[Items], priority: float) -> Iterator[ItemBlock]:
    spec = None
    for index, items in enumerate(made):
        got = make_step_spec(items.columns)
        spec = spec or got
        if got != spec:
            advice = "make all episodes alike, or push with fast=False"
            require_match(got, spec, holder=f"the first episode (this is episode {index})", advice=advice)
        priorities = np.full(len(items), priority)
        columns = tree.flatten(items.columns)
        digest = keys.content_digest(items)
        yield ItemBlock.of_one(columns, items.starts, items.lengths, priorities, digest=digest, episode=index)


def items_maker(settings: ObserverSettings) -> Callable[[Nest], Items]:
    """Returns a function that makes an observer's items of the trajectories `[N, ...]` of one episode after the other.

    Raises:
      ValueError: while it is used, see `push_episodes`.
    """
    if settings.kind == "episode":
        return lambda rows: _whole(rows, settings.length, bypass=settings.bypass_long_episodes)
    if settings.kind == "stream":
        return _Stream(settings.length, settings.stride)
    return TrajectoryWindows(settings.length, settings.stride, settings.padding).convert_rows


def _whole(rows: Nest, most: int, *, bypass: bool) -> Items:
    length = len(rows.step_type)
    if length > most and not bypass:
        raise ValueError(
            f"an episode has {length} trajectories, the observer's max_sequence_length is {most}; raise it, or bypass "
            "such episodes (bypass_partial_episodes)"
        )
    count = 1 if 0 < length <= most else 0
    return Items(rows, np.zeros(count, np.int64), np.full(count, length, np.int64))


class _Stream:
    """Windows that run on over the ends of episodes."""

    def __init__(self, length: int, stride: int):
        self._length, self._stride = length, stride
        self._held: Nest = None
        self._skip = 0

    def __call__(self, rows: Nest) -> Items:
        if self._held is not None:
            rows = tree.map_structure(lambda held, new: np.concatenate([held, new]), self._held, rows)
        num_rows = len(rows.step_type)
        starts = np.arange(self._skip, max(num_rows - self._length + 1, self._skip), self._stride, dtype=np.int64)
        keep = min(num_rows, self._length - 1)
        following = self._skip + self._stride * len(starts)
        self._skip = following - (num_rows - keep)
        self._held = tree.map_structure(lambda column: column[num_rows - keep :], rows)
        return Items(rows, starts, np.full(len(starts), self._length, np.int64))
