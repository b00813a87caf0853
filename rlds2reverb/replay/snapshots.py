"""A buffer as it was at one moment, read while others go on with it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.specs import ArraySpec, Nest

from .listeners import NotifyingLock
from .store import Store

#: Bytes of a block, which take a fraction of a millisecond to copy.
_BLOCK_BYTES = 1 << 20


class State(NamedTuple):
    """All of a buffer: plain values, as JSON has them, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Snapshot:
    """What a buffer holds at the moment in which this is made, under its lock.

    What is known of the elements is copied at once: some 30 bytes each. Their rows are copied in blocks, each under the
    lock, which is free in between. This holds for each block until it is given out: either nobody has written to it
    since the moment, or it was copied right before the first who did, and lies in `_kept`. For all writes go through
    `RowRing.write`, which tells of them first, and where columns are replaced (`widen`, `grow`) those of before are
    still held here and never written to again.
    """

    def __init__(self, header: dict[str, Any], arrays: dict[str, np.ndarray], store: Store | None, lock: NotifyingLock):
        """Begins to keep what is written over.

        Args:
          header: plain values.
          arrays: copies that go with them.
          store: of the rows.
          lock: of the buffer, which is held.
        """
        self.header, self.arrays, self._lock = header, arrays, lock
        self._columns: list[np.ndarray] = []
        self.num_rows = 0
        self._next, self._kept = 0, dict[int, list[np.ndarray]]()
        self._ring = None if store is None else store.ring
        if store is not None:
            self.arrays = {**arrays, **store.arrays(header["push_count"])}
            self._columns, self.num_rows = list(store.ring.columns), store.ring.num_used
            store.ring.before_write = self._keep
        row_bytes = sum(column[:1].nbytes for column in self._columns)
        self._block_rows = max(1, _BLOCK_BYTES // max(row_bytes, 1))

    @property
    def columns(self) -> list[ArraySpec]:
        """`ArraySpec`s `[R, ...]` of the columns."""
        return [ArraySpec((self.num_rows, *column.shape[1:]), column.dtype) for column in self._columns]

    def _copied(self, block: int) -> list[np.ndarray]:
        rows = slice(block * self._block_rows, min((block + 1) * self._block_rows, self.num_rows))
        return [column[rows].copy() for column in self._columns]

    def _keep(self, begin: int, end: int) -> None:
        for block in range(begin // self._block_rows, -(-min(end, self.num_rows) // self._block_rows)):
            if block >= self._next and block not in self._kept:
                self._kept[block] = self._copied(block)

    def blocks(self) -> Iterator[list[np.ndarray]]:
        """Yields the rows of all columns block by block, once."""
        try:
            while self._next * self._block_rows < self.num_rows:
                with self._lock:
                    block, self._next = self._next, self._next + 1
                    copied = self._kept.pop(block, None) or self._copied(block)
                yield copied
        finally:
            self.end()

    def end(self) -> None:
        """Keeps nothing any more."""
        with self._lock:
            if self._ring is not None and self._ring.before_write == self._keep:
                self._ring.before_write = None
            self._kept, self._columns = {}, []

    def state(self) -> State:
        """All of it, in memory."""
        try:
            begin = 0
            whole = [np.empty((self.num_rows, *column.shape[1:]), column.dtype) for column in self._columns]
            for block in self.blocks():
                for column, part in zip(whole, block, strict=True):
                    column[begin : begin + len(part)] = part
                begin += len(block[0])
        finally:
            self.end()
        return State(self.header, {**self.arrays, **{f"column_{i}": column for i, column in enumerate(whole)}})


def described(nest: Nest) -> Any:
    """A nest of `ArraySpec`s as plain values; `nest_of` makes it again."""
    if isinstance(nest, ArraySpec):
        return {"dtype": nest.dtype.name, "shape": list(nest.shape)}
    if isinstance(nest, dict):
        return {"dict": {key: described(part) for key, part in nest.items()}}
    if hasattr(nest, "_fields"):
        return {"named": [type(nest).__name__, {key: described(getattr(nest, key)) for key in nest._fields}]}
    return {type(nest).__name__: [described(part) for part in nest]}


def nest_of(description: Any) -> Nest:
    """The nest of a description. A named tuple comes back as one of the same name, but of a class of its own."""
    if "dtype" in description:
        return ArraySpec(tuple(description["shape"]), np.dtype(description["dtype"]))
    if "dict" in description:
        return {key: nest_of(part) for key, part in description["dict"].items()}
    if "named" in description:
        name, parts = description["named"]
        return namedtuple(name, parts)(**{key: nest_of(part) for key, part in parts.items()})
    ((kind, parts),) = description.items()
    return {"list": list, "tuple": tuple}[kind](nest_of(part) for part in parts)
