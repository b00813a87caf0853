"""The collection of steps in environments, in a way that a resumed run can repeat."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rlds2reverb.envs.batched_environment import BatchedEnvironment, make_row_reader
from rlds2reverb.envs.env_specs import BoundedArraySpec, sample_action
from rlds2reverb.envs.environment import Environment
from rlds2reverb.envs.gymnasium_spaces import make_space
from rlds2reverb.envs.parallel_environment import ParallelEnvironment
from rlds2reverb.envs.policy_actions import PolicyActions, require_number_rewards, require_policy
from rlds2reverb.envs.rollout import EpisodeSteps, Rollout
from rlds2reverb.envs.seeded_episodes import EpisodeProgress, make_seeded
from rlds2reverb.envs.time_steps import FIRST, LAST, MID, TimeStep
from rlds2reverb.learners.agents.policies import ActorPolicy, unwrap_policy
from rlds2reverb.policies.batched_policies import BatchedPolicy
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves

#: Separates the random numbers used here from those of other parts with the same seed.
_SALT = 0x45_4E_56_53
_NUM_RETURNS = 10
_STATE, _ARRAYS = "collector.json", "collector.npz"
#: Fields of the time steps after the first one by the names of their arrays.
_SAVED_FIELDS = {"rewards": "reward", "discounts": "discount", "actions": "prev_action"}


class Piece(NamedTuple):
    """Consecutive steps of one episode.

    Attributes:
      episode: the steps, in the fields of RLDS. The last one has an observation only. First and last steps are marked
        as in the environment's episode, so that a piece from the middle of one has neither.
      is_complete: whether the episode ends with the piece.
    """

    episode: Episode
    is_complete: bool


class Collector:
    """Steps N environments with a policy, and returns the steps in pieces of episodes.

    Seeds of episodes, random actions and the policy's noise depend only on the seed and on how much was collected
    before. A resumed collector executes the actions of the running episodes again, which repeats them exactly in
    environments whose randomness is determined by the seed of `reset`, such as Gymnasium's classic-control and MuJoCo
    environments. Other episodes are truncated, and new ones begin.

    Attributes:
      num_collected: number of steps that were executed in all environments.
      returns: undiscounted returns of the last ten episodes that ended.
    """

    def __init__(self, make_env: Any, policy: Any, *, num_envs: int = 1, seed: int = 0, num_kept: int = 0):
        """Checks nothing yet; the environments are created by `start`.

        Args:
          make_env: see `seeded_episodes.make_seeded`.
          policy: TF-Agents policy; its specs select the observations, and are those of the returned steps.
          num_envs: number of environments; several are stepped in parallel processes.
          seed: seed of everything random.
          num_kept: number of steps at the end of a piece that are repeated at the beginning of the next one, if the
            episode continues, before the observation that both share.
        """
        self._make_env, self._num_envs, self._seed, self._num_kept = make_env, num_envs, seed, num_kept
        self._policy = BatchedPolicy(policy, num_envs)
        # Other policies of TF-Agents accept no tensors as seeds.
        self._is_seeded = isinstance(unwrap_policy(policy), ActorPolicy)
        self._observation_spec = policy.time_step_spec.observation
        (self._action_spec,) = tf.nest.flatten(policy.action_spec)
        self._env: Environment | None = None
        self._rollout: Any = None
        self._actions: Any = None
        self.num_collected = 0
        self.returns: list[float] = []
        self._tracks = [_Track() for _ in range(num_envs)]
        self._policy_state: Any = None
        self._is_random = False

    def start(self) -> None:
        """Creates the environments, and resets them or brings them back to their states. Idempotent.

        Raises:
          SpecMismatchError: If observations, rewards or actions do not match the policy.
        """
        if self._env is not None:
            return
        paths = [path for path, _ in leaves(self._observation_spec)]
        constructors = [
            functools.partial(make_seeded, self._make_env, self._seed, index, track.get_progress(paths))
            for index, track in enumerate(self._tracks)
        ]
        is_single = self._num_envs == 1
        self._env = BatchedEnvironment([constructors[0]()]) if is_single else ParallelEnvironment(constructors)
        env, space = self._env, make_space(self._env.action_spec())
        require_number_rewards(env, "the environment")
        require_policy(
            self._policy, env.observation_spec(), env.reward_spec(), action_space=space, name="the environment"
        )
        self._actions = PolicyActions(self._policy, space, state=self._policy_state)
        self._policy_state = self._actions.state
        self._rollout = Rollout(env, self._choose_actions, name="the environment", survives_failures=True)
        rows = self._read(next(self._rollout))
        for index, track in enumerate(self._tracks):
            track.start(rows(index))

    def close(self) -> None:
        """Closes the environments. Idempotent."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def collect(
        self, num_steps: int, *, is_random: bool = False, should_stop: Callable[[], bool] = lambda: False
    ) -> list[Piece]:
        """Collects at least `num_steps` steps, and less than the number of environments more.

        After an error, the state is the one before the call, which a resumed run then repeats.

        Args:
          num_steps: number of steps in all environments.
          is_random: whether the actions are uniformly random instead of the policy's.
          should_stop: function that is called before each step; if it returns True, the call ends with no pieces, in
            the state before the call.

        Raises:
          ValueError: If the policy's action is not finite, or see the environment.
          EnvironmentFailedError: If an environment fails again and again.
        """
        self.start()
        self._is_random = is_random
        until = self.num_collected + num_steps
        before = {**vars(self), "_tracks": [track.copy() for track in self._tracks]}
        is_stopped = False
        try:
            while self.num_collected < until and not (is_stopped := should_stop()):
                self._add(next(self._rollout))
        except BaseException:
            self._go_back(before)
            raise
        if is_stopped:
            self._go_back(before)
            return []
        return [self._make_piece(*taken) for track in self._tracks for taken in track.take(self._num_kept)]

    def _go_back(self, before: Mapping[str, Any]) -> None:
        """Restores an earlier state; environments are created again when they are needed."""
        vars(self).update(before)
        with suppress(Exception):  # The environments may be broken.
            self.close()

    def _make_piece(self, steps: EpisodeSteps, is_complete: bool) -> Piece:
        columns = steps.to_rlds(is_complete=is_complete)
        observation = tf.nest.pack_sequence_as(self._observation_spec, columns[fields.OBSERVATION])
        return Piece(Episode({**columns, fields.OBSERVATION: observation}, 0), is_complete)

    def _add(self, time_step: TimeStep) -> None:
        rows = self._read(time_step)
        for index, track in enumerate(self._tracks):
            row = rows(index)
            if row.step_type == FIRST:
                track.begin(row)
            elif row.has_failed:
                track.has_failed = track.is_ended = True
            else:
                if not np.isfinite(row.reward):
                    raise ValueError(
                        f"the reward must be finite, got {row.reward} ({self._locate(index)}); fix the environment"
                    )
                track.add(row)
                self.num_collected += 1
                if track.is_ended:
                    self.returns = [*self.returns, track.total_reward][-_NUM_RETURNS:]

    def _choose_actions(self, time_step: TimeStep, is_used: np.ndarray, _: Any) -> np.ndarray:
        if self._is_random:
            spec, dtype = self._action_spec, np.dtype(self._action_spec.dtype.as_numpy_dtype)
            bounded = BoundedArraySpec(tuple(spec.shape), dtype, spec.minimum, spec.maximum)
            random = np.random.default_rng([_SALT, self._seed, self.num_collected])
            sampled = np.stack([sample_action(bounded, random) for _ in range(self._num_envs)])
            return self._actions.convert(sampled, is_used, self._locate)
        seed = np.array([self._seed ^ _SALT, self.num_collected], np.int32) if self._is_seeded else None
        actions = self._actions(time_step, is_used, self._locate, seed=seed)
        self._policy_state = self._actions.state
        return actions

    def _locate(self, env: int) -> str:
        return f"environment {env}, after {self.num_collected:,} collected steps"

    def _read(self, time_step: TimeStep) -> Callable[[int], TimeStep]:
        """Returns a function that returns the time step of one environment, in the dtypes of the policy's specs.

        Its observation is a tuple of the leaves that the policy uses.
        """
        columns = dict(leaves(time_step.observation))
        observation = tuple(
            columns[path].astype(spec.dtype.as_numpy_dtype, copy=False) for path, spec in leaves(self._observation_spec)
        )
        read = make_row_reader(
            time_step._replace(
                reward=time_step.reward.astype(np.float32, copy=False),
                observation=observation,
                prev_action=time_step.prev_action.astype(self._action_spec.dtype.as_numpy_dtype, copy=False),
                untransformed=(),
                env_info=(),
            )
        )
        return lambda index: TimeStep(*read(index))

    # --- State

    def save_data(self, folder: Path) -> None:
        """Writes the state into a folder."""
        state: dict[str, Any] = {"num_collected": self.num_collected, "returns": self.returns, "tracks": []}
        arrays: dict[str, np.ndarray] = {}
        for index, track in enumerate(self._tracks):
            numbers, columns = track.get_state()
            state["tracks"].append(numbers)
            arrays |= {f"{index}/{name}": column for name, column in columns.items()}
        if self._policy_state is not None:
            arrays |= {
                f"policy/{number}": np.asarray(leaf) for number, leaf in enumerate(tf.nest.flatten(self._policy_state))
            }
        (Path(folder) / _STATE).write_text(json.dumps(state))
        np.savez(Path(folder) / _ARRAYS, **arrays)

    def load_data(self, folder: Path) -> None:
        """Restores a state that `save_data` wrote, for a collector that has not started.

        If the numbers of environments differ, those that both have continue, in the initial state of the policy.
        """
        state = json.loads((Path(folder) / _STATE).read_text())
        self.num_collected, self.returns = state["num_collected"], state["returns"]
        with np.load(Path(folder) / _ARRAYS) as arrays:
            for index, numbers in enumerate(state["tracks"][: self._num_envs]):
                prefix = f"{index}/"
                columns = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
                self._tracks[index] = _Track.from_state(numbers, columns)
            names = [name for name in arrays if name.startswith("policy/")]
            if names and len(state["tracks"]) == self._num_envs:  # Without names, the collector had not started.
                initial = self._policy.initial_state()
                state_leaves = [tf.constant(arrays[f"policy/{number}"]) for number in range(len(names))]
                self._policy_state = tf.nest.pack_sequence_as(initial, state_leaves)


