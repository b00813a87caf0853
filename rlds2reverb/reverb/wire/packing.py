"""The packed layout, which joins all columns of an item to one, so that a table needs less memory and samples faster.

A packed row consists of the bytes of one row of each column, concatenated in the order of `tree.flatten`. Its dtype is
int32 if the element size of every column is a multiple of 4 bytes, else uint8. The signature of a packed table has one
leaf, whose name starts with `rlds2reverb.packed.` and encodes the spec of the unpacked item, so that the table
describes its own packing.
"""

from __future__ import annotations

import base64
import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import ArraySpec, Nest, numpy_dtype_of

from .signatures import decode_signature

if TYPE_CHECKING:
    import tensorflow as tf

_PREFIX = "rlds2reverb.packed."


@dataclass(frozen=True)
class Packing:
    """A description of packed items.

    Attributes:
      item_spec: nest of `tf.TensorSpec`, or of `ArraySpec`, of an unpacked item.
      squeeze: whether items are single rows without a time axis.
    """

    item_spec: Nest
    squeeze: bool

    __repr__ = short_repr

    @property
    def row_shapes(self) -> list[tuple[int, ...]]:
        """The shape of one row of each column."""
        return [tuple(leaf.shape)[0 if self.squeeze else 1 :] for leaf in tree.flatten(self.item_spec)]

    @cached_property
    def _columns(self) -> list[tuple[int, int, Any, np.dtype, tuple[int, ...]]]:
        """Each column's first element in a packed row, the one after its last, its dtypes, and the shape of its row."""
        leaves = tree.flatten(self.item_spec)
        dtypes, arrays = [leaf.dtype for leaf in leaves], [numpy_dtype_of(leaf) for leaf in leaves]
        element_bytes = _packed_dtype(arrays).itemsize
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.row_shapes, arrays, strict=True)]
        ends = [end // element_bytes for end in itertools.accumulate(sizes)]
        return list(zip([0, *ends[:-1]], ends, dtypes, arrays, self.row_shapes, strict=True))


def pack_columns(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Packs columns `[R, ...]` into one: int32 or uint8 `[R, W]`."""
    dtype = _packed_dtype([column.dtype for column in columns])
    num_rows = len(columns[0])
    parts = [np.ascontiguousarray(column).reshape(num_rows, math.prod(column.shape[1:])) for column in columns]
    views = [part.view(dtype) if part.shape[1] else np.zeros((num_rows, 0), dtype) for part in parts]
    return np.concatenate(views, axis=1)


def packed_spec(row_specs: Sequence[ArraySpec]) -> ArraySpec:
    """Returns the spec of a packed row."""
    dtype = _packed_dtype([spec.dtype for spec in row_specs])
    return ArraySpec((sum(spec.num_bytes for spec in row_specs) // dtype.itemsize,), dtype)


def _packed_dtype(dtypes: Sequence[Any]) -> np.dtype:
    return np.dtype(np.int32) if all(dtype.itemsize % 4 == 0 for dtype in dtypes) else np.dtype(np.uint8)


def packed_signature(packing: Packing) -> tf.TensorSpec:
    """Returns the signature of a table of packed items."""
    import tensorflow as tf

    from rlds2reverb.libraries.tensorflow_internals import encode_spec

    leaves = tree.flatten(packing.item_spec)
    rows = [ArraySpec(shape, numpy_dtype_of(leaf)) for shape, leaf in zip(packing.row_shapes, leaves, strict=True)]
    spec = packed_spec(rows)
    encoded = encode_spec(packing.item_spec)
    kind = "row." if packing.squeeze else "rows."
    name = _PREFIX + kind + base64.urlsafe_b64encode(zlib.compress(encoded, 9)).decode()
    leading = () if packing.squeeze else (leaves[0].shape[0],)
    return tf.TensorSpec((*leading, *spec.shape), spec.dtype, name=name)


def find_packing(signature: Nest) -> Packing | None:
    """Returns the packing of a table's items, or None if they are not packed.

    Its specs are `ArraySpec`s if those of the signature are, and `tf.TensorSpec`s otherwise.

    Raises:
      ValueError: If the signature is that of a packed table, but its description is damaged.
    """
    name = getattr(signature, "name", None) or ""
    if not name.startswith(_PREFIX):
        return None
    if isinstance(signature, ArraySpec):
        decode_spec = decode_signature
    else:
        from rlds2reverb.libraries.tensorflow_internals import decode_spec

    try:
        kind, encoded = name.removeprefix(_PREFIX).split(".")
        if kind not in ("row", "rows"):
            raise ValueError(f"kind must be 'row' or 'rows', got {kind!r}")
        return Packing(decode_spec(zlib.decompress(base64.urlsafe_b64decode(encoded))), kind == "row")
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the packing in the table's signature is damaged ({error})") from error


def unpack(packed: tf.Tensor, packing: Packing) -> Nest:
    """Unpacks items with TensorFlow.

    Args:
      packed: int32 or uint8 `[..., W]`, items with any leading batch and time axes.
      packing: packing of the items; see `find_packing`.

    Returns:
      The nest of an item; each leaf has the leading axes of `packed`, followed by the shape of its rows.
    """
    columns = [_unpack_column(packed[..., begin:end], dtype, shape) for begin, end, dtype, _, shape in packing._columns]
    return tree.unflatten_as(packing.item_spec, columns)


def unpack_arrays(packed: np.ndarray, packing: Packing) -> Nest:
    """Unpacks items with NumPy; see `unpack`. The columns, except those of booleans, are views of the packed array."""
    columns = []
    for begin, end, _, dtype, shape in packing._columns:
        content = packed[..., begin:end]
        column = content != 0 if dtype == np.bool_ else content.view(dtype) if end > begin else np.empty(0, dtype)
        columns.append(column.reshape(*packed.shape[:-1], *shape))
    return tree.unflatten_as(packing.item_spec, columns)


def _unpack_column(packed: tf.Tensor, dtype: Any, shape: tuple[int, ...]) -> tf.Tensor:
    import tensorflow as tf

    leading = tf.shape(packed)[:-1]
    if dtype == tf.bool:
        column = packed != 0
    elif dtype.size == packed.dtype.size:
        column = tf.bitcast(packed, dtype)
    else:
        ratio = dtype.size // packed.dtype.size
        column = tf.bitcast(tf.reshape(packed, tf.concat([leading, [-1, ratio]], axis=0)), dtype)
    column = tf.reshape(column, tf.concat([leading, tf.constant(shape, tf.int32)], axis=0))
    return tf.ensure_shape(column, (*packed.shape[:-1], *shape))
