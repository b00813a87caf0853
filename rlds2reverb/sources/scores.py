"""D4RL's normalised score: 0 is a random policy's return, 100 an expert's.

    score = 100 · (return − return of a random policy) / (return of an expert − return of a random policy)

Fu et al. 2020 (arXiv:2004.07219), appendix B; the constants are those published with D4RL (`d4rl/infos.py`). They
hold for D4RL's own environments (mujoco-py, v2) and data, and for no others.
"""

from __future__ import annotations

import re

REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "antmaze": (0.0, 1.0),
    "door": (-56.512833, 2880.5693087298737),
    "hammer": (-274.856578, 12794.134825156867),
    "pen": (96.262799, 3076.8331017826877),
    "relocate": (-6.425911, 4233.877797728884),
}

_BUILDER = re.compile(r"d4rl_(?:mujoco_|adroit_)?([a-z0-9]+)")


def d4rl_environment(name: str) -> str | None:
    """The D4RL environment that a data set's name tells: `d4rl_mujoco_hopper/v2-medium`, `hopper_medium-v2.hdf5`."""
    lowered = name.lower().replace("ant_maze", "antmaze")
    found = _BUILDER.match(lowered) or re.match(r"([a-z0-9]+)[-_]", lowered)
    environment = found.group(1) if found else ""
    return environment if environment in REFERENCE_RETURNS else None


def d4rl_score(mean_return: float, reference: tuple[float, float]) -> float:
    """The normalised score of a return; `reference` holds the returns of a random policy and of an expert."""
    random, expert = reference
    if expert == random:
        raise ValueError(f"the two reference returns are both {random}; expected two different numbers")
    return 100 * (mean_return - random) / (expert - random)
