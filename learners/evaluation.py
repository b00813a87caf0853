"""Evaluation of policies in Gymnasium environments, with all episodes stepped in parallel."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb._arguments import require_count
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.sources.scores import d4rl_score
from rlds2reverb.specs import ArraySpec, Nest, describe, leaves, path_name

from .batched_policy import BatchedPolicy

_FIRST, _MID, _LAST = 0, 1, 2
#: Maximum number of steps of an episode in an environment without a time limit.
_MAX_UNLIMITED_STEPS = 100_000
#: Actions that exceed a bound by less than this fraction are attributed to rounding: clipped but not counted.
_ROUNDING = 1e-5
_INSTALL = "run pip install '.[eval]' in the checkout"
_ADVICE = "use the environment in which the data were recorded"


@dataclass(frozen=True)
class Evaluation:
    """The results of a policy in N episodes.

    Attributes:
      returns: float64 [N], undiscounted sums of rewards, in the environment's own units.
      lengths: int64 [N], number of steps of each episode.
      seeds: seed of each episode.
      reference_returns: returns (random, expert) that define the normalised score; None for no score.
      num_clipped: number of steps whose action was clipped to the environment's bounds.
    """

    returns: np.ndarray
    lengths: np.ndarray
    seeds: tuple[int, ...]
    reference_returns: tuple[float, float] | None = None
    num_clipped: int = 0

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns over the N episodes (divided by N)."""
        return float(self.returns.std())

    @property
    def score(self) -> float | None:
        """The normalised score: 0 for a random policy, 100 for an expert; None without reference returns."""
        return None if self.reference_returns is None else d4rl_score(self.mean, self.reference_returns)

    def as_dict(self) -> dict[str, Any]:
        """Returns the results as JSON values."""
        return {
            "mean": self.mean,
            "std": self.std,
            "score": self.score,
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "seeds": list(self.seeds),
            "reference_returns": self.reference_returns and list(self.reference_returns),
            "num_clipped": self.num_clipped,
        }

    def __str__(self) -> str:
        text = f"return {self.mean:,.1f} ± {self.std:,.1f} over {len(self.returns):,} episodes"
        if self.score is not None:
            text += f", score {self.score:.1f}"
        if self.num_clipped:
            text += f"; {self.num_clipped:,} of {self.lengths.sum():,} actions were out of bounds and clipped"
        return text


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
    ):
        """Creates and closes one environment to read its spaces.

        Args:
          make_env: id of a Gymnasium environment, such as 'Hopper-v5', or 'my_module:MyEnv-v0' to import a module
            first; a `gymnasium.EnvSpec`; a `gymnasium.Env`, which is not used itself, but whose `spec` makes new ones;
            or a function that returns a new `gymnasium.Env` in each call.
          num_episodes: number of episodes N; None for one per seed, or 10 without seeds.
          seeds: seeds for `reset`, one per environment; None for 0 to N - 1.
          reference_returns: returns of a random policy and an expert, for a score; see `read_reference_returns`.
          max_episode_steps: number of steps after which episodes are truncated; None for only the environment's own
            limit.

        Raises:
          ImportError: If Gymnasium or a dependency of the environment is not installed.
          ValueError: If there is no such environment, if an environment has no `spec`, if the numbers of episodes and
            seeds differ, or if the reference returns are equal.
          TypeError: If `make_env` is none of these or does not return an environment, or a space is not supported.
        """
        self.seeds = _resolve_seeds(num_episodes, seeds)
        if max_episode_steps is not None:
            require_count("max_episode_steps", max_episode_steps)
        if reference_returns is not None:
            d4rl_score(0.0, reference_returns)
            reference_returns = (float(reference_returns[0]), float(reference_returns[1]))
        self.reference_returns = reference_returns
        self._gymnasium = _import_gymnasium()
        self._max_episode_steps = max_episode_steps
        self.name, self._make_env = name_environment(make_env)
        with contextlib.closing(self._create_env()) as env:
            self.observation_spec = _make_spec(env.observation_space, self._gymnasium.spaces, self.name)
            _require_action_space(env.action_space, self._gymnasium.spaces, self.name)
            self.action_space = env.action_space
            self._has_limit = env.spec is not None and env.spec.max_episode_steps is not None
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
        env_leaves = dict(leaves(self.observation_spec))
        for path, policy_leaf in leaves(spec):
            place = path_name(path, "observation")
            if path not in env_leaves:
                places = ", ".join(path_name(path, "observation") for path in env_leaves)
                raise SpecMismatchError(f"the policy expects {place}, but {self.name} returns {places}; {_ADVICE}")
            env_leaf = env_leaves[path]
            would_truncate = env_leaf.dtype.kind == "f" and not policy_leaf.dtype.is_floating
            if tuple(policy_leaf.shape) != env_leaf.shape or would_truncate:
                raise SpecMismatchError(
                    f"the policy expects {place} as {describe(policy_leaf)}, but {self.name} returns "
                    f"{describe(env_leaf)}; {_ADVICE}"
                )

    def evaluate(self, policy: Any) -> Evaluation:
        """Runs one episode for each seed.

        Observations are cast to the policy's dtype: floats are rounded, and other values must be representable.
        Actions outside the bounds are clipped and counted. An episode ends when it is terminated or truncated. The
        environments are always closed.

        Args:
          policy: TF-Agents `TFPolicy`, or the return value of `load_policy`.

        Raises:
          TypeError, SpecMismatchError: See `require_match`.
          ValueError: If an action or a reward is not finite, if the environment does not have a discrete action, or if
            an observation is not representable in the policy's dtype; the message names episode and step.
          RuntimeError: If an episode without a time limit does not end.
        """
        batched = self._get_batched(policy)
        with contextlib.ExitStack() as stack:
            envs = [stack.enter_context(contextlib.closing(self._create_env())) for _ in self.seeds]
            episodes = _Episodes(envs, batched, self.observation_spec, self.action_space)
            episodes.reset(self.seeds)
            while episodes.running.any():
                episodes.step()
                self._truncate(episodes)
        return Evaluation(
            episodes.returns, episodes.lengths, self.seeds, self.reference_returns, int(episodes.num_clipped)
        )

    def _truncate(self, episodes: _Episodes) -> None:
        if self._max_episode_steps is not None:
            episodes.running &= episodes.lengths < self._max_episode_steps
        elif not self._has_limit and (episodes.running & (episodes.lengths >= _MAX_UNLIMITED_STEPS)).any():
            raise RuntimeError(
                f"{self.name} has no time limit, and an episode did not end within {_MAX_UNLIMITED_STEPS:,} steps; "
                "set max_episode_steps"
            )

    def _get_batched(self, policy: Any) -> BatchedPolicy:
        if self._batched is None or self._batched.policy is not policy:
            batched = BatchedPolicy(policy, self.num_episodes)
            self.require_observations(batched.observation_spec)
            _require_actions(self.action_space, batched.action_spec, self.name)
            self._batched = batched
        return self._batched

    def _create_env(self) -> Any:
        errors = self._gymnasium.error
        if callable(self._make_env):
            env = self._make_env()
            if not isinstance(env, self._gymnasium.Env):
                raise TypeError(f"make_env must return a gymnasium.Env, got {type(env).__name__}")
            return env
        try:
            return self._gymnasium.make(self._make_env, disable_env_checker=True)
        except errors.DependencyNotInstalled as error:
            raise ImportError(f"a dependency of {self.name} is not installed ({error}); {_INSTALL}") from error
        except ModuleNotFoundError as error:  # From 'my_module:MyEnv-v0'.
            raise ValueError(f"Gymnasium cannot create {self.name!r}: {error}; check the name of the module") from error
        except errors.Error as error:
            raise ValueError(f"Gymnasium has no environment {self.name!r}: {error}") from error


