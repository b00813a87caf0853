"""A consistent view of a buffer at one moment, read while other threads keep using the buffer."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.specs import ArraySpec, Nest

from .listeners import NotifyingLock
from .store import Store

#: Size of a block; copying one takes a fraction of a millisecond.
_BLOCK_BYTES = 1 << 20


class Snapshot:
    """The content of a buffer at the moment of construction, which must happen under the buffer's lock.

    Per-element bookkeeping is copied at once, about 30 bytes per element. Rows are copied in blocks, each under the
    lock, which is released in between. Until a block is yielded, either nobody has written to it since construction, or
    it was copied to `_kept` right before the first write: every write goes through `RowRing.write`, which calls
    `before_write`. Columns that the buffer replaces (`widen`, `grow`) are still held here and never written again.
    """

    def __init__(self, header: dict[str, Any], arrays: dict[str, np.ndarray], store: Store | None, lock: NotifyingLock):
        """Starts to preserve rows that are about to be overwritten.

        Args:
          header: plain values of the state.
          arrays: copies of the bookkeeping arrays.
          store: the buffer's rows, or None if there are none yet.
          lock: the buffer's lock, held by the caller.
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
    def column_specs(self) -> list[ArraySpec]:
        """The `ArraySpec`s `[R, ...]` of the columns."""
        return [ArraySpec((self.num_rows, *column.shape[1:]), column.dtype) for column in self._columns]

    def _copy(self, block: int) -> list[np.ndarray]:
        rows = slice(block * self._block_rows, min((block + 1) * self._block_rows, self.num_rows))
        return [column[rows].copy() for column in self._columns]

    def _keep(self, begin: int, end: int) -> None:
        for block in range(begin // self._block_rows, -(-min(end, self.num_rows) // self._block_rows)):
            if block >= self._next and block not in self._kept:
                self._kept[block] = self._copy(block)

    def blocks(self) -> Iterator[list[np.ndarray]]:
        """Yields the rows of all columns block by block, once."""
        while self._next * self._block_rows < self.num_rows:
            with self._lock:
                block, self._next = self._next, self._next + 1
                columns = self._kept.pop(block, None) or self._copy(block)
            yield columns

    def end(self) -> None:
        """Stops preserving rows. Idempotent."""
        with self._lock:
            if self._ring is not None and self._ring.before_write == self._keep:
                self._ring.before_write = None
            self._kept, self._columns = {}, []

    def read(self) -> dict[str, Any]:
        """Returns the complete state in memory, as `header` and `arrays`, and ends the snapshot."""
        try:
            begin = 0
            columns = [np.empty(spec.shape, spec.dtype) for spec in self.column_specs]  # type: ignore[arg-type]
            for block in self.blocks():
                for column, part in zip(columns, block, strict=True):
                    column[begin : begin + len(part)] = part
                begin += len(block[0])
        finally:
            self.end()
        arrays = {**self.arrays, **{f"column_{index}": column for index, column in enumerate(columns)}}
        return {"header": self.header, "arrays": arrays}


def describe_nest(nest: Nest) -> Any:
    """Converts a nest of `ArraySpec`s to plain values; `parse_nest` is the inverse."""
    if isinstance(nest, ArraySpec):
        return {"dtype": nest.dtype.name, "shape": list(nest.shape)}
    if isinstance(nest, dict):
        return {"dict": {key: describe_nest(part) for key, part in nest.items()}}
    if hasattr(nest, "_fields"):
        return {"named": [type(nest).__name__, {key: describe_nest(getattr(nest, key)) for key in nest._fields}]}
    return {type(nest).__name__: [describe_nest(part) for part in nest]}


def parse_nest(description: Any) -> Nest:
    """Returns the nest of a description; named tuples become new classes with the same name and fields."""
    if "dtype" in description:
        return ArraySpec(tuple(description["shape"]), np.dtype(description["dtype"]))
    if "dict" in description:
        return {key: parse_nest(part) for key, part in description["dict"].items()}
    if "named" in description:
        name, parts = description["named"]
        return namedtuple(name, parts)(**{key: parse_nest(part) for key, part in parts.items()})
    ((kind, parts),) = description.items()
    return {"list": list, "tuple": tuple}[kind](parse_nest(part) for part in parts)
