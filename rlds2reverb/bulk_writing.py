"""Batches of encoded items to a live server, over streams of its own: many items a message, each confirmed.

A batch is sent once and kept until the server has confirmed each of its items in each table. When a stream breaks, a
new one is opened and gets what was not confirmed; keys that say what they hold make the repetition harmless.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from rlds2reverb import keys, protobuf
from rlds2reverb.batches import Batch, Encoder
from rlds2reverb.pieces import Piece
from rlds2reverb.service import Service, confirmed_keys
from rlds2reverb.writing import Server, ServerUnavailable, connect, require_timeout, why_blocked

_MAX_UNCONFIRMED_BYTES = 32 << 20
_MAX_REQUEST_BYTES = 64 << 20
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.1, 2.0
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class ServerRestarted(ConnectionError):
    """Another server answers at the address than before: what the earlier one had confirmed may be gone."""


@dataclass
class _Sent:
    """A batch that was sent: its place among all, its messages, and the keys to be confirmed, sorted."""

    number: int
    requests: list[bytes]
    num_bytes: int
    keys: np.ndarray
    num_left: int

    def confirm(self, confirmed: np.ndarray) -> np.ndarray:
        """Counts those of the keys that are its own; gives the others."""
        at = np.minimum(np.searchsorted(self.keys, confirmed), len(self.keys) - 1)
        own = self.keys[at] == confirmed
        self.num_left -= int(own.sum())
        return confirmed[~own]


def server_state_id(address: str, *, timeout_secs: float) -> str:
    """What changes with every start of a server.

    Raises:
      ServerUnavailable: if it does not answer in time.
    """
    service = Service(address)
    try:
        return service.state_id(timeout_secs=timeout_secs)
    except grpc.RpcError as error:
        raise ServerUnavailable(f"no Reverb server answered at {address} ({error.code().name})") from None
    finally:
        service.close()


def requests_of(batch: Batch) -> list[bytes]:
    """The `InsertStreamRequest` messages of a batch: one, unless its chunks are too large for that."""
    items = [part for records in batch.items for part in _framed(2, records)]
    if batch.chunk_bytes <= _MAX_REQUEST_BYTES:
        return [b"".join([part for records in batch.chunks for part in _framed(1, records)] + items)]
    chunks = [b"".join(_framed(1, records)) for records in batch.chunks]  # a stream keeps them until items come
    return [*chunks[:-1], b"".join([chunks[-1], *items])]


def _framed(number: int, records: Any) -> list[Any]:
    if isinstance(records, np.ndarray):
        return [protobuf.fill(protobuf.message_field(number, [records]), len(records)).data]
    return [part for record in records for part in (protobuf.delimited_head(number, len(record)), record)]


class _Stream:
    """One stream of insertions with its own connection, and a thread that reads the confirmations."""

    def __init__(self, address: str, tell: Callable[[_Stream, Any], None]):
        self.unconfirmed: deque[_Sent] = deque()
        self.error: Any = None
        self._arrived: list[int] = []
        self._service = Service(address)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._service.insert_stream(iter(self._queue.get, None))
        self._thread = threading.Thread(target=self._read, args=(tell,), daemon=True)
        self._thread.start()

    def _read(self, tell: Callable[[_Stream, Any], None]) -> None:
        try:
            for response in self._call:
                tell(self, confirmed_keys(response))
            tell(self, EOFError("the server ended the stream"))
        except Exception as error:  # whatever it is, the writer has to know
            tell(self, error)

    def send(self, sent: _Sent) -> None:
        sent.num_left = len(sent.keys)
        self.unconfirmed.append(sent)
        for request in sent.requests:
            self._queue.put(request)

    def end(self) -> None:
        """Ends the stream, from another thread than the one that reads."""
        self._queue.put(None)
        self._call.cancel()
        self._service.close()

    def confirm(self, keys_of_response: Sequence[int]) -> int:
        """Takes in confirmed keys, which come in any order and mostly one by one; gives the bytes of batches now done.

        They are looked at when there are enough for the first batch to be done.
        """
        self._arrived += keys_of_response
        if self.unconfirmed and len(self._arrived) < self.unconfirmed[0].num_left:
            return 0
        confirmed = np.array(self._arrived, np.uint64)
        self._arrived.clear()
        for sent in self.unconfirmed:
            if not len(confirmed):
                break
            confirmed = sent.confirm(confirmed)
        freed = 0
        while self.unconfirmed and not self.unconfirmed[0].num_left:
            freed += self.unconfirmed.popleft().num_bytes
        return freed


class BulkWriter:
    """Writes batches to a server and knows which of them it has confirmed. Use it as a context manager."""

    def __init__(self, server: Server, encoder: Encoder, *, num_streams: int = 1, timeout_secs: float = 30.0):
        """Opens the streams.

        Args:
          server: see `writing.connect`.
          encoder: for the tables.
          num_streams: streams that share the batches; with more than one the order of items is not kept.
          timeout_secs: how long to wait for any confirmation.

        Raises:
          ServerUnavailable: if the server does not answer in time.
          ValueError: if a number is out of its range.
        """
        require_timeout(timeout_secs)
        if not 1 <= num_streams <= 16:
            raise ValueError(f"num_streams is {num_streams}, wanted 1 to 16")
        self._client = connect(server)
        self._address = self._client.server_address
        self._encoder = encoder
        self._timeout_secs = timeout_secs
        self._changed = threading.Condition()
        self._num_sent = 0
        self._ends: deque[int] = deque()
        self._num_done = 0
        self._last_progress = 0.0
        self._item_keys: list[np.ndarray] = []
        self._chunk_keys: list[np.ndarray] = []
        self._bytes = 0
        #: Identifies the start of the server that all confirmations are from.
        self.state_id = server_state_id(self._address, timeout_secs=timeout_secs)
        self._streams = [self._open() for _ in range(num_streams)]

    def __enter__(self) -> BulkWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.close(failed=kind is not None)

    @property
    def num_confirmed(self) -> int:
        """Calls of `write`, counted from the first, of which every item is confirmed."""
        with self._changed:
            waiting = [stream.unconfirmed[0].number for stream in self._streams if stream.unconfirmed]
            first_waiting = min(waiting, default=self._num_sent)
        while self._ends and self._ends[0] <= first_waiting:
            self._ends.popleft()
            self._num_done += 1
        return self._num_done

    def write(self, pieces: Iterable[Piece]) -> None:
        """Sends the items of some episodes, waiting where too much is unconfirmed.

        Raises:
          ServerUnavailable: if the server confirms nothing within the time-out; names what was waited for.
          ServerRestarted: if another server answers at the address.
        """
        for batch in self._encoder.encode(pieces):
            self._send(batch)
        self._ends.append(self._num_sent)

    def _send(self, batch: Batch) -> None:
        self._item_keys += batch.item_keys
        self._chunk_keys.append(batch.chunk_keys)
        requests = requests_of(batch)
        num_bytes = sum(map(len, requests))
        self._wait(lambda: self._bytes == 0 or self._bytes + num_bytes <= _MAX_UNCONFIRMED_BYTES)
        item_keys = np.sort(np.concatenate(batch.item_keys))
        sent = _Sent(self._num_sent, requests, num_bytes, item_keys, len(item_keys))
        with self._changed:
            self._num_sent += 1
            self._bytes += num_bytes
            min(self._streams, key=lambda stream: len(stream.unconfirmed)).send(sent)

    def confirm(self) -> None:
        """As `flush`, and forgets what was written; for different keys, a server of this process, and a long life.

        Raises:
          ServerUnavailable, ServerRestarted: as `write`.
        """
        self._wait(lambda: self._bytes == 0)
        self._item_keys.clear()
        self._chunk_keys.clear()
        self._ends.clear()

    def flush(self) -> None:
        """Waits until everything is confirmed, by the server that was there at the beginning.

        Raises:
          ServerUnavailable, ServerRestarted: as `write`.
          KeysCoincide: if two items or chunks have the same key.
        """
        keys.require_different(self._item_keys)
        keys.require_different(self._chunk_keys)
        self._wait(lambda: self._bytes == 0)
        self._require_same_server(self._timeout_secs)

    def close(self, *, failed: bool = False) -> None:
        """Ends the streams at once, whatever is unconfirmed."""
        for stream in self._streams:
            stream.end()

    def _open(self) -> _Stream:
        return _Stream(self._address, self._told)

    def _told(self, stream: _Stream, what: Any) -> None:
        """Runs in the threads that read."""
        with self._changed:
            if isinstance(what, Exception):
                stream.error = what
            else:
                freed = stream.confirm(what)
                if stream not in self._streams:
                    return
                self._last_progress = time.monotonic()
                self._bytes -= freed
                if not freed:
                    return  # nobody waits for less
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        pauses = _pauses()
        with self._changed:
            progress = time.monotonic()
            while True:
                broken = [stream for stream in self._streams if stream.error is not None]
                if not broken and ready():
                    return
                if self._last_progress > progress:
                    progress, pauses = self._last_progress, _pauses()
                left = progress + self._timeout_secs - time.monotonic()
                if left <= 0:
                    raise ServerUnavailable(self._why(broken))
                if broken:
                    self._reopen(broken[0], min(next(pauses), left), left)
                else:
                    self._changed.wait(left)

    def _reopen(self, broken: _Stream, pause: float, left: float) -> None:
        """Replaces a broken stream and sends again what it had not confirmed."""
        error = broken.error
        if isinstance(error, grpc.RpcError) and error.code() not in _PASSING:
            reason = f"{error.code().name}: {error.details()}"
            raise ServerUnavailable(f"the server at {self._address} refused items ({reason})")
        self._changed.wait(pause)
        broken.end()
        try:
            self._require_same_server(max(0.1, min(left - pause, 5.0)))
        except ServerUnavailable:
            return  # still away; the caller looks at the clock
        fresh = self._open()
        self._streams[self._streams.index(broken)] = fresh
        for sent in broken.unconfirmed:
            fresh.send(sent)

    def _require_same_server(self, timeout_secs: float) -> None:
        if server_state_id(self._address, timeout_secs=timeout_secs) != self.state_id:
            raise ServerRestarted(
                f"the server at {self._address} was started anew; what the earlier one confirmed may be gone: resume"
            )

    def _why(self, broken: Sequence[_Stream]) -> str:
        if broken and isinstance(broken[0].error, grpc.RpcError):
            reason = f"{broken[0].error.code().name}: {broken[0].error.details()}"
            return f"lost the server at {self._address} for {self._timeout_secs:g} s ({reason}); start it, then resume"
        return why_blocked(self._client, self._encoder.tables, self._timeout_secs)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECS)
