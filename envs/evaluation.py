"""Evaluation of policies in environments, with all episodes stepped together."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, overload

import numpy as np

from rlds2reverb.errors import ArgumentError, SpecMismatchError
from rlds2reverb.policies.batched_policies import BatchedPolicy
from rlds2reverb.system.references import is_reference, resolve_reference
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.evaluations import Evaluation
from rlds2reverb.types.scores import d4rl_score
from rlds2reverb.types.specs import ArraySpec, Nest

from ._deadline_thread import DeadlineThread
from .batched_environment import BatchedEnvironment
from .creation import make_environment
from .environment import Environment, Wrapper
from .gymnasium_spaces import make_space
from .policy_actions import PolicyActions, require_number_rewards, require_observations, require_policy
from .rollout import Rollout
from .suite_gym import import_gymnasium
from .time_limit import TimeLimit, find_time_limit
from .time_steps import LAST, SCALAR_REWARD, TimeStep

#: Number of steps after which episodes are truncated in an environment without a time limit.
MAX_UNLIMITED_STEPS = 10_000


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

    An environment without a time limit is not refused, because its episodes may end by themselves. Episodes that do not
    end within 10,000 steps are truncated, counted in `Evaluation.num_cut_off`, and reported in a warning.

    Attributes:
      name: name of the environment.
      seeds: seed of each episode.
      reference_returns: returns of a random policy and an expert, or None.
      discount: discount factor of `Evaluation.discounted_return`, or None.
      observation_spec: specs of the environment's observations.
      action_space, observation_space: Gymnasium spaces of its actions and observations.
      max_episode_steps: number of steps after which episodes are truncated.
      is_limited: whether that number was chosen, by the user or in the environment.
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
        with_goals: bool = False,
        info_fields: Sequence[str] = (),
        timeout_secs: float = 60.0,
    ):
        """Creates and closes one environment to read its spaces.

        Args:
          make_env: id of a Gymnasium environment, such as 'Hopper-v5', or 'my_module:MyEnv-v0' to import a module
            first; a `gymnasium.EnvSpec`; a `gymnasium.Env`, which is not used itself, but whose `spec` makes new ones;
            or a function that returns a new `gymnasium.Env` or `Environment` in each call, or its reference
            'my_module:make_env'.
          num_episodes: number of episodes N; None for one per seed, or 10 without seeds.
          seeds: seeds for `reset`, one per environment; None for 0 to N - 1.
          reference_returns: returns of a random policy and an expert, for a score; see `read_reference_returns`.
          max_episode_steps: number of steps after which episodes are truncated, in place of the environment's own time
            limit; None for that limit.
          discount: discount factor in [0, 1] of `Evaluation.discounted_return`; None for none.
          with_goals: whether policies observe goals; environments that do not show them yet are then wrapped in
            `GoalTasks`.
          info_fields: names of numbers in `info` to sum up in `Evaluation.env_info`; see `GymnasiumEnvironment`.
          timeout_secs: maximum duration of a step of all environments, and of the creation of each.

        Raises:
          ImportError: If Gymnasium or a dependency of the environment is not installed.
          ValueError: If there is no such environment, if an environment has no `spec`, if the numbers of episodes and
            seeds differ, or if the reference returns are equal.
          TypeError: If `make_env` is not one of these or does not return an environment, or a space is not supported.
          TimeoutError: If the environment is not created in time.
        """
        self.seeds = _resolve_seeds(num_episodes, seeds)
        if reference_returns is not None:
            d4rl_score(0.0, reference_returns)
            reference_returns = (float(reference_returns[0]), float(reference_returns[1]))
        if discount is not None:
            require_number("discount", discount, 0, 1)
        self.reference_returns, self.discount = reference_returns, discount
        self._chosen_limit, self._timeout_secs, self._with_goals = max_episode_steps, timeout_secs, with_goals
        self._info_fields = tuple(info_fields)
        self.name, self._make_env = name_environment(make_env)
        with self._start_thread() as thread:
            self.observation_spec, self.observation_space, self.action_space, limit = thread.call(self._read_spaces)
        self.is_limited, self.max_episode_steps = limit is not None, limit or MAX_UNLIMITED_STEPS
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

    @overload
    def evaluate(self, policy: Any) -> Evaluation: ...

    @overload
    def evaluate(self, policy: Any, *, should_stop: Callable[[], bool]) -> Evaluation | None: ...

    def evaluate(self, policy: Any, *, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Runs one episode for each seed.

        Observations are cast to the policy's dtype: floats are rounded, and other values must be representable. The
        policy also receives the environment's rewards, discounts and step types. Actions outside the bounds are clipped
        and counted. An episode ends when it is terminated or truncated. The environments are always closed, unless they
        hang.

        Args:
          policy: TF-Agents `TFPolicy`, or the return value of `load_policy`.
          should_stop: function called before each step, which ends the evaluation when it returns True.

        Returns:
          The evaluation; None if it was stopped.

        Raises:
          TypeError, SpecMismatchError: See `require_match`.
          ValueError: If an action, an observation or a reward is not finite, if the environment does not have a
            discrete action, or if an observation is not representable in the policy's dtype; the message names episode
            and step.
          TimeoutError: If the environments do not finish a step in time; the message contains the stack trace.
          EnvironmentFailedError: If an environment reports a step that has failed, so that the episode has no return.
        """
        batched = self._get_batched(policy)
        with self._start_thread() as thread:
            # One environment per call, since many together may take longer than its timeout.
            envs = [thread.open(partial(self._create_episode, index, seed)) for index, seed in enumerate(self.seeds)]
            return self._run(thread.call(lambda: BatchedEnvironment(envs)), batched, thread, should_stop)

    def _run(
        self, envs: BatchedEnvironment, policy: BatchedPolicy, thread: DeadlineThread, should_stop: Callable[[], bool]
    ) -> Evaluation | None:
        actions, place = PolicyActions(policy, self.action_space), "episode {env}, step {step}"
        rollout = Rollout(envs, actions, name=self.name, place=place, call=thread.call)
        rewards: list[np.ndarray] = []
        sums = {name: np.zeros(self.num_episodes) for name in self._info_fields}
        while rollout.is_used.any():
            if should_stop():
                return None
            time_step = next(rollout)
            rewards.append(np.where(rollout.is_transition, time_step.reward, 0.0))
            _require_finite(rewards[-1], rollout)
            for name, total in sums.items():
                total += np.where(rollout.is_transition, time_step.env_info[name], 0.0)
            rollout.is_used = time_step.step_type != LAST
        returns, lengths, is_terminal = rollout.returns, rollout.lengths, time_step.discount == 0
        num_cut_off = 0 if self.is_limited else int((~is_terminal & (lengths >= self.max_episode_steps)).sum())
        if num_cut_off:
            warnings.warn(self._describe_cut_off(num_cut_off), RuntimeWarning, stacklevel=3)
        discounted = None
        if self.discount is not None:
            discounted = _compute_discounted_return(
                np.array(rewards[1:], np.float64), lengths, is_terminal, discount=self.discount
            )
        return Evaluation(
            returns, lengths, self.seeds, self.reference_returns, actions.num_clipped, discounted, num_cut_off,
            _collect(envs, "is_success", bool), _collect(envs, "task_id", np.int64), sums or None,
        )  # fmt: skip

    def _describe_cut_off(self, number: int) -> str:
        return (
            f"{self.name} has no time limit, and {number} of {self.num_episodes} episodes were truncated after "
            f"{self.max_episode_steps:,} steps; set max_episode_steps (in training, eval_max_episode_steps)"
        )

    def _start_thread(self) -> DeadlineThread:
        return DeadlineThread(f"the environments of {self.name}", self._timeout_secs)

    def _get_batched(self, policy: Any) -> BatchedPolicy:
        if self._batched is None or self._batched.policy is not policy:
            batched = BatchedPolicy(policy, self.num_episodes)
            require_policy(
                batched, self.observation_spec, SCALAR_REWARD, action_space=self.action_space, name=self.name
            )
            self._batched = batched
        return self._batched

    def _create_env(self, index: int) -> Environment:
        return make_environment(
            self._make_env,
            env_id=index,
            max_episode_steps=self._chosen_limit,
            info_fields=self._info_fields,
            with_goals=self._with_goals,
        )

    def _create_episode(self, index: int, seed: int) -> Environment:
        env = self._create_env(index)
        env = _SingleEpisode(env if self.is_limited else TimeLimit(env, self.max_episode_steps), index)
        with suppress(NotImplementedError):
            env.seed(seed)
        return env

    def _read_spaces(self) -> tuple[Nest, Any, Any, int | None]:
        """Returns the spec and the space of the observations, the action space, and the time limit."""
        with self._create_env(0) as env:
            action_spec = env.action_spec()
            gym = getattr(env, "gym", None)
            space, observations = getattr(gym, "action_space", None), getattr(gym, "observation_space", None)
            if not isinstance(action_spec, ArraySpec):
                raise TypeError(f"the action space of {self.name} must be a Box or a discrete space, got {space}")
            require_number_rewards(env, self.name)
            for name, spec in env.env_info_spec().items() if self._info_fields else ():
                if name in self._info_fields and (spec.shape or spec.dtype.kind not in "biuf"):
                    raise ValueError(f"info_fields must name single numbers, but {name!r} is {spec}")
            actions = make_space(action_spec) if space is None else space
            return env.observation_spec(), observations, actions, find_time_limit(env)


