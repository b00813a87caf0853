"""The tables of a buffer: a Reverb server of its own, with a deadline on every call."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import tree

from rlds2reverb._encoding import keys
from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._server.clients import why_nothing_sampled
from rlds2reverb._server.connection import ServerConnection
from rlds2reverb._server.native_calls import call_with_deadline
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb._writing.bulk_writer import BulkWriter
from rlds2reverb.errors import LimitReached, ServerUnavailable
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.tables import TableConfig

from .draws import Draws, joined
from .limited_draws import draw_within_limits

_MAX_DELETED_AT_ONCE = 100_000
#: Values of `reverb.SampleInfo` that come before the data of a sample.
_NUM_INFOS = 5


class TableStore:
    """A server with tables of the same elements, whose only writer this is.

    Elements have numbers, which become their keys in every table.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        signature: Nest | None,
        *,
        checkpoint_root: Path | None = None,
        timeout_secs: float = 30.0,
    ):
        """Starts the server, from the newest checkpoint of the root if there is one.

        Args:
          tables: their configurations.
          signature: of their items; None for that of the checkpoint.
          checkpoint_root: see `ReplayServer`.
          timeout_secs: how long to wait for any answer.
        """
        self.tables = {table.name: table for table in tables}
        #: How many elements `draw` gave, of each table.
        self.num_drawn = dict.fromkeys(self.tables, 0)
        self._timeout_secs = timeout_secs
        # The newest checkpoint only: the state that a buffer keeps beside it belongs to no other.
        self._server = ReplayServer(tables, signature, checkpoint_root=checkpoint_root, keep_previous=False)
        self._service = ServerConnection(self._server.address)
        self._client = self._server.client
        self._writer: BulkWriter | None = None
        self._items: tuple[Sequence[ArraySpec], bool] = ((), False)

    @property
    def address(self) -> str:
        """Where clients find it."""
        return self._server.address

    @cached_property
    def _columns(self) -> tuple[Any, ...]:
        """`tf.TensorSpec`s of the columns of an element."""
        return tuple(tree.flatten(self.info().signature))

    def open(self, row_specs: Sequence[ArraySpec], *, squeeze: bool) -> None:
        """Makes ready to write.

        Args:
          row_specs: of the columns.
          squeeze: whether elements are single rows without a time axis.
        """
        self._items = row_specs, squeeze
        seed = secrets.randbits(63)
        encoder = Encoder(row_specs, list(self.tables), squeeze=squeeze, key_seed=seed, numbers_as_keys=True)
        self._writer = BulkWriter(self.address, encoder, timeout_secs=self._timeout_secs)

    def close(self) -> None:
        """Stops the server."""
        if self._writer is not None:
            self._writer.close()
        self._service.close()
        self._server.stop()

    def insert(self, blocks: Iterable[ItemBlock]) -> None:
        """Writes elements into all tables, and waits until they can be sampled.

        Raises:
          ServerUnavailable: if the server does not take them in time.
        """
        if self._writer is None:
            raise ValueError(f"table {', '.join(map(repr, self.tables))} was not opened for writing")
        self._writer.write(blocks)
        self._writer.confirm()

    def draw(self, count: int, table: str) -> Draws:
        """Draws so many elements of a table, with replacement.

        Raises:
          LimitReached: if the table's rate limiter gives no more now; those that it gave are lost, and counted by it.
          ServerUnavailable: if the table does not give them in time, or with `LimitReached` their uses would be lost.
        """
        limited = self.tables[table].rate_limiter.kind == "max_samples_per_insert"
        draws = self._draw_limited(count, table) if limited else self._draw_all(count, table)
        self.num_drawn[table] += count
        return draws

    def _draw_all(self, count: int, table: str) -> Draws:
        """From a table whose rate limiter does not count."""

        def run() -> list[Any]:
            # As `Client.sample`, which asks for one sample at a time.
            sampler = self._client._client.NewSampler(table, count, count)
            return [sampler.GetNextTrajectory() for _ in range(count)]

        try:
            samples = call_with_deadline(self._timeout_secs, run, f"samples of table {table!r}")
        except ServerUnavailable:
            raise self._nothing_sampled(table) from None
        found = np.array([sample[0] for sample in samples], np.uint64)
        numbers = keys.numbers_of(found)  # of a foreign key one that nobody has
        probabilities = np.array([sample[1] for sample in samples], np.float64)
        table_sizes = np.array([sample[2] for sample in samples], np.int64)
        return Draws(numbers, probabilities, table_sizes, [sample[_NUM_INFOS:] for sample in samples])

    def _draw_limited(self, count: int, table: str) -> Draws:
        """From a table whose rate limiter others may use up meanwhile: a draw never waits at it."""
        parts: list[Draws] = []
        end, left = time.monotonic() + self._timeout_secs, count
        while left:
            if time.monotonic() > end:
                raise self._nothing_sampled(table)
            parts.append(self._draw_once(left, table))
            left -= len(parts[-1].values)
            if left and not self._gives(left, table):
                gave = f"the rate limiter of table {table!r} gave {count - left} of {count} elements"
                if self.tables[table].max_times_sampled and left < count:
                    raise ServerUnavailable(f"{gave}, whose uses are lost: let nobody else sample it")
                raise LimitReached(gave)
        return joined(parts)

    def _draw_once(self, count: int, table: str) -> Draws:
        """As many of so many elements as the rate limiter gives, or less where the server is slow."""
        return call_with_deadline(
            self._timeout_secs,
            lambda: draw_within_limits(self.address, table, count, self._columns),
            f"samples of table {table!r}",
        )

    def _gives(self, count: int, table: str) -> bool:
        num_inserted, num_sampled = self.counts(table)
        return self.tables[table].rate_limiter.gives(num_inserted, num_sampled, count)

    def _nothing_sampled(self, table: str) -> ServerUnavailable:
        return ServerUnavailable(why_nothing_sampled(self._client, table, self._timeout_secs))

    def set_priorities(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        """Changes priorities in all tables; of a number that comes twice the later one counts.

        Raises:
          ServerUnavailable: if the server does not answer in time.
        """
        if not len(numbers):
            return
        updates = dict(zip(keys.of_numbers(numbers).tolist(), priorities.tolist(), strict=True))
        for table in self.tables:
            change = partial(self._client.mutate_priorities, table, updates=updates)
            call_with_deadline(self._timeout_secs, change, f"new priorities in table {table!r}")

    def delete(self, numbers: np.ndarray) -> None:
        """Removes elements from all tables; those that are not there are ignored.

        Raises:
          ServerUnavailable: if the server does not answer in time.
        """
        for begin in range(0, len(numbers), _MAX_DELETED_AT_ONCE):
            part = keys.of_numbers(numbers[begin : begin + _MAX_DELETED_AT_ONCE]).tolist()
            for table in self.tables:
                self._service.delete(table, part, timeout_secs=self._timeout_secs)

    def reset(self) -> None:
        """Removes all elements from all tables, whose counts begin anew.

        Raises:
          ServerUnavailable: if the server does not answer in time.
        """
        for table in self.tables:
            call_with_deadline(self._timeout_secs, partial(self._client.reset, table), f"table {table!r} to be emptied")
        self.num_drawn = dict.fromkeys(self.tables, 0)
        if self._writer is not None:  # numbers begin anew, and the keys of chunks must not
            self._writer.close()
            row_specs, squeeze = self._items
            self.open(row_specs, squeeze=squeeze)

    def info(self, table: str | None = None) -> Any:
        """What the server says of a table, or of the first: `reverb.TableInfo`."""
        return self.infos()[table or next(iter(self.tables))]

    def infos(self) -> dict[str, Any]:
        """What the server says of each table."""
        return self._service.table_infos(timeout_secs=self._timeout_secs)

    def counts(self, table: str) -> tuple[int, int]:
        """How many elements a table has taken in and given since its beginning, to whomever."""
        limiter = self.info(table).rate_limiter_info
        return limiter.insert_stats.completed, limiter.sample_stats.completed

    def num_drawn_by_others(self) -> int:
        """How many elements others drew from the tables, `LimitReached` draws included."""
        completed = {name: info.rate_limiter_info.sample_stats.completed for name, info in self.infos().items()}
        return sum(max(0, completed[name] - drawn) for name, drawn in self.num_drawn.items())

    def checkpoint(self) -> Path:
        """Writes a checkpoint with its manifest; see `ReplayServer.checkpoint`."""
        return self._server.checkpoint()
