"""The option `--film` of `eval` and `record`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checks
from .declarations import option
from .quiet import quiet_imports, status

if TYPE_CHECKING:
    from rlds2reverb.envs.film import Film

film_option = option(
    "--film",
    type=checks.film,
    help="Film an episode to this file; requires the extra film (see rlds2reverb doctor) and, for MuJoCo without a "
    "display, libosmesa6.",
)


def film_policy(
    path: Path, env: tuple[str, Any], policy: Any, options: dict[str, Any], *, num_episodes: int = 1
) -> Film:
    """Films episodes of a policy.

    Args:
      path: file to write.
      env: name of the environment, and what makes it.
      policy: the policy.
      options: the options `seed` and `max_episode_steps` of the command.
      num_episodes: number of episodes.
    """
    from rlds2reverb.envs.film import record_film

    limits = {"seed": options["seed"], "max_episode_steps": options["max_episode_steps"]}
    with status(f"filming {env[0]}"), quiet_imports():
        return record_film(env[1], policy, path, num_episodes=num_episodes, **limits)
