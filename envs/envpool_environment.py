"""EnvPool's environments, which step a batch in C++ threads."""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

import numpy as np

from rlds2reverb._arguments import require_number
from rlds2reverb._system.platform import available_cores
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.specs import ArraySpec, Nest, leaves, map_structure, path_name

from .batched_environment import make_env_ids, make_prev_action
from .environment import LockedEnvironment, SpecifiedEnvironment, require_render_mode
from .spaces import make_spec
from .specs import BoundedArraySpec, make_zeros, read_reward
from .time_steps import FIRST, LAST, MID, TimeStep, make_time_step_spec

_MAX_INT32 = 2**31 - 1
_LAST, _FIRST = int(LAST), int(FIRST)


class EnvPoolEnvironment(SpecifiedEnvironment, LockedEnvironment):
    """A batch of B environments of EnvPool, with the ends of episodes of all other environments.

    EnvPool itself resets an environment in the step after the end of its episode, and ignores the action. It does not
    tell a termination in the step of the time limit from a truncation, so time limits are not EnvPool's own: the batch
    counts the steps of each environment, and resets those whose time is over.

    The environments are created at the first `reset`, and again after `seed` or an interrupted step (Ctrl-C).
    """

    def __init__(
        self,
        task: str,
        batch_size: int,
        *,
        specs: tuple[Nest, Nest] | None = None,
        discount: float = 1.0,
        max_episode_steps: int | None = None,
        num_threads: int | None = None,
        allow_non_finite: bool = False,
        render_mode: str | None = None,
        **options: Any,
    ):
        """Describes the batch.

        Args:
          task: name of the environment in EnvPool.
          batch_size: B.
          specs: specs of observations and of actions; None for those of EnvPool, with floats as float32.
          discount: discount of all steps except terminal ones, in [0, 1].
          max_episode_steps: number of steps after which episodes are truncated; None for EnvPool's limit, 0 for none.
          num_threads: number of threads; None for one per core, at most B.
          allow_non_finite: whether observations and rewards may be NaN or infinite.
          render_mode: mode of `render`.
          **options: other arguments of `envpool.make`, such as `frame_skip`.

        Raises:
          ImportError: If EnvPool is not installed.
          ValueError: If an argument is out of range, or there is no such option.
          TypeError: If actions have several parts, or environments several players.
        """
        super().__init__()
        import envpool

        require_number("discount", discount, 0, 1)
        num_threads = num_threads or min(available_cores(), batch_size)
        self._config: dict[str, Any] = {"num_threads": num_threads, "num_envs": batch_size, **options}
        try:
            spec = envpool.make_spec(task, **self._config)
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"EnvPool cannot create {task!r} with {options}: {error}") from error
        self._task, self._batch_size, self._limit = task, batch_size, find_limit(spec, max_episode_steps)
        self._config["max_episode_steps"] = self._limit + 1 if self._limit < _MAX_INT32 else _MAX_INT32
        self._render_mode = render_mode
        if render_mode is not None:
            self._config["render_mode"] = render_mode
        self._actions = _find_actions(spec, task)
        observation_spec, action_spec = specs or read_specs(spec)
        self._time_step_spec = make_time_step_spec(observation_spec, action_spec)
        columns = list(spec._state_keys)
        self._observation = _find_columns(observation_spec, columns, "obs")
        self._select = operator.itemgetter(*map(columns.index, ("done", "trunc", "reward", "step_type")))
        self._elapsed = columns.index("elapsed_step")
        self._ids, self._env_ids = np.arange(batch_size, dtype=np.int32), make_env_ids(batch_size)
        self._discounts = np.full(batch_size, discount, np.float32)
        self._first_action = make_zeros(action_spec)
        self._is_checked = not allow_non_finite
        self._late = self._ids[:0]
        self._has_ended, self._num_steps_left = False, 0
        self._seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self._pool: Any = None
        self._is_busy = False

    def seed(self, seed: int) -> None:
        """Sets the seed of environment i to `seed + i`; the next step, or `reset`, starts new episodes.

        Args:
          seed: an integer in [0, 2^31 - B).

        Raises:
          ValueError: If it is out of range.
        """
        if not 0 <= seed < _MAX_INT32 - self._batch_size:
            raise ValueError(f"seed must be in [0, {_MAX_INT32 - self._batch_size}), got {seed}; use a smaller one")
        with self._lock:
            self._seed, self._pool, self._must_reset = int(seed), None, True

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns an image of the first environment.

        Raises:
          ValueError: If the environments were created with a different `render_mode`.
          RuntimeError: If `reset` was not called yet.
        """
        require_render_mode(self._render_mode, mode)
        with self._lock:
            if self._pool is None:
                raise RuntimeError("the environments do not exist before reset(); call it first")
            return self._pool.render()[0].copy()

    def close(self) -> None:
        """Closes the environments and ends their threads. Idempotent."""
        with self._lock:
            self._is_closed = True
            if self._pool is not None:
                self._pool.close()
            self._pool = None

    def _reset(self) -> TimeStep:
        if self._is_busy:  # An interrupted step may have left time steps in the queue.
            self.seed((self._seed + 1_000_003) % (_MAX_INT32 - self._batch_size))
        if self._pool is None:
            import envpool

            self._pool = envpool.make_gymnasium(self._task, seed=self._seed, **self._config)
        self._late, self._num_steps_left = self._ids[:0], 0
        self._is_busy = True
        self._pool._reset(self._ids)
        return self._read(self._pool._recv(), None)

    def _step(self, action: Any) -> TimeStep:
        rows = action.astype(self._actions)
        self._is_busy = True
        if self._late.size:
            return self._read(self._step_and_reset(rows), action)
        # The public interface of EnvPool checks and converts each time, which takes as long as a step of CartPole.
        self._pool._send([self._ids, self._ids, rows])
        return self._read(self._pool._recv(), action)

    def _step_and_reset(self, rows: np.ndarray) -> list[np.ndarray]:
        """Resets the environments whose time was over, and steps the others."""
        late, others = self._late, np.setdiff1d(self._ids, self._late)
        self._late = self._ids[:0]
        self._pool._reset(late)
        parts = [self._pool._recv()]
        if others.size:
            self._pool._send([others, others, np.ascontiguousarray(rows[others])])
            parts.append(self._pool._recv())
        order = np.argsort(np.concatenate([late, others]))
        return [np.concatenate(columns)[order] for columns in zip(*parts, strict=True)]

    def _read(self, state: list[np.ndarray], action: Any) -> TimeStep:
        self._is_busy = False
        done, truncated, reward, step_type = self._select(state)
        if reward.shape != self._ids.shape:
            reward = read_reward(reward, self._ids.shape, f"the environments of {self._task}")
        observation = self._observation(state)
        if self._is_checked:
            self._require_finite(observation, reward)
        discount = self._discounts.copy()
        is_restarting, self._has_ended = self._has_ended, True in done.tolist()
        if self._has_ended:
            discount[done & ~truncated] = 0
        if action is None or is_restarting:
            is_first = step_type == FIRST
            discount[is_first] = 1
            action = make_prev_action(self._first_action, action, is_first)
        self._num_steps_left -= 1
        if self._num_steps_left <= 0:
            self._apply_limit(state[self._elapsed], step_type)
        has_failed = np.zeros(self._batch_size, bool)
        return TimeStep(step_type, reward, discount, observation, action, self._env_ids, (), (), has_failed)

    def _apply_limit(self, elapsed: np.ndarray, step_type: np.ndarray) -> None:
        """Truncates episodes whose time is over, and counts the steps until this can happen next."""
        is_late = (elapsed >= self._limit) & (step_type == MID)
        if is_late.any():
            step_type[is_late] = LAST
            self._late, self._has_ended = self._ids[is_late], True
        self._num_steps_left = self._limit - int(elapsed[step_type != LAST].max(initial=0))

    def _require_finite(self, observation: Nest, reward: np.ndarray) -> None:
        if not math.isfinite(sum(reward.tolist())):
            _raise_if_not_finite(reward, "reward")
        if isinstance(observation, np.ndarray):
            if observation.dtype.kind == "f" and not math.isfinite(np.vdot(observation, observation)):
                _raise_if_not_finite(observation, "observation")  # Unless only the sum of squares is infinite.
            return
        for path, array in leaves(observation):
            _raise_if_not_finite(array, path_name(path, "observation"))


def _raise_if_not_finite(array: np.ndarray, name: str) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ValueError(
            f"{name} of environment {row} must be finite, got {array[row]}; use allow_non_finite=True to accept it"
        )


def find_limit(spec: Any, max_episode_steps: int | None) -> int:
    """Returns the number of steps after which episodes are truncated.

    Args:
      spec: EnvPool's description of the environment.
      max_episode_steps: see `EnvPoolEnvironment`.

    Raises:
      ValueError: If the number is negative.
    """
    if max_episode_steps is not None and max_episode_steps < 0:
        raise ValueError(f"max_episode_steps must be an integer >= 0, got {max_episode_steps}")
    limit = spec.config.max_episode_steps if max_episode_steps is None else max_episode_steps
    return min(limit, _MAX_INT32) or _MAX_INT32


def read_specs(spec: Any) -> tuple[Nest, Nest]:
    """Returns the specs of observations and of actions of EnvPool's description of an environment.

    Raises:
      TypeError: If a space is not supported.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some bounds have more digits than the dtype of the space.
        spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
    observation_spec = map_structure(_fix_bounds, make_spec(spaces[0]))
    return observation_spec, make_spec(spaces[1], name="action")


