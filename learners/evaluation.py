"""Evaluation of a policy in Gymnasium's environments: all episodes at once, one call of the policy a step."""

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
#: An episode of an environment without a time limit is given up after this many steps.
_LONGEST_EPISODE = 100_000
#: An action that is outside by less than this share of the bound is a matter of rounding: clipped, not counted.
_ROUNDING = 1e-5
_INSTALL = "run pip install '.[eval]' in the checkout"


@dataclass(frozen=True)
class Evaluation:
    """What a policy reached in N episodes.

    Attributes:
      returns: float64 [N], undiscounted sums of rewards, in the environment's own units.
      lengths: int64 [N], steps of each episode.
      seeds: the seed of each episode.
      reference_returns: (random, expert), what a score is measured by; None for no score.
      num_clipped: steps whose action was outside of the environment's bounds, and was clipped to them.
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
        """The normalised score, 0 for a random policy and 100 for an expert; None without reference returns."""
        return None if self.reference_returns is None else d4rl_score(self.mean, self.reference_returns)

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as values that JSON has."""
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
    """Runs a policy in N environments that are stepped together, with one call of the policy a step.

    The batch of that call always has N rows, so that it is traced once; rows of episodes that have ended are ignored.
    Equal seeds give equal returns where policy and environment draw nothing else at random.
    """

    def __init__(
        self,
        make_env: str | Callable[[], Any],
        *,
        num_episodes: int | None = None,
        seeds: Sequence[int] | None = None,
        reference_returns: tuple[float, float] | None = None,
        max_episode_steps: int | None = None,
    ):
        """Makes an environment once, to see that it can be made and what it takes; it is closed again.

        Args:
          make_env: id of an environment that Gymnasium knows, such as 'Hopper-v5', or a function that returns a new
            `gymnasium.Env` each time.
          num_episodes: N; None for one a seed, or 10 without seeds.
          seeds: one for the `reset` of each environment; None for 0 to N - 1.
          reference_returns: returns of a random policy and of an expert, for a score; see `read_reference_returns`.
          max_episode_steps: episodes are cut here, as a time limit does; None for the environment's own limit alone.

        Raises:
          ImportError: if Gymnasium, or what the environment needs, is not installed.
          ValueError: if there is no such environment, if the numbers of episodes and seeds differ, or if the
            reference returns are equal.
          TypeError: if `make_env` returns something else, or the environment has a space without a fixed shape.
        """
        self.seeds = _checked_seeds(num_episodes, seeds)
        if max_episode_steps is not None:
            require_count("max_episode_steps", max_episode_steps)
        if reference_returns is not None:
            d4rl_score(0.0, reference_returns)
            reference_returns = (float(reference_returns[0]), float(reference_returns[1]))
        self.reference_returns = reference_returns
        self._gymnasium = _gymnasium()
        self._make_env, self._max_episode_steps = make_env, max_episode_steps
        self.name = make_env if isinstance(make_env, str) else getattr(make_env, "__name__", "environment")
        with contextlib.closing(self._new_env()) as env:
            self.observation_spec = _spec_of(env.observation_space, self._gymnasium.spaces, self.name)
            self.action_space = _checked_actions(env.action_space, self._gymnasium.spaces, self.name)
            self._has_limit = env.spec is not None and env.spec.max_episode_steps is not None
        self._batched: BatchedPolicy | None = None

    @property
    def num_episodes(self) -> int:
        """How many episodes an evaluation has."""
        return len(self.seeds)

    def require_match(self, policy: Any) -> None:
        """Checks that a policy takes the observations of the environment, and gives actions for it.

        A policy may leave out entries of a dict of observations.

        Args:
          policy: see `evaluate`.

        Raises:
          TypeError: if it is not a policy.
          SpecMismatchError: naming the first field that differs.
        """
        self._of(policy)

    def require_observations(self, spec: Nest) -> None:
        """Checks that policies for some observations can act in the environment; they may leave out entries of a dict.

        Args:
          spec: nest of specs of the observations that they take.

        Raises:
          SpecMismatchError: naming the first field that differs.
        """
        _require_observations(self.observation_spec, spec, self.name)

    def evaluate(self, policy: Any) -> Evaluation:
        """Returns what a policy reaches in one episode for each seed.

        Observations are given to the policy in its own dtype: floats are rounded to its floats, everything else has
        to keep its value. Actions outside of the bounds are clipped and counted. An episode ends where it is
        terminated or truncated. The environments are closed at the end, whatever happens.

        Args:
          policy: a TF-Agents `TFPolicy`, or what `load_policy` returns for one that `PolicySaver` saved.

        Raises:
          TypeError, SpecMismatchError: as `require_match` does.
          ValueError: naming episode and step, if an action or a reward is not finite, if a discrete action is not
            one of the environment's, or if an observation does not fit the policy's dtype.
          RuntimeError: if an episode without a time limit does not end.
        """
        batched = self._of(policy)
        with contextlib.ExitStack() as stack:
            envs = [stack.enter_context(contextlib.closing(self._new_env())) for _ in self.seeds]
            episodes = _Episodes(envs, batched, self.observation_spec, self.action_space)
            episodes.reset(self.seeds)
            while episodes.running.any():
                episodes.step()
                self._cut(episodes)
        return Evaluation(
            episodes.returns, episodes.lengths, self.seeds, self.reference_returns, int(episodes.num_clipped)
        )

    def _cut(self, episodes: _Episodes) -> None:
        if self._max_episode_steps is not None:
            episodes.running &= episodes.lengths < self._max_episode_steps
        elif not self._has_limit and (episodes.running & (episodes.lengths >= _LONGEST_EPISODE)).any():
            raise RuntimeError(
                f"an episode of {self.name} has not ended after {_LONGEST_EPISODE:,} steps, and it has no time limit; "
                "give max_episode_steps"
            )

    def _of(self, policy: Any) -> BatchedPolicy:
        if self._batched is None or self._batched.policy is not policy:
            batched = BatchedPolicy(policy, self.num_episodes)
            _require_observations(self.observation_spec, batched.observation_spec, self.name)
            _require_actions(self.action_space, batched.action_spec, self.name)
            self._batched = batched
        return self._batched

    def _new_env(self) -> Any:
        errors = self._gymnasium.error
        if not isinstance(self._make_env, str):
            env = self._make_env()
            if not isinstance(env, self._gymnasium.Env):
                raise TypeError(f"make_env returned {type(env).__name__}, expected a gymnasium.Env")
            return env
        try:
            return self._gymnasium.make(self._make_env, disable_env_checker=True)
        except errors.DependencyNotInstalled as error:
            raise ImportError(
                f"the environment {self.name} needs what is not installed ({error}); {_INSTALL}"
            ) from error
        except errors.Error as error:
            raise ValueError(f"Gymnasium has no environment {self.name!r}: {error}") from error


