"""The base classes of environments and of wrappers on their time steps."""

from __future__ import annotations

import abc
import threading
from typing import Any, ClassVar

import numpy as np

from rlds2reverb.system.closing import Closing
from rlds2reverb.system.replacements import Replacing
from rlds2reverb.types.specs import ArraySpec, Nest

from .env_specs import require_spec, require_within
from .time_steps import LAST, MID, SCALAR_REWARD, TimeStep, make_time_step_spec

_ACTION_ADVICE = "see action_spec()"


class Environment(Closing, Replacing):
    """An environment that returns `TimeStep`s, for one environment or for a batch of B.

    Subclasses implement `_reset`, `_step` and the specs, which describe one environment without the batch axis. The
    method names are those of TF-Agents' `PyEnvironment` and ALF's `AlfEnvironment`. `to_py_environment` converts any
    environment to a `PyEnvironment`.

    Attributes:
      auto_reset: whether `step` starts a new episode if the last one has ended, or none has started yet, or the last
        call has failed or was interrupted; the action is then ignored. Otherwise `step` raises.
    """

    replaces = ("AlfEnvironment", "arguments")

    def __init__(self, *, auto_reset: bool = True):
        self.auto_reset = auto_reset
        self._current_time_step: TimeStep | None = None
        self._must_reset = True
        #: Whether the first reset, and the first step, have been checked against the specs.
        self._has_checked = [False, False]

    @property
    def batched(self) -> bool:
        """True if time steps and actions have a leading axis B."""
        return self.batch_size is not None

    @property
    def batch_size(self) -> int | None:
        """The number B of environments in the batch; None without a batch."""
        return None

    @abc.abstractmethod
    def observation_spec(self) -> Nest:
        """Returns the specs of one observation."""

    @abc.abstractmethod
    def action_spec(self) -> Nest:
        """Returns the specs of one action, with its bounds."""

    def reward_spec(self) -> ArraySpec:
        """Returns the spec of one reward; float32 [] unless the environment has several rewards."""
        return SCALAR_REWARD

    def env_info_spec(self) -> Nest:
        """Returns the specs of `TimeStep.env_info`, or `()`."""
        return ()

    def time_step_spec(self) -> TimeStep:
        """Returns the specs of one time step."""
        return make_time_step_spec(
            self.observation_spec(), self.action_spec(), self.reward_spec(), self.env_info_spec()
        )

    def current_time_step(self) -> TimeStep | None:
        """Returns what the last `reset` or `step` returned; None before the first one."""
        return self._current_time_step

    def reset(self) -> TimeStep:
        """Starts a new episode, or B, and returns the first step."""
        try:
            time_step = self._reset()
            if not self._has_checked[0]:
                self._require_specs(time_step, 0)
            self._current_time_step = time_step
            self._must_reset = _is_last(time_step)  # `SeededEpisodes` may continue at the end of an episode.
            return time_step
        except BaseException:
            self._must_reset = True
            raise

    def step(self, action: Nest) -> TimeStep:
        """Executes an action, or a batch of B.

        Args:
          action: nest of arrays that matches `action_spec()`, with a leading axis B in a batch.

        Returns:
          The next time step: the first of a new episode if the last one has ended or none has started yet, and
          `auto_reset` is on. In a batch this holds for each environment separately.

        Raises:
          SpecMismatchError: If the action has another structure, shape or dtype; the message names the path.
          ValueError: If the action is outside its bounds.
          RuntimeError: If the episode has ended, or none has started, and `auto_reset` is off.
        """
        if self._must_reset:  # The action is ignored, so it need not be valid.
            return self.advance(action)
        batch_size = self.batch_size
        leading = () if batch_size is None else (batch_size,)
        action = require_within(action, self.action_spec(), name="action", advice=_ACTION_ADVICE, leading=leading)
        return self.advance(action)

    def advance(self, action: Nest) -> TimeStep:
        """Executes an action that needs no check, for wrappers and batches; otherwise the same as `step`."""
        try:
            time_step = self._auto_reset(action) if self._must_reset else self._step(action)
            if not self._has_checked[1]:
                self._require_specs(time_step, 1)
            self._current_time_step = time_step
            self._must_reset = time_step.step_type is not MID and _is_last(time_step)  # Fast path for the common case.
            return time_step
        except BaseException:  # Wrappers, or some environments of a batch, may have missed the step.
            self._must_reset = True
            raise

    def _require_specs(self, time_step: TimeStep, kind: int) -> None:
        """Raises `SpecMismatchError` unless the first reset (kind 0) or step (kind 1) matches the specs."""
        leading, name = () if self.batch_size is None else (self.batch_size,), type(self).__name__
        require_spec(time_step.observation, self.observation_spec(), f"the observation of {name}", leading)
        require_spec(time_step.env_info, self.env_info_spec(), f"the env_info of {name}", leading)
        self._has_checked[kind] = True

    @abc.abstractmethod
    def _reset(self) -> TimeStep:
        """Starts a new episode."""

    @abc.abstractmethod
    def _step(self, action: Nest) -> TimeStep:
        """Executes an action in a running episode. A batched environment resets environments that have ended."""

    def _auto_reset(self, action: Nest) -> TimeStep:
        """Returns the time step that follows an action without a running episode: the first of a new one.

        The action has not been checked, and is ignored by default.

        Raises:
          RuntimeError: If `auto_reset` is off.
        """
        if self.auto_reset:
            return self.reset()
        current = self._current_time_step
        is_over = current is None or np.all(current.step_type == LAST)
        state = "has not started" if current is None else "has ended" if is_over else "was interrupted"
        raise RuntimeError(f"the episode {state}; call reset(), or use auto_reset=True")

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset` and of the episodes that follow it; environment i of a batch gets seed + i.

        Raises:
          NotImplementedError: If the environment cannot be seeded.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be seeded")

    def skip_episodes(self, number: int) -> None:
        """Leaves out the seeds of episodes that were started by a lost environment, which this one replaces.

        For environments that seed each of their episodes themselves; others need not implement it.
        """

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns an image uint8 [H, W, 3] of the environment, or shows it with mode 'human'.

        Raises:
          NotImplementedError: If the environment cannot be rendered.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be rendered")

    def close(self) -> None:
        """Frees the resources of the environment. Idempotent."""


def _is_last(time_step: TimeStep) -> bool:
    """Returns whether the episode has ended; False for a batch, which resets its environments itself."""
    return type(time_step.step_type) is not np.ndarray and bool(time_step.step_type == LAST)


class LockedEnvironment(Environment):
    """An environment that makes the calls of several threads one after the other, so that each gets its own answer."""

    def __init__(self) -> None:
        super().__init__()
        self._lock, self._is_closed = threading.RLock(), False

    def reset(self) -> TimeStep:
        """Starts new episodes."""
        with self._lock:
            self._require_open()
            return super().reset()

    def advance(self, action: Nest) -> TimeStep:
        """Executes an action that needs no check."""
        with self._lock:
            self._require_open()
            return super().advance(action)

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the environment is closed; create a new one")


class SpecifiedEnvironment(Environment):
    """An environment that sets `_time_step_spec`, the specs of its time steps, and the size of a batch when created."""

    _time_step_spec: TimeStep
    _batch_size: Any = None

    @property
    def batch_size(self) -> int | None:
        """The number B of environments in the batch; None without a batch."""
        return self._batch_size

    def observation_spec(self) -> Nest:
        """Returns the specs of one observation."""
        return self._time_step_spec.observation

    def action_spec(self) -> Nest:
        """Returns the specs of one action."""
        return self._time_step_spec.prev_action

    def reward_spec(self) -> ArraySpec:
        """Returns the spec of one reward."""
        return self._time_step_spec.reward

    def env_info_spec(self) -> Nest:
        """Returns the specs of `TimeStep.env_info`."""
        return self._time_step_spec.env_info


def require_environment(env: Any, name: str) -> Environment:
    """Returns an environment.

    Raises:
      TypeError: If it is anything else, such as a `gymnasium.Env`.
    """
    if not isinstance(env, Environment):
        advice = "wrap it in GymnasiumEnvironment first" if hasattr(env, "action_space") else "see suite_gym.load"
        raise TypeError(f"{name} requires an Environment, got a {type(env).__name__}; {advice}")
    return env


def require_render_mode(own: str | None, mode: str) -> None:
    """Raises `ValueError` unless a mode is an environment's own, which was chosen when it was created."""
    if mode != own:
        raise ValueError(
            f"the environment was created with render_mode={own!r}, got mode {mode!r}; create it with "
            f"render_mode={mode!r}"
        )


def require_constructor(constructor: Any, name: str) -> Any:
    """Returns a function that creates an environment.

    Raises:
      TypeError: If it is anything else, such as an environment.
    """
    if not callable(constructor):
        kind = type(constructor).__name__
        raise TypeError(f"{name} must be a function that creates an environment, got a {kind}; pass lambda: ...")
    return constructor


def require_single(env: Environment, name: str) -> Environment:
    """Returns an environment that is not batched.

    Raises:
      TypeError: If it is batched, or no `Environment`.
    """
    if require_environment(env, name).batched:
        raise TypeError(f"{name} requires an environment that is not batched; wrap the environments of the batch")
    return env


class EnvAttributes:
    """Gives an object the public attributes of its `env` that it does not have itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


class Wrapper(EnvAttributes, SpecifiedEnvironment):
    """An environment that wraps an environment to change its time steps or actions; by itself it changes nothing.

    Subclasses override `_reset` and `_step`, which call `self.env.reset()` and `self.env.advance(action)`, or
    `_transform_time_step`, if all time steps change in the same way; and the specs of whatever they change.
    `check_wrapper` verifies that a wrapper is consistent.

    Attributes:
      env: the wrapped environment.
    """

    #: Changes that `check_wrapper` would report as faults: 'adds_terminations' if a discount becomes 0,
    #: 'hides_terminations' if it is no longer 0, and 'sums_rewards' if a step stands for several.
    intended_changes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, env: Environment):
        super().__init__(auto_reset=require_environment(env, type(self).__name__).auto_reset)
        self.env = env
        self._time_step_spec = env.time_step_spec()

    @property
    def batch_size(self) -> int | None:
        """The number B of environments in the batch; None without a batch."""
        return self.env.batch_size

    def _reset(self) -> TimeStep:
        return self._transform_time_step(self.env.reset())

    def _step(self, action: Nest) -> TimeStep:
        return self._transform_time_step(self.env.advance(action))

    def _transform_time_step(self, time_step: TimeStep) -> TimeStep:
        """Returns the time step of the wrapper, given that of the wrapped environment."""
        return time_step

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset` of the wrapped environment."""
        self.env.seed(seed)

    def skip_episodes(self, number: int) -> None:
        """Leaves out the seeds of episodes of a lost environment; see `Environment`."""
        self.env.skip_episodes(number)

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns an image of the wrapped environment."""
        return self.env.render(mode)

    def close(self) -> None:
        """Closes the wrapped environment."""
        self.env.close()


class RandomWrapper(Wrapper):
    """A wrapper that uses random numbers, which `seed` seeds together with the wrapped environment."""

    def __init__(self, env: Environment, seed: int):
        super().__init__(env)
        self._random = np.random.default_rng(seed)

    def seed(self, seed: int) -> None:
        """Sets the seed of the random numbers, and that of the wrapped environment."""
        self._random = np.random.default_rng(seed)
        super().seed(seed)
