"""The collection of steps in environments, in a way that a resumed run can repeat."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from rlds2reverb.envs.batched_environment import BatchedEnvironment
from rlds2reverb.envs.environment import Environment
from rlds2reverb.envs.parallel_environment import ParallelEnvironment
from rlds2reverb.envs.policy_actions import require_actions, require_observations
from rlds2reverb.envs.seeded_episodes import EpisodeProgress, make_seeded
from rlds2reverb.envs.spaces import make_space
from rlds2reverb.envs.specs import BoundedArraySpec, sample_action
from rlds2reverb.envs.time_steps import LAST
from rlds2reverb.learners.agents.policies import ActorPolicy
from tf_agents.trajectories import time_step as ts

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.specs import Nest, leaves

#: Separates the random numbers used here from those of other parts with the same seed.
_SALT = 0x45_4E_56_53
_NUM_RETURNS = 10
_STATE, _ARRAYS = "collector.json", "collector.npz"


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

    def __init__(
        self,
        make_env: Any,
        policy: Any,
        *,
        num_envs: int = 1,
        seed: int = 0,
        num_kept: int = 0,
    ):
        """Checks nothing yet; the environments are created by `start`.

        Args:
          make_env: see `seeded_episodes.make_seeded`.
          policy: TF-Agents policy; its specs select the observations, and are those of the returned steps.
          num_envs: number of environments; several are stepped in parallel processes.
          seed: seed of everything random.
          num_kept: number of steps at the end of a piece that are repeated at the beginning of the next one, if the
            episode continues, before the observation that both share.
        """
        self._make_env, self._policy, self._num_envs = make_env, policy, num_envs
        self._seed, self._num_kept = seed, num_kept
        self._env: Environment | None = None
        self.num_collected = 0
        self.returns: list[float] = []
        self._tracks = [_Track() for _ in range(num_envs)]
        self._policy_state: Any = None
        self._observation_spec = policy.time_step_spec.observation
        (self._action_spec,) = tf.nest.flatten(policy.action_spec)
        self._act: Any = None

    def start(self) -> None:
        """Creates the environments, and resets them or brings them back to their states. Idempotent.

        Raises:
          SpecMismatchError: If observations or actions do not match the policy.
        """
        if self._env is not None:
            return
        constructors = [
            functools.partial(make_seeded, self._make_env, self._seed, index, track.progress)
            for index, track in enumerate(self._tracks)
        ]
        if self._num_envs == 1:
            self._env = BatchedEnvironment([constructors[0]()])
        else:
            self._env = ParallelEnvironment(constructors)
        require_observations(self._env.observation_spec(), self._observation_spec, name="the environment")
        require_actions(make_space(self._env.action_spec()), self._action_spec, "the environment")
        time_step = self._env.reset()
        columns = self._read(time_step.observation)
        for index, track in enumerate(self._tracks):
            observation = [column[index] for column in columns]
            track.is_ended = bool(time_step.step_type[index] == LAST)
            if not track.is_at(observation):
                track.begin(observation)
        self._time_step = time_step
        if self._policy_state is None:
            self._policy_state = self._policy.get_initial_state(self._num_envs)

    def close(self) -> None:
        """Closes the environments. Idempotent."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def collect(self, num_steps: int, *, is_random: bool = False) -> list[Piece]:
        """Collects at least `num_steps` steps, and less than the number of environments more.

        Args:
          num_steps: number of steps in all environments.
          is_random: whether the actions are uniformly random instead of the policy's.

        Raises:
          ValueError: If the policy's action is not finite, or see the environment.
        """
        self.start()
        until = self.num_collected + num_steps
        while self.num_collected < until:
            self._step(is_random)
        taken = [each for track in self._tracks for each in track.take(self._num_kept)]
        return [_make_piece(*each, self._observation_spec) for each in taken]

    def _step(self, is_random: bool) -> None:
        assert self._env is not None
        before = self._time_step
        actions = self._sample_actions() if is_random else self._choose_actions(before)
        time_step = self._env.step(self._to_env(actions))
        columns = self._read(time_step.observation)
        executed = np.asarray(time_step.prev_action)
        for index, track in enumerate(self._tracks):
            observation = [column[index] for column in columns]
            was_ended, track.is_ended = track.is_ended, bool(time_step.step_type[index] == LAST)
            if was_ended:  # The environment has reset itself instead of executing the action.
                track.begin(observation)
                continue
            action = executed[index].astype(self._action_spec.dtype.as_numpy_dtype)
            track.add(action, float(time_step.reward[index]), float(time_step.discount[index]), observation)
            self.num_collected += 1
            if track.is_ended:
                self.returns = [*self.returns, track.total_reward][-_NUM_RETURNS:]
        self._time_step = time_step

    def _sample_actions(self) -> np.ndarray:
        spec = self._action_spec
        bounded = BoundedArraySpec(tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype), spec.minimum, spec.maximum)
        random = np.random.default_rng([_SALT, self._seed, self.num_collected])
        return np.stack([sample_action(bounded, random) for _ in range(self._num_envs)])

    def _choose_actions(self, time_step: Any) -> np.ndarray:
        columns = self._read(time_step.observation)
        state = tf.nest.flatten(self._policy_state)
        seed = np.array([self._seed ^ _SALT, self.num_collected], np.int32)
        arguments = [time_step.step_type, time_step.reward, time_step.discount, seed, *columns, *state]
        tensors = [tf.convert_to_tensor(argument) for argument in arguments]
        if self._act is None:
            self._act = _trace(self._policy, tensors, self._policy_state)
        action, *state = self._act(*tensors)
        self._policy_state = tf.nest.pack_sequence_as(self._policy_state, state)
        action = action.numpy()
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            raise ValueError(
                f"the actions must be finite, got {action} after {self.num_collected:,} collected steps; the policy "
                "has non-finite weights"
            )
        return action

    def _to_env(self, actions: np.ndarray) -> np.ndarray:
        spec: Any = self._env.action_spec()  # type: ignore[union-attr]
        return np.clip(actions, spec.minimum, spec.maximum).astype(spec.dtype)

    def _read(self, observation: Nest) -> list[np.ndarray]:
        """Returns the leaves `[N, ...]` of the observations that the policy uses, in its dtypes."""
        columns = dict(leaves(observation))
        return [
            np.asarray(columns[path]).astype(spec.dtype.as_numpy_dtype, copy=False)
            for path, spec in leaves(self._observation_spec)
        ]

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
        """Restores a state that `save_data` wrote, for a collector that has not started."""
        state = json.loads((Path(folder) / _STATE).read_text())
        self.num_collected, self.returns = state["num_collected"], state["returns"]
        with np.load(Path(folder) / _ARRAYS) as arrays:
            for index, numbers in enumerate(state["tracks"]):
                prefix = f"{index}/"
                columns = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
                self._tracks[index] = _Track.from_state(numbers, columns)
            names = [name for name in arrays if name.startswith("policy/")]
            if names:  # Otherwise the collector had not started.
                initial = self._policy.get_initial_state(self._num_envs)
                state_leaves = [arrays[f"policy/{number}"] for number in range(len(names))]
                self._policy_state = tf.nest.pack_sequence_as(initial, state_leaves)


