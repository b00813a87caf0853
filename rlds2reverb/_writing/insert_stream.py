"""A stream of insertions: messages of Reverb's `InsertStream` out, confirmations of single items back."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb._server.connection import ServerConnection, confirmed_keys


@dataclass
class SentBatch:
    """A batch that was sent: its number among all, its messages, and the keys to be confirmed, sorted."""

    number: int
    requests: list[bytes]
    num_bytes: int
    keys: np.ndarray
    num_unconfirmed: int

    def confirm(self, confirmed: np.ndarray) -> np.ndarray:
        """Counts those of the keys that belong to the batch, and returns the others."""
        at = np.minimum(np.searchsorted(self.keys, confirmed), len(self.keys) - 1)
        own = self.keys[at] == confirmed
        self.num_unconfirmed -= int(own.sum())
        return confirmed[~own]


class InsertStream:
    """One stream of insertions with its own connection, and a thread that reads the confirmations."""

    def __init__(self, address: str, on_response: Callable[[InsertStream, Any], None], *, timeout_secs: float):
        """Connects and opens the stream.

        Args:
          address: of the server.
          on_response: called in the thread that reads, with the keys that a response confirms, or with the error that
            ended the stream.
          timeout_secs: how long to wait for the connection.

        Raises:
          ServerUnavailableError: if the server does not answer in time.
        """
        #: Batches that were sent and are not confirmed as a whole, in order.
        self.unconfirmed: deque[SentBatch] = deque()
        #: Why the stream ended, if it did; for `on_response` to set.
        self.error: Any = None
        self._arrived: list[int] = []
        self._connection = ServerConnection(address)
        try:
            #: Of the server at the other end; see `ServerConnection.state_id`.
            self.state_id = self._connection.state_id(timeout_secs=timeout_secs)
        except BaseException:
            self._connection.close()
            raise
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._connection.insert_stream(iter(self._queue.get, None))
        self._thread = threading.Thread(target=self._read, args=(on_response,), daemon=True)
        self._thread.start()

    def _read(self, on_response: Callable[[InsertStream, Any], None]) -> None:
        try:
            for response in self._call:
                on_response(self, confirmed_keys(response))
            on_response(self, EOFError("the server ended the stream"))
        except Exception as error:  # whatever it is, the writer has to know
            on_response(self, error)

    def state_id_now(self, *, timeout_secs: float) -> str:
        """Of the server that answers now, over the same connection; see `ServerConnection.state_id`."""
        return self._connection.state_id(timeout_secs=timeout_secs)

    def send(self, batch: SentBatch) -> None:
        """Sends a batch, or sends it again."""
        batch.num_unconfirmed = len(batch.keys)
        self.unconfirmed.append(batch)
        for request in batch.requests:
            self._queue.put(request)

    def end(self) -> None:
        """Ends the stream, from another thread than the one that reads."""
        self._queue.put(None)
        self._call.cancel()
        self._connection.close()

    def confirm(self, keys_of_response: Sequence[int]) -> int:
        """Takes confirmed keys, which come in any order, few at a time; returns the bytes of batches now complete.

        The keys are looked up once there are enough of them to complete the first batch.
        """
        self._arrived += keys_of_response
        if self.unconfirmed and len(self._arrived) < self.unconfirmed[0].num_unconfirmed:
            return 0
        confirmed = np.sort(np.array(self._arrived, np.uint64))  # sorted keys are found several times as fast
        self._arrived.clear()
        for batch in self.unconfirmed:
            if not len(confirmed):
                break
            confirmed = batch.confirm(confirmed)
        freed = 0
        while self.unconfirmed and not self.unconfirmed[0].num_unconfirmed:
            freed += self.unconfirmed.popleft().num_bytes
        return freed
