"""The values of the observations of an episode: given as a column, or by a function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from rlds2reverb import fields
from rlds2reverb.specs import Nest

from .steps import require_fields, returns_dtype

#: Gives values `[N]` or `[N, 1]` of observations `[N, ...]`; a Keras model, or a function that TensorFlow can trace.
ValueFn = Callable[[Nest], tf.Tensor]

#: The column that is taken where there is no function.
VALUE = "value"


def require_values(step_spec: Nest, value_fn: ValueFn | None, who: str) -> None:
    """Raises `ValueError` unless there is a function, or a column of one float a step."""
    if value_fn is not None and not callable(value_fn):
        raise ValueError(f"value_fn is {value_fn!r}, expected a function or a Keras model")
    if value_fn is not None:
        require_fields(step_spec, (fields.OBSERVATION,), who)
        return
    require_fields(step_spec, (VALUE,), f"{who} without a value_fn")
    spec = step_spec[VALUE]
    if not isinstance(spec, tf.TensorSpec) or not spec.dtype.is_floating or spec.shape not in ((), (1,)):
        raise ValueError(f"{who} wants one float a step as the value, step['{VALUE}'] is {spec}")


def values_of(columns: Nest, value_fn: ValueFn | None) -> tf.Tensor:
    """Values `[N]` in the dtype of the returns, the one of the final observation included.

    Raises:
      ValueError: if the function does not give one value for each observation.
    """
    values = columns[VALUE] if value_fn is None else _called(value_fn, columns[fields.OBSERVATION])
    if values.shape.rank == 2 and values.shape[1] == 1:
        values = values[:, 0]
    num_steps = columns[fields.REWARD].shape[0]
    if not values.shape.is_compatible_with([num_steps]):
        raise ValueError(
            f"value_fn gave {values.shape} for {num_steps or 'N'} observations, expected one value for each"
        )
    values = tf.ensure_shape(values, [None])
    wanted, got = tf.shape(columns[fields.REWARD])[0], tf.shape(values)[0]
    told = "value_fn gave more or fewer numbers than there are steps, expected one value for each"
    with tf.control_dependencies([tf.debugging.assert_equal(got, wanted, told)]):
        return tf.cast(tf.identity(values), returns_dtype(columns[fields.REWARD].dtype))


def _called(value_fn: ValueFn, observations: Nest) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value_fn(observations))
    except (NotImplementedError, AttributeError, TypeError) as error:
        raise ValueError(
            f"value_fn failed on tensors ({type(error).__name__}: {str(error).splitlines()[0]}); it has to take them: "
            "put numpy code into tf.numpy_function"
        ) from error
