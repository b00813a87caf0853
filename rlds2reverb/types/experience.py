"""Conversion of sampled items to the experience that TF-Agents' agents are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tree

from . import fields
from .specs import Nest

if TYPE_CHECKING:
    from tf_agents.trajectories import Transition

#: The fields of a transition dict that are used; others are ignored.
_USED_FIELDS = frozenset({*fields.TRANSITION_FIELDS, fields.POLICY_INFO})


@tf.autograph.experimental.do_not_convert
def to_experience(batch: Any) -> tuple[Any, Any]:
    """Returns the pair `(experience, info)` that TF-Agents' learners expect: `sample_dataset(...).map(to_experience)`.

    Trajectories and transitions come from Reverb as private named tuples; these are converted to TF-Agents' types.
    A dict with the fields of a transition becomes a `Transition`; see `as_transition`. Other data are returned as is.

    Args:
      batch: a `reverb.ReplaySample`, or a `Batch` of a replay buffer.
    """
    return convert_data(batch.data), batch.info


def convert_data(data: Nest) -> Nest:
    """Returns a batch of items as TF-Agents' `Trajectory` or `Transition`, or as is if it is neither."""
    from tf_agents.trajectories import PolicyStep, TimeStep, Trajectory, Transition

    names = getattr(data, "_fields", None)
    if names == Trajectory._fields:
        return Trajectory(*data)
    if names == Transition._fields:
        time_step, action_step, next_time_step = data
        return Transition(TimeStep(*time_step), PolicyStep(*action_step), TimeStep(*next_time_step))
    return as_transition(data) if is_transition_dict(data) else data


def is_transition_dict(data: Nest) -> bool:
    """Returns whether a batch of items is a dict with the fields of a transition."""
    return isinstance(data, Mapping) and all(name in data for name in fields.TRANSITION_FIELDS)


def as_transition(items: Mapping[str, Nest]) -> Transition:
    """Converts a batch of transition dicts to TF-Agents' `Transition`.

    As in TF-Agents' `to_transition`, reward and discount of `time_step` are unused and 0. Its step type is MID, since
    every item begins with a step that has an action; that of `next_time_step` is LAST if all discounts are 0, else MID
    (a learner must not treat a truncation as an end). A field `policy_info` becomes the policy's info.

    Args:
      items: dict of nests of tensors or arrays `[B, ...]`, with `fields.TRANSITION_FIELDS`. The discount must not
        include the last gamma, by which the agent multiplies it.
    """
    from tf_agents.trajectories import PolicyStep, StepType, TimeStep, Transition

    items = tree.map_structure(tf.convert_to_tensor, {name: items[name] for name in items if name in _USED_FIELDS})
    reward, discount = items[fields.REWARD], items[fields.DISCOUNT]
    ended = [tf.reduce_all(tf.reshape(leaf, [tf.shape(leaf)[0], -1]) == 0, 1) for leaf in tree.flatten(discount)]
    types = tf.where(tf.reduce_all(tf.stack(ended), 0), StepType.LAST, StepType.MID)
    zeros = tree.map_structure(tf.zeros_like, (reward, discount))
    return Transition(
        TimeStep(tf.fill(tf.shape(types), StepType.MID), *zeros, items[fields.OBSERVATION]),
        PolicyStep(items[fields.ACTION], (), items.get(fields.POLICY_INFO, ())),
        TimeStep(types, reward, discount, items[fields.NEXT_OBSERVATION]),
    )
