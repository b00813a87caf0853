"""Rollouts of a policy in an ensemble of models, up to where it leaves the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlds2reverb.learners.dynamics_model import DynamicsModel

#: Distance between the models, in standard deviations of the observations, up to which a state always belongs to the
#: data.
MIN_SPREAD = 0.2
#: Share of the discounted steps that may come after the last step of a rollout, maximum number of steps, and discount
#: below which nothing more is simulated.
_REST, _MAX_STEPS, _NEGLIGIBLE = 0.01, 1000, 1e-3


class Rollouts(NamedTuple):
    """The returns of a policy in K models, from N first states.

    Attributes:
      known: float64 [K, N], discounted return before the policy leaves the data, or the rollout ends.
      unknown: float64 [K, N], discount of what follows, in [0, 1]: 0 after a terminal state.
      num_steps: int64 [K, N], number of steps before the policy leaves the data or reaches a terminal state.
      has_left: bool [K, N], whether the policy has left the data.
    """

    known: np.ndarray
    unknown: np.ndarray
    num_steps: np.ndarray
    has_left: np.ndarray


def roll_out(
    model: DynamicsModel,
    act: Callable[[np.ndarray, int], np.ndarray],
    states: np.ndarray,
    *,
    gamma: float,
    limit: float,
    longest: int,
) -> Rollouts:
    """Simulates a policy in each of the models.

    It leaves the data in the first state in which the models are further apart than a limit after its action.

    Args:
      model: K models.
      act: function `(states [B, S], step)` that returns the choices of the policy, float32 `[B, C]`.
      states: float32 `[N, S]`, first states.
      gamma: discount factor.
      limit: maximum `spread` of predictions within the data.
      longest: number of steps to simulate with a discount factor of 1. With others, it is the number after which 1% of
        the discounts is left; never more than 1,000.
    """
    steps = np.log(_REST) / np.log(gamma) if 0 < gamma < 1 else longest if gamma else 1
    num_models, num = model.num_models, len(states)
    members = np.repeat(np.arange(num_models), num)
    current, size = np.tile(states, (num_models, 1)), num_models * num
    known, unknown, num_steps, has_left = np.zeros(size), np.ones(size), np.zeros(size, int), np.zeros(size, bool)
    going = np.arange(size)
    for step in range(int(np.ceil(min(steps, _MAX_STEPS)))):
        found = model.predict(current[going], act(current[going], step))
        has_left[going] = found.spread > limit
        at = np.flatnonzero(found.spread <= limit)
        going, own = going[at], (members[going[at]], at)
        known[going] += unknown[going] * found.reward[own]
        unknown[going] *= gamma * found.discount[own]
        current[going] = found.state[own]
        num_steps[going] += 1
        going = going[unknown[going] > _NEGLIGIBLE]
        if not len(going):
            break
    return Rollouts(*(column.reshape(num_models, num) for column in (known, unknown, num_steps, has_left)))
