"""The fields of the steps of concatenated episodes: checks, transitions, and specs of added fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest, leaves, path_name
from rlds2reverb.types.trajectories import transition_discounts

from .arrays import Array, arange, cast, keep_where, namespace, repeat, to_numpy_dtype


def require_fields(spec: Nest, names: Sequence[str], adder: str, *, place: str = "in every step") -> None:
    """Raises `ValueError` unless the spec of a step (or of what `place` names) is a dict with these fields."""
    fields_present = list(spec) if isinstance(spec, dict) else type(spec).__name__
    missing = [name for name in names if name not in fields_present]
    if missing:
        raise ValueError(f"{adder} requires the field {missing[0]!r} {place}, got {fields_present}")


def require_rewards(step_spec: Nest, adder: str) -> None:
    """Raises `ValueError` unless every step has rewards and discounts that are numbers, possibly nested."""
    require_fields(step_spec, (fields.REWARD, fields.DISCOUNT, fields.IS_LAST, fields.IS_TERMINAL), adder)
    for name in (fields.REWARD, fields.DISCOUNT):
        for path, spec in leaves({name: step_spec[name]}):
            if not (spec.dtype.is_floating or spec.dtype.is_integer):
                raise ValueError(f"{adder} requires a numeric {name}, but {path_name(path, 'step')} is {spec}")
    for name in (fields.IS_LAST, fields.IS_TERMINAL):
        if step_spec[name] != tf.TensorSpec((), tf.bool):
            raise ValueError(f"{adder} requires one bool per step, but step[{name!r}] is {step_spec[name]}")


def require_broadcast(reward: tf.TensorSpec, discount: tf.TensorSpec, adder: str) -> None:
    """Raises `ValueError` unless rewards and discounts have shapes that can be multiplied."""
    try:
        tf.broadcast_static_shape(reward.shape, discount.shape)
    except ValueError as error:
        raise ValueError(
            f"{adder} requires rewards and discounts whose shapes broadcast, got {reward.shape} and {discount.shape}"
        ) from error


def require_scalar_rewards(step_spec: Nest, adder: str) -> tf.DType:
    """Returns the dtype of the returns; raises `ValueError` unless reward and discount are one number per step."""
    require_rewards(step_spec, adder)
    for name in (fields.REWARD, fields.DISCOUNT):
        spec = step_spec[name]
        if tree.is_nested(spec) or spec.shape.rank != 0:
            raise ValueError(f"{adder} requires one number per step, but step[{name!r}] is {spec}")
    return get_returns_dtype(step_spec[fields.REWARD].dtype)


def get_returns_dtype(reward_dtype: tf.DType) -> tf.DType:
    """Returns the dtype of sums of rewards: that of float rewards, float32 for integers."""
    return reward_dtype if reward_dtype.is_floating else tf.float32


def get_rewards_and_discounts(columns: Nest) -> tuple[Array, Array]:
    """Returns rewards and discounts `[T]` of the T = N - 1 transitions between N steps.

    The discount is that of the step, but 0 if the transition leads into a terminal state (`transition_discounts` with
    'product'). Reward and discount of the last step are meaningless and left out.
    """
    rewards = columns[fields.REWARD]
    dtype = get_returns_dtype(tf.as_dtype(rewards.dtype)).as_numpy_dtype
    current = {name: columns[name][:-1] for name in (fields.IS_LAST, fields.IS_TERMINAL)}
    following = {fields.IS_TERMINAL: columns[fields.IS_TERMINAL][1:]}
    discounts = cast(columns[fields.DISCOUNT][:-1], dtype)
    xp = namespace(discounts)
    continues = transition_discounts(current, following, cast(xp.ones_like(discounts), np.float32), "product", xp.where)
    return cast(rewards[:-1], dtype), discounts * cast(continues, dtype)


def require_new_fields(step_spec: Nest, names: Iterable[str], adder: str) -> None:
    """Raises `ValueError` unless steps are a dict without the fields that an adder adds."""
    for name in names:
        if not isinstance(step_spec, dict) or name in step_spec:
            raise ValueError(f"steps must not have the field {name!r}, which {adder} adds; drop or rename the field")


def add_field_specs(step_spec: Nest, adder: str, **added: tf.TensorSpec) -> Nest:
    """Returns the spec with additional fields; raises `ValueError` if one exists already."""
    require_new_fields(step_spec, added, adder)
    return {**step_spec, **added}


def count_steps_left(num_steps: Array) -> Array:
    """Returns how many steps follow each step in its episode: 2 1 0 1 0 for episodes of 3 and 2 steps.

    Args:
      num_steps: int64 `[E]`, the number of steps of each episode, at least 0.

    Returns:
      int64 `[R]`.
    """
    xp = namespace(num_steps)
    return repeat(xp.cumsum(num_steps), num_steps) - arange(xp.sum(num_steps), num_steps) - 1


def mark_last_transitions(steps_left: Array) -> Array:
    """Returns bool `[R - 1]`, True for the last transition of each episode.

    All `R - 1` pairs of steps `t, t + 1` count as transitions, including those that join two episodes; such a pair
    comes right after a last transition and is meaningless.

    Args:
      steps_left: int64 `[R]`, from `count_steps_left`.
    """
    return steps_left[:-1] == 1


def pad_transitions_to_steps(column: Array, steps_left: Array) -> Array:
    """Returns a column of transitions `[R - 1]` as a column of steps `[R]`, with 0 at the last step of each episode."""
    xp = namespace(column)
    padded = xp.concatenate([column, cast(xp.zeros_like(steps_left[:1]), to_numpy_dtype(column))])
    return keep_where(steps_left > 0, padded)