class _Episodes:
    """The state of N running environments, including the next batch of observations for the policy."""

    def __init__(self, envs: Sequence[Any], policy: BatchedPolicy, observation_spec: Nest, action_space: Any):
        num_envs = len(envs)
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.running = np.ones(num_envs, bool)
        self.num_clipped = 0
        self._envs, self._policy, self._space = envs, policy, action_space
        env_specs = dict(leaves(observation_spec))
        self._columns = [
            _Column(path, np.zeros((num_envs, *spec.shape), env_specs[path].dtype), np.dtype(spec.dtype.as_numpy_dtype))
            for path, spec in leaves(policy.observation_spec)
        ]
        self._step_types = np.full(num_envs, _FIRST, np.int32)
        self._state = policy.initial_state()

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts every episode."""
        for row, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            observation, _ = env.reset(seed=seed)
            self._store_observation(row, observation)

    def step(self) -> None:
        """Advances each running episode by one step."""
        observations = [self._cast(column) for column in self._columns]
        raw_actions, self._state = self._policy.act(self._step_types, observations, self._state)
        actions = self._convert_actions(raw_actions)
        for row in np.flatnonzero(self.running):
            observation, reward, terminated, truncated, _ = self._envs[row].step(actions[row])
            if not np.isfinite(reward):
                raise ValueError(f"the reward must be finite, got {reward} ({self._locate(row)}); fix the environment")
            self.returns[row] += float(reward)
            self.lengths[row] += 1
            self._store_observation(row, observation)
            self.running[row] = not (terminated or truncated)
        self._step_types = np.where(self.running, _MID, _LAST).astype(np.int32)

    def _convert_actions(self, actions: np.ndarray) -> np.ndarray:
        """Casts actions `[N, ...]` of the policy to the environment's dtype, and clips them to its bounds."""
        running = actions[self.running]
        if actions.dtype.kind == "f" and not np.isfinite(running).all():
            self._raise_non_finite_action(actions)
        low, high = action_bounds(self._space)
        cast = actions.astype(self._space.dtype)
        clipped = np.clip(cast, low, high)
        if not hasattr(self._space, "low"):
            if (clipped != actions)[self.running].any():
                row = self._find_first_running((clipped != actions).reshape(len(actions), -1).any(1))
                raise ValueError(f"the action must be in {self._space}, got {actions[row]} ({self._locate(row)})")
            return clipped
        with np.errstate(invalid="ignore"):  # Finished episodes may have any action.
            outside = np.abs(cast - clipped) > _ROUNDING * np.maximum(1.0, np.abs(clipped))
        self.num_clipped += outside[self.running].reshape(len(running), -1).any(1).sum()
        return clipped

    def _raise_non_finite_action(self, actions: np.ndarray) -> None:
        row = self._find_first_running(~np.isfinite(actions).reshape(len(actions), -1).all(1))
        is_observation_finite = all(np.isfinite(column.values[row]).all() for column in self._columns)
        cause = "the policy has non-finite weights" if is_observation_finite else "its observation is not finite either"
        raise ValueError(f"the action must be finite, got {actions[row]} ({self._locate(row)}); {cause}")

    def _find_first_running(self, mask: np.ndarray) -> int:
        return int(np.flatnonzero(mask & self.running)[0])

    def _locate(self, row: int) -> str:
        return f"episode {row}, step {self.lengths[row]}"

    def _store_observation(self, row: int, observation: Any) -> None:
        for column in self._columns:
            value = observation
            for key in column.path:
                value = value[key]
            value = np.asarray(value)
            expected = column.values
            if value.shape != expected.shape[1:] or not np.can_cast(value.dtype, expected.dtype, "same_kind"):
                raise SpecMismatchError(
                    f"{path_name(column.path, 'observation')} is {describe(value)}, but the environment's space is "
                    f"{describe(ArraySpec(expected.shape[1:], expected.dtype))} ({self._locate(row)})"
                )
            column.values[row] = value

    def _cast(self, column: _Column) -> np.ndarray:
        """Casts observations `[N, ...]` to the policy's dtype; floats are rounded, other values must not change."""
        values, dtype = column.values, column.policy_dtype
        if values.dtype == dtype:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            cast = values.astype(dtype)
            if values.dtype.kind == dtype.kind == "f":
                changed = np.isfinite(cast) != np.isfinite(values)
            else:
                changed = cast.astype(values.dtype) != values
        changed_rows = changed.reshape(len(values), -1).any(1) & self.running
        if changed_rows.any():
            place = self._locate(self._find_first_running(changed_rows))
            raise ValueError(
                f"{path_name(column.path, 'observation')} is not representable in the policy's {dtype} ({place}); "
                "train on data with the environment's dtype"
            )
        return cast


