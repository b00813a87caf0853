"""The items that a TF-Agents Reverb observer would write, for the bulk writer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb import keys
from rlds2reverb.batches import Encoder
from rlds2reverb.bulk_writing import BulkWriter
from rlds2reverb.items import Items
from rlds2reverb.pieces import Piece, in_blocks
from rlds2reverb.round_trip import why_bulk_writing_fails
from rlds2reverb.specs import Nest, require_match, step_spec_of
from rlds2reverb.windows import Windows


def push_blocks(blocks: Iterable[Nest], observer: Any, *, timeout_secs: float = 30.0) -> None:
    """Writes trajectories in bulk, as the items that an observer would make of them.

    The observer's tables, lengths, stride, padding and priority are used; the observer itself stays as it is.

    Args:
      blocks: trajectories `[N, ...]` of one whole episode each.
      observer: one of TF-Agents' three Reverb observers.
      timeout_secs: how long to wait for the server.

    Raises:
      ValueError: if the observer is another one, holds steps of an unfinished episode, or an episode is longer than
        its `max_sequence_length`.
      ServerUnavailable: if the server does not take items in time.
    """
    make_items = items_maker(observer)
    errors: list[Exception] = []
    made = _until_error((make_items(rows) for rows in blocks), errors)
    first = next(made, None)
    if first is None:
        _raise_first(errors)
        return
    encoder = Encoder(tree.flatten(step_spec_of(first.columns)), observer._table_names)
    pieces = _pieces(itertools.chain([first], made), float(observer._priority))
    first_piece = next(pieces)
    if len(first_piece.starts):
        reason = why_bulk_writing_fails(
            observer.py_client,
            observer._table_names,
            first_piece,
            None,
            specs=tree.flatten(step_spec_of(first.columns)),
            squeeze=False,
            timeout_secs=timeout_secs,
        )
        if reason is not None:
            raise ValueError(f"the server does not understand the bulk writer ({reason}); push with fast=False")
    with BulkWriter(observer.py_client, encoder, timeout_secs=timeout_secs) as writer:
        for block in in_blocks(itertools.chain([first_piece], pieces)):
            writer.write(block)
        writer.flush()
    _raise_first(errors)


def _until_error(made: Iterable[Items], errors: list[Exception]) -> Iterator[Items]:
    """Ends where an episode fails, so that those before it are stored."""
    try:
        yield from made
    except Exception as error:
        errors.append(error)


def _raise_first(errors: Sequence[Exception]) -> None:
    if errors:
        raise errors[0]


def _pieces(made: Iterable[Items], priority: float) -> Iterator[Piece]:
    spec = None
    for index, items in enumerate(made):
        got = step_spec_of(items.columns)
        spec = spec or got
        if got != spec:
            advice = "make all episodes alike, or push with fast=False"
            require_match(got, spec, holder=f"the first episode (this is episode {index})", advice=advice)
        priorities = np.full(len(items), priority)
        columns = tree.flatten(items.columns)
        yield Piece(columns, items.starts, items.lengths, priorities, keys.content_digest(items), index, 0)


def items_maker(observer: Any) -> Callable[[Nest], Items]:
    """What makes an observer's items of the trajectories of one episode after the other.

    Raises:
      ValueError: see `push_blocks`.
    """
    if getattr(observer, "_cached_steps", 0):
        raise ValueError(
            f"the {type(observer).__name__} holds {observer._cached_steps} steps of an unfinished episode; call its "
            "reset(), or push with fast=False"
        )
    if type(observer) is reverb_utils.ReverbAddEpisodeObserver:
        return lambda rows: _whole(rows, observer._max_sequence_length, bypass=observer._bypass_partial_episodes)
    if type(observer) is reverb_utils.ReverbTrajectorySequenceObserver:
        return _Stream(observer._sequence_length, observer._stride_length)
    if type(observer) is reverb_utils.ReverbAddTrajectoryObserver:
        padding = "none"
        if observer._pad_end_of_episodes:
            padding = "tile" if observer._tile_end_of_episodes else "short"
        return Windows(observer._sequence_length, observer._stride_length, padding).of_rows
    raise ValueError(f"a {type(observer).__name__} is none of TF-Agents' Reverb observers; push with fast=False")


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
