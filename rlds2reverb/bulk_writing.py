"""Batches of encoded items to a live server, each item confirmed.

A batch is sent once and kept until the server has confirmed each of its items in each table. When a stream breaks, a
new one is opened and gets what was not confirmed; keys that say what they hold make the repetition harmless.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from rlds2reverb import keys
from rlds2reverb.batches import Batch, Encoder
from rlds2reverb.connecting import Server, connect, require_timeout, why_blocked
from rlds2reverb.insert_streams import InsertStream, Sent, requests_of
from rlds2reverb.pieces import Piece
from rlds2reverb.service import ServerRestarted, ServerUnavailable

_MAX_UNCONFIRMED_BYTES = 32 << 20
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.1, 2.0
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class BulkWriter:
    """Writes batches to a server and knows which of them it has confirmed. Use it as a context manager."""

    def __init__(self, server: Server, encoder: Encoder, *, num_streams: int = 1, timeout_secs: float = 30.0):
        """Opens the streams.

        Args:
          server: see `connecting.connect`.
          encoder: for the tables.
          num_streams: streams that share the batches; with more than one the order of items is not kept.
          timeout_secs: how long to wait for any confirmation.

        Raises:
          ServerUnavailable: if the server does not answer in time.
          ServerRestarted: if another server answers at the address than at first.
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
        #: Identifies the start of the server that all confirmations are from; known with the first stream.
        self.state_id = ""
        self._streams: list[InsertStream] = []
        try:
            for _ in range(num_streams):
                self._streams.append(self._open(timeout_secs))
        except BaseException:
            self.close(failed=True)
            raise

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
        sent = Sent(self._num_sent, requests, num_bytes, item_keys, len(item_keys))
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
        self._require_same(self._streams[0].state_id_now(timeout_secs=self._timeout_secs))

    def close(self, *, failed: bool = False) -> None:
        """Ends the streams at once, whatever is unconfirmed."""
        for stream in self._streams:
            stream.end()

    def _open(self, timeout_secs: float) -> InsertStream:
        stream = InsertStream(self._address, self._told, timeout_secs=timeout_secs)
        self.state_id = self.state_id or stream.state_id
        try:
            self._require_same(stream.state_id)
        except ServerRestarted:
            stream.end()
            raise
        return stream

    def _told(self, stream: InsertStream, what: Any) -> None:
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

    def _reopen(self, broken: InsertStream, pause: float, left: float) -> None:
        """Replaces a broken stream and sends again what it had not confirmed."""
        error = broken.error
        if isinstance(error, grpc.RpcError) and error.code() not in _PASSING:
            reason = f"{error.code().name}: {error.details()}"
            raise ServerUnavailable(f"the server at {self._address} refused items ({reason})")
        self._changed.wait(pause)
        broken.end()
        try:
            fresh = self._open(max(0.1, min(left - pause, 5.0)))
        except ServerUnavailable:
            return  # still away; the caller looks at the clock
        self._streams[self._streams.index(broken)] = fresh
        for sent in broken.unconfirmed:
            fresh.send(sent)

    def _require_same(self, state_id: str) -> None:
        if state_id != self.state_id:
            raise ServerRestarted(
                f"the server at {self._address} was started anew; what the earlier one confirmed may be gone: resume"
            )

    def _why(self, broken: Sequence[InsertStream]) -> str:
        if broken and isinstance(broken[0].error, grpc.RpcError):
            reason = f"{broken[0].error.code().name}: {broken[0].error.details()}"
            return f"lost the server at {self._address} for {self._timeout_secs:g} s ({reason}); start it, then resume"
        return why_blocked(self._client, self._encoder.tables, self._timeout_secs)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECS)