class _Steps(NamedTuple):
    """Consecutive steps of an episode: one observation more than actions, each a list of leaves."""

    observations: list[list[np.ndarray]]
    actions: list[np.ndarray]
    rewards: list[float]
    discounts: list[float]
    begins_episode: bool

    def drop(self, num_steps: int) -> _Steps:
        """Returns the steps without the first `num_steps`."""
        observations, actions, rewards, discounts, begins = self
        columns = (observations[num_steps:], actions[num_steps:], rewards[num_steps:], discounts[num_steps:])
        return _Steps(*columns, begins and not num_steps)


class _Track:
    """The running episode of one environment, and the steps that are not yet taken."""

    def __init__(self) -> None:
        self.episode = -1
        self.is_ended = True
        self.total_reward = 0.0
        self._executed: list[np.ndarray] = []  # All actions of the running episode, to repeat it.
        self._steps = _Steps([], [], [], [], True)
        self._finished: list[_Steps] = []

    @property
    def progress(self) -> EpisodeProgress | None:
        """The values that bring a new environment to the current state; None before the first episode."""
        return None if self.episode < 0 else EpisodeProgress(self.episode, tuple(self._executed))

    def begin(self, observation: list[np.ndarray]) -> None:
        """Starts the next episode."""
        if self._steps.actions:
            self._finished.append(self._steps)
        self.episode += 1
        self.total_reward, self._executed = 0.0, []
        self._steps = _Steps([observation], [], [], [], True)

    def add(self, action: np.ndarray, reward: float, discount: float, observation: list[np.ndarray]) -> None:
        """Adds a step."""
        self._executed.append(action)
        self._steps.observations.append(observation)
        self._steps.actions.append(action)
        self._steps.rewards.append(reward)
        self._steps.discounts.append(discount)
        self.total_reward += reward

    def is_at(self, observation: list[np.ndarray]) -> bool:
        """Returns whether this is the current observation, so that an environment has repeated the episode."""
        observations = self._steps.observations
        return bool(observations) and all(map(np.array_equal, observation, observations[-1]))

    def take(self, num_kept: int) -> list[tuple[_Steps, bool]]:
        """Returns all steps, and whether an episode ends with them.

        The last `num_kept` steps of a running episode are returned by the next call as well.
        """
        taken = [(steps, True) for steps in self._finished]
        self._finished = []
        num_kept = 0 if self.is_ended else num_kept
        if len(self._steps.actions) > num_kept:
            taken.append((self._steps, self.is_ended))
            start = len(self._steps.actions) - num_kept
            self._steps = self._steps.drop(start)
        return taken

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the state as JSON values, and arrays. All finished episodes must have been taken."""
        observations, actions, rewards, discounts, begins = self._steps
        numbers = {"episode": self.episode, "is_ended": self.is_ended, "total_reward": self.total_reward,
                   "begins_episode": begins}  # fmt: skip
        arrays = {"executed": self._executed, "actions": actions, "rewards": rewards, "discounts": discounts}
        arrays |= {f"observation{number}": rows for number, rows in enumerate(zip(*observations, strict=True))}
        return numbers, {name: np.array(values) for name, values in arrays.items()}

    @classmethod
    def from_state(cls, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> _Track:
        """Restores a state that `get_state` returned."""
        track = cls()
        track.episode, track.is_ended = numbers["episode"], numbers["is_ended"]
        track.total_reward, track._executed = numbers["total_reward"], list(arrays["executed"])
        num_leaves = sum(name.startswith("observation") for name in arrays)
        columns = [arrays[f"observation{number}"] for number in range(num_leaves)]
        observations = [list(row) for row in zip(*columns, strict=True)]
        rewards, discounts = (arrays[name].tolist() for name in ("rewards", "discounts"))
        track._steps = _Steps(observations, list(arrays["actions"]), rewards, discounts, numbers["begins_episode"])
        return track


def _make_piece(steps: _Steps, is_complete: bool, observation_spec: Nest) -> Piece:
    num_rows = len(steps.observations)
    is_last = (np.arange(num_rows) == num_rows - 1) & is_complete
    is_terminal = is_last & (steps.discounts[-1] == 0)
    observations = [np.stack(rows) for rows in zip(*steps.observations, strict=True)]
    columns = {
        fields.OBSERVATION: tf.nest.pack_sequence_as(observation_spec, observations),
        fields.ACTION: np.stack([*steps.actions, np.zeros_like(steps.actions[0])]),
        fields.REWARD: np.array([*steps.rewards, 0], np.float32),
        fields.DISCOUNT: np.array([*steps.discounts, 1 - is_terminal[-1]], np.float32),
        fields.IS_FIRST: (np.arange(num_rows) == 0) & steps.begins_episode,
        fields.IS_LAST: is_last,
        fields.IS_TERMINAL: is_terminal,
    }
    return Piece(Episode(columns, 0), is_complete)


def _trace(policy: Any, tensors: list[tf.Tensor], state: Any) -> Callable[..., list[tf.Tensor]]:
    """Returns a graph function of flat tensors, which is several times as fast to call as a policy."""
    is_seeded = isinstance(policy, ActorPolicy)  # Other policies of TF-Agents accept no tensors as seeds.
    spec = policy.time_step_spec
    num_observations = len(tf.nest.flatten(spec.observation))

    def act(step_type: Any, reward: Any, discount: Any, seed: Any, *others: Any) -> list[Any]:
        observation = tf.nest.pack_sequence_as(spec.observation, others[:num_observations])
        time_step = ts.TimeStep(step_type, reward, discount, observation)
        policy_state = tf.nest.pack_sequence_as(state, others[num_observations:])
        step = policy.action(time_step, policy_state, seed=seed if is_seeded else None)
        return [*tf.nest.flatten(step.action), *tf.nest.flatten(step.state)]

    return tf.function(act, autograph=False).get_concrete_function(*map(tf.TensorSpec.from_tensor, tensors))
