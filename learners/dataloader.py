"""Batches from a callable, optionally prefetched by threads."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import tree

from rlds2reverb._arguments import require_count
from rlds2reverb._system.closing import Closing
from rlds2reverb._system.threads import complete

#: How long `close` waits for calls that nobody needs.
_CLOSE_SECS = 5.0
_Request = tuple[Callable[[], list[Any]], "Future[list[Any]]"]


class Dataloader(Closing, Iterator[Any]):
    """An iterator over batches of the elements that a callable returns, after DI-engine's AsyncDataLoader.

    Batches are stacked nests of arrays `[batch_size, ...]`; an incomplete last batch is dropped. Chunks keep the order
    in which they were requested, whatever the number of threads. An exception of `get_data` is raised in place of its
    batch. Close the iterator, or use it in a `with` block. The program may end while threads are running.
    """

    def __init__(
        self, get_data: Callable[[int], Any], batch_size: int, chunk_size: int | None = None, num_workers: int = 0
    ):
        """Starts the threads.

        Args:
          get_data: function that takes a number of elements and returns a list of that many nests of arrays or numbers;
            it returns None or a shorter list when the data are exhausted. During iteration, a longer list raises
            `ValueError`.
          batch_size: number of elements in a batch, at least 1.
          chunk_size: number of elements per call of `get_data`, which must divide `batch_size`; None for a whole batch.
          num_workers: number of threads that call `get_data`, each up to two batches ahead; 0 to call it on demand.

        Raises:
          ValueError: If a number is out of range, or chunk_size does not divide batch_size.
        """
        require_count("batch_size", batch_size)
        require_count("num_workers", num_workers, 0)
        chunk_size = batch_size if chunk_size is None else chunk_size
        require_count("chunk_size", chunk_size)
        if batch_size % chunk_size:
            raise ValueError(f"chunk_size must divide the batch_size of {batch_size}, got {chunk_size}")
        self._load_chunk = partial(_load_chunk, get_data, chunk_size)
        self._chunk_size, self._num_chunks = chunk_size, batch_size // chunk_size
        self._num_ahead = 2 * num_workers * self._num_chunks
        self._pending: deque[Future[list[Any]]] = deque()
        self._is_closed = False
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_answer, args=(self._requests,), name=f"rlds2reverb-data-{index}", daemon=True)
            for index in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()
        self._stop = weakref.finalize(self, _stop, self._requests, self._pending, num_workers)

    def close(self) -> None:
        """Stops the threads after their current calls, for which it waits up to 5 s."""
        self._is_closed = True
        self._stop()
        end = time.monotonic() + _CLOSE_SECS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            elements = [element for _ in range(self._num_chunks) for element in self._next_chunk()]
        except BaseException:
            self.close()
            raise
        if len(elements) < self._num_chunks * self._chunk_size:
            self.close()
            raise StopIteration
        return tree.map_structure(lambda *leaves: np.stack(leaves), *elements)

    def _next_chunk(self) -> list[Any]:
        """Returns the next chunk, and keeps enough requests pending."""
        if not self._threads:
            return self._load_chunk()
        while len(self._pending) <= self._num_ahead:
            self._pending.append(Future())
            self._requests.put((self._load_chunk, self._pending[-1]))
        return self._pending.popleft().result()


def _load_chunk(get_data: Callable[[int], Any], size: int) -> list[Any]:
    data = get_data(size)
    elements = [] if data is None else list(data)
    if len(elements) > size:
        raise ValueError(f"get_data must return at most {size} elements, got {len(elements)}")
    return elements


def _answer(requests: queue.SimpleQueue[_Request | None]) -> None:
    """Calls functions until there is a None instead of one."""
    while (request := requests.get()) is not None:
        function, future = request
        if future.set_running_or_notify_cancel():
            complete(future, function)


def _stop(requests: queue.SimpleQueue[_Request | None], pending: deque[Future[list[Any]]], num_threads: int) -> None:
    """Cancels the requests that no thread has started, and ends the threads."""
    while pending:
        pending.pop().cancel()
    for _ in range(num_threads):
        requests.put(None)


#: DI-engine's name.
setup_dataloader = Dataloader
