"""What a table without a signature holds: such a table refuses nothing, so that we look at an item of it instead."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import tree
from reverb.reverb_types import TableInfo

from rlds2reverb._encoding.packing import find_packing
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.specs import ArraySpec, Nest, describe, require_match

from .connection import ServerConnection
from .pausable_deadline import PausableDeadline

#: The longest wait for an item, where the table ought to give one at once.
_LONGEST_SECS = 5.0
#: The longest wait of one attempt, and the time between two of them.
_ATTEMPT_SECS, _PAUSE_SECS = 1.0, 0.1
#: Reverb's own number for a rate limiter that never waits is the largest float.
_NO_LIMIT = 1e300
_ADVICE = (
    "write to an empty table, or cast or reshape the data: the table has no signature and would take both, and then "
    "it could not be sampled"
)


def counts_samples(info: TableInfo) -> bool:
    """Whether a sample takes something away: an item can be used up, or the rate limiter counts what is sampled."""
    limiter = info.rate_limiter_info
    is_limited = limiter.max_diff < _NO_LIMIT or limiter.min_diff > -_NO_LIMIT
    return bool(is_limited or info.max_times_sampled > 0)


def require_same_items(
    address: str, infos: Mapping[str, TableInfo], tables: Sequence[str], signature: Nest, *, timeout_secs: float
) -> list[str]:
    """Checks that tables without a signature do not hold items of another spec, judged by one item of each.

    An item is looked at by sampling it, which changes nothing but how often it and its table were sampled. So tables
    are left alone where that takes something away from others (`counts_samples`), or where they would not give an item
    at once.

    Args:
      address: of the server.
      infos: what it reports about its tables.
      tables: names of those that are to get items.
      signature: of these items; `None` in its shapes allows any size.
      timeout_secs: how long to wait for an item; 5 seconds at most.

    Returns:
      A sentence for each table that holds items and could not be looked at.

    Raises:
      SpecMismatchError: naming the first column that differs.
    """
    unknown = []
    for name in tables:
        info = infos[name]
        if info.signature is not None or not info.current_size:
            continue
        reason = _why_not_to_look(info)
        if reason is None:
            with ServerConnection(address) as connection:
                held = _held_columns(connection, name, min(timeout_secs, _LONGEST_SECS))
            reason = "it gave none in time" if held is None else None
            if held is not None:
                _require_same(signature, held, name)
        if reason is not None:
            unknown.append(
                f"table {name!r} has no signature, and none of its {info.current_size:,} items was looked at "
                f"({reason}): they may have other columns than these, and then it cannot be sampled; serve it with a "
                "signature (--like, or ReplayServer's)"
            )
    return unknown


def _why_not_to_look(info: TableInfo) -> str | None:
    if counts_samples(info):
        return "each sample counts there"
    least = info.rate_limiter_info.min_size_to_sample
    return f"it gives none before it has {least:,}" if info.current_size < least else None


def _held_columns(connection: ServerConnection, table: str, timeout_secs: float) -> list[ArraySpec] | None:
    """Returns the specs of the columns of one item, in their order, or None if the table gives none in time."""
    patience = PausableDeadline(timeout_secs)
    while (left := patience.left) > 0:
        try:
            with closing(connection.sample(table, timeout_secs=min(left, _ATTEMPT_SECS))) as parts:
                return _columns_of(parts)
        except grpc.RpcError:  # the table was emptied meanwhile, the connection broke, or this process was stopped
            time.sleep(_PAUSE_SECS)
    return None


def _columns_of(parts: Iterable[Any]) -> list[ArraySpec] | None:
    """Returns the specs of the columns of a sample, read no further than needed: an item may be very large."""
    columns: Sequence[Any] = ()
    rows: dict[int, list[ArraySpec]] = {}
    for part in parts:
        columns = part.info.item.flat_trajectory.columns or columns
        for chunk in part.data:
            rows[chunk.chunk_key] = [_row_spec(tensor) for tensor in chunk.data.tensors]
        if columns and all(column.chunk_slices[0].chunk_key in rows for column in columns):
            return [_spec_of(column, rows) for column in columns]
    return None


def _row_spec(tensor: Any) -> ArraySpec:
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    return ArraySpec(shape[1:], np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype))


def _spec_of(column: Any, rows: Mapping[int, Sequence[ArraySpec]]) -> ArraySpec:
    first = column.chunk_slices[0]
    row = rows[first.chunk_key][first.index]
    length = sum(piece.length for piece in column.chunk_slices)
    return row if column.squeeze else ArraySpec((length, *row.shape), row.dtype)


def _require_same(signature: Nest, held: Sequence[ArraySpec], table: str) -> None:
    ours = tree.flatten(signature)
    holder = f"table {table!r}, judged by the columns of an item in it,"
    may_be_packed = find_packing(signature) is not None or (len(held) == 1 and held[0].dtype in (np.int32, np.uint8))
    advice = f"{_ADVICE}; if only one of them is packed, give the other layout" if may_be_packed else _ADVICE
    if len(ours) != len(held):
        raise SpecMismatchError(
            f"the items have {_listed(ours)}, {holder} has {_listed(held)}; {advice}",
        )
    require_match(
        tree.unflatten_as(signature, [_filled(*pair) for pair in zip(ours, held, strict=True)]),
        tree.unflatten_as(signature, held),
        holder=holder,
        advice=advice,
        root="item",
    )


def _filled(spec: Any, held: ArraySpec) -> ArraySpec:
    """Returns a spec of ours with the sizes of the held one where ours vary."""
    shape = tuple(spec.shape)
    if len(shape) == len(held.shape):
        shape = tuple(have if size is None else size for size, have in zip(shape, held.shape, strict=True))
    return ArraySpec(shape, np.dtype(spec.dtype.as_numpy_dtype))


def _listed(specs: Sequence[Any]) -> str:
    return f"{len(specs)} column{'s' * (len(specs) != 1)} ({', '.join(map(describe, specs))})"
