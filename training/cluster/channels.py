"""The channels between a learner and the other processes: tables for the policy's variables and for learn info.

The policy is the only item of a table. Learn info goes through a queue. All calls have a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb import ReplayServer, Selector, TableConfig
from rlds2reverb.client import Connection

VARIABLES_TABLE, LEARN_INFO_TABLE = "variables", "learn_info"
_TIMEOUT_SECS = 10.0
_QUEUE_SIZE = 1_000
_LEARN_INFO = {
    "step": np.int64,
    "loss": np.float64,
    "is_finished": np.bool_,
    "num_priorities": np.int64,
    "mean_priority": np.float64,
    "max_priority": np.float64,
}


class ChannelServer:
    """The servers of both tables. Use it as a context manager, or call `stop`."""

    def __init__(self, variables: Sequence[tuple[Sequence[int], str]]):
        """Starts the servers.

        Args:
          variables: shape and dtype of each variable of the policy.
        """
        fifo = Selector("fifo")
        spec = [tf.TensorSpec(shape, tf.dtypes.as_dtype(dtype)) for shape, dtype in variables]
        signature = {"policy": spec, "step": tf.TensorSpec([], tf.int64)}
        self._variables = ReplayServer([TableConfig(VARIABLES_TABLE, fifo, fifo, max_size=1)], signature)
        infos = {name: tf.TensorSpec([], tf.dtypes.as_dtype(dtype)) for name, dtype in _LEARN_INFO.items()}
        self._infos = ReplayServer([TableConfig.queue(LEARN_INFO_TABLE, _QUEUE_SIZE)], infos)
        #: Ports of the table of variables and of the queue.
        self.ports = self._variables.port, self._infos.port

    def read_learn_infos(self) -> list[dict[str, Any]]:
        """Returns the learn infos that have arrived since the last call, in order."""
        with Connection(self._infos) as connection:
            size = connection.table_infos(timeout_secs=_TIMEOUT_SECS)[LEARN_INFO_TABLE].current_size
            if not size:
                return []
            samples = connection.sample_items(LEARN_INFO_TABLE, num_samples=size, timeout_secs=_TIMEOUT_SECS)
            return [
                dict(zip(sorted(_LEARN_INFO), (leaf.item() for leaf in leaves), strict=True)) for _, leaves in samples
            ]

    def stop(self) -> None:
        """Stops both servers."""
        self._variables.stop()
        self._infos.stop()


class VariableClient:
    """Writes the variables of a policy to the table, and reads them."""

    def __init__(self, address: str, *, timeout_secs: float = 20.0):
        """Connects to the server.

        Args:
          address: address of the server, HOST:PORT.
          timeout_secs: maximum time to wait for each call.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        self.address, self._timeout_secs = address, timeout_secs
        self._connection = Connection(address)
        self._connection.state_id(timeout_secs=timeout_secs)

    def push(self, variables: Sequence[Any], step: int) -> None:
        """Replaces the policy by that of `step` updates; raises `ServerUnavailableError` after the timeout."""
        columns = [*map(np.asarray, variables), np.asarray(step, np.int64)]
        self._connection.insert_row(VARIABLES_TABLE, columns, timeout_secs=self._timeout_secs)

    def pull(self) -> tuple[list[tf.Tensor], int]:
        """Returns the variables, and the number of updates; raises `ServerUnavailableError` after the timeout."""
        samples = self._connection.sample_items(VARIABLES_TABLE, timeout_secs=self._timeout_secs)
        with closing(samples):
            *variables, step = next(samples)[1]
        return list(map(tf.convert_to_tensor, variables)), int(step)


class LearnInfoClient:
    """Writes learn info to the queue."""

    def __init__(self, address: str, *, timeout_secs: float = 20.0):
        """Sets the server, HOST:PORT, and the maximum time to wait for each call."""
        self.address, self._timeout_secs = address, timeout_secs
        self._connection = Connection(address)

    def send(self, info: Mapping[str, Any]) -> None:
        """Appends a learn info; raises `ServerUnavailableError` after the timeout."""
        loss = info["loss"] if math.isfinite(info["loss"]) else 0.0
        values = {**info, "loss": loss}
        columns = [np.asarray(values[name], _LEARN_INFO[name]) for name in sorted(_LEARN_INFO)]
        self._connection.insert_row(LEARN_INFO_TABLE, columns, timeout_secs=self._timeout_secs)
