"""Streams of blocks of items from one or more servers, each read by threads that survive the loss of a server.

Each stream has a thread. It reads samples, decodes them to blocks, and puts these into a queue of its server, which
holds a few of them. If a connection breaks, the thread connects again. Another thread watches how long each server has
delivered nothing while there was room in its queue. The consumer takes blocks of all servers in turn.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError

from ..client import Connection, PausableDeadline
from ..client.client_messages import SampleStreamResponse
from ..client.connection import encode_sample_request
from ..client.samples import join_parts
from .sampled_blocks import Block, BlockDecoder
from .server_tables import ServerTables

_MAX_TICK_SECS = 0.25
_RETRY_SECS = 0.5
#: Maximum time for which the first block waits for those of other servers.
_START_SECS = 0.5
_CONNECT_SECS = 2.0
#: Seconds by which the answer of a server may exceed its own timeout.
_GRACE_SECS = 5.0
#: A message takes as much time as the bytes of hundreds of small items, so it has up to this many blocks and bytes.
_MESSAGE_BLOCKS, _MESSAGE_BYTES = 4, 1 << 18
#: The rate limiter of a server that is well has been waiting, the connection broke, or this process gave up waiting.
_UNAVAILABLE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class BlockStreams:
    """The blocks of several servers as they arrive. Close it after use."""

    def __init__(
        self,
        tables: ServerTables,
        *,
        block_size: int,
        max_blocks: int,
        max_in_flight: int,
        num_streams: int,
        timeout_secs: float,
        on_stalled: Callable[[Sequence[int]], None],
    ):
        """Starts the threads.

        Args:
          tables: the tables of the servers; unreachable servers are stalled from the start.
          block_size: number of items per block.
          max_blocks: number of blocks of each server that wait for the consumer.
          max_in_flight: number of samples that each stream requests ahead.
          num_streams: number of streams from each server.
          timeout_secs: seconds without blocks after which a server is stalled.
          on_stalled: function called with the indices of servers when they stall, and again if they recover and stall
            once more.
        """
        self.tables, self.table, self.block_size = tables, tables.table, block_size
        self.decoder = BlockDecoder(tables.table, tables.signature)
        self.max_in_flight, self.timeout_secs = max_in_flight, timeout_secs
        self.is_closed = threading.Event()
        self._max_blocks, self._on_stalled = max_blocks, on_stalled
        self._changed = threading.Condition()
        self._blocks: list[deque[Block]] = [deque() for _ in tables.addresses]
        self._errors: deque[Exception] = deque()
        self._is_reported = [index in tables.unreachable for index in range(len(tables.addresses))]
        self._idle_secs = [timeout_secs if is_stalled else 0.0 for is_stalled in self._is_reported]
        self._last = -1
        self._starts_at = time.monotonic() + _START_SECS
        servers = [*enumerate(tables.addresses)] * num_streams
        self._readers = [Reader(self, index, address) for index, address in servers]
        for run in (*(reader.run for reader in self._readers), self._watch):
            threading.Thread(target=run, name=f"sample-{self.table}", daemon=True).start()

    def close(self) -> None:
        """Ends the streams at once. Idempotent; a consumer that waits gets a `StopIteration`."""
        self.is_closed.set()
        for reader in self._readers:
            reader.cancel()
        with self._changed:
            self._changed.notify_all()

    def get(self) -> tuple[int, Block] | None:
        """Returns a server and its next block, in turn if several have one; None if no server delivers any in time.

        Raises:
          SpecMismatchError: If an item does not match the signature, or is damaged.
          StopIteration: If the streams are closed.
        """
        num_servers = len(self._blocks)
        with self._changed:
            while True:
                if self.is_closed.is_set():
                    raise StopIteration
                if self._errors:
                    raise self._errors.popleft()
                wait_secs = self._get_start_delay()
                for index in (*range(self._last + 1, num_servers), *range(self._last + 1)) if not wait_secs else ():
                    if self._blocks[index]:
                        self._last = index
                        self._changed.notify_all()
                        return index, self._blocks[index].popleft()
                if min(self._idle_secs) >= self.timeout_secs:
                    self._idle_secs = [0.0] * num_servers  # The next call waits again.
                    return None
                self._changed.wait(wait_secs or None)

    def _get_start_delay(self) -> float:
        """Returns for how long the first block waits, so that the first batch has items of all servers that answer."""
        if self._last >= 0 or all(map(any, zip(self._blocks, self._is_reported, strict=True))):
            return 0.0
        return max(0.0, self._starts_at - time.monotonic())

    def put(self, server: int, blocks: Sequence[Block]) -> None:
        """Adds blocks, which wakes the consumer once; waits while the queue of their server is full."""
        with self._changed:
            self._idle_secs[server], self._is_reported[server] = 0.0, False
            while len(self._blocks[server]) >= self._max_blocks and not self.is_closed.is_set():
                self._changed.wait()
            self._blocks[server] += blocks
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Makes a call of `get` raise an error."""
        with self._changed:
            self._errors.append(error)
            self._changed.notify_all()

    def _watch(self) -> None:
        """Counts the seconds for which each server delivers nothing; a time in which this process is stopped is not."""
        deadline = PausableDeadline(self.timeout_secs, max_tick_secs=_MAX_TICK_SECS)
        while not self.is_closed.wait(deadline.tick_secs):
            elapsed = self.timeout_secs - deadline.remaining_secs
            deadline.restart()
            if new := self.tick(elapsed):
                # Explaining it takes seconds if the server is gone.
                threading.Thread(target=self._on_stalled, args=(new,), daemon=True).start()
            for reader in self._readers:
                reader.cancel_if_stuck(elapsed)

    def tick(self, elapsed_secs: float) -> list[int]:
        """Counts the seconds since the last tick; returns the servers that stall while others do not."""
        with self._changed:
            for index, blocks in enumerate(self._blocks):
                self._idle_secs[index] = 0.0 if blocks else self._idle_secs[index] + elapsed_secs
            stalled = [index for index, secs in enumerate(self._idle_secs) if secs >= self.timeout_secs]
            if len(stalled) == len(self._blocks):
                self._changed.notify_all()  # The consumer raises an error.
                return []
            new = [index for index in stalled if not self._is_reported[index]]
            for index in new:
                self._is_reported[index] = True
            return new