class _SingleEpisode(Wrapper):
    """An environment that does nothing after the end of its first episode, and whose errors name episode and step."""

    def __init__(self, env: Environment, index: int):
        super().__init__(env)
        self._index, self._num_steps = index, 0

    def _reset(self) -> TimeStep:
        with self._locate_errors():
            return self.env.reset()

    def _auto_reset(self, action: Nest) -> TimeStep:
        return self.current_time_step() or self._reset()

    def _step(self, action: Nest) -> TimeStep:
        with self._locate_errors():
            time_step = self.env.advance(action)
        self._num_steps += 1
        return time_step

    @contextlib.contextmanager
    def _locate_errors(self) -> Any:
        try:
            yield
        except (SpecMismatchError, ValueError) as error:
            raise type(error)(f"{error} (episode {self._index}, step {self._num_steps})") from error


def _collect(envs: BatchedEnvironment, name: str, dtype: type) -> np.ndarray | None:
    """Returns an attribute of each environment; None unless all environments have it."""
    values = [getattr(env, name, None) for env in envs.envs]
    return None if None in values else np.array(values, dtype)


def _require_finite(rewards: np.ndarray, rollout: Rollout) -> None:
    if not np.isfinite(rewards).all():
        episode = int(np.argmin(np.isfinite(rewards)))
        place = f"episode {episode}, step {rollout.lengths[episode] - 1}"
        raise ValueError(f"the reward must be finite, got {rewards[episode]} ({place}); fix the environment")


