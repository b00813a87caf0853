"""Batches from a callable, made ahead in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import tree

from rlds2reverb._arguments import require_count


def setup_dataloader(
    get_data: Callable[[int], Any], batch_size: int, chunk_size: int | None = None, num_workers: int = 0
) -> Dataloader:
    """Returns batches of what a callable gives, after DI-engine's AsyncDataLoader.

    Args:
      get_data: called with a number of elements, it returns a list of so many nests of arrays or numbers; or None or a
        shorter list where there is nothing more.
      batch_size: elements in a batch, at least 1.
      chunk_size: elements that are asked for at a time, which has to divide `batch_size`; all of a batch if None.
      num_workers: threads that call `get_data`, two batches ahead for each; 0 to call it when a batch is asked for.

    Returns:
      An iterator over stacked batches, nests of arrays `[batch_size, ...]`; a last one that is not full is left out.
      Chunks are in the order in which they were asked for, however many threads there are. An exception of `get_data`
      is raised where its batch would have been. Close it, or use it in a `with` block.

    Raises:
      ValueError: if a number is out of its range, or chunk_size does not divide batch_size; while it is read, if
        `get_data` gives more than it was asked for.
    """
    return Dataloader(get_data, batch_size, chunk_size, num_workers)


class Dataloader(Iterator[Any]):
    """See `setup_dataloader`."""

    def __init__(
        self, get_data: Callable[[int], Any], batch_size: int, chunk_size: int | None = None, num_workers: int = 0
    ):
        """See `setup_dataloader`."""
        require_count("batch_size", batch_size)
        require_count("num_workers", num_workers, 0)
        chunk_size = batch_size if chunk_size is None else chunk_size
        require_count("chunk_size", chunk_size)
        if batch_size % chunk_size:
            raise ValueError(f"chunk_size is {chunk_size}, expected a divisor of the batch_size of {batch_size}")
        self._get_data, self._chunk_size = get_data, chunk_size
        self._num_chunks = batch_size // chunk_size
        self._pool = futures.ThreadPoolExecutor(num_workers, "rlds2reverb-data") if num_workers else None
        self._num_ahead = 2 * num_workers * self._num_chunks
        self._asked: deque[futures.Future[list[Any]]] = deque()
        self._is_over = False

    def __enter__(self) -> Dataloader:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads, after the calls that are under way."""
        self._is_over = True
        for asked in self._asked:
            asked.cancel()
        self._asked.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            elements = [element for _ in range(self._num_chunks) for element in self._chunk()]
        except BaseException:
            self.close()
            raise
        if len(elements) < self._num_chunks * self._chunk_size:
            self.close()
            raise StopIteration
        return tree.map_structure(lambda *leaves: np.stack(leaves), *elements)

    def _chunk(self) -> list[Any]:
        """Returns the next chunk, and sees to it that enough are asked for ahead."""
        if self._pool is None:
            return self._asked_for()
        while len(self._asked) <= self._num_ahead:
            self._asked.append(self._pool.submit(self._asked_for))
        return self._asked.popleft().result()

    def _asked_for(self) -> list[Any]:
        found = self._get_data(self._chunk_size)
        elements = [] if found is None else list(found)
        if len(elements) > self._chunk_size:
            raise ValueError(f"get_data gave {len(elements)} elements, expected at most {self._chunk_size}")
        return elements
