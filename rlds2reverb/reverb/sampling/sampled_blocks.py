"""Blocks of items from one server: decoded from samples or from finished batches, and joined to batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec, Nest, leaf_matches

from ..client.chunk_tensors import add_deltas, raw_content, read_spec
from ..client.samples import decode_column
from ..process.messages import SampleBatchesResponse
from ..wire.message_encoding import literal_header

#: The fields of `SampleInfo` that come from the server, with their dtypes.
INFO_DTYPES = {
    "key": np.uint64,
    "probability": np.float64,
    "table_size": np.int64,
    "priority": np.float64,
    "times_sampled": np.int32,
}


@dataclass(frozen=True)
class Block:
    """Some items of one server.

    Attributes:
      info: arrays `[n]`, in the order of `INFO_DTYPES`.
      columns: an array `[n, ...]` for each column, or a list of `n` arrays if its items vary in size.
    """

    info: Sequence[np.ndarray]
    columns: Sequence[np.ndarray | list[np.ndarray]]

    def __len__(self) -> int:
        return len(self.info[0])

    def slice_items(self, begin: int, end: int) -> Block:
        """Returns the items from `begin` to `end`."""
        return Block([values[begin:end] for values in self.info], [column[begin:end] for column in self.columns])

    def append(self, other: Block) -> Block:
        """Returns a block of the items of both blocks."""
        info = [np.concatenate(pair) for pair in zip(self.info, other.info, strict=True)]
        pairs = zip(self.columns, other.columns, strict=True)
        return Block(info, [np.concatenate([a, b]) if isinstance(a, np.ndarray) else [*a, *b] for a, b in pairs])


class BlockDecoder:
    """Decodes the items of a table, and checks that they match its signature."""

    def __init__(self, table: str, signature: Nest):
        """Derives the columns from the signature of the table, a nest of `ArraySpec`."""
        self._table = table
        self._columns = [_Column(index, spec, table) for index, spec in enumerate(tree.flatten(signature))]

    @property
    def item_bytes(self) -> int | None:
        """The size of an item, or None if it varies."""
        sizes = [column.item_bytes for column in self._columns]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def decode_samples(self, samples: Sequence[tuple[Any, Sequence[Any]]]) -> Block:
        """Decodes samples, each a `SampleInfo` message and the chunks of the item.

        Raises:
          SpecMismatchError: If an item does not match the signature, or is damaged.
        """
        columns = self._columns
        contents: list[list[Any]] = [[] for _ in columns]
        infos = []
        for info, chunks in samples:
            item = info.item
            infos.append((item.key, info.probability, info.table_size, item.priority, item.times_sampled))
            stored = item.flat_trajectory.columns
            if len(stored) != len(columns):
                raise _reject(self._table, f"has {len(stored)} columns, but the table's signature has {len(columns)}")
            by_key = {chunk.chunk_key: (chunk.data.tensors, chunk.delta_encoded, chunk) for chunk in chunks}
            try:
                for column, spec, content in zip(stored, columns, contents):  # noqa: B905 - Faster, and checked above.
                    content.append(spec.read(column, by_key))
            except SpecMismatchError:
                raise
            except ValueError as error:
                raise _reject(self._table, f"is damaged: {error}") from None
        pairs = zip(zip(*infos, strict=True), INFO_DTYPES.values(), strict=True)
        return Block(
            [np.array(values, dtype) for values, dtype in pairs],
            [spec.join(content) for spec, content in zip(columns, contents, strict=True)],
        )

    def decode_batch(self, response: bytes) -> Block:
        """Decodes a `SampleBatchesResponse`.

        Raises:
          SpecMismatchError: If the response does not match the signature.
        """
        batch = SampleBatchesResponse.FromString(response)
        infos = (batch.keys, batch.probabilities, batch.table_sizes, batch.priorities, batch.times_sampled)
        info = [np.frombuffer(content, dtype) for content, dtype in zip(infos, INFO_DTYPES.values(), strict=True)]
        lengths = np.frombuffer(batch.lengths, np.int32) if batch.lengths else None
        if len({len(values) for values in info}) != 1 or len(batch.columns) != len(self._columns):
            raise SpecMismatchError(f"a batch of table {self._table!r} is damaged")
        pairs = zip(self._columns, batch.columns, strict=True)
        try:
            return Block(info, [column.split(content, len(info[0]), lengths) for column, content in pairs])
        except ValueError as error:
            raise SpecMismatchError(f"a batch of table {self._table!r} is damaged ({error})") from None


class _Column:
    """A column of a table: reads its rows from chunks, and assembles them to arrays."""

    def __init__(self, index: int, spec: ArraySpec, table: str):
        self._index, self._spec, self._table = index, spec, table
        self._shape, self.dtype = spec.shape, spec.dtype
        self._is_fixed = None not in spec.shape
        self._row_bytes = (self._count_row_bytes(spec.shape[1:]), self._count_row_bytes(spec.shape))
        #: The size of an item, which is that of a single row; None if it varies.
        self.item_bytes = self._row_bytes[1]
        #: For items with and without a time axis, the number of rows in a tensor, their size, the header of its content
        #: if it is not compressed, and the size of that content, by its dtype and encoded shape.
        self._layouts: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})

    def _count_row_bytes(self, row_shape: tuple[int | None, ...]) -> int | None:
        """Returns the size of a row, or None if its size varies or it consists of objects."""
        is_fixed = None not in row_shape and not self.dtype.hasobject
        return ArraySpec(row_shape, self.dtype).num_bytes if is_fixed else None

    def read(self, column: Any, chunks: dict[int, Any]) -> Any:
        """Returns the content of an item: bytes, or an array if the rows of the column vary in size."""
        squeeze = column.squeeze
        if self._row_bytes[squeeze] is None:
            return self._require_match(decode_column(column, {key: chunk for key, (_, _, chunk) in chunks.items()}))
        pieces = column.chunk_slices
        if len(pieces) == 1:  # Fast path for the common case.
            content = self._read_piece(pieces[0], chunks, squeeze=squeeze)
        else:
            content = b"".join([self._read_piece(piece, chunks, squeeze=squeeze) for piece in pieces])
        if self.item_bytes is not None and len(content) != self.item_bytes:
            length = sum(piece.length for piece in pieces)
            raise self._make_mismatch(self.dtype, (length, *(self._shape if squeeze else self._shape[1:])))
        return content

    def _read_piece(self, piece: Any, chunks: dict[int, Any], *, squeeze: bool) -> bytes:
        """Returns the content of a slice of a chunk."""
        try:
            tensors, delta_encoded, _ = chunks[piece.chunk_key]
            tensor = tensors[piece.index]
        except (KeyError, IndexError):
            raise ValueError("it refers to a missing chunk") from None
        spec = (tensor.dtype, tensor.tensor_shape)
        layout = self._layouts[squeeze].get(spec) or self._add_layout(spec, squeeze=squeeze)
        num_rows, row_bytes, header, size = layout
        raw, begin = tensor.tensor_content, len(header)
        if len(raw) != size or not raw.startswith(header):
            raw, begin = raw_content(raw, num_rows * row_bytes)
        if delta_encoded:
            rows = np.frombuffer(raw, self.dtype, offset=begin, count=num_rows * row_bytes // self.dtype.itemsize)
            raw, begin = add_deltas(rows.reshape(read_spec(*spec)[1])).tobytes(), 0
        first = piece.offset
        end = first + piece.length
        if not 0 <= first < end <= num_rows:
            raise ValueError(f"it refers to rows {first} to {end} of a chunk with {num_rows}")
        return raw[begin + first * row_bytes : begin + end * row_bytes]

    def _add_layout(self, spec: tuple[int, bytes], *, squeeze: bool) -> tuple[int, int, bytes, int]:
        """Checks the rows of a tensor, and returns their number, their size, and what an uncompressed content has."""
        dtype, shape = read_spec(*spec)
        expected = self._shape if squeeze else self._shape[1:]
        if dtype != self.dtype or shape[1:] != expected or not (squeeze or self._shape):
            raise self._make_mismatch(dtype, (*(() if squeeze else self._shape[:1]), *shape[1:]))
        row_bytes = self._row_bytes[squeeze] or 0
        header = literal_header(shape[0] * row_bytes)
        layout = shape[0], row_bytes, header, len(header) + shape[0] * row_bytes
        self._layouts[squeeze][spec] = layout
        return layout

    def _require_match(self, array: np.ndarray) -> np.ndarray:
        """Raises `SpecMismatchError` unless an item has the dtype and shape of the column."""
        if not leaf_matches(array, self._spec):
            raise self._make_mismatch(array.dtype, array.shape)
        return array

    def _make_mismatch(self, dtype: np.dtype, shape: Sequence[int | None]) -> SpecMismatchError:
        got = ArraySpec(tuple(shape), dtype)
        reason = f"column {self._index} must be {self._spec}, got {got}"
        return _reject(self._table, f"does not match the table's signature: {reason}")

    def join(self, contents: list[Any]) -> np.ndarray | list[np.ndarray]:
        """Returns the items as one array or, if they vary in size, as a list of arrays."""
        if self._is_fixed and not self.dtype.hasobject:
            return np.frombuffer(b"".join(contents), self.dtype).reshape(len(contents), *self._shape)
        arrays = [
            np.frombuffer(content, self.dtype).reshape(-1, *self._shape[1:]) if isinstance(content, bytes) else content
            for content in contents
        ]
        return np.stack(arrays) if self._is_fixed else arrays

    def split(self, content: bytes, num_items: int, lengths: np.ndarray | None) -> np.ndarray | list[np.ndarray]:
        """Returns the items of a finished batch; `lengths` are their numbers of rows, if these vary."""
        shape = self._shape
        values = np.frombuffer(content, self.dtype)
        if self._is_fixed or lengths is None:
            return values.reshape(num_items, *(-1 if size is None else size for size in shape))
        return np.split(values.reshape(int(lengths.sum()), *shape[1:]), np.cumsum(lengths)[:-1])


def _reject(table: str, reason: str) -> SpecMismatchError:
    return SpecMismatchError(
        f"an item of table {table!r} {reason}; find the writer that inserted it, and accept trusted writers only"
    )


def join_columns(columns: Sequence[np.ndarray | list[np.ndarray]]) -> np.ndarray:
    """Joins one column of several blocks, `[B, ...]`; items of varying size are padded with zeros to the largest."""
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    items = [item for column in columns for item in column]
    shape, dtype = np.max([item.shape for item in items], axis=0), items[0].dtype
    joined = np.full((len(items), *shape), b"" if dtype.hasobject else 0, dtype)
    for index, item in enumerate(items):
        joined[(index, *map(slice, item.shape))] = item
    return joined
