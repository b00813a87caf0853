"""A server process: starts Reverb and the batch service from a description, and serves until it is stopped.

A writer process starts in the same way, from a different description.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

import reverb
from tensorflow.core.protobuf import struct_pb2
from tensorflow.python.saved_model import nested_structure_coder

from .batch_service import BatchService
from .isolation import isolate_port
from .reverb_tables import build_table
from .writer import send, write_items


def serve(control: socket.socket) -> None:
    """Serves until the other end of a socket asks for the end, or is closed; never returns.

    The first line received is the description of the server (see `_start`) or, for a writer process, the arguments of
    `writer.write_items`. The first line sent contains the process ID. The second is empty once the process is ready;
    otherwise it contains the kind of the error and the message.
    """
    with contextlib.suppress(OSError):  # The other end is closed.
        lines = control.makefile("rwb")
        send(lines, {"pid": os.getpid()})
        description = json.loads(lines.readline())
        if "address" in description:
            send(lines, {})
            write_items(lines, **description)
            os._exit(0)
        try:
            server = _start(description)
        except Exception as error:
            send(lines, {"kind": type(error).__name__, "message": str(error)})
        else:
            send(lines, {})
            if lines.read(1):
                server.stop()
    os._exit(0)  # Destructors of Reverb's objects may wait for clients.


def _start(description: Mapping[str, Any]) -> reverb.Server:
    """Starts a server.

    Args:
      description: `tables`, the values for `build_table`; `signature`, a `StructuredValue` in base64 or None;
        `checkpoints`, Reverb's own checkpoint root; `port`; `batch_port`, None for no batch
        service; and `isolate`.
    """
    encoded = description["signature"]
    signature = None
    if encoded is not None:
        value = struct_pb2.StructuredValue.FromString(base64.b64decode(encoded))
        signature = nested_structure_coder.decode_proto(value)
    tables = [build_table(values, signature) for values in description["tables"]]
    port, batch_port = description["port"], description["batch_port"]
    checkpointer = reverb.checkpointers.DefaultCheckpointer(description["checkpoints"])
    server = reverb.Server(tables, port=port, checkpointer=checkpointer)
    if batch_port is not None:
        BatchService(port).start(batch_port)
    if description["isolate"]:
        for number in (port,) if batch_port is None else (port, batch_port):
            isolate_port(number)
    return server
