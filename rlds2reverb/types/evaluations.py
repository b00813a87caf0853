"""The results of evaluating a policy, and the reference returns that define its score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .scores import d4rl_score
from .short_repr import short_repr


@dataclass(frozen=True)
class Evaluation:
    """The results of a policy in N episodes.

    Attributes:
      returns: float64 [N], undiscounted sums of rewards, in the environment's own units.
      lengths: int64 [N], number of steps of each episode.
      seeds: seed of each episode.
      reference_returns: returns (random, expert) that define the normalised score; None for no score.
      num_clipped: number of steps whose action was clipped to the environment's bounds.
      discounted_return: mean over the steps of all episodes of the discounted sum of the rewards that follow, which an
        agent's Q-values estimate; None if no discount was set.
      num_cut_off: number of episodes that were truncated only because an environment without a time limit did not end
        them; see `Evaluator`.
      successes: bool [N], whether each episode reached its goal; None if the environment does not tell, see
        `GymnasiumEnvironment`.
      tasks: int64 [N], the number of each episode's task; None without several tasks, see `GoalTasks`.
      env_info: float64 [N], the sum of each of the `info_fields` over each episode, by name (ALF's
        `AverageEnvInfoMetric`); None without them.
    """

    returns: np.ndarray
    lengths: np.ndarray
    seeds: tuple[int, ...]
    reference_returns: tuple[float, float] | None = None
    num_clipped: int = 0
    discounted_return: float | None = None
    num_cut_off: int = 0
    successes: np.ndarray | None = None
    tasks: np.ndarray | None = None
    env_info: dict[str, np.ndarray] | None = None

    __repr__ = short_repr

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

    @property
    def success_rate(self) -> float | None:
        """The share of episodes that reached their goal, in [0, 1]; None if the environment does not tell."""
        return None if self.successes is None else float(self.successes.mean())

    @property
    def success_rates(self) -> dict[int, float]:
        """The share of successful episodes of each task, by its number; empty without several tasks."""
        if self.tasks is None or self.successes is None:
            return {}
        return {int(task): float(self.successes[self.tasks == task].mean()) for task in np.unique(self.tasks)}

    @property
    def means(self) -> dict[str, float]:
        """The mean of each sum in `env_info` over the episodes, by 'env_info/NAME'."""
        return {f"env_info/{name}": float(values.mean()) for name, values in (self.env_info or {}).items()}

    def as_dict(self) -> dict[str, Any]:
        """Returns the results as JSON values."""
        plain = {
            name: np.asarray(value).tolist() if isinstance(value, (np.ndarray, tuple)) else value
            for name, value in vars(self).items()
            if name != "env_info"
        }
        computed = {"mean": self.mean, "std": self.std, "score": self.score, "success_rate": self.success_rate}
        return {
            **computed,
            **({"success_rates": self.success_rates} if self.success_rates else {}),
            **plain,
            **self.means,
        }

    def __str__(self) -> str:
        text = f"return {self.mean:,.1f} ± {self.std:,.1f} over {len(self.returns):,} episodes"
        if self.score is not None:
            text += f", score {self.score:.1f}"
        if self.success_rate is not None:
            text += f", success {self.success_rate:.0%}"
        if self.success_rates:
            text += f" ({', '.join(f'task {task}: {rate:.0%}' for task, rate in self.success_rates.items())})"
        if self.num_clipped:
            text += f"; {self.num_clipped:,} of {self.lengths.sum():,} actions were out of bounds and clipped"
        return text


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
