"""Published settings of the agents for the D4RL tasks, as gin files: what `train --config NAME` reads."""

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
    """Returns the options of `train` that the files which were read set; those of the agents are parameters of theirs.

    Args:
      gamma: discount factor, also of the items.
      batch_size: items in a batch.
      reward: a reward recipe, see `train --help`.
      normalize_observations: whether observations are normalised.
    """
    given = {
        "gamma": gamma,
        "batch_size": batch_size,
        "reward": reward,
        "normalize_observations": normalize_observations,
    }
    return {name: value for name, value in given.items() if value is not None}


def preset_names() -> list[str]:
    """Returns the names of the files that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.gin"))


def preset_path(name: str) -> Path:
    """Returns the file of a name; the name itself as a path if there is none."""
    return _FOLDER / f"{name}.gin" if name in preset_names() else Path(name)


def read_configs(paths: Sequence[Path]) -> dict[str, Any]:
    """Reads gin files, the parameters of agents among them, and returns the options of `train` that they set.

    Raises:
      ValueError: if a file cannot be read, or names something that there is not.
    """
    for path in paths:
        try:
            gin.parse_config_file(str(path))
        except (ValueError, SyntaxError, OSError) as error:
            raise ValueError(f"{path}: {str(error).strip()}") from error
    return run_options()
