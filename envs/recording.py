"""The recording of interactions as episodes, which are a source like any other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlds2reverb.datasets import Source
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.ownership import copy_arrays

from . import suite_gym
from .batched_environment import BatchedEnvironment, make_row_reader
from .creation import make_environment
from .environment import Environment, Wrapper
from .evaluation import name_environment
from .goal_tasks import expects_goals
from .gymnasium_spaces import make_space
from .parallel_environment import ParallelEnvironment
from .policy_actions import RANDOM, PolicyActor
from .rollout import EpisodeSteps, Rollout
from .seeded_episodes import make_episode_seed, make_seeded
from .thread_environment import ThreadEnvironment
from .time_steps import FIRST, LAST, TimeStep


def record_episodes(
    env: Any,
    policy: Any = RANDOM,
    *,
    num_episodes: int | None = None,
    num_steps: int | None = None,
    num_envs: int = 1,
    seed: int = 0,
    epsilon: float = 0.0,
    env_info: bool | Sequence[str] = False,
    max_episode_steps: int | None = None,
    timeout_secs: float = 60.0,
    progress: Callable[[Episode], None] | None = None,
) -> Source:
    """Runs a policy in an environment, and returns its episodes for `ingest`, `train`, `write_dataset` and the like.

        source = record_episodes("Hopper-v5", load_run("runs/iql").policy, num_episodes=100)

    Both ends of an episode: each contains the final observation; it is terminal if the discount of its last step is 0,
    and truncated otherwise. Row t of `env_info` belongs to observation t. With `num_steps`, exactly this number of
    steps is recorded; the episodes that are then running are `unterminated`. In a `ParallelEnvironment` that restarts
    environments which fail, their episodes are truncated at their last real observations.

    Args:
      env: an environment: a description of one as for `Evaluator`, which is an id such as 'Hopper-v5', a
        `gymnasium.EnvSpec`, a `gymnasium.Env` with a `spec`, or a function; or an `Environment`, batched or not, or the
        result of `load`, which is reset and stepped, but not closed.
      policy: 'random' for uniformly random actions; a TF-Agents `TFPolicy`, or the return value of `load_policy`; or a
        function from a batch of observations `[B, ...]` to actions `[B, ...]`.
      num_episodes: number of episodes to record. Every episode that starts is recorded to its end, so that long
        episodes are not rarer than short ones, also with several environments.
      num_steps: number of steps to record; pass exactly one of the two numbers.
      num_envs: number of environments to make, at least 1; several are stepped in parallel processes.
      seed: seed of everything random except the policy, which uses TensorFlow's own seed. In an environment that is
        made here, each episode gets its own seed, `Episode.seed`; an `Environment` is seeded once.
      epsilon: share of random actions, in [0, 1], that replace those of the policy.
      env_info: whether to record `TimeStep.env_info`, as the field 'env_info'; or names of fields in the `info` of a
        Gymnasium environment to record there.
      max_episode_steps: number of steps after which episodes are truncated, in place of the environment's own time
        limit; None for that limit. It requires that the environment is made here.
      timeout_secs: maximum duration of a step of all environments, and of their creation.
      progress: function called with a copy of each recorded episode.

    Returns:
      A source with the episodes in memory, in the order in which they ended. It has the spaces of the environment, and
      its description if the environment was made from an id or from a `gymnasium.EnvSpec`, unless the policy observes
      goals: then environments that do not show them yet are wrapped in `GoalTasks`.

    Raises:
      ImportError: If Gymnasium or a dependency of the environment is not installed.
      ValueError: If a number is out of range, both or none of the two numbers are passed, there is no such environment
        or info, or an action is not finite.
      TypeError: If the policy or the environment is of an unsupported kind.
      SpecMismatchError: If the policy does not match the environment.
      TimeoutError: If the environment does not answer in time.
      EnvironmentFailedError: If an environment in a different process fails.
    """
    if (num_episodes is None) == (num_steps is None):
        raise ValueError("pass exactly one of num_episodes and num_steps")
    require_count(*(("num_episodes", num_episodes) if num_steps is None else ("num_steps", num_steps)))
    require_count("num_envs", num_envs)
    require_count("seed", seed, 0)
    require_number("epsilon", epsilon, 0, 1)
    with_goals = expects_goals(policy)
    made = _Environments(env, num_envs, seed, env_info, with_goals, max_episode_steps, timeout_secs)
    with made.open() as batch:
        act = PolicyActor(policy, batch, made.name, epsilon, seed)
        recorder = _Recorder(
            batch.batch_size or 1, num_episodes, num_steps, has_env_info=bool(env_info), find_seed=made.find_seed
        )
        rollout = Rollout(batch, act, name=made.name, survives_failures=True)
        rollout.is_used[:] = False
        for time_step in rollout:
            for episode in recorder.add(time_step, rollout):
                if progress is not None:
                    progress(copy_arrays(episode))
            if recorder.is_done:
                break
        action_space, observation_space = make_space(batch.action_spec()), make_space(batch.observation_spec())
    return Source(
        made.name,
        "memory",
        functools.partial(iter, recorder.episodes),  # Unlike the recorder, it can be sent to other processes.
        num_episodes=len(recorder.episodes),
        num_rows=sum(episode.num_steps for episode in recorder.episodes),
        warnings=act.make_warnings(),
        env_spec=made.describe(),
        action_space=action_space,
        observation_space=observation_space,
    )


@dataclass
class _Environments:
    """The environments to record.

    See `record_episodes` for most attributes.

    Attributes:
      with_goals: whether the policy observes goals.
      name: name of the environment, for messages.
      is_made: whether the environments are made here.
    """

    env: Any
    num_envs: int
    seed: int
    env_info: bool | Sequence[str]
    with_goals: bool
    max_episode_steps: int | None
    timeout_secs: float

    def __post_init__(self) -> None:
        if not isinstance(self.env, Environment) and isinstance(getattr(self.env, "env", None), Environment):
            self.env = self.env.env  # A `PyEnvironment` that `load` returned.
        self.is_made = not isinstance(self.env, Environment)
        self.name, self.env = name_environment(self.env) if self.is_made else (type(self.env).__name__, self.env)
        self._info_fields = () if isinstance(self.env_info, bool) else tuple(self.env_info)
        if not self.is_made and (self._info_fields or self.max_episode_steps is not None or self.num_envs != 1):
            raise ValueError(
                "num_envs, max_episode_steps and names in env_info require an environment that is made here; pass an "
                f"id or a function instead of a {self.name}, or create it with these options"
            )
        self._is_seeded = False

    @contextlib.contextmanager
    def open(self) -> Iterator[Environment]:
        """Provides the environments as a seeded batch, and closes those that were made here."""
        with self._make_batch() as batch:
            with contextlib.suppress(NotImplementedError):
                batch.seed(self.seed)
                self._is_seeded = self.is_made
            if self.env_info and not batch.env_info_spec():
                raise ValueError(f"{self.name} has no env_info; pass names of fields in its info as env_info")
            yield batch

    def find_seed(self, index: int, episode: int) -> int | None:
        """Returns the seed of an episode of an environment, or None if it is unknown."""
        return make_episode_seed(self.seed, index, episode) if self._is_seeded else None

    def describe(self) -> str | None:
        """Returns Gymnasium's `EnvSpec` of the environment as JSON, or None if it was not made from one."""
        if not self.is_made or self.with_goals:
            return None
        spec = suite_gym.find_spec(self.env) if isinstance(self.env, str) else self.env
        try:
            if self.max_episode_steps is not None:
                spec = replace(spec, max_episode_steps=self.max_episode_steps)
            return str(spec.to_json())
        except (AttributeError, TypeError, ValueError):
            return None  # The environment was made by a function, or its arguments are not JSON.

    def _make_batch(self) -> Environment:
        if not self.is_made:
            return ThreadEnvironment(functools.partial(_Borrowed, self.env), timeout_secs=self.timeout_secs)
        options: dict[str, Any] = {"max_episode_steps": self.max_episode_steps, "info_fields": self._info_fields}
        make = functools.partial(make_environment, self.env, with_goals=self.with_goals, **options)
        constructors = [functools.partial(make_seeded, make, self.seed, index) for index in range(self.num_envs)]
        if self.num_envs > 1:
            make().close()  # Errors are those of the environment instead of those of a worker.
            return ParallelEnvironment(
                constructors, caller_steps=False, timeout_secs=self.timeout_secs, on_failure="raise"
            )
        return ThreadEnvironment(lambda: BatchedEnvironment([constructors[0]()]), timeout_secs=self.timeout_secs)


