"""Servers of small tables of numbers, in this process or in a separate one, for the tests of sampling."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np
import reverb
import tensorflow as tf
from faults import Process, process, receive

from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.tables import Selector, TableConfig

NUMBER = tf.TensorSpec((), tf.float32)


def write_numbers(client: reverb.Client, table: dict[float, float]) -> None:
    """Writes numbers with their priorities to the table."""
    with client.trajectory_writer(1) as writer:
        for value, priority in table.items():
            writer.append(np.float32(value))
            writer.create_item("items", priority, writer.history[-1])
            writer.flush(0, timeout_ms=5000)


@contextlib.contextmanager
def serve_numbers(
    *tables: dict[float, float], alpha: float | tuple[float | None, ...] | None = 1.0
) -> Iterator[list[ReplayServer]]:
    """Runs a server in this process for each table of numbers and priorities; samples uniformly if alpha is None."""
    alphas = alpha if isinstance(alpha, tuple) else (alpha,) * len(tables)
    selectors = [Selector("uniform") if alpha is None else Selector("prioritized", alpha) for alpha in alphas]
    with contextlib.ExitStack() as stack:
        configs = [TableConfig("items", selector) for selector in selectors]
        servers = [stack.enter_context(ReplayServer([config], NUMBER)) for config in configs]
        for server, table in zip(servers, tables, strict=True):
            write_numbers(server.client, table)
        yield servers


def addresses(servers: list[ReplayServer]) -> list[str]:
    return [server.address for server in servers]


def serve(channel: Connection, table: dict[float, float], port: int | None) -> None:
    """Serves a table of numbers, sends its port, and waits for a message."""
    with ReplayServer([TableConfig("items", Selector("prioritized", 1.0))], NUMBER, port=port) as server:
        write_numbers(server.client, table)
        channel.send(server.port)
        channel.recv()


@contextlib.contextmanager
def serve_in_process(table: dict[float, float], port: int | None = None) -> Iterator[tuple[Process, str]]:
    """Runs a server in a separate process; yields the process and the address."""
    with process(serve, table, port) as (running, channel):
        yield running, f"localhost:{receive(channel)}"


def exit_with_open_iterator(channel: Connection, address: str, pid: int) -> None:
    """Samples, kills the server, and exits while an iterator waits for it."""
    from rlds2reverb.reverb.sampling.batch_dataset import sample_dataset

    batches = iter(sample_dataset(address, "items", 8))
    next(batches)
    os.kill(pid, 9)
    globals()["kept"] = batches
    channel.send("ends")