class _Column(NamedTuple):
    """One leaf of the observations: its path, its values `[N, ...]`, and the policy's dtype."""

    path: tuple[Any, ...]
    values: np.ndarray
    policy_dtype: np.dtype


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
    gymnasium = _import_gymnasium()
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


def read_reference_returns(path: str | Path, environment: str) -> tuple[float, float]:
    """Reads the returns of a random policy and an expert in an environment from a JSON file.

    The file contains `{"Hopper-v5": [18.6, 2806.0]}` or `{"Hopper-v5": {"ref_min": 18.6, "ref_max": 2806.0}}`, possibly
    as the entry `measured` of a larger document.

    Raises:
      ValueError: If the file has a different format, or does not contain both returns for this environment.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    entries = document.get("measured", document) if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ValueError(f'{path} must contain reference returns such as {{"{environment}": [RANDOM, EXPERT]}}')
    if environment not in entries:
        raise ValueError(f"{path} has no reference returns for {environment}, only for {', '.join(sorted(entries))}")
    entry = entries[environment]
    pair = [entry.get("ref_min"), entry.get("ref_max")] if isinstance(entry, Mapping) else entry
    numbers = [value for value in pair if isinstance(value, (int, float))] if isinstance(pair, list) else []
    if len(numbers) != 2 or not np.isfinite(numbers).all() or numbers[0] == numbers[1]:
        raise ValueError(
            f"the reference returns for {environment} in {path} must be two different numbers, RANDOM and EXPERT, "
            f"got {pair}"
        )
    return float(numbers[0]), float(numbers[1])


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


def _import_gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f"evaluation requires gymnasium, which is not installed; {_INSTALL}") from error
    return gymnasium


def _make_spec(space: Any, spaces: Any, name: str) -> Nest:
    """Returns the spec of the elements of an observation space."""
    if isinstance(space, spaces.Dict):
        return {key: _make_spec(part, spaces, name) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_make_spec(part, spaces, name) for part in space)
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "fiub":
        raise TypeError(f"observations of {name} must be arrays of numbers with a fixed shape or nests, got {space}")
    return ArraySpec(tuple(space.shape), np.dtype(space.dtype))


def _require_action_space(space: Any, spaces: Any, name: str) -> None:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"the action space of {name} must be a Box or a discrete space, got {space}")


def action_bounds(space: Any) -> tuple[Any, Any]:
    """Returns the elementwise minimum and maximum action of a `Box` or discrete space."""
    if hasattr(space, "low"):
        return space.low, space.high
    if hasattr(space, "nvec"):
        return space.start, space.start + space.nvec - 1
    if hasattr(space, "start"):
        return space.start, space.start + space.n - 1
    return 0, 1


def _require_actions(space: Any, spec: Any, name: str) -> None:
    if not hasattr(spec, "dtype"):
        raise SpecMismatchError(f"the policy returns a nest of actions, but {name} expects a single one in {space}")
    is_discrete = np.dtype(space.dtype).kind in "iu"
    if tuple(spec.shape) != tuple(space.shape) or (is_discrete and not spec.dtype.is_integer):
        expected = describe(ArraySpec(tuple(space.shape), np.dtype(space.dtype)))
        raise SpecMismatchError(
            f"the policy returns actions {describe(spec)}, but {name} expects {expected}; {_ADVICE}"
        )
