"""Environments with goals, whose observations are those of agents with goals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.datasets.steps.goals import GOAL, STATE
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec, describe

from .env_specs import read_array
from .environment import Environment, Wrapper, require_single
from .goal_conditioning import DESIRED_GOAL
from .time_steps import TimeStep, keep_untransformed


class GoalTasks(Wrapper):
    """Adds the goal of the episode to the observations: dicts of 'observation' and 'goal', as agents with goals see.

        evaluate(lambda: GoalTasks(suite_gym.load("pointmaze-medium-v0")), run.policy, 50)

    - The environments of OGBench (Park et al. 2025, arXiv:2410.20092) have several tasks, `unwrapped.task_infos`. These
      are run in turn, with the options `{"task_id": 1}` and so on at reset, whose info contains the goal. The first one
      after `seed(s)` is task s % num_tasks + 1, so that evaluations with consecutive seeds run each of them equally
      often.
    - In Gymnasium's goal environments, the goal is the observation's `desired_goal`.

    Attributes:
      task_id: number of the task of the episode, from 1; None without tasks.
    """

    env: Any  # Those with tasks are `GymnasiumEnvironment`s.

    def __init__(self, env: Environment):
        """Wraps an environment.

        Args:
          env: an environment of one of these kinds that is not batched.

        Raises:
          TypeError: If it is of a different kind, or batched.
        """
        super().__init__(require_single(env, "GoalTasks"))
        spec: Any = env.observation_spec()
        self.task_id: int | None = None
        self._has_desired = isinstance(spec, dict) and spec.keys() >= {STATE, DESIRED_GOAL}
        self._num_tasks = len(getattr(getattr(getattr(env, "gym", None), "unwrapped", None), "task_infos", ()))
        self._next_task = 0
        if not self._has_desired and not (self._num_tasks and isinstance(spec, ArraySpec)):
            raise TypeError(
                f"GoalTasks requires the field '{DESIRED_GOAL}' in observations, or the tasks of an environment of "
                f"OGBench, got observations {spec}; use an environment with goals"
            )
        state, goal = (spec[STATE], spec[DESIRED_GOAL]) if self._has_desired else (spec, spec)
        self._time_step_spec = self._time_step_spec._replace(observation={STATE: state, GOAL: goal})
        self._goal: Any = None

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset`, and with it the next task."""
        self._next_task = seed
        super().seed(seed)

    def _reset(self) -> TimeStep:
        if self._has_desired:
            return super()._reset()
        self.task_id = self._next_task % self._num_tasks + 1
        self._next_task += 1
        self.env.set_reset_options({"task_id": self.task_id})
        time_step = self.env.reset()
        self._goal = self._read_goal(self.env.info)
        return self._transform_time_step(time_step)

    def _transform_time_step(self, time_step: TimeStep) -> TimeStep:
        before = time_step.observation
        state, goal = (before[STATE], before[DESIRED_GOAL]) if self._has_desired else (before, np.copy(self._goal))
        return keep_untransformed(time_step, time_step._replace(observation={STATE: state, GOAL: goal}))

    def _read_goal(self, info: Mapping[str, Any]) -> np.ndarray:
        spec, expected = self.observation_spec()[GOAL], f"info['{GOAL}'] of a reset with a task must be"
        if GOAL not in info:
            raise SpecMismatchError(f"{expected} {describe(spec)}, got {sorted(info)}; fix the environment")
        return read_array(info[GOAL], spec, expected=expected, advice="fix the environment")


def expects_goals(policy: Any) -> bool:
    """Returns whether a policy, of TF-Agents or an `OnnxPolicy`, observes goals."""
    if (spec := getattr(policy, "observation_spec", None)) is None:
        spec = getattr(getattr(policy, "time_step_spec", None), "observation", None)
    return observes_goals(spec)


def add_goals(env: Environment) -> Environment:
    """Returns an environment with `GoalTasks`, unless its observations already are dicts of 'observation' and 'goal'.

    Raises:
      TypeError: See `GoalTasks`.
    """
    return env if observes_goals(env.observation_spec()) else GoalTasks(env)


def observes_goals(observation_spec: Any) -> bool:
    """Returns whether observations are dicts of 'observation' and 'goal'."""
    return isinstance(observation_spec, Mapping) and set(observation_spec) == {STATE, GOAL}
