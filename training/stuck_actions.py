"""The warning about a policy whose actions stick to a bound, unlike those of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step

from rlds2reverb.datasets.checks.findings import list_elements
from rlds2reverb.datasets.moments import mark_transitions
from rlds2reverb.datasets.steps.goals import add_goal
from rlds2reverb.errors import Message
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.types import fields

from .config import TrainingConfig

#: Number of steps in which actions are compared, and how close to a bound they are at it, as a share of the range.
_NUM_STEPS, _MARGIN = 256, 0.01
#: Minimum share of a policy's actions at a bound to call it stuck, and maximum share of the data's.
_POLICY_SHARE, _DATA_SHARE = 0.95, 0.8


def warn_stuck(policy: Any, action_spec: Any, items: StoredItems, config: TrainingConfig) -> list[str]:
    """Returns a warning if elements of a policy's actions are nearly always at a bound, unlike the data's; else none.

    An element is stuck at its minimum, at its maximum, or at either of them.

    Args:
      policy: TF-Agents policy.
      action_spec: bounded spec of the actions; integers have no bounds to stick to.
      items: the items of a dataset, from whose steps a few hundred are taken.
      config: the options of the run.
    """
    if not action_spec.dtype.is_floating:
        return []
    rows = np.flatnonzero(mark_transitions(items.steps.num_steps))
    rows = rows[:: 1 + len(rows) // _NUM_STEPS]
    steps = items.take(rows, (fields.OBSERVATION, fields.ACTION))
    observation = tf.nest.map_structure(tf.constant, steps[fields.OBSERVATION])
    if get_algorithm(config.algo).items == "goals":
        observation = add_goal(observation, observation)
    first = time_step.restart(observation, batch_size=len(rows))
    chosen = tf.nest.flatten(policy.action(first, policy.get_initial_state(len(rows))).action)[0]
    ours, theirs = (_find_shares(actions, action_spec) for actions in (chosen.numpy(), steps[fields.ACTION]))
    is_stuck = (ours >= _POLICY_SHARE) & (theirs <= _DATA_SHARE)
    if not is_stuck.any():
        return []
    where = list_elements(np.flatnonzero(is_stuck.any(axis=0)).tolist())
    shares = f"{ours[is_stuck].max():.0%} of the policy's actions are at a bound, but {theirs[is_stuck].min():.0%}"
    sentence = f"{shares} of the data's ({where}); "
    if config.normalize_observations:
        return [Message(sentence + "check the bounds of the actions", action_bounds=...)]
    return [Message(sentence + "normalise the observations, or train longer", normalize_observations=True)]


def _find_shares(actions: np.ndarray, spec: Any) -> np.ndarray:
    """Returns the shares of actions `[N, A]` at the minimum, at the maximum, and at either, float64 `[3, A]`."""
    margin = _MARGIN * (spec.maximum - spec.minimum)
    is_low, is_high = actions <= spec.minimum + margin, actions >= spec.maximum - margin
    return np.array([is_low, is_high, is_low | is_high]).mean(axis=1)
