"""Data-parallel training on several devices with `tf.distribute` replicas that stay equal.

Each replica has a copy of every variable and a share of the batch. Gradients are averaged over the replicas, and every
replica then makes the same update to its own copies, so only gradients are exchanged between devices.
"""

from collections.abc import Sequence

import tensorflow as tf


def replica_id() -> tf.Tensor | int:
    """Returns the index of the current replica, from 0."""
    context = tf.distribute.get_replica_context()
    return context.replica_id_in_sync_group if context is not None and context.num_replicas_in_sync > 1 else 0


def mean_over_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the means over all replicas; must not be called inside `tf.cond` or a loop of the agent."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(tensors)
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(tensors)))


def assign_on_replica(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns to this replica's copy of a variable. Every replica must assign the same value."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.cast(value, variable.dtype))
