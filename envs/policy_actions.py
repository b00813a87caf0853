"""The actions of policies in environments: observations are cast for the policy, and actions for the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.policies.batched_policies import BatchedPolicy
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.spaces import action_bounds
from rlds2reverb.types.specs import ArraySpec, Nest, cast_array, describe, leaves, numpy_dtype_of, path_name

from .batched_environment import make_row_reader, stack
from .env_specs import require_within, sample_action
from .environment import Environment
from .gymnasium_spaces import make_space
from .time_steps import TimeStep

RANDOM = "random"
#: Separates random actions from the random numbers of an environment with the same seed.
_SALT = 0x52_45_43
#: Actions that exceed a bound by less than this fraction are attributed to rounding: clipped but not counted.
_ROUNDING = 1e-5
_ADVICE = "use the environment in which the data were recorded"


class PolicyActions:
    """The actions of a policy in N environments, in their dtype and bounds, and the policy's state.

    Attributes:
      num_clipped: number of actions that exceeded the bounds and were clipped.
      state: the policy state.
    """

    def __init__(self, policy: BatchedPolicy, action_space: Any, *, state: Any = None):
        """Sets the policy.

        Args:
          policy: policy for N environments.
          action_space: Gymnasium action space of one environment.
          state: the policy state; None for the initial one.
        """
        self.num_clipped = 0
        self._policy, self._space = policy, action_space
        self._dtypes = {path: numpy_dtype_of(spec) for path, spec in leaves(policy.observation_spec)}
        self.state = policy.initial_state() if state is None else state

    def __call__(
        self, time_step: TimeStep, is_used: np.ndarray, locate: Callable[[int], str], *, seed: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the actions `[N, ...]`, which the caller owns.

        Args:
          time_step: the current time steps.
          is_used: bool `[N]`, the environments whose observations and actions are checked.
          locate: function that returns a description of the step of an environment, for messages.
          seed: see `BatchedPolicy.act`.

        Raises:
          ValueError: If an action is not finite, a discrete action does not exist, or an observation is not
            representable in the policy's dtype.
        """
        columns = dict(leaves(time_step.observation))
        observations = []
        for path, dtype in self._dtypes.items():
            cast, changed = cast_array(columns[path], dtype)
            if changed is not None and (wrong := _any_element(changed) & is_used).any():
                place = locate(_find_first(wrong))
                raise ValueError(
                    f"{path_name(path, 'observation')} is not representable in the policy's {dtype} ({place}); "
                    "train on data with the environment's dtype"
                )
            observations.append(cast)
        actions, self.state = self._policy.act(
            *(time_step.step_type, time_step.reward, time_step.discount, observations), state=self.state, seed=seed
        )
        return self.convert(actions, is_used, locate)

    def convert(self, actions: np.ndarray, is_used: np.ndarray, locate: Callable[[int], str]) -> np.ndarray:
        """Returns actions in the dtype and the bounds of the environment; see `__call__`."""
        if actions.dtype.kind == "f" and not np.isfinite(actions[is_used]).all():
            row = _find_first(_any_element(~np.isfinite(actions)) & is_used)
            raise ValueError(
                f"the action must be finite, got {actions[row]} ({locate(row)}); the policy has non-finite weights"
            )
        low, high = action_bounds(self._space)
        cast = actions.astype(self._space.dtype)
        clipped = np.clip(cast, low, high)
        if not hasattr(self._space, "low"):
            invalid = _any_element(clipped != actions) & is_used
            if invalid.any():
                row = _find_first(invalid)
                raise ValueError(f"the action must be in {self._space}, got {actions[row]} ({locate(row)})")
            return clipped
        with np.errstate(invalid="ignore"):  # Unused rows may have any action.
            outside = np.abs(cast - clipped) > _ROUNDING * np.maximum(1.0, np.abs(clipped))
        self.num_clipped += int((_any_element(outside) & is_used).sum())
        return clipped


