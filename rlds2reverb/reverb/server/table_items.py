"""Checks of the items in tables without a signature, which accept items of any spec."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.types.specs import ArraySpec, Nest, describe, numpy_dtype_of, require_match

from ..client import NO_LIMIT, Connection, PausableDeadline, TableInfo
from ..client.chunk_tensors import read_spec
from ..wire.packing import find_packing

MAX_WAIT_SECS = 5.0
_ATTEMPT_SECS, _RETRY_SECS = 1.0, 0.1
_ADVICE = (
    "write to an empty table, or cast or reshape the data: a table without a signature accepts both, but then "
    "cannot be sampled"
)


def find_reason_not_to_sample(info: TableInfo, num_items: int) -> str | None:
    """Returns why a sample from a table with a number of items would affect other clients, or would not arrive at once.

    Returns:
      A clause, or None if there is no reason.
    """
    if info.max_times_sampled > 0:
        return "samples use up its items"
    limiter = info.rate_limiter_info
    if limiter.max_diff < NO_LIMIT or limiter.min_diff > -NO_LIMIT:
        return "its rate limiter counts samples"
    minimum = limiter.min_size_to_sample
    return f"it waits for {minimum:,} items" if num_items < minimum else None


def require_stored_items_match(
    address: str, infos: Mapping[str, TableInfo], tables: Sequence[str], signature: Nest, *, timeout_secs: float
) -> list[str]:
    """Checks that tables without a signature do not contain items of a different spec, by sampling one item of each.

    Sampling an item changes only the sample counts of the item and its table. A table is not checked if
    `find_reason_not_to_sample` returns a reason.

    Args:
      address: address of the server.
      infos: the server's `TableInfo` by table name.
      tables: names of the tables to check.
      signature: signature of the new items; `None` in its shapes allows any size.
      timeout_secs: seconds to wait for an item, at most 5.

    Returns:
      A sentence for each table that contains items and could not be checked.

    Raises:
      SpecMismatchError: If an item differs, naming the first column.
    """
    warnings = []
    for name in tables:
        info = infos[name]
        if info.signature is not None or not info.current_size:
            continue
        reason = find_reason_not_to_sample(info, info.current_size)
        if reason is None:
            with Connection(address) as connection:
                columns = _sample_columns(connection, name, min(timeout_secs, MAX_WAIT_SECS))
            if columns is not None:
                _require_columns_match(signature, columns, name)
                continue
            reason = "it returned no sample in time"
        warnings.append(
            f"table {name!r} has no signature, and its {info.current_size:,} items could not be checked ({reason}): if "
            "their columns differ from those of the new items, the table cannot be sampled; serve it with a signature: "
            "ReplayServer(tables, signature)"
        )
    return warnings


def _sample_columns(connection: Connection, table: str, timeout_secs: float) -> list[ArraySpec] | None:
    """Returns the specs of the columns of one item, in order, or None if the table returns no item in time."""
    deadline = PausableDeadline(timeout_secs)
    while (remaining := deadline.remaining_secs) > 0:
        try:
            with closing(connection.sample(table, timeout_secs=min(remaining, _ATTEMPT_SECS))) as parts:
                return _read_columns(parts)
        except ServerUnavailableError:  # The table was just emptied, the connection broke, or this process was stopped.
            time.sleep(_RETRY_SECS)
    return None


def _read_columns(parts: Iterable[Any]) -> list[ArraySpec] | None:
    """Returns the specs of the columns of a sample, reading no more than necessary because items may be very large."""
    columns: Sequence[Any] = ()
    row_specs: dict[int, list[ArraySpec]] = {}
    for part in parts:
        columns = part.info.item.flat_trajectory.columns or columns
        for chunk in part.data:
            specs = [read_spec(tensor.dtype, tensor.tensor_shape) for tensor in chunk.data.tensors]
            row_specs[chunk.chunk_key] = [ArraySpec(shape[1:], dtype) for dtype, shape in specs]
        if columns and all(column.chunk_slices[0].chunk_key in row_specs for column in columns):
            return [_column_spec(column, row_specs) for column in columns]
    return None


def _column_spec(column: Any, row_specs: Mapping[int, Sequence[ArraySpec]]) -> ArraySpec:
    first = column.chunk_slices[0]
    row = row_specs[first.chunk_key][first.index]
    length = sum(piece.length for piece in column.chunk_slices)
    return row if column.squeeze else ArraySpec((length, *row.shape), row.dtype)


def _require_columns_match(signature: Nest, stored: Sequence[ArraySpec], table: str) -> None:
    specs = tree.flatten(signature)
    holder = f"table {table!r} (judging by one of its items)"
    looks_packed = len(stored) == 1 and stored[0].dtype in (np.int32, np.uint8)
    may_be_packed = looks_packed or find_packing(signature) is not None
    advice = f"{_ADVICE}; if only one of them is packed, use the other layout" if may_be_packed else _ADVICE
    if len(specs) != len(stored):
        raise SpecMismatchError(
            f"the items have {_describe_all(specs)}, but {holder} has {_describe_all(stored)}; {advice}"
        )
    filled = tree.unflatten_as(signature, list(map(_fill_sizes, specs, stored)))
    require_match(filled, tree.unflatten_as(signature, stored), holder=holder, advice=advice, root="item")


def _fill_sizes(spec: Any, stored: ArraySpec) -> ArraySpec:
    """Replaces the unknown sizes of a spec by those of the stored one."""
    shape = tuple(spec.shape)
    if len(shape) == len(stored.shape):
        shape = tuple(got if size is None else size for size, got in zip(shape, stored.shape, strict=True))
    return ArraySpec(shape, numpy_dtype_of(spec))


def _describe_all(specs: Sequence[Any]) -> str:
    return f"{len(specs)} column{'s' * (len(specs) != 1)} ({', '.join(map(describe, specs))})"
