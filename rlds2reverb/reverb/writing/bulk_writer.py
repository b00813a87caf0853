"""Writes items to a running server in batches, over a stream on which the server confirms every item.

A batch is sent once and kept until the server has confirmed each of its items in each table. If the stream breaks, a
new one is opened and the unconfirmed batches are sent again. An item's key is derived from its content, so an item
that is sent twice is stored once.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from rlds2reverb.errors import ServerRestartedError, ServerUnavailableError

from ..client import Connection, PausableDeadline, Server, confirmed_keys, explain_blocked_inserts, find_address
from ..wire import keys
from ..wire.encoder import EncodedBatch, Encoder
from ..wire.item_blocks import ItemBlock

_MAX_UNCONFIRMED_BYTES = 32 << 20
_FIRST_PAUSES_SECS, _MAX_PAUSE_SECS = (0.1, 0.2, 0.4, 0.8, 1.6), 2.0
_MAX_CONNECT_SECS = 5.0
_TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


@dataclass
class _Batch:
    """A batch that was sent and is not yet confirmed.

    Attributes:
      number: number of batches sent before it.
      requests: its `InsertStreamRequest` messages.
      num_bytes: size of the requests.
      keys: uint64 `[M]`, sorted keys of its items in all tables.
      num_unconfirmed: number of keys that the server has not confirmed.
    """

    number: int
    requests: list[bytes]
    num_bytes: int
    keys: np.ndarray
    num_unconfirmed: int = 0

    def confirm(self, confirmed: np.ndarray) -> np.ndarray:
        """Subtracts the confirmed keys that belong to the batch, and returns the others."""
        at = np.minimum(np.searchsorted(self.keys, confirmed), len(self.keys) - 1)
        is_own = self.keys[at] == confirmed
        self.num_unconfirmed -= int(is_own.sum())
        return confirmed[~is_own]


class BulkWriter:
    """Writes batches of items to a server and tracks their confirmations. Close it after use."""

    def __init__(self, server: Server, encoder: Encoder, *, timeout_secs: float = 30.0):
        """Opens the stream.

        Args:
          server: server to write to; see `client.find_address`.
          encoder: encoder for the tables.
          timeout_secs: seconds to wait for each confirmation.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        self._address, self._encoder, self._timeout_secs = find_address(server), encoder, timeout_secs
        self._num_batches = 0
        self._unconfirmed_writes: deque[tuple[int, Any]] = deque()
        self._confirmed_state: Any = None
        self._item_keys: list[np.ndarray] = []
        self._chunk_keys: list[np.ndarray] = []
        #: Guards the attributes below, which the thread that reads confirmations changes as well.
        self._changed = threading.Condition()
        self._deadline = PausableDeadline(timeout_secs)
        self._num_responses = 0
        self._unconfirmed: deque[_Batch] = deque()
        self._unconfirmed_bytes = 0
        self._arrived_keys: list[int] = []
        self._error: Exception | None = None
        #: Identifies the run of the server that all confirmations come from.
        self.state_id = self._open_stream(timeout_secs)

    @property
    def confirmed_state(self) -> Any:
        """The `state` of the last `write` up to which every item is confirmed, or None."""
        with self._changed:
            num_confirmed = self._unconfirmed[0].number if self._unconfirmed else self._num_batches
        while self._unconfirmed_writes and self._unconfirmed_writes[0][0] <= num_confirmed:
            self._confirmed_state = self._unconfirmed_writes.popleft()[1]
        return self._confirmed_state

    def write(self, blocks: Iterable[ItemBlock], state: Any = None) -> None:
        """Sends the items of some episodes; waits while too many bytes are unconfirmed.

        Args:
          blocks: items to send.
          state: value of `confirmed_state` once these items and all earlier ones are confirmed.

        Raises:
          ServerUnavailableError: If the server confirms nothing within the timeout.
          ServerRestartedError: If the server was restarted.
        """
        for encoded in self._encoder.encode(blocks):
            self._write_batch(encoded)
        self._unconfirmed_writes.append((self._num_batches, state))

    def _write_batch(self, encoded: EncodedBatch) -> None:
        self._item_keys += encoded.item_keys
        self._chunk_keys.append(encoded.chunk_keys)
        requests = encoded.insert_requests()
        num_bytes = sum(map(len, requests))
        self._wait(lambda: not self._unconfirmed or self._unconfirmed_bytes + num_bytes <= _MAX_UNCONFIRMED_BYTES)
        batch = _Batch(self._num_batches, requests, num_bytes, np.sort(np.concatenate(encoded.item_keys)))
        with self._changed:
            self._num_batches += 1
            self._unconfirmed.append(batch)
            self._unconfirmed_bytes += num_bytes
            self._send(batch)

    def flush_and_forget(self) -> None:
        """Waits for all confirmations and forgets what was written, so that the same items can be written again.

        Raises:
          ServerUnavailableError, ServerRestartedError: As for `write`.
        """
        self._wait(lambda: not self._unconfirmed)
        self._item_keys.clear()
        self._chunk_keys.clear()
        self._unconfirmed_writes.clear()

    def flush(self) -> None:
        """Waits until everything is confirmed by the server that was running at the beginning.

        Raises:
          ServerUnavailableError, ServerRestartedError: As for `write`.
          KeyCollisionError: If two items or chunks have the same key.
        """
        keys.require_unique(self._item_keys)
        keys.require_unique(self._chunk_keys)
        self._wait(lambda: not self._unconfirmed)
        self._require_same_server(self._connection.state_id(timeout_secs=self._timeout_secs))

    def close(self) -> None:
        """Ends the stream at once, even if items are unconfirmed."""
        self._requests.put(None)
        self._call.cancel()
        self._connection.close()

    def _open_stream(self, timeout_secs: float) -> str:
        """Opens a stream on a new connection; returns the state id of its server."""
        connection = Connection(self._address, small_window=True)
        try:
            state_id = connection.state_id(timeout_secs=timeout_secs)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = connection.insert_stream(iter(self._requests.get, None))
        self._arrived_keys.clear()
        self._error = None
        threading.Thread(target=self._read, args=(self._call,), daemon=True).start()
        return state_id

    def _send(self, batch: _Batch) -> None:
        batch.num_unconfirmed = len(batch.keys)
        for request in batch.requests:
            self._requests.put(request)

    def _read(self, responses: Iterable[bytes]) -> None:
        """Handles confirmations until the stream ends. Runs in a thread."""
        error: Exception = EOFError("the server ended the stream")
        try:
            for response in responses:
                self._confirm(confirmed_keys(response))
        except Exception as raised:  # Any error is reported by the thread that writes.
            error = raised
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _confirm(self, confirmed: Sequence[int]) -> None:
        """Collects the keys of one response, and looks them up once they may complete the first batch."""
        with self._changed:
            self._num_responses += 1
            self._deadline.restart()
            self._arrived_keys += confirmed
            if self._unconfirmed and len(self._arrived_keys) < self._unconfirmed[0].num_unconfirmed:
                return
            arrived = np.sort(np.array(self._arrived_keys, np.uint64))  # Searching for sorted keys is much faster.
            self._arrived_keys.clear()
            for batch in self._unconfirmed:
                if not len(arrived):
                    break
                arrived = batch.confirm(arrived)
            while self._unconfirmed and not self._unconfirmed[0].num_unconfirmed:
                self._unconfirmed_bytes -= self._unconfirmed.popleft().num_bytes
                self._changed.notify_all()

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Waits for a condition, reopening the stream if it breaks; each response restarts the deadline."""
        pauses = _retry_pauses()
        with self._changed:
            self._deadline.restart()
            num_responses = self._num_responses
            while self._error is not None or not is_ready():
                if self._num_responses > num_responses:
                    num_responses, pauses = self._num_responses, _retry_pauses()
                remaining = self._deadline.remaining_secs
                if remaining <= 0:
                    raise ServerUnavailableError(self._explain_timeout())
                if self._error is not None:
                    self._reopen(min(next(pauses), remaining), remaining)
                else:
                    self._changed.wait(self._deadline.tick_secs)

    def _reopen(self, pause: float, remaining: float) -> None:
        if isinstance(self._error, grpc.RpcError) and self._error.code() not in _TRANSIENT:
            reason = f"{self._error.code().name}: {self._error.details()}"
            raise ServerUnavailableError(f"the server at {self._address} refused items ({reason})")
        self._changed.wait(pause)
        self.close()
        try:
            state_id = self._open_stream(max(0.1, min(remaining - pause, _MAX_CONNECT_SECS)))
        except ServerUnavailableError:
            return  # The caller checks the deadline and tries again.
        self._require_same_server(state_id)
        for batch in self._unconfirmed:
            self._send(batch)

    def _require_same_server(self, state_id: str) -> None:
        if state_id != self.state_id:
            raise ServerRestartedError(
                f"the server at {self._address} was restarted and may have lost confirmed items; resume the run"
            )

    def _explain_timeout(self) -> str:
        if isinstance(self._error, grpc.RpcError):
            reason = f"{self._error.code().name}: {self._error.details()}"
            return f"lost the server at {self._address} for {self._timeout_secs:g} s ({reason}); start it, then resume"
        return explain_blocked_inserts(self._address, self._encoder.tables, self._timeout_secs)


def _retry_pauses() -> Iterator[float]:
    return itertools.chain(_FIRST_PAUSES_SECS, itertools.repeat(_MAX_PAUSE_SECS))