class _Episodes:
    """N environments on their way, and the batch of observations that the policy sees next."""

    def __init__(self, envs: Sequence[Any], policy: BatchedPolicy, observation_spec: Nest, action_space: Any):
        num = len(envs)
        self.returns, self.lengths = np.zeros(num), np.zeros(num, np.int64)
        self.running = np.ones(num, bool)
        self.num_clipped = 0
        self._envs, self._policy, self._space = envs, policy, action_space
        given = dict(leaves(observation_spec))
        self._columns = [
            _Column(path, np.zeros((num, *spec.shape), given[path].dtype), np.dtype(spec.dtype.as_numpy_dtype))
            for path, spec in leaves(policy.observation_spec)
        ]
        self._step_types = np.full(num, _FIRST, np.int32)
        self._state = policy.initial_state()

    def reset(self, seeds: Sequence[int]) -> None:
        """Begins every episode."""
        for row, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            observation, _ = env.reset(seed=seed)
            self._take(row, observation)

    def step(self) -> None:
        """Makes one step in each episode that has not ended."""
        observations = [self._cast(column) for column in self._columns]
        raw_actions, self._state = self._policy.act(self._step_types, observations, self._state)
        actions = self._fitted(raw_actions)
        for row in np.flatnonzero(self.running):
            observation, reward, terminated, truncated, _ = self._envs[row].step(actions[row])
            if not np.isfinite(reward):
                raise ValueError(f"the reward is {reward} ({self._where(row)}); mend the environment")
            self.returns[row] += float(reward)
            self.lengths[row] += 1
            self._take(row, observation)
            self.running[row] = not (terminated or truncated)
        self._step_types = np.where(self.running, _MID, _LAST).astype(np.int32)

    def _fitted(self, actions: np.ndarray) -> np.ndarray:
        """Returns actions `[N, ...]` of the policy in dtype and bounds of the environment."""
        running = actions[self.running]
        if actions.dtype.kind == "f" and not np.isfinite(running).all():
            self._refuse_action(actions)
        low, high = _bounds(self._space)
        fitted = actions.astype(self._space.dtype)
        inside = np.clip(fitted, low, high)
        if not hasattr(self._space, "low"):
            if (inside != actions)[self.running].any():
                row = self._first_row((inside != actions).reshape(len(actions), -1).any(1))
                raise ValueError(f"the action is {actions[row]}, not one of {self._space} ({self._where(row)})")
            return inside
        with np.errstate(invalid="ignore"):  # of episodes that have ended
            outside = np.abs(fitted - inside) > _ROUNDING * np.maximum(1.0, np.abs(inside))
        self.num_clipped += outside[self.running].reshape(len(running), -1).any(1).sum()
        return inside

    def _refuse_action(self, actions: np.ndarray) -> None:
        row = self._first_row(~np.isfinite(actions).reshape(len(actions), -1).all(1))
        seen = all(np.isfinite(column.values[row]).all() for column in self._columns)
        cause = "the policy has non-finite weights" if seen else "its observation is not finite either"
        raise ValueError(f"the action is {actions[row]} ({self._where(row)}); {cause}")

    def _first_row(self, of: np.ndarray) -> int:
        return int(np.flatnonzero(of & self.running)[0])

    def _where(self, row: int) -> str:
        return f"episode {row}, step {self.lengths[row]}"

    def _take(self, row: int, observation: Any) -> None:
        for column in self._columns:
            value = observation
            for key in column.path:
                value = value[key]
            value = np.asarray(value)
            expected = column.values
            fits = value.shape == expected.shape[1:] and np.can_cast(value.dtype, expected.dtype, "same_kind")
            if not fits:
                raise SpecMismatchError(
                    f"{path_name(column.path, 'observation')} is {describe(value)}, expected the environment's own "
                    f"{describe(ArraySpec(expected.shape[1:], expected.dtype))} ({self._where(row)})"
                )
            column.values[row] = value

    def _cast(self, column: _Column) -> np.ndarray:
        """Returns observations `[N, ...]` in the dtype of the policy; floats are rounded, the rest stays as it is."""
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
            where = self._where(self._first_row(changed_rows))
            raise ValueError(
                f"{path_name(column.path, 'observation')} does not fit the policy's {dtype} ({where}); "
                "train on data of the environment's dtype"
            )
        return cast


