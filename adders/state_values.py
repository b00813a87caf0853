"""The values of an episode's observations, read from a column or computed by a function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest, map_structure

from .arrays import Array, cast
from .step_fields import (
    count_steps_left,
    get_returns_dtype,
    get_rewards_and_discounts,
    mark_last_transitions,
    require_fields,
)

#: A function from observations `[N, ...]` to values `[N]` or `[N, 1]`: a Keras model, or anything TensorFlow can trace.
ValueFn = Callable[[Nest], tf.Tensor]

#: The column that contains the values if there is no function.
VALUE = "value"


def require_values(step_spec: Nest, value_fn: ValueFn | None, adder: str) -> None:
    """Raises `ValueError` unless there is a function, or a column with one float per step."""
    if value_fn is not None and not callable(value_fn):
        raise ValueError(f"value_fn must be a function or a Keras model, got {value_fn!r}")
    if value_fn is not None:
        require_fields(step_spec, (fields.OBSERVATION,), adder)
        return
    require_fields(step_spec, (VALUE,), f"{adder} without a value_fn")
    spec = step_spec[VALUE]
    if not isinstance(spec, tf.TensorSpec) or not spec.dtype.is_floating or spec.shape not in ((), (1,)):
        raise ValueError(f"{adder} requires one float per step, but step['{VALUE}'] is {spec}")


def compute_values(columns: Nest, value_fn: ValueFn | None) -> Array:
    """Returns the values `[N]` in the dtype of the returns, including that of the final observation.

    Raises:
      ValueError: If the function does not return one value per observation.
    """
    rewards = columns[fields.REWARD]
    dtype = get_returns_dtype(tf.as_dtype(rewards.dtype)).as_numpy_dtype
    values = columns[VALUE] if value_fn is None else _call_value_fn(value_fn, columns[fields.OBSERVATION])
    values = values.numpy() if isinstance(rewards, np.ndarray) and tf.is_tensor(values) else values
    if len(values.shape) == 2 and values.shape[1] == 1:
        values = values[:, 0]
    num_steps = rewards.shape[0]
    if not tf.TensorShape(values.shape).is_compatible_with([num_steps]):
        raise ValueError(
            f"value_fn must return one value per observation, got {values.shape} for {num_steps or 'N'} observations"
        )
    if isinstance(values, np.ndarray):
        return cast(values, dtype)
    values = tf.ensure_shape(values, [None])
    message = "value_fn must return one value per observation, got a different number of values"
    num_values, num_rewards = tf.shape(values)[0], tf.shape(rewards)[0]
    with tf.control_dependencies([tf.debugging.assert_equal(num_values, num_rewards, message)]):
        return cast(tf.identity(values), dtype)


def read_transitions(columns: Nest, num_steps: Array, value_fn: ValueFn | None) -> dict[str, Array]:
    """Returns the arguments of `returns.td_errors` for all transitions of some episodes, each `[R - 1]`.

    Args:
      columns: the concatenated columns `[R, ...]` of the episodes.
      num_steps: int64 `[E]`, the number of steps of each episode.
      value_fn: see `compute_values`.
    """
    rewards, discounts = get_rewards_and_discounts(columns)
    values = compute_values(columns, value_fn)
    is_last = mark_last_transitions(count_steps_left(num_steps))
    following = {"next_values": values[1:], "is_last": is_last}
    return {"rewards": rewards, "discounts": discounts, "values": values[:-1], **following}


def _call_value_fn(value_fn: ValueFn, observations: Nest) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value_fn(map_structure(tf.convert_to_tensor, observations)))
    except (NotImplementedError, AttributeError, TypeError) as error:
        raise ValueError(
            f"value_fn failed on tensors ({type(error).__name__}: {str(error).splitlines()[0]}); wrap numpy code in "
            "tf.numpy_function"
        ) from error