def _compute_discounted_return(
    rewards: np.ndarray, lengths: np.ndarray, is_terminal: np.ndarray, *, discount: float
) -> float:
    """Returns the mean over all steps of N episodes of the discounted sum of the rewards that follow.

        G_t = r_t + discount * G_{t+1},   G_T = 0

    What follows a truncation is unknown. The steps of a truncated episode that miss more than 5 % of an endless sum of
    equal rewards are therefore left out, except the first step of the episode.

    Args:
      rewards: float64 [T, N], zeros after the ends of episodes.
      lengths: int64 [N], number of steps of each episode.
      is_terminal: bool [N], whether it was terminated rather than truncated.
      discount: discount factor in [0, 1].
    """
    following, sums = np.zeros(len(lengths)), np.zeros_like(rewards)
    for step in reversed(range(len(rewards))):
        following = sums[step] = rewards[step] + discount * following
    horizon = 1 if discount == 0 else len(rewards) if discount == 1 else int(np.ceil(np.log(0.05) / np.log(discount)))
    ends = np.where(is_terminal, lengths, np.maximum(lengths - horizon, 1))
    is_used = np.arange(len(sums))[:, None] < np.minimum(ends, lengths)
    return float(sums[is_used].mean()) if is_used.any() else 0.0


def name_environment(env: Any) -> tuple[str, Any]:
    """Returns the name of an environment, and what makes new ones: an id, a `gymnasium.EnvSpec`, or a function.

    Args:
      env: see `Evaluator`.

    Raises:
      ValueError: If an environment has no `spec`.
      TypeError: If `env` is not one of the supported kinds.
    """
    if isinstance(env, str):
        return env, _find_function(env) or env
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


def _find_function(reference: str) -> Any:
    """Returns the function or class of a reference 'my_module:make_env'; None for ids, also those with a module."""
    if is_reference(reference) and all(map(str.isidentifier, reference.partition(":")[2].split("."))):
        with suppress(ArgumentError):  # Gymnasium may know it by this name.
            found = resolve_reference("env", reference)
            return found if callable(found) else None
    return None


def _resolve_seeds(num_episodes: int | None, seeds: Sequence[int] | None) -> tuple[int, ...]:
    if num_episodes is not None:
        require_count("num_episodes", num_episodes)
    if seeds is None:
        return tuple(range(10 if num_episodes is None else num_episodes))
    resolved = tuple(operator.index(seed) for seed in seeds)
    require_count("each of seeds", min(resolved, default=0), 0)
    if not resolved or num_episodes not in (None, len(resolved)):
        expected = "at least one seed" if num_episodes is None else f"one seed per episode ({num_episodes})"
        raise ValueError(f"seeds must contain {expected}, got {len(resolved)}")
    return resolved
