"""The channel between a learner and the other processes: a table whose only item is the policy.

All calls have a deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb import ReplayServer, Selector, TableConfig
from rlds2reverb.client import Connection

VARIABLES_TABLE = "variables"
#: Maximum time to wait for each call.
_CALL_SECS = 20.0


def start_variable_server(variables: Sequence[tuple[Sequence[int], str]]) -> ReplayServer:
    """Starts the server of the table.

    Args:
      variables: shape and dtype of each variable of the policy.
    """
    fifo = Selector("fifo")
    spec = [tf.TensorSpec(shape, tf.dtypes.as_dtype(dtype)) for shape, dtype in variables]
    signature = {"policy": spec, "step": tf.TensorSpec([], tf.int64)}
    return ReplayServer([TableConfig(VARIABLES_TABLE, fifo, fifo, max_size=1)], signature)


class VariableClient:
    """Writes the variables of a policy to the table, and reads them."""

    def __init__(self, address: str):
        """Connects to the server at an address, HOST:PORT.

        Raises:
          ServerUnavailableError: If the server does not answer in time.
        """
        self.address, self._connection = address, Connection(address)
        self._connection.state_id(timeout_secs=_CALL_SECS)

    def push(self, variables: Sequence[Any], step: int) -> None:
        """Replaces the policy by that of `step` updates; raises `ServerUnavailableError` after the timeout."""
        columns = [*map(np.asarray, variables), np.asarray(step, np.int64)]
        self._connection.insert_row(VARIABLES_TABLE, columns, timeout_secs=_CALL_SECS)

    def pull(self) -> tuple[list[tf.Tensor], int]:
        """Returns the variables, and the number of updates; raises `ServerUnavailableError` after the timeout."""
        _, (*variables, step) = self._connection.sample_item(VARIABLES_TABLE, timeout_secs=_CALL_SECS)
        return list(map(tf.convert_to_tensor, variables)), int(step)
