"""Does a server understand our messages? One item is inserted, read back by Reverb's own client, and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import reverb

from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._server.connection import ServerConnection, server_state_id
from rlds2reverb._server.native_calls import NATIVE_CALLS, call_with_deadline
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import ServerUnavailable
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.tables import TableConfig

from .bulk_writer import BulkWriter

_KEY_SEED = -1
_TIMEOUT_SECS = 20.0
_ANSWER_SECS = 2
#: State ids of servers that have understood us.
_UNDERSTOOD: set[str] = set()


def why_bulk_writing_fails(
    client: reverb.Client,
    tables: Sequence[str],
    block: ItemBlock,
    signature: Nest,
    *,
    specs: Sequence[ArraySpec],
    squeeze: bool,
    timeout_secs: float,
) -> str | None:
    """Writes the first item of a block, reads it back and deletes it, unless that went well with this server before.

    It is done in the first table that is empty and whose limiter lets an item be sampled at once. If there is none, or
    Reverb's own clients do not reach the server, it is done in one that is started for it in this process, which says
    whether the installed Reverb understands us.

    Returns:
      A sentence on what failed, or None if the item came back bit for bit.

    Raises:
      ServerUnavailable: if the server does not answer any more.
    """
    reason: str | None = ""
    secs = min(timeout_secs, _TIMEOUT_SECS)
    for _ in range(2):  # what failed while the server was away, or restarted, says nothing of what it understands
        reason = _why_once(client, tables, block.part(0, 1), signature, specs, squeeze, secs)
        if reason is None:
            return None
        server_state_id(client.server_address, timeout_secs=timeout_secs)
    return reason


def _why_once(
    client: reverb.Client,
    tables: Sequence[str],
    one: ItemBlock,
    signature: Nest,
    specs: Sequence[ArraySpec],
    squeeze: bool,
    timeout_secs: float,
) -> str | None:
    try:
        with ServerConnection(client.server_address) as connection:
            state_id = connection.state_id(timeout_secs=timeout_secs)
            written = {name: _keys(name, one, specs, squeeze) for name in tables}
            for name in tables:  # what an earlier run left that was killed right here
                connection.delete(name, written[name], timeout_secs=timeout_secs)
            if state_id in _UNDERSTOOD:
                return None
            infos = connection.table_infos(timeout_secs=timeout_secs)
            usable = next((name for name in tables if _samples_at_once(infos[name])), None)
            if usable is not None and _answers_clients(client):
                try:
                    reason = _tried(client.server_address, usable, one, specs, squeeze, timeout_secs)
                finally:
                    connection.delete(usable, written[usable], timeout_secs=timeout_secs)
            else:
                with ReplayServer([TableConfig(tables[0])], signature) as server:
                    reason = _tried(server.address, tables[0], one, specs, squeeze, timeout_secs)
            if reason is None:
                _UNDERSTOOD.add(state_id)
            return reason
    except ServerUnavailable as error:
        return str(error)
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


def _answers_clients(client: reverb.Client) -> bool:
    """Whether Reverb's own clients reach the server; see `clients.table_infos`."""
    try:
        with NATIVE_CALLS.under_way():
            client.server_info(timeout=_ANSWER_SECS)
    except (RuntimeError, reverb.errors.ReverbError):
        return False
    return True


def _samples_at_once(info: Any) -> bool:
    limiter = info.rate_limiter_info
    free = limiter.min_size_to_sample <= 1 and limiter.max_diff > 1e300 and limiter.min_diff < -1e300
    return bool(free and info.current_size == 0)


def _encoder(table: str, specs: Sequence[ArraySpec], squeeze: bool) -> Encoder:
    return Encoder(specs, [table], squeeze=squeeze, key_seed=_KEY_SEED)


def _keys(table: str, one: ItemBlock, specs: Sequence[ArraySpec], squeeze: bool) -> list[int]:
    return [int(key) for batch in _encoder(table, specs, squeeze).encode([one]) for key in batch.item_keys[0]]


def _tried(
    address: str, table: str, one: ItemBlock, specs: Sequence[ArraySpec], squeeze: bool, timeout_secs: float
) -> str | None:
    try:
        with BulkWriter(address, _encoder(table, specs, squeeze), timeout_secs=timeout_secs) as writer:
            writer.write([one])
            writer.flush()
        samples = reverb.Client(address).sample(table, 1, emit_timesteps=False)
        sample = call_with_deadline(timeout_secs, lambda: next(iter(samples)), f"a sample of table {table!r}")
        return _difference(sample.data, one, squeeze)
    except Exception as error:  # whatever Reverb raises for what it does not understand
        return f"{type(error).__name__}: {error}"


def _difference(leaves: Sequence[np.ndarray], one: ItemBlock, squeeze: bool) -> str | None:
    begin, end = int(one.starts[0]), int(one.starts[0] + one.lengths[0])
    wanted = [column[begin] if squeeze else column[begin:end] for column in one.columns]
    if len(leaves) != len(wanted):
        return f"{len(leaves)} columns came back, {len(wanted)} were written"
    for number, (got, want) in enumerate(zip(leaves, wanted, strict=True)):
        if got.dtype != want.dtype or got.shape != want.shape or got.tobytes() != want.tobytes():
            return f"column {number} came back as {got.dtype} {list(got.shape)} with other content than was written"
    return None
