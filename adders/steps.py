"""The columns of steps that adders read and add to."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.specs import Nest, leaves, path_name
from rlds2reverb.trajectories import transition_discounts


def require_fields(step_spec: Nest, names: Sequence[str], who: str, *, of: str = "in every step") -> None:
    """Raises `ValueError` unless a step (or what `of` names) is a dict with these fields."""
    found = list(step_spec) if isinstance(step_spec, dict) else type(step_spec).__name__
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{who} needs the field {missing[0]!r} {of}, found {found}")


def require_rewards(step_spec: Nest, who: str) -> None:
    """Raises `ValueError` unless every step has rewards and discounts that are numbers, in nests if it likes."""
    require_fields(step_spec, (fields.REWARD, fields.DISCOUNT, fields.IS_LAST, fields.IS_TERMINAL), who)
    for name in (fields.REWARD, fields.DISCOUNT):
        for path, spec in leaves({name: step_spec[name]}):
            if not (spec.dtype.is_floating or spec.dtype.is_integer):
                raise ValueError(f"{who} wants numbers as the {name} of a step, {path_name(path, 'step')} is {spec}")
    for name in (fields.IS_LAST, fields.IS_TERMINAL):
        if step_spec[name] != tf.TensorSpec((), tf.bool):
            raise ValueError(f"{who} wants one bool, step[{name!r}] is {step_spec[name]}")


def require_single_rewards(step_spec: Nest, who: str) -> tf.DType:
    """Returns the dtype of the returns; raises `ValueError` unless there is one reward, a number, at every step."""
    require_fields(step_spec, (fields.REWARD, fields.DISCOUNT, fields.IS_LAST, fields.IS_TERMINAL), who)
    for name in (fields.REWARD, fields.DISCOUNT):
        spec = step_spec[name]
        if tree.is_nested(spec) or spec.shape.rank != 0:
            raise ValueError(f"{who} wants one number as the {name} of a step, step[{name!r}] is {spec}")
    require_rewards(step_spec, who)
    return returns_dtype(step_spec[fields.REWARD].dtype)


def returns_dtype(reward_dtype: tf.DType) -> tf.DType:
    """Sums of float rewards keep their dtype, others are float32."""
    return reward_dtype if reward_dtype.is_floating else tf.float32


def transitions(columns: Nest) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rewards and discounts `[T]` of the T = N - 1 transitions between N steps.

    The discount is the step's own, and 0 where the transition leads into a terminal state (`transition_discounts`
    with 'product'); the reward and the discount of the last step mean nothing and are left out.
    """
    rewards = columns[fields.REWARD]
    dtype = returns_dtype(rewards.dtype)
    return tf.cast(rewards[:-1], dtype), transition_factors(columns, columns[fields.DISCOUNT], dtype)


def transition_factors(columns: Nest, discounts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns one column of discounts `[N, ...]` as that of the transitions, `[T, ...]`; see `transitions`."""
    current = {name: columns[name][:-1] for name in (fields.IS_LAST, fields.IS_TERMINAL)}
    following = {fields.IS_TERMINAL: columns[fields.IS_TERMINAL][1:]}
    own = tf.cast(discounts[:-1], dtype)
    goes_on = transition_discounts(current, following, tf.ones_like(own, tf.float32), "product", tf.where)
    return own * tf.cast(goes_on, dtype)


def with_added(step_spec: Nest, who: str, **added: tf.TensorSpec) -> Nest:
    """The spec with further fields; raises `ValueError` where one is there already."""
    taken = [name for name in added if name in step_spec]
    if taken:
        raise ValueError(f"{who} adds a field {taken[0]!r}, which the steps have already; leave it out or rename it")
    return {**step_spec, **added}
