"""Goals that a wrapper sets in the observations of an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import ArraySpec, Nest, map_structure

from .env_specs import BoundedArraySpec, make_zeros, read_array
from .environment import Environment, RandomWrapper, require_single
from .time_steps import LAST, TimeStep, keep_untransformed

OBSERVATION, ACHIEVED_GOAL, DESIRED_GOAL = "observation", "achieved_goal", "desired_goal"
_ZERO = np.float32(0)

#: A function of achieved goals `[T, ...]`, desired goals `[T, ...]` and the transitions, that returns `[T]`.
GoalFn = Callable[[np.ndarray, np.ndarray, dict[str, Nest]], Any]


class GoalConditioning(RandomWrapper):
    """Gives each episode a goal, and rewards the agent for reaching it. After ALF's `GoalReplayEnvWrapper`.

    The goal is chosen when an episode starts, for example among goals that earlier episodes reached. Observations have
    the fields of Gymnasium's goal environments: `observation`, `achieved_goal` and `desired_goal`. If the environment
    is one of these, only its desired goal is replaced. Rewards are those of `reward_fn`.

    Goals that are known only at the end of an episode are set in recorded episodes, with `adders.GoalRelabel`, whose
    functions have the same arguments.
    """

    intended_changes = frozenset({"adds_terminations"})

    def __init__(
        self,
        env: Environment,
        choose_goal: Callable[[TimeStep, np.random.Generator], Any],
        reward_fn: GoalFn,
        *,
        get_achieved_goal: Callable[[Nest], Any] | None = None,
        terminal_fn: GoalFn | None = None,
        seed: int = 0,
    ):
        """Wraps an environment.

        Args:
          env: an environment that is not batched and has scalar rewards.
          choose_goal: function that returns the goal of an episode, given its first time step before the change and a
            random generator.
          reward_fn: function that returns rewards `[1]`, given the goal achieved after an action `[1, ...]`, the
            desired goal `[1, ...]`, and a dict of the fields `observation`, `action`, `reward`, `next_observation`
            `[1, ...]` and `is_terminal` `[1]` before the change. `env.unwrapped.compute_reward` of Gymnasium-Robotics
            is such a function.
          get_achieved_goal: function that returns the goal which an observation achieves; None if it is a dict with the
            field `achieved_goal`.
          terminal_fn: function like `reward_fn` that returns whether the episode is terminated, such as
            `env.unwrapped.compute_terminated`. Terminations of the environment itself are kept. None for only those.
          seed: seed of the generator; `seed(...)` replaces it.

        Raises:
          TypeError: If the environment is batched or has several rewards.
          ValueError: If `get_achieved_goal` is None and observations are not dicts with both goals.
        """
        super().__init__(require_single(env, "GoalConditioning"), seed)
        if env.reward_spec().shape:
            raise TypeError(
                f"GoalConditioning requires scalar rewards, got {env.reward_spec()}; combine them into one first"
            )
        self._choose_goal, self._reward_fn, self._terminal_fn = choose_goal, reward_fn, terminal_fn
        self._get_achieved = get_achieved_goal
        spec = env.observation_spec()
        if get_achieved_goal is None:
            if not isinstance(spec, dict) or not {ACHIEVED_GOAL, DESIRED_GOAL} <= spec.keys():
                raise ValueError(
                    f"observations must have the fields {ACHIEVED_GOAL!r} and {DESIRED_GOAL!r}, got {spec}; or pass "
                    "get_achieved_goal"
                )
            self._goal_spec: ArraySpec = spec[DESIRED_GOAL]
        else:
            goal = np.asarray(get_achieved_goal(make_zeros(spec)))
            dtype = np.dtype(np.float32) if goal.dtype.kind == "f" else goal.dtype
            self._goal_spec = ArraySpec(goal.shape, dtype)
            observed = {OBSERVATION: spec, ACHIEVED_GOAL: self._goal_spec, DESIRED_GOAL: self._goal_spec}
            self._time_step_spec = self._time_step_spec._replace(observation=observed)
        self._goal = make_zeros(self._goal_spec)
        self._last: Any = None

    def _reset(self) -> TimeStep:
        time_step = self.env.reset()
        self._goal = self._read_goal(self._choose_goal(copy_arrays(time_step), self._random), "choose_goal")
        if isinstance(self._goal_spec, BoundedArraySpec) and not self._goal_spec.contains(self._goal):
            raise ValueError(f"choose_goal must return a goal within the bounds of {self._goal_spec}, got {self._goal}")
        self._last = copy_arrays(time_step.observation)
        return self._set_goal(time_step)

    def _step(self, action: Nest) -> TimeStep:
        after = self.env.advance(action)
        transition = {
            "observation": self._last,
            "action": action,
            "reward": after.reward,
            "next_observation": after.observation,
            "is_terminal": after.is_terminated(),
        }
        self._last = copy_arrays(after.observation)
        arguments = self._read_achieved(after.observation), self._goal, transition
        reward = np.float32(_call("reward_fn", self._reward_fn, arguments))
        changed = self._set_goal(after)._replace(reward=reward)
        if self._terminal_fn is not None and _call("terminal_fn", self._terminal_fn, arguments):
            changed = changed._replace(step_type=LAST, discount=_ZERO)
        return changed

    def _read_achieved(self, observation: Nest) -> np.ndarray:
        if self._get_achieved is None:
            return np.array(observation[ACHIEVED_GOAL])
        return self._read_goal(self._get_achieved(copy_arrays(observation)), "get_achieved_goal")

    def _read_goal(self, goal: Any, name: str) -> np.ndarray:
        return read_array(goal, self._goal_spec, expected=f"{name} must return a goal", advice="fix the function")

    def _set_goal(self, time_step: TimeStep) -> TimeStep:
        observation = time_step.observation
        goals = {ACHIEVED_GOAL: self._read_achieved(observation), DESIRED_GOAL: self._goal.copy()}
        observation = {**observation, **goals} if self._get_achieved is None else {OBSERVATION: observation, **goals}
        return keep_untransformed(time_step, time_step._replace(observation=observation))


def _call(name: str, function: GoalFn, arguments: Any) -> Any:
    """Returns the value of a function of one transition, which receives a copy of it with a leading axis."""
    array = np.asarray(function(*map_structure(lambda leaf: np.array(leaf)[None], arguments)))
    if array.shape != (1,):
        raise ValueError(f"{name} must return one value per transition, shape (1,), got shape {array.shape}")
    return array[0]