class _Track:
    """The running episode of one environment, and the steps that are not yet taken.

    Attributes:
      episode: number of the episode; -1 before the first.
      is_ended: whether it has ended.
      has_failed: whether it has ended because the environment has failed.
      total_reward: its sum of rewards up to now.
    """

    def __init__(self) -> None:
        self.episode = -1
        self.is_ended, self.has_failed = True, False
        self.total_reward = 0.0
        self._executed: list[np.ndarray] = []  # All actions of the running episode, to repeat it.
        self._steps = EpisodeSteps()
        self._finished: list[EpisodeSteps] = []

    def get_progress(self, paths: Sequence[tuple[Any, ...]]) -> EpisodeProgress | None:
        """Returns what brings a new environment to the current state; None before the first episode.

        Args:
          paths: the paths of the leaves of the observations.
        """
        if self.episode < 0:
            return None
        if self.has_failed:
            return EpisodeProgress(self.episode + 1, ())
        observation = dict(zip(paths, self._steps.time_steps[-1].observation, strict=True))
        return EpisodeProgress(self.episode, tuple(self._executed), observation)

    def start(self, time_step: TimeStep) -> None:
        """Continues with the first time step of a new environment: that of a new episode unless it was repeated."""
        is_new = time_step.step_type == FIRST and bool(self._executed)
        last = self._steps.time_steps[-1:]
        is_same = bool(last) and all(map(np.array_equal, time_step.observation, last[0].observation))
        if self.has_failed or is_new or not is_same:
            self.begin(time_step)
        self.is_ended = bool(time_step.step_type == LAST)

    def begin(self, time_step: TimeStep) -> None:
        """Starts the next episode."""
        if self._steps.num_transitions:
            self._finished.append(self._steps)
        self.episode += 1
        self.is_ended = self.has_failed = False
        self.total_reward, self._executed = 0.0, []
        self._steps = EpisodeSteps()
        self._steps.add(time_step)

    def add(self, time_step: TimeStep) -> None:
        """Adds a step."""
        self._steps.add(time_step)
        self._executed.append(self._steps.time_steps[-1].prev_action)
        self.is_ended = bool(time_step.step_type == LAST)
        self.total_reward += float(time_step.reward)

    def copy(self) -> _Track:
        """Returns a track with the same steps, to which others can be added."""
        track = copy.copy(self)
        track._executed, track._finished, track._steps = [*self._executed], [*self._finished], self._steps.drop(0)
        return track

    def take(self, num_kept: int) -> list[tuple[EpisodeSteps, bool]]:
        """Returns all steps, and whether an episode ends with them.

        The last `num_kept` steps of a running episode are returned by the next call as well.
        """
        taken = [(steps, True) for steps in self._finished]
        self._finished = []
        num_kept = 0 if self.is_ended else num_kept
        if self._steps.num_transitions > num_kept:
            taken.append((self._steps, self.is_ended))
            self._steps = self._steps.drop(self._steps.num_transitions - num_kept)
        return taken

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the state as JSON values, and arrays. All finished episodes must have been taken."""
        numbers = {"episode": self.episode, "is_ended": self.is_ended, "has_failed": self.has_failed,
                   "total_reward": self.total_reward, "begins_episode": self._steps.begins_episode}  # fmt: skip
        time_steps = self._steps.time_steps
        arrays = {"executed": self._executed}
        arrays |= {name: [getattr(step, field) for step in time_steps[1:]] for name, field in _SAVED_FIELDS.items()}
        columns = zip(*(step.observation for step in time_steps), strict=True)
        arrays |= {f"observation{number}": list(column) for number, column in enumerate(columns)}
        return numbers, {name: np.array(values) for name, values in arrays.items()}

    @classmethod
    def from_state(cls, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> _Track:
        """Restores a state that `get_state` returned."""
        track = cls()
        track.episode, track.is_ended = numbers["episode"], numbers["is_ended"]
        track.has_failed = numbers.get("has_failed", False)
        track.total_reward, track._executed = numbers["total_reward"], list(arrays["executed"])
        num_leaves = sum(name.startswith("observation") for name in arrays)
        observations = list(zip(*(arrays[f"observation{number}"] for number in range(num_leaves)), strict=True))
        time_steps = [TimeStep(FIRST, np.float32(0), np.float32(1), observations[0], ())] if observations else []
        following = zip(observations[1:], *(arrays[name] for name in _SAVED_FIELDS), strict=True)
        for observation, reward, discount, action in following:
            time_steps.append(TimeStep(MID, np.float32(reward), np.float32(discount), observation, action))
        track._steps = EpisodeSteps(time_steps, begins_episode=numbers["begins_episode"])
        return track