class PolicyActor:
    """The actions of a policy, some of which are replaced by random ones."""

    def __init__(self, policy: Any, batch: Environment, name: str, epsilon: float, seed: int):
        self._spec, self._batch_size = batch.action_spec(), batch.batch_size or 1
        self._epsilon, self._random = epsilon, np.random.default_rng([_SALT, seed])
        self._num_clipped: Callable[[], int] = lambda: 0
        self._choose: Callable[..., Nest]
        if isinstance(policy, str):
            if policy != RANDOM:
                raise ValueError(f"policy must be 'random', a policy or a function, got {policy!r}")
            self._choose = self._sample
        elif hasattr(policy, "action"):
            batched, space = BatchedPolicy(policy, self._batch_size), make_space(self._spec)
            require_policy(batched, batch.observation_spec(), batch.reward_spec(), action_space=space, name=name)
            actions = PolicyActions(batched, space)
            self._choose, self._num_clipped = actions, lambda: actions.num_clipped
        elif callable(policy):
            # The function may change the observations.
            self._choose = lambda time_step, *_: self._require_actions(policy(copy_arrays(time_step.observation)))
        else:
            raise TypeError(f"policy must be 'random', a policy or a function, got a {type(policy).__name__}")

    def __call__(self, time_step: TimeStep, is_used: np.ndarray, locate: Callable[[int], str]) -> Nest:
        """Returns the actions `[B, ...]`; see `PolicyActions`."""
        actions = self._choose(time_step, is_used, locate)
        if self._epsilon == 0:
            return actions
        is_random = self._random.random(self._batch_size) < self._epsilon
        rows = make_row_reader(actions)
        choices = (sample_action(self._spec, self._random) if flag else rows(row) for row, flag in enumerate(is_random))
        return stack(list(choices))

    def make_warnings(self) -> tuple[str, ...]:
        """Returns a sentence about clipped actions, if there are any."""
        number = self._num_clipped()
        return (f"{number:,} of the policy's actions were outside the bounds and were clipped",) if number else ()

    def _sample(self, *_: Any) -> Nest:
        return stack([sample_action(self._spec, self._random) for _ in range(self._batch_size)])

    def _require_actions(self, actions: Nest) -> Nest:
        leading = (self._batch_size,)
        return require_within(actions, self._spec, name="action", advice="see action_spec()", leading=leading)


def _any_element(flags: np.ndarray) -> np.ndarray:
    """Returns which rows of flags `[N, ...]` contain one that is set."""
    return flags.reshape(len(flags), -1).any(1)


def _find_first(flags: np.ndarray) -> int:
    return int(np.flatnonzero(flags)[0])


def require_policy(
    policy: BatchedPolicy, observation_spec: Nest, reward_spec: ArraySpec, *, action_space: Any, name: str
) -> None:
    """Checks that a policy reads what an environment returns, and returns actions for it.

    Args:
      policy: the policy.
      observation_spec: specs of the environment's observations.
      reward_spec: spec of its rewards.
      action_space: its Gymnasium action space.
      name: its name, for messages.

    Raises:
      SpecMismatchError: If they do not match; the message names the first field that differs.
    """
    require_observations(observation_spec, policy.observation_spec, name=name)
    if tuple(policy.reward_spec.shape) != reward_spec.shape:
        raise SpecMismatchError(
            f"the policy expects reward as {describe(policy.reward_spec)}, but {name} returns {describe(reward_spec)}; "
            "wrap the environment in ScalarReward, or pass a function of observations as the policy"
        )
    _require_actions(action_space, policy.action_spec, name)


def require_number_rewards(env: Environment, name: str) -> None:
    """Raises `SpecMismatchError` unless the rewards of an environment are single numbers."""
    if env.reward_spec().shape:
        raise SpecMismatchError(
            f"the rewards of {name} must be single numbers, got {describe(env.reward_spec())}; wrap it in ScalarReward"
        )


def require_observations(env_spec: Nest, policy_spec: Nest, *, name: str) -> None:
    """Checks that an environment returns the observations that a policy expects.

    Args:
      env_spec: specs of the environment's observations.
      policy_spec: nest of specs of the policy's observations, possibly only some of the environment's.
      name: name of the environment, for messages.

    Raises:
      SpecMismatchError: If the specs do not match; the message names the first field that differs.
    """
    env_leaves = dict(leaves(env_spec))
    for path, policy_leaf in leaves(policy_spec):
        place = path_name(path, "observation")
        if path not in env_leaves:
            places = ", ".join(path_name(path, "observation") for path in env_leaves)
            raise SpecMismatchError(f"the policy expects {place}, but {name} returns {places}; {_ADVICE}")
        env_leaf = env_leaves[path]
        would_truncate = env_leaf.dtype.kind == "f" and numpy_dtype_of(policy_leaf).kind in "biu"
        if tuple(policy_leaf.shape) != env_leaf.shape or would_truncate:
            raise SpecMismatchError(
                f"the policy expects {place} as {describe(policy_leaf)}, but {name} returns "
                f"{describe(env_leaf)}; {_ADVICE}"
            )


def _require_actions(space: Any, spec: Any, name: str) -> None:
    """Checks that a policy returns actions for an environment.

    Args:
      space: Gymnasium action space of the environment.
      spec: spec of the policy's action.
      name: name of the environment, for messages.

    Raises:
      SpecMismatchError: If they do not match.
    """
    if not hasattr(spec, "dtype"):
        raise SpecMismatchError(f"the policy returns a nest of actions, but {name} expects a single one in {space}")
    is_discrete = np.dtype(space.dtype).kind in "iu"
    if tuple(spec.shape) != tuple(space.shape) or (is_discrete and numpy_dtype_of(spec).kind not in "iu"):
        expected = describe(ArraySpec(tuple(space.shape), np.dtype(space.dtype)))
        raise SpecMismatchError(
            f"the policy returns actions {describe(spec)}, but {name} expects {expected}; {_ADVICE}"
        )
