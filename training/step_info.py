"""Numbers of each step that depend on the rest of its episode, for the algorithms that declare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.adders import ReturnToGo
from rlds2reverb.types import fields
from rlds2reverb.types.specs import ArraySpec, Nest

from .config import TrainingConfig

#: The fields of steps that they are computed from.
SOURCE_FIELDS = (fields.REWARD, fields.DISCOUNT, *fields.FLAG_FIELDS)
_DTYPES = {"return_to_go": np.float32, "time_step": np.int32}


def make_step_info(
    steps: Nest, num_steps: np.ndarray, names: Sequence[str], *, gamma: float, failure_reward: float | None = None
) -> dict[str, np.ndarray]:
    """Returns numbers of each step of complete episodes, `[R]` by name.

        return_to_go[t] = sum_{k >= t} gamma^(k - t) * r_k        (float32)
        time_step[t]    = t                                       (int32)

    The sum ends with the episode. If it is truncated, the rewards that it would have collected after that are missing,
    as in `ReturnToGo`. The return of the last step, which has no action, is 0.

    Args:
      steps: columns `[R, ...]` of the episodes, with `SOURCE_FIELDS`.
      num_steps: int64 `[E]`, the number of steps of each episode.
      names: names of the numbers.
      gamma: discount factor.
      failure_reward: reward of failed episodes, see `CalQLAgent`; None if no return is that of a failure.
    """
    info: dict[str, Any] = {}
    if "return_to_go" in names:
        columns = {name: tf.convert_to_tensor(steps[name]) for name in SOURCE_FIELDS}
        rows, _ = ReturnToGo(gamma).make_batch_rows(columns, tf.convert_to_tensor(num_steps))
        info["return_to_go"] = rows["return_to_go"].numpy()
        if failure_reward is not None:
            is_failed = np.repeat(_find_failures(steps[fields.REWARD], num_steps, failure_reward), num_steps)
            info["return_to_go"] = np.where(is_failed, failure_reward / (1 - gamma), info["return_to_go"])
    if "time_step" in names:
        info["time_step"] = np.arange(num_steps.sum()) - np.repeat(np.cumsum(num_steps) - num_steps, num_steps)
    return {name: info[name].astype(_DTYPES[name]) for name in names}


def get_return_options(config: TrainingConfig) -> dict[str, Any]:
    """Returns the arguments `gamma` and `failure_reward` of `make_step_info` for a run."""
    return {"gamma": config.gamma, "failure_reward": config.resolved_hyperparameters.get("failure_reward")}


def _find_failures(rewards: np.ndarray, num_steps: np.ndarray, failure_reward: float) -> np.ndarray:
    """Returns whether all rewards of each episode equal a number, bool `[E]`; the last step of an episode has none."""
    ends, is_other = np.cumsum(num_steps), np.asarray(rewards) != np.float32(failure_reward)
    is_other[ends - 1] = False
    return ~np.logical_or.reduceat(is_other, ends - num_steps)


def step_info_spec(names: Sequence[str]) -> dict[str, ArraySpec]:
    """Returns the specs of what `make_step_info` returns, of one step."""
    return {name: ArraySpec((), np.dtype(_DTYPES[name])) for name in names}
