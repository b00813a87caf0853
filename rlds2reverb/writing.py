"""Writing trajectories to a Reverb server: the only file of the trunk that inserts, and it never waits for ever."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from typing import Any

import reverb
import tree

from rlds2reverb import tables
from rlds2reverb.specs import Nest, SpecMismatch, leaves, path_name, require_match

#: An unflushed writer grows without bound, and logs a warning from about 50 items on.
_MAX_UNCONFIRMED_ITEMS = 30
_STEPS_BETWEEN_FLUSHES = 10
_INFO_TIMEOUT_SECS = 5
_MAX_SEQUENCE = 1_000_000


class ServerUnavailable(ConnectionError):
    """A Reverb server did not answer, or did not take items, within the deadline; trying again may help."""


def connect(server: str | int | reverb.Client | reverb.Server) -> reverb.Client:
    """A client of a server that is given by address, by port on this machine, or as an object.

    Raises:
      ValueError: if an address is not of the form host:port.
      TypeError: if it is none of these.
    """
    if isinstance(server, reverb.Client):
        return server
    if isinstance(server, reverb.Server):
        return server.localhost_client()
    if not isinstance(server, (str, int)):
        raise TypeError(f"server is a {type(server).__name__}, wanted 'host:port', a port, a Client or a Server")
    address = f"localhost:{server}" if isinstance(server, int) or server.isdigit() else server
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"server is {server!r}, wanted host:port such as localhost:8000")
    return reverb.Client(address)


def table_infos(client: reverb.Client, *, timeout_secs: float = 10.0) -> dict[str, Any]:
    """What the server says of its tables, by name (`reverb.TableInfo`).

    Raises:
      ServerUnavailable: if there is no answer within the time-out.
    """
    require_timeout(timeout_secs)
    end = time.monotonic() + timeout_secs
    reason = ""
    while (left := end - time.monotonic()) > 0:
        try:
            return client.server_info(timeout=max(1, math.ceil(left)))
        except reverb.errors.DeadlineExceededError:
            break
        except RuntimeError as error:  # a connection of an earlier server at that address; gRPC makes a new one
            reason = f" ({error})"
            time.sleep(0.1)
    raise ServerUnavailable(
        f"no Reverb server answered at {client.server_address} within {timeout_secs:g} s{reason}; "
        "start it (rlds2reverb serve), or check host and port"
    )


def require_table(info: dict[str, Any], name: str, item_signature: Nest) -> None:
    """Checks that a table exists and takes items of a signature, before the first one is sent.

    Raises:
      ValueError: if there is no such table.
      SpecMismatch: if its signature differs, naming the field.
    """
    if name not in info:
        raise ValueError(f"the server has no table {name!r}; it has {', '.join(sorted(info)) or 'none'}")
    wanted = info[name].signature
    if wanted is None:
        return
    advice = "cast or reshape the data, or build the table from this data set's item_signature()"
    require_match(item_signature, wanted, holder=f"table {name!r}", advice=advice, root="item")


def require_priority(priority: float) -> None:
    """Raises `ValueError` unless the priority is finite and in [0, 1e12]; anything else harms a Reverb table."""
    if not math.isfinite(priority) or not 0 <= priority <= tables.MAX_PRIORITY:
        raise ValueError(f"priority is {priority}, wanted a finite number in [0, {tables.MAX_PRIORITY:g}]")


def require_timeout(timeout_secs: float) -> None:
    """Raises `ValueError` unless the time-out is between 0 and a year."""
    if not 0 < timeout_secs <= 365 * 24 * 3600:
        raise ValueError(f"timeout_secs is {timeout_secs}, wanted seconds above 0 and up to a year")


class PublicWriter:
    """Writes windows of trajectories to one or several tables, through Reverb's public `StructuredWriter`.

    An item is a window `[sequence_length, ...]` of consecutive rows of one episode; windows begin at rows 0, stride,
    2·stride, ...; an episode of fewer rows than `sequence_length` gives none. All of it can be waited for with a
    deadline. Use it as a context manager.
    """

    def __init__(
        self,
        client: reverb.Client,
        table_names: Sequence[str],
        trajectory_spec: Nest,
        *,
        sequence_length: int = 2,
        stride: int = 1,
        priority: float = 1.0,
        timeout_secs: float = 30.0,
    ):
        """Nothing is sent yet.

        Args:
          client: of the server.
          table_names: the tables that get each item; they share its data.
          trajectory_spec: nest whose structure the episodes will have.
          sequence_length: rows of an item, at least 1.
          stride: rows between the beginnings of items, at least 1.
          priority: of every item, finite and in [0, 1e12].
          timeout_secs: how long to wait for the server to take items.

        Raises:
          ValueError: if a number is out of its range, or a table is named twice.
        """
        require_priority(priority)
        require_timeout(timeout_secs)
        if not table_names or len(set(table_names)) < len(table_names):
            raise ValueError(f"tables are {list(table_names)}, wanted at least one, each once")
        for name, value in (("sequence_length", sequence_length), ("stride", stride)):
            if not isinstance(value, int) or not 1 <= value <= _MAX_SEQUENCE:
                raise ValueError(f"{name} is {value}, wanted a whole number from 1 to {_MAX_SEQUENCE:,}")
        self._client = client
        self._table_names = tuple(table_names)
        self._sequence_length = sequence_length
        self._stride = stride
        self._timeout_ms = int(timeout_secs * 1000)
        configs = _window_configs(self._table_names, trajectory_spec, sequence_length, stride, priority)
        self._writer = client.structured_writer(configs)

    def __enter__(self) -> PublicWriter:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: Any) -> None:
        if exception_type is not None:
            _never_delete(self._writer)

    def write(self, trajectories: Nest) -> int:
        """Writes one episode and waits until the server has its items.

        Args:
          trajectories: columns `[N, ...]` of the nest that the writer was made for.

        Returns:
          The number of items, in each table.

        Raises:
          ServerUnavailable: if the server does not take them in time. They may still arrive later.
        """
        columns = tree.flatten(trajectories)
        try:
            for step, row in enumerate(zip(*columns, strict=True)):
                self._writer.append(list(row))
                if step % _STEPS_BETWEEN_FLUSHES == 0:
                    self._writer.flush(_MAX_UNCONFIRMED_ITEMS, timeout_ms=self._timeout_ms)
            self._writer.end_episode(timeout_ms=self._timeout_ms)
        except reverb.errors.DeadlineExceededError:
            raise ServerUnavailable(self._why_blocked()) from None
        return num_windows(len(columns[0]), self._sequence_length, self._stride)

    def _why_blocked(self) -> str:
        waited = f"waited {self._timeout_ms / 1000:g} s for {self._client.server_address} to take items"
        try:
            infos = table_infos(self._client, timeout_secs=_INFO_TIMEOUT_SECS)
        except ServerUnavailable:
            return f"{waited}, and it does not answer any more; start it again and convert once more"
        states = []
        for name in self._table_names:
            limiter = infos[name].rate_limiter_info
            inserted, sampled = limiter.insert_stats.completed, limiter.sample_stats.completed
            states.append(f"table {name!r} has {inserted} inserted, {sampled} sampled")
        return f"{waited}; its rate limiter blocks: {'; '.join(states)}. Sample from it, or serve a table with min_size"


def num_windows(num_rows: int, sequence_length: int, stride: int) -> int:
    """How many windows of a length and stride fit into so many rows."""
    return max(0, (num_rows - sequence_length) // stride + 1)


def _window_configs(
    table_names: Sequence[str], trajectory_spec: Nest, sequence_length: int, stride: int, priority: float
) -> list[Any]:
    writer = reverb.structured_writer
    num_columns = len(tree.flatten(trajectory_spec))

    def windows(step: Sequence[Any]) -> Nest:
        return tree.unflatten_as(trajectory_spec, [column[-sequence_length:] for column in step])

    pattern = writer.pattern_from_transform([None] * num_columns, windows)
    conditions = [writer.Condition.step_index() % stride == (sequence_length - 1) % stride] if stride > 1 else []
    return [
        writer.create_config(pattern, name, conditions, writer.constant_priority_fn(priority)) for name in table_names
    ]


def _never_delete(writer: Any) -> None:
    """Reverb's writer waits for ever in its destructor when the server is gone or blocked: keep it till the end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer._writer))


def require_no_strings(trajectory_spec: Nest) -> None:
    """Raises `SpecMismatch` if a leaf holds strings, which tables of trajectories do not take."""
    for path, leaf in leaves(trajectory_spec):
        if leaf.dtype.name == "string":
            raise SpecMismatch(
                f"{path_name(path, 'trajectory')} holds strings, which our tables do not take; leave the field out "
                "(--leave-out, transforms.LeaveOut) or encode it as numbers"
            )
