"""Batches of encoded items to a live server, each item confirmed.

A batch is sent once and kept until the server has confirmed each of its items in each table. When the stream breaks, a
new one is opened and gets what was not confirmed. Keys stand for content, so that an item sent twice is stored once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import numpy as np

from rlds2reverb._arguments import require_timeout
from rlds2reverb._encoding import keys
from rlds2reverb._encoding.encoder import EncodedBatch, Encoder
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._server.clients import Server, connect, why_blocked
from rlds2reverb._server.pausable_deadline import PausableDeadline
from rlds2reverb.errors import ServerRestartedError, ServerUnavailableError

from .insert_stream import InsertStream, SentBatch

_MAX_UNCONFIRMED_BYTES = 32 << 20
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.1, 2.0
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class BulkWriter:
    """Writes batches to a server and knows which of them the server has confirmed. Use it as a context manager."""

    def __init__(self, server: Server, encoder: Encoder, *, timeout_secs: float = 30.0):
        """Opens the stream.

        Args:
          server: see `clients.connect`.
          encoder: for the tables.
          timeout_secs: how long to wait for any confirmation.

        Raises:
          ServerUnavailableError: if the server does not answer in time.
          ValueError: if the time-out is out of its range.
        """
        require_timeout(timeout_secs)
        self._client = connect(server)
        self._address = self._client.server_address
        self._encoder = encoder
        self._timeout_secs = timeout_secs
        #: Guards what the thread that reads confirmations changes: the stream's state, `_bytes`, `_patience`.
        self._changed = threading.Condition()
        self._num_batches = 0
        self._ends_of_writes: deque[int] = deque()
        self._num_confirmed = 0
        self._patience = PausableDeadline(timeout_secs)
        self._num_responses = 0
        self._item_keys: list[np.ndarray] = []
        self._chunk_keys: list[np.ndarray] = []
        self._bytes = 0
        self._stream = InsertStream(self._address, self._on_response, timeout_secs=timeout_secs)
        #: Identifies the start of the server that all confirmations are from.
        self.state_id = self._stream.state_id

    def __enter__(self) -> BulkWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.close(failed=kind is not None)

    @property
    def num_confirmed(self) -> int:
        """Calls of `write`, counted from the first, of which every item is confirmed."""
        with self._changed:
            unconfirmed = self._stream.unconfirmed
            first_unconfirmed = unconfirmed[0].number if unconfirmed else self._num_batches
        while self._ends_of_writes and self._ends_of_writes[0] <= first_unconfirmed:
            self._ends_of_writes.popleft()
            self._num_confirmed += 1
        return self._num_confirmed

    def write(self, blocks: Iterable[ItemBlock]) -> None:
        """Sends the items of some episodes, waiting where too much is unconfirmed.

        Raises:
          ServerUnavailableError: if the server confirms nothing within the time-out; names what was waited for.
          ServerRestartedError: if the server was restarted.
        """
        for batch in self._encoder.encode(blocks):
            self._send(batch)
        self._ends_of_writes.append(self._num_batches)

    def _send(self, batch: EncodedBatch) -> None:
        self._item_keys += batch.item_keys
        self._chunk_keys.append(batch.chunk_keys)
        requests = batch.insert_requests()
        num_bytes = sum(map(len, requests))
        self._wait(lambda: self._bytes == 0 or self._bytes + num_bytes <= _MAX_UNCONFIRMED_BYTES)
        item_keys = np.sort(np.concatenate(batch.item_keys))
        sent = SentBatch(self._num_batches, requests, num_bytes, item_keys, len(item_keys))
        with self._changed:
            self._num_batches += 1
            self._bytes += num_bytes
            self._stream.send(sent)

    def confirm(self) -> None:
        """Waits for all confirmations and forgets what was written: for distinct keys, and a server that stays.

        Raises:
          ServerUnavailableError, ServerRestartedError: as `write`.
        """
        self._wait(lambda: self._bytes == 0)
        self._item_keys.clear()
        self._chunk_keys.clear()
        self._ends_of_writes.clear()

    def flush(self) -> None:
        """Waits until everything is confirmed, by the server that was there at the beginning.

        Raises:
          ServerUnavailableError, ServerRestartedError: as `write`.
          KeyCollisionError: if two items or chunks have the same key.
        """
        keys.require_different(self._item_keys)
        keys.require_different(self._chunk_keys)
        self._wait(lambda: self._bytes == 0)
        self._require_same(self._stream.state_id_now(timeout_secs=self._timeout_secs))

    def close(self, *, failed: bool = False) -> None:
        """Ends the stream at once, whatever is unconfirmed."""
        self._stream.end()

    def _on_response(self, stream: InsertStream, response: Any) -> None:
        """Runs in the thread that reads."""
        with self._changed:
            if isinstance(response, Exception):
                stream.error = response
            elif stream is self._stream:
                freed = stream.confirm(response)
                self._num_responses += 1
                self._patience.restart()
                self._bytes -= freed
                if not freed:
                    return  # nobody waits for less
            self._changed.notify_all()

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        pauses = _pauses()
        with self._changed:
            self._patience.restart()
            num_responses = self._num_responses
            while self._stream.error is not None or not is_ready():
                if self._num_responses > num_responses:
                    num_responses, pauses = self._num_responses, _pauses()
                left = self._patience.left
                if left <= 0:
                    raise ServerUnavailableError(self._why_late())
                if self._stream.error is not None:
                    self._reopen(min(next(pauses), left), left)
                else:
                    self._changed.wait(self._patience.tick_secs)

    def _reopen(self, pause: float, left: float) -> None:
        """Replaces the broken stream and sends again what it had not confirmed."""
        broken, error = self._stream, self._stream.error
        if isinstance(error, grpc.RpcError) and error.code() not in _PASSING:
            reason = f"{error.code().name}: {error.details()}"
            raise ServerUnavailableError(f"the server at {self._address} refused items ({reason})")
        self._changed.wait(pause)
        broken.end()
        try:
            stream = InsertStream(self._address, self._on_response, timeout_secs=max(0.1, min(left - pause, 5.0)))
        except ServerUnavailableError:
            return  # still away; the caller looks at the clock
        try:
            self._require_same(stream.state_id)
        except ServerRestartedError:
            stream.end()
            raise
        self._stream = stream
        for batch in broken.unconfirmed:
            stream.send(batch)

    def _require_same(self, state_id: str) -> None:
        if state_id != self.state_id:
            raise ServerRestartedError(
                f"the server at {self._address} was restarted; what the earlier one confirmed may be gone: resume"
            )

    def _why_late(self) -> str:
        error = self._stream.error
        if isinstance(error, grpc.RpcError):
            reason = f"{error.code().name}: {error.details()}"
            return f"lost the server at {self._address} for {self._timeout_secs:g} s ({reason}); start it, then resume"
        return why_blocked(self._client, self._encoder.tables, self._timeout_secs)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECS)