class _Column(NamedTuple):
    """One leaf of the observations: its path, the values `[N, ...]` of the environments, and what the policy takes."""

    path: tuple[Any, ...]
    values: np.ndarray
    policy_dtype: np.dtype


def read_reference_returns(path: str | Path, environment: str) -> tuple[float, float]:
    """Returns the returns of a random policy and of an expert that a JSON file has for an environment.

    The file is `{"Hopper-v5": [18.6, 2806.0]}` or `{"Hopper-v5": {"ref_min": 18.6, "ref_max": 2806.0}}`; either may
    be the entry `measured` of a larger document.

    Raises:
      ValueError: if the file is not such a document, or does not have both for this environment.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    known = document.get("measured", document) if isinstance(document, dict) else None
    if not isinstance(known, dict):
        raise ValueError(f'{path} has no reference returns, expected {{"{environment}": [RANDOM, EXPERT]}}')
    if environment not in known:
        raise ValueError(f"{path} has no reference returns of {environment}, only of {', '.join(sorted(known))}")
    entry = known[environment]
    pair = [entry.get("ref_min"), entry.get("ref_max")] if isinstance(entry, Mapping) else entry
    numbers = [value for value in pair if isinstance(value, (int, float))] if isinstance(pair, list) else []
    if len(numbers) != 2 or not np.isfinite(numbers).all() or numbers[0] == numbers[1]:
        raise ValueError(f"{path} has {pair} for {environment}, expected two different numbers, RANDOM and EXPERT")
    return float(numbers[0]), float(numbers[1])


def _checked_seeds(num_episodes: int | None, seeds: Sequence[int] | None) -> tuple[int, ...]:
    if num_episodes is not None:
        require_count("num_episodes", num_episodes)
    if seeds is None:
        return tuple(range(10 if num_episodes is None else num_episodes))
    found = tuple(int(seed) for seed in seeds)
    if not found or num_episodes not in (None, len(found)):
        expected = "at least one" if num_episodes is None else f"{num_episodes}, one an episode"
        raise ValueError(f"there are {len(found)} seeds, expected {expected}")
    return found


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f"evaluation needs gymnasium, which is not installed; {_INSTALL}") from error
    return gymnasium


def _spec_of(space: Any, spaces: Any, name: str) -> Nest:
    """Returns the spec of what a space contains."""
    if isinstance(space, spaces.Dict):
        return {key: _spec_of(part, spaces, name) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_spec_of(part, spaces, name) for part in space)
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "fiub":
        raise TypeError(f"the environment {name} observes {space}, expected numbers of a fixed shape, or dicts of them")
    return ArraySpec(tuple(space.shape), np.dtype(space.dtype))


def _checked_actions(space: Any, spaces: Any, name: str) -> Any:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"the environment {name} takes actions of {space}, expected a Box or a discrete space")
    return space


def _bounds(space: Any) -> tuple[Any, Any]:
    """Returns the least and the greatest action of a space, element by element."""
    if hasattr(space, "low"):
        return space.low, space.high
    if hasattr(space, "nvec"):
        return space.start, space.start + space.nvec - 1
    if hasattr(space, "start"):
        return space.start, space.start + space.n - 1
    return 0, 1


def _require_observations(given: Nest, taken: Nest, name: str) -> None:
    given_leaves = dict(leaves(given))
    for path, spec in leaves(taken):
        place = path_name(path, "observation")
        if path not in given_leaves:
            has = ", ".join(path_name(path, "observation") for path in given_leaves)
            raise SpecMismatchError(
                f"the policy takes {place}, the environment {name} has {has}; choose the one of the data"
            )
        have = given_leaves[path]
        would_truncate = have.dtype.kind == "f" and not spec.dtype.is_floating
        if tuple(spec.shape) != have.shape or would_truncate:
            raise SpecMismatchError(
                f"the policy takes {describe(spec)} as {place}, the environment {name} gives {describe(have)}; "
                "choose the environment that the data are of"
            )


def _require_actions(space: Any, spec: Any, name: str) -> None:
    if not hasattr(spec, "dtype"):
        raise SpecMismatchError(f"the policy gives a nest of actions, the environment {name} takes one of {space}")
    whole = np.dtype(space.dtype).kind in "iu"
    if tuple(spec.shape) != tuple(space.shape) or (whole and not spec.dtype.is_integer):
        taken = describe(ArraySpec(tuple(space.shape), np.dtype(space.dtype)))
        raise SpecMismatchError(
            f"the policy gives actions {describe(spec)}, the environment {name} takes {taken}; "
            "choose the environment that the data are of"
        )
