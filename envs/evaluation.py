"""Evaluation of policies in environments, with all episodes stepped together."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rlds2reverb._arguments import require_count, require_number, require_timeout
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.evaluations import Evaluation
from rlds2reverb.policies import BatchedPolicy
from rlds2reverb.scores import d4rl_score
from rlds2reverb.specs import ArraySpec, Nest

from ._deadline_thread import DeadlineThread
from .batched_environment import BatchedEnvironment
from .environment import Environment, Wrapper
from .loading import make_environment
from .policy_actions import PolicyActions, require_actions, require_observations
from .spaces import make_space
from .suite_gym import import_gymnasium
from .time_limit import TimeLimit
from .time_steps import LAST, TimeStep

#: Maximum number of steps of an episode in an environment without a time limit.
_MAX_UNLIMITED_STEPS = 100_000


def evaluate(
    env: Any, policy: Any, num_episodes: int | None = None, seeds: Sequence[int] | None = None, **options: Any
) -> Evaluation:
    """Runs a policy for several episodes, and returns their returns, lengths and scores.

        print(evaluate("Hopper-v5", run.policy, 20))

    Args:
      env: an environment, or what makes one; see `Evaluator`.
      policy: see `Evaluator.evaluate`.
      num_episodes: see `Evaluator`.
      seeds: see `Evaluator`.
      **options: other arguments of `Evaluator`.

    Raises:
      Exception: See `Evaluator` and `Evaluator.evaluate`.
    """
    return Evaluator(env, num_episodes=num_episodes, seeds=seeds, **options).evaluate(policy)


class Evaluator:
    """An evaluation of policies in N environments that are stepped together, with one policy call per step.

    The batch of that call always has N rows so that the policy is traced only once; rows of finished episodes are
    ignored. Equal seeds give equal returns unless policy or environment use other sources of randomness.
    """

    def __init__(
        self,
        make_env: str | Callable[[], Any] | Any,
        *,
        num_episodes: int | None = None,
        seeds: Sequence[int] | None = None,
        reference_returns: tuple[float, float] | None = None,
        max_episode_steps: int | None = None,
        discount: float | None = None,
        timeout_secs: float = 60.0,
    ):
        """Creates and closes one environment to read its spaces.

        Args:
          make_env: id of a Gymnasium environment, such as 'Hopper-v5', or 'my_module:MyEnv-v0' to import a module
            first; a `gymnasium.EnvSpec`; a `gymnasium.Env`, which is not used itself, but whose `spec` makes new ones;
            or a function that returns a new `gymnasium.Env` or `Environment` in each call.
          num_episodes: number of episodes N; None for one per seed, or 10 without seeds.
          seeds: seeds for `reset`, one per environment; None for 0 to N - 1.
          reference_returns: returns of a random policy and an expert, for a score; see `read_reference_returns`.
          max_episode_steps: number of steps after which episodes are truncated; None for only the environment's own
            limit.
          discount: discount factor in [0, 1] of `Evaluation.discounted_return`; None for none.
          timeout_secs: maximum duration of a step of all environments, and of their creation.

        Raises:
          ImportError: If Gymnasium or a dependency of the environment is not installed.
          ValueError: If there is no such environment, if an environment has no `spec`, if the numbers of episodes and
            seeds differ, or if the reference returns are equal.
          TypeError: If `make_env` is none of these or does not return an environment, or a space is not supported.
          TimeoutError: If the environment is not created in time.
        """
        self.seeds = _resolve_seeds(num_episodes, seeds)
        if max_episode_steps is not None:
            require_count("max_episode_steps", max_episode_steps)
        require_timeout(timeout_secs)
        if reference_returns is not None:
            d4rl_score(0.0, reference_returns)
            reference_returns = (float(reference_returns[0]), float(reference_returns[1]))
        if discount is not None:
            require_number("discount", discount, 0, 1)
        self.reference_returns, self.discount = reference_returns, discount
        self._max_episode_steps, self._timeout_secs = max_episode_steps, timeout_secs
        self.name, self._make_env = name_environment(make_env)
        with self._start_thread() as thread:
            self.observation_spec, self.action_space, self._has_limit = thread.call(self._read_spaces)
        self._batched: BatchedPolicy | None = None

    @property
    def num_episodes(self) -> int:
        """The number of episodes in an evaluation."""
        return len(self.seeds)

    def require_match(self, policy: Any) -> None:
        """Checks that a policy accepts the environment's observations and returns actions for it.

        A policy may ignore entries of a dict of observations.

        Args:
          policy: see `evaluate`.

        Raises:
          TypeError: If `policy` is not a policy.
          SpecMismatchError: If the specs do not match; the message names the first field that differs.
        """
        self._get_batched(policy)

    def require_observations(self, spec: Nest) -> None:
        """Checks that the environment returns the observations that a policy expects.

        Args:
          spec: nest of specs of the policy's observations, possibly only some of the environment's.

        Raises:
          SpecMismatchError: If the specs do not match; the message names the first field that differs.
        """
        require_observations(self.observation_spec, spec, name=self.name)

    def evaluate(self, policy: Any) -> Evaluation:
        """Runs one episode for each seed.

        Observations are cast to the policy's dtype: floats are rounded, and other values must be representable.
        Actions outside the bounds are clipped and counted. An episode ends when it is terminated or truncated. The
        environments are always closed, unless they hang.

        Args:
          policy: TF-Agents `TFPolicy`, or the return value of `load_policy`.

        Raises:
          TypeError, SpecMismatchError: See `require_match`.
          ValueError: If an action, an observation or a reward is not finite, if the environment does not have a
            discrete action, or if an observation is not representable in the policy's dtype; the message names episode
            and step.
          TimeoutError: If the environments do not finish a step in time; the message contains the stack trace.
          RuntimeError: If an episode without a time limit does not end.
        """
        batched = self._get_batched(policy)
        with self._start_thread() as thread:
            envs = thread.call(self._create_envs)
            try:
                return self._run(envs, batched, thread)
            finally:
                if thread.is_responsive:
                    thread.call(envs.close)

    def _run(self, envs: BatchedEnvironment, policy: BatchedPolicy, thread: DeadlineThread) -> Evaluation:
        episodes, actions = _Episodes(self.num_episodes), PolicyActions(policy, self.action_space)
        time_step = thread.call(envs.reset)
        while True:
            episodes.add(time_step)
            if not episodes.running.any():
                break
            if not self._has_limit and (episodes.lengths >= _MAX_UNLIMITED_STEPS).any():
                raise RuntimeError(
                    f"{self.name} has no time limit, and an episode did not end within {_MAX_UNLIMITED_STEPS:,} steps; "
                    "set max_episode_steps"
                )
            action = actions(time_step, episodes.running, episodes.locate)
            time_step = thread.call(functools.partial(envs.advance, action))
        return Evaluation(
            episodes.returns,
            episodes.lengths,
            self.seeds,
            self.reference_returns,
            actions.num_clipped,
            None if self.discount is None else episodes.compute_discounted_return(self.discount),
        )

    def _start_thread(self) -> DeadlineThread:
        return DeadlineThread(f"the environments of {self.name}", self._timeout_secs)

    def _get_batched(self, policy: Any) -> BatchedPolicy:
        if self._batched is None or self._batched.policy is not policy:
            batched = BatchedPolicy(policy, self.num_episodes)
            self.require_observations(batched.observation_spec)
            require_actions(self.action_space, batched.action_spec, self.name)
            self._batched = batched
        return self._batched

    def _create_env(self, index: int) -> Environment:
        env = make_environment(self._make_env, env_id=index)
        return env if self._max_episode_steps is None else TimeLimit(env, self._max_episode_steps)

    def _create_envs(self) -> BatchedEnvironment:
        with contextlib.ExitStack() as stack:
            envs = []
            for index, seed in enumerate(self.seeds):
                env = _SingleEpisode(stack.enter_context(self._create_env(index)), index)
                with suppress(NotImplementedError):
                    env.seed(seed)
                envs.append(env)
            stack.pop_all()
        return BatchedEnvironment(envs)

    def _read_spaces(self) -> tuple[Nest, Any, bool]:
        """Returns the spec of the observations, the action space, and whether episodes have a time limit."""
        with self._create_env(0) as env:
            action_spec = env.action_spec()
            space = getattr(getattr(env, "gym", None), "action_space", None)
            if not isinstance(action_spec, ArraySpec):
                raise TypeError(f"the action space of {self.name} must be a Box or a discrete space, got {space}")
            own_spec = getattr(getattr(env, "gym", None), "spec", None)
            has_limit = isinstance(env, TimeLimit) or getattr(own_spec, "max_episode_steps", None) is not None
            return env.observation_spec(), make_space(action_spec) if space is None else space, has_limit


class _SingleEpisode(Wrapper):
    """An environment that does nothing after the end of its first episode, and whose errors name episode and step."""

    def __init__(self, env: Environment, index: int):
        super().__init__(env)
        self._index, self._num_steps = index, 0

    def reset(self) -> TimeStep:
        """Starts the episode."""
        with self._locate_errors():
            return super().reset()

    def advance(self, action: Nest) -> TimeStep:
        """Executes an action that needs no check, unless the episode has ended."""
        time_step = self._current_time_step
        if time_step is not None and time_step.step_type == LAST:
            return time_step
        with self._locate_errors():
            self._current_time_step = self.env.advance(action)
        self._num_steps += 1
        return self._current_time_step

    @contextlib.contextmanager
    def _locate_errors(self) -> Any:
        try:
            yield
        except (SpecMismatchError, ValueError) as error:
            raise type(error)(f"{error} (episode {self._index}, step {self._num_steps})") from error


class _Episodes:
    """The returns and lengths of N episodes."""

    def __init__(self, num_episodes: int):
        self.returns, self.lengths = np.zeros(num_episodes), np.full(num_episodes, -1, np.int64)
        self.running = np.ones(num_episodes, bool)
        self._is_terminal = np.zeros(num_episodes, bool)
        self._rewards: list[np.ndarray] = []

    def add(self, time_step: TimeStep) -> None:
        """Adds the next step of each running episode."""
        self.returns[self.running] += time_step.reward[self.running]
        if self.lengths.max() >= 0:
            self._rewards.append(np.where(self.running, time_step.reward, 0.0))
        self._is_terminal |= self.running & (time_step.discount == 0)
        self.lengths += self.running
        self.running = time_step.step_type != LAST

    def compute_discounted_return(self, discount: float) -> float:
        """Returns the mean over all steps of the discounted sum of the rewards that follow.

            G_t = r_t + discount * G_{t+1},   G_T = 0

        What follows a truncation is unknown. The steps of a truncated episode that miss more than 5 % of an endless
        sum of equal rewards are therefore left out, except the first step of the episode.
        """
        following, sums = np.zeros(len(self.returns)), np.zeros((len(self._rewards), len(self.returns)))
        for step in reversed(range(len(self._rewards))):
            following = sums[step] = self._rewards[step] + discount * following
        horizon = 1 if discount == 0 else _MAX_UNLIMITED_STEPS if discount == 1 else np.log(0.05) / np.log(discount)
        ends = np.where(self._is_terminal, self.lengths, np.maximum(self.lengths - int(np.ceil(horizon)), 1))
        is_used = np.arange(len(sums))[:, None] < np.minimum(ends, self.lengths)
        return float(sums[is_used].mean()) if is_used.any() else 0.0

    def locate(self, row: int) -> str:
        """Returns the place of the next action of an episode, for messages."""
        return f"episode {row}, step {self.lengths[row]}"


def name_environment(env: Any) -> tuple[str, Any]:
    """Returns the name of an environment, and what makes new ones: an id, a `gymnasium.EnvSpec`, or a function.

    Args:
      env: see `Evaluator`.

    Raises:
      ValueError: If an environment has no `spec`.
      TypeError: If `env` is none of the supported kinds.
    """
    if isinstance(env, str):
        return env, env
    gymnasium = import_gymnasium()
    if isinstance(env, gymnasium.Env):
        spec = env.spec
        if spec is None:
            raise ValueError(
                f"the environment {type(env.unwrapped).__name__} has no spec, so that no new ones can be made from it; "
                "pass a function that creates one, such as lambda: MyEnv()"
            )
        env = spec
    if isinstance(env, gymnasium.envs.registration.EnvSpec):
        return env.id, env
    if callable(env):
        return getattr(env, "__name__", type(env).__name__), env
    raise TypeError(
        "an environment must be the id of one, a gymnasium.Env, a gymnasium.EnvSpec or a function that returns a "
        f"gymnasium.Env, got a {type(env).__name__}"
    )


def _resolve_seeds(num_episodes: int | None, seeds: Sequence[int] | None) -> tuple[int, ...]:
    if num_episodes is not None:
        require_count("num_episodes", num_episodes)
    if seeds is None:
        return tuple(range(10 if num_episodes is None else num_episodes))
    resolved = tuple(int(seed) for seed in seeds)
    if not resolved or num_episodes not in (None, len(resolved)):
        expected = "at least one seed" if num_episodes is None else f"one seed per episode ({num_episodes})"
        raise ValueError(f"seeds must contain {expected}, got {len(resolved)}")
    return resolved
