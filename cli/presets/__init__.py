"""Gin files with published settings of the agents for D4RL tasks, for `train --preset NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin

_FOLDER = Path(__file__).parent


@gin.configurable("train", module="rlds2reverb")
def run_options(
    *,
    gamma: float | None = None,
    batch_size: int | None = None,
    reward: str | None = None,
    normalize_observations: bool | None = None,
) -> dict[str, Any]:
    """Returns the options of `train` that gin files have set as `train.NAME = VALUE`.

    Args:
      gamma: discount factor of the agent and the items.
      batch_size: items per batch.
      reward: reward recipe; see `train --help`.
      normalize_observations: whether to normalise observations.
    """
    options = {
        "gamma": gamma,
        "batch_size": batch_size,
        "reward": reward,
        "normalize_observations": normalize_observations,
    }
    return {name: value for name, value in options.items() if value is not None}


def preset_names() -> list[str]:
    """Returns the names of all presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.gin"))


def preset_path(name: str) -> Path:
    """Returns the path of a preset's file."""
    return _FOLDER / f"{name}.gin"


def read_configs(paths: Sequence[Path]) -> dict[str, Any]:
    """Reads gin files, which may also set hyperparameters of agents; returns the options of `train` that they set.

    Raises:
      ValueError: If a file cannot be read or sets an unknown parameter.
    """
    for path in paths:
        try:
            gin.parse_config_file(str(path))
        except (ValueError, SyntaxError, OSError) as error:
            raise ValueError(f"{path}: {str(error).strip()}") from error
    return run_options()