def _fix_bounds(leaf: Any) -> ArraySpec:
    """Removes the bounds that stand for none: in some environments the smallest and largest positive numbers."""
    if leaf.dtype.kind != "f":
        return leaf
    is_free = leaf.maximum == np.finfo(leaf.dtype).max
    low, high = np.where(is_free, -np.inf, leaf.minimum), np.where(is_free, np.inf, leaf.maximum)
    return BoundedArraySpec(leaf.shape, leaf.dtype, low, high)


def _find_actions(spec: Any, task: str) -> np.dtype:
    names = [name for name in spec._action_keys if name not in ("env_id", "players.env_id")]
    if len(names) != 1 or spec.config.max_num_players != 1:
        reason = "several players" if len(names) == 1 else f"the actions {names}"
        raise TypeError(
            f"environments of EnvPool must have one player and one array of actions, but {task} has {reason}; use "
            "backend='gymnasium' if it is registered there"
        )
    return np.dtype(spec.action_array_spec[names[0]].dtype)


def _find_columns(spec: Nest, columns: list[str], name: str) -> Any:
    """Returns a function that reads a nest of arrays from the columns of EnvPool's states."""
    if isinstance(spec, dict):
        separator = ":" if name == "obs" else "."
        parts = {key: _find_columns(part, columns, f"{name}{separator}{key}") for key, part in spec.items()}
        return lambda state: {key: read(state) for key, read in parts.items()}
    if not isinstance(spec, ArraySpec):
        raise TypeError(f"observations must be arrays and dicts of them, got {spec}; use backend='gymnasium'")
    matching = [column for column in columns if column == name or column.startswith(f"{name}:")]
    if len(matching) != 1:
        raise SpecMismatchError(f"EnvPool's states have the fields {columns}, but none for {name!r} with {spec}")
    index, dtype = columns.index(matching[0]), spec.dtype
    shape: Any = spec.shape

    def read(state: list[np.ndarray]) -> np.ndarray:
        array = state[index]
        array = array if array.dtype == dtype else array.astype(dtype)
        return array if array.shape[1:] == shape else array.reshape((len(array), *shape))

    return read