class Reader:
    """One stream of samples from a server, as a loop that runs in a thread."""

    def __init__(self, streams: BlockStreams, server: int, address: str):
        self._streams, self._server, self._address = streams, server, address
        self._call: Any = None
        self._waited_secs = 0.0
        self._is_waiting = False
        #: Items that do not fill a block yet, of either kind of stream.
        self._samples: list[Any] = []
        self._rest: Block | None = None
        self._has_refused_batches = False
        #: Whether the server is still the one whose table was checked.
        self._is_same_run: Callable[[], bool] = lambda: True

    def run(self) -> None:
        """Reads until the streams are closed, and connects again whenever the connection breaks."""
        while not self._streams.is_closed.is_set():
            try:
                with Connection(self._address) as connection:
                    self._read(connection)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
            except ServerUnavailableError:
                pass
            except DecodeError as error:
                self._streams.fail(SpecMismatchError(f"the server at {self._address} sent a damaged message ({error})"))
            except Exception as error:  # The consumer gets it.
                self._streams.fail(error)
            self._streams.is_closed.wait(_RETRY_SECS)

    def _read(self, connection: Connection) -> None:
        state_id, infos = connection.server_state(timeout_secs=_CONNECT_SECS)
        if self._streams.table in infos:  # Without it, the server refuses the stream, and the consumer gets its reason.
            self._streams.tables.require_unchanged(self._server, infos[self._streams.table])
        self._is_same_run = lambda: connection.state_id(timeout_secs=_CONNECT_SECS) == state_id
        if not self._has_refused_batches and connection.serves_batches(state_id, timeout_secs=_CONNECT_SECS):
            try:
                self._read_batches(connection)
                return
            except grpc.RpcError as error:
                if error.code() in _UNAVAILABLE:
                    raise
                self._has_refused_batches = True  # The plain samples may explain why.
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            self._read_samples(self._iterate(connection.sample_stream(iter(requests.get, None))), requests)
        finally:
            requests.put(None)

    def _read_batches(self, connection: Connection) -> None:
        """Reads finished batches; the last one before the rate limiter's timeout may have fewer items than a block."""
        streams, size = self._streams, self._streams.block_size
        block_bytes = (streams.decoder.item_bytes or _MESSAGE_BYTES) * size
        num_blocks = min(_MESSAGE_BLOCKS, max(1, _MESSAGE_BYTES // block_bytes))
        call = connection.batch_stream(
            streams.table, size * num_blocks, timeout_secs=streams.timeout_secs, max_in_flight=streams.max_in_flight
        )
        for response in self._iterate(call):
            block = streams.decoder.decode_batch(response)
            if self._rest is not None:
                block, self._rest = self._rest.append(block), None
            end = len(block) - len(block) % size
            if end:
                streams.put(self._server, [block.slice_items(begin, begin + size) for begin in range(0, end, size)])
            if end < len(block):
                self._rest = block.slice_items(end, len(block))

    def _read_samples(self, responses: Iterator[bytes], requests: queue.SimpleQueue[bytes | None]) -> None:
        """Reads samples; requests more once half of the previous request has arrived."""
        streams = self._streams
        step = max(1, streams.max_in_flight // 2)
        request = encode_sample_request(streams.table, step, timeout_secs=streams.timeout_secs)
        for _ in range(max(1, streams.max_in_flight // step)):
            requests.put(request)
        entries = (entry for response in responses for entry in SampleStreamResponse.FromString(response).entries)
        for num_arrived, sample in enumerate(join_parts(entries), 1):
            self._samples.append(sample)
            if num_arrived % step == 0:
                requests.put(request)
            if len(self._samples) == streams.block_size:
                samples, self._samples = self._samples, []
                streams.put(self._server, [streams.decoder.decode_samples(samples)])

    def _iterate(self, call: Any) -> Iterator[bytes]:
        """Yields the responses of a call, which `cancel` and `cancel_if_stuck` can end.

        There are no responses if the server was replaced between the check of its table and the first response.
        """
        self._call = call
        if self._streams.is_closed.is_set():
            call.cancel()
        is_checked = False
        while True:
            self._waited_secs, self._is_waiting = 0.0, True
            response = next(call, None)
            self._is_waiting = False
            if response is None or not (is_checked or self._is_same_run()):
                return
            is_checked = True
            yield response

    def cancel(self) -> None:
        """Ends the call, if one is in progress."""
        if self._call is not None:
            self._call.cancel()

    def cancel_if_stuck(self, elapsed_secs: float) -> None:
        """Counts the time since the last check; ends the call if the server is silent for longer than its timeout."""
        if self._is_waiting:
            self._waited_secs += elapsed_secs
            if self._waited_secs > self._streams.timeout_secs + _GRACE_SECS:
                self.cancel()
