"""Validation and reading of the fields of steps, and specs of added fields, for adders."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.specs import Nest, leaves, path_name
from rlds2reverb.trajectories import transition_discounts


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


def get_rewards_and_discounts(columns: Nest) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rewards and discounts `[T]` of the T = N - 1 transitions between N steps.

    The discount is that of the step, but 0 if the transition leads into a terminal state (`transition_discounts` with
    'product'). Reward and discount of the last step are meaningless and left out.
    """
    rewards = columns[fields.REWARD]
    dtype = get_returns_dtype(rewards.dtype)
    return tf.cast(rewards[:-1], dtype), get_transition_discounts(columns, columns[fields.DISCOUNT], dtype)


def get_transition_discounts(columns: Nest, discounts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the discounts `[T, ...]` of transitions, given those of steps, `[N, ...]`; 0 into a terminal state."""
    current = {name: columns[name][:-1] for name in (fields.IS_LAST, fields.IS_TERMINAL)}
    following = {fields.IS_TERMINAL: columns[fields.IS_TERMINAL][1:]}
    step_discounts = tf.cast(discounts[:-1], dtype)
    ones = tf.ones_like(step_discounts, tf.float32)
    continues = transition_discounts(current, following, ones, "product", tf.where)
    return step_discounts * tf.cast(continues, dtype)


def add_field_specs(step_spec: Nest, adder: str, **added: tf.TensorSpec) -> Nest:
    """Returns the spec with additional fields; raises `ValueError` if one exists already."""
    existing = [name for name in added if name in step_spec]
    if existing:
        raise ValueError(f"steps must not have the field {existing[0]!r}, which {adder} adds; drop or rename the field")
    return {**step_spec, **added}
