"""A writer process: writes items with Reverb's public `TrajectoryWriter`.

The writer's destructor, and its calls without a deadline, wait forever for a server that is gone. Here they do no harm,
because the other process kills this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import reverb

#: A writer that is not flushed grows without bound, and logs a warning from about 50 items on.
_MAX_UNCONFIRMED_ITEMS = 30
_STEPS_BETWEEN_FLUSHES = 10


def write_items(lines: Any, address: str, tables: Sequence[str], squeeze: bool) -> None:
    """Writes the items of the episodes received, until the other end is closed.

    An episode consists of a line with the number of arrays, and these in NumPy's format: the columns, and the starts,
    lengths and priorities of its items. A line is sent back each time the server has confirmed some items, with `done`
    after all of them, or with `error` if Reverb's writer failed.

    Args:
      lines: stream of the socket.
      address: address of the server.
      tables: names of the tables that get each item; they share its data.
      squeeze: whether items are single rows without a time axis.
    """
    client = reverb.Client(address)
    writer: Any = None
    max_length = 0
    while line := lines.readline():
        arrays = [np.lib.format.read_array(lines, allow_pickle=False) for _ in range(int(line))]
        lengths = arrays[-2]
        message: dict[str, Any] = {"done": True}
        try:
            if max_length < lengths.max():
                max_length = int(lengths.max())
                writer = client.trajectory_writer(num_keep_alive_refs=max_length)
            for _ in _write_episode(writer, arrays, tables, squeeze=squeeze):
                send(lines, {"done": False})
        except Exception as error:  # Reverb's writer raises various errors.
            message = {"error": f"{type(error).__name__}: {error}"}
        send(lines, message)


def _write_episode(
    writer: Any, arrays: Sequence[np.ndarray], tables: Sequence[str], *, squeeze: bool
) -> Iterator[None]:
    """Writes the items of an episode; yields when the server has confirmed all but a few of those sent."""
    *columns, starts, lengths, priorities = arrays
    order = np.argsort(starts + lengths, kind="stable")
    ends = (starts + lengths)[order]
    at = 0
    for row, values in enumerate(zip(*columns, strict=True)):
        writer.append(list(values))
        while at < len(ends) and ends[at] == row + 1:
            length, priority = int(lengths[order[at]]), float(priorities[order[at]])
            trajectory = [column[-1] if squeeze else column[-length:] for column in writer.history]
            for name in tables:
                writer.create_item(name, priority, trajectory)
            at += 1
        if row % _STEPS_BETWEEN_FLUSHES == 0:
            writer.flush(_MAX_UNCONFIRMED_ITEMS)
            yield
    writer.end_episode()


def send(lines: Any, message: Mapping[str, Any]) -> None:
    """Sends a message to the process that started this one, as a line of JSON."""
    lines.write(json.dumps(message).encode() + b"\n")
    lines.flush()
