"""The channels between a learner and the other processes: tables for the policy's variables and for learn info.

The policy is the only item of a table, which TF-Agents' `ReverbVariableContainer` reads and writes. Learn info goes
through a queue. All calls have a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from tf_agents.experimental.distributed import reverb_variable_container

from rlds2reverb import ReplayServer, Selector, TableConfig
from rlds2reverb._server.connection import ServerConnection
from rlds2reverb._server.native_calls import call_with_deadline

VARIABLES_TABLE, LEARN_INFO_TABLE = reverb_variable_container.DEFAULT_TABLE, "learn_info"
_POLICY, _STEP = reverb_variable_container.POLICY_KEY, reverb_variable_container.TRAIN_STEP_KEY
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
        signature = {_POLICY: spec, _STEP: tf.TensorSpec([], tf.int64)}
        self._variables = ReplayServer([TableConfig(VARIABLES_TABLE, fifo, fifo, max_size=1)], signature)
        infos = {name: tf.TensorSpec([], tf.dtypes.as_dtype(dtype)) for name, dtype in _LEARN_INFO.items()}
        self._infos = ReplayServer([TableConfig.queue(LEARN_INFO_TABLE, _QUEUE_SIZE)], infos)
        #: Ports of the table of variables and of the queue.
        self.ports = self._variables.port, self._infos.port

    def read_learn_infos(self) -> list[dict[str, Any]]:
        """Returns the learn infos that have arrived since the last call, in order."""
        with ServerConnection(self._infos.address) as connection:
            size = connection.table_infos(timeout_secs=10.0)[LEARN_INFO_TABLE].current_size
        if not size:
            return []
        samples = call_with_deadline(10.0, lambda: list(self._sample(size)), "learn infos")
        return [dict(zip(sorted(_LEARN_INFO), (leaf.item() for leaf in each), strict=True)) for each in samples]

    def _sample(self, size: int) -> Any:
        for sample in self._infos.client.sample(LEARN_INFO_TABLE, num_samples=size, emit_timesteps=False):
            yield [np.asarray(leaf) for leaf in sample.data]

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
        self._container = self._call(lambda: reverb_variable_container.ReverbVariableContainer(address), "the server")

    def push(self, variables: Sequence[Any], step: int) -> None:
        """Replaces the policy by that of `step` updates; raises `ServerUnavailableError` after the timeout."""
        values = {_POLICY: list(map(tf.convert_to_tensor, variables)), _STEP: tf.constant(step, tf.int64)}
        self._call(lambda: self._container.push(values), "the server to accept the policy")

    def pull(self) -> tuple[list[tf.Tensor], int]:
        """Returns the variables, and the number of updates; raises `ServerUnavailableError` after the timeout."""
        values = self._call(self._container.pull, "the policy")
        return list(values[_POLICY]), int(values[_STEP])

    def _call(self, call: Any, what: str) -> Any:
        return call_with_deadline(self._timeout_secs, call, f"{what} at {self.address}")


class LearnInfoClient:
    """Writes learn info to the queue."""

    def __init__(self, address: str, *, timeout_secs: float = 20.0):
        """Sets the server, HOST:PORT, and the maximum time to wait for each call."""
        self.address, self._timeout_secs = address, timeout_secs
        self._client = reverb.Client(address)

    def send(self, info: Mapping[str, Any]) -> None:
        """Appends a learn info; raises `ServerUnavailableError` after the timeout."""
        loss = info["loss"] if math.isfinite(info["loss"]) else 0.0
        values = {**info, "loss": loss}
        data = {name: np.array(values[name], dtype) for name, dtype in _LEARN_INFO.items()}
        what = f"{self.address} to accept learn info"
        call_with_deadline(self._timeout_secs, lambda: self._client.insert(data, {LEARN_INFO_TABLE: 1.0}), what)
