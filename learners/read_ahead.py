"""Reading of the next batches in a thread, while the graph runs on those read before."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import tensorflow as tf

from rlds2reverb.system.threads import call_in_thread
from rlds2reverb.types.specs import Nest

from .feeds import Feed

#: Limits of what is read at a time: images would otherwise need much memory, and tables many batches at once.
MAX_BYTES, MAX_ITERATIONS = 32 << 20, 50
#: How long to wait for a read that nobody needs.
CLOSE_SECS = 5.0


class ReadAhead:
    """The batches of a feed in order of iterations, of which the next part is read while the caller uses one.

    A read that never returns neither delays signals, which interrupt `take`, nor the end of the program.
    """

    def __init__(self, feed: Feed):
        """Reads nothing yet from `feed`, the source of the batches."""
        self._feed = feed
        self._num_bytes: int | None = None  # Of a batch, once it is known.
        self._first_step = self._num_held = 0
        self._held: Any = None
        self._pending: futures.Future[tuple[Nest, Any]] | None = None

    def take(self, first_step: int, count: int, last: int) -> tuple[Nest, Any]:
        """Returns the batches of 1 to `count` iterations, as `Feed.read` does.

        Args:
          first_step: number of iterations completed before the first of them.
          count: maximum number of iterations.
          last: number of completed iterations from which on no batch is read ahead.

        Raises:
          Exception: If the batch of the first of these iterations cannot be read; the feed's own error.
        """
        last = last if self._feed.reads_ahead else first_step + count
        if first_step != self._first_step:  # A checkpoint was loaded, or an iteration was given a batch.
            self._discard(None)
            self._first_step = first_step
        if not self._num_held:
            self._pending = self._pending or self._read(first_step, last)
            futures.wait([self._pending])
            pending, self._pending = self._pending, None
            self._held = pending.result()
            columns = tf.nest.flatten(self._held)
            self._num_held = len(columns[0])
            self._num_bytes = sum(column.nbytes for column in columns) // self._num_held
        if self._pending is None and first_step + self._num_held < last:
            self._pending = self._read(first_step + self._num_held, last)
        count = min(count, self._num_held)
        taken = tf.nest.map_structure(lambda column: column[:count], self._held)
        self._first_step, self._num_held = first_step + count, self._num_held - count
        self._held = tf.nest.map_structure(lambda column: column[count:], self._held) if self._num_held else None
        return taken

    def close(self) -> None:
        """Drops what was read ahead. A later `take` reads again."""
        self._discard(CLOSE_SECS)

    def _discard(self, timeout_secs: float | None) -> None:
        if self._pending is not None:
            futures.wait([self._pending], timeout_secs)
        self._pending, self._held, self._num_held = None, None, 0

    def _read(self, first_step: int, last: int) -> futures.Future[tuple[Nest, Any]]:
        """Starts to read the batches of some iterations: only one as long as the size of a batch is unknown."""
        limit = 1 if self._num_bytes is None else max(1, MAX_BYTES // max(self._num_bytes, 1))
        count = min(last - first_step, limit, MAX_ITERATIONS)
        return call_in_thread(lambda: self._feed.read(first_step, count), daemon=True)
