"""What agents need to train on several devices: replicas of `tf.distribute` that stay equal.

Each replica has a copy of every variable and a part of the batch. Gradients are averaged over the replicas, then every
replica makes the same update of its own copies. So nothing but gradients goes between the devices.
"""

from collections.abc import Sequence

import tensorflow as tf


def replica_id() -> tf.Tensor | int:
    """Returns the number of the replica that is traced, from 0."""
    context = tf.distribute.get_replica_context()
    return context.replica_id_in_sync_group if context is not None and context.num_replicas_in_sync > 1 else 0


def mean_over_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the means over all replicas; call it outside of `tf.cond` and loops of the agent's own."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(tensors)
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(tensors)))


def assign_alike(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns to this replica's copy of a variable. Every replica has to assign the same value."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.cast(value, variable.dtype))
