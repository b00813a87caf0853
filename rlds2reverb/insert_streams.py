"""Streams of insertions: batches of encoded items as messages of Reverb's `InsertStream`, and their confirmations."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb import protobuf
from rlds2reverb.batches import Batch
from rlds2reverb.service import Service, confirmed_keys

_MAX_REQUEST_BYTES = 64 << 20


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


@dataclass
class Sent:
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


class InsertStream:
    """One stream of insertions with its own connection, and a thread that reads the confirmations."""

    def __init__(self, address: str, tell: Callable[[InsertStream, Any], None], *, timeout_secs: float):
        """Connects and opens the stream.

        Args:
          address: of the server.
          tell: gets, in the thread that reads, the keys that a response confirms, or the error that ended the stream.
          timeout_secs: how long to wait for the connection.

        Raises:
          ServerUnavailable: if the server does not answer in time.
        """
        #: What was sent and is not confirmed as a whole, in order.
        self.unconfirmed: deque[Sent] = deque()
        #: Why the stream ended, if it did; for `tell` to set.
        self.error: Any = None
        self._arrived: list[int] = []
        self._service = Service(address)
        try:
            #: Of the server that the stream is with; see `Service.state_id`.
            self.state_id = self._service.state_id(timeout_secs=timeout_secs)
        except BaseException:
            self._service.close()
            raise
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._service.insert_stream(iter(self._queue.get, None))
        self._thread = threading.Thread(target=self._read, args=(tell,), daemon=True)
        self._thread.start()

    def _read(self, tell: Callable[[InsertStream, Any], None]) -> None:
        try:
            for response in self._call:
                tell(self, confirmed_keys(response))
            tell(self, EOFError("the server ended the stream"))
        except Exception as error:  # whatever it is, the writer has to know
            tell(self, error)

    def state_id_now(self, *, timeout_secs: float) -> str:
        """Of the server that answers now, over the same connection; see `Service.state_id`."""
        return self._service.state_id(timeout_secs=timeout_secs)

    def send(self, sent: Sent) -> None:
        """Sends a batch, or sends it again."""
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
        """Takes in confirmed keys, which come in any order, few at a time; gives the bytes of batches now done.

        They are looked at when there are enough for the first batch to be done.
        """
        self._arrived += keys_of_response
        if self.unconfirmed and len(self._arrived) < self.unconfirmed[0].num_left:
            return 0
        confirmed = np.sort(np.array(self._arrived, np.uint64))  # what is sorted is found several times as fast
        self._arrived.clear()
        for sent in self.unconfirmed:
            if not len(confirmed):
                break
            confirmed = sent.confirm(confirmed)
        freed = 0
        while self.unconfirmed and not self.unconfirmed[0].num_left:
            freed += self.unconfirmed.popleft().num_bytes
        return freed