class _Borrowed(Wrapper):
    """The user's environment as a batch, which is not closed."""

    def __init__(self, env: Environment):
        super().__init__(env if env.batched else BatchedEnvironment([env]))

    def close(self) -> None:
        """Does nothing."""


@dataclass
class _Recorder:
    """The episodes of B environments, assembled from their time steps.

    Attributes:
      episodes: the episodes that are complete.
    """

    batch_size: int
    num_episodes: int | None
    num_steps: int | None
    has_env_info: bool
    find_seed: Callable[[int, int], int | None]
    episodes: list[Episode] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._num_begun, self._num_recorded = np.zeros(self.batch_size, np.int64), 0
        self._tracks = [EpisodeSteps() for _ in range(self.batch_size)]

    @property
    def is_done(self) -> bool:
        """True if all episodes or steps are recorded."""
        return len(self.episodes) == self.num_episodes or self._num_recorded == self.num_steps

    def add(self, time_step: TimeStep, rollout: Rollout) -> list[Episode]:
        """Adds the time steps of all environments, and returns the episodes that they complete.

        Environments whose running episode is recorded are used by the rollout, and others are not.
        """
        before, is_used = len(self.episodes), rollout.is_used
        rows = make_row_reader(time_step._replace(untransformed=()))
        for index, step_type in enumerate(time_step.step_type.tolist()):
            if step_type == FIRST:
                self._num_begun[index] += 1
                is_used[index] = False
                is_used[index] = self.num_episodes is None or len(self.episodes) + is_used.sum() < self.num_episodes
            if not is_used[index] or self.is_done:
                continue
            if not time_step.has_failed[index]:
                self._tracks[index].add(TimeStep(*rows(index)))
                self._num_recorded += int(rollout.is_transition[index])
            if step_type == LAST:
                is_used[index] = False
                self._finish(index, is_ended=True)
        if self._num_recorded == self.num_steps:
            for index in np.flatnonzero(is_used):
                self._finish(int(index), is_ended=False)
        return self.episodes[before:]

    def _finish(self, index: int, *, is_ended: bool) -> None:
        """Adds the episode of an environment, unless it has no transition."""
        track, self._tracks[index] = self._tracks[index], EpisodeSteps()
        if track.num_transitions:
            seed = self.find_seed(index, int(self._num_begun[index]) - 1)
            steps = track.to_rlds(has_env_info=self.has_env_info)
            self.episodes.append(Episode(steps, len(self.episodes), unterminated=not is_ended, seed=seed))
