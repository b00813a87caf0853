"""D4RL's normalised score: 0 for the return of a random policy, 100 for that of an expert.

    score = 100 · (return − return of a random policy) / (return of an expert − return of a random policy)

Fu et al. 2020 (arXiv:2004.07219), appendix B; the constants are those published with D4RL (`d4rl/infos.py`). They
hold only for D4RL's own environments (mujoco-py, v2) and data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

#: Value of options that selects these constants.
D4RL = "d4rl"
#: (return of a random policy, return of an expert), by the first words of a dataset id.
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
    "maze2d-open": (0.01, 20.66),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "maze2d-open-dense": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense": (68.537689, 193.66285642381482),
    "maze2d-medium-dense": (44.264742, 297.4552547777125),
    "maze2d-large-dense": (30.569041, 303.4857382709002),
    "minigrid-fourrooms": (0.01442, 2.89685),
    "kitchen": (0.0, 4.0),
    "flow-ring": (-165.22, 24.42),
    "flow-merge": (118.67993, 330.03179),
    "carla-lane": (-0.8503839912088142, 1023.5784385429523),
    "carla-town": (-114.81579500772153, 2440.1772022247314),
    "bullet-halfcheetah": (-1275.766996, 2381.6725),
    "bullet-hopper": (20.058972, 1441.8059623430963),
    "bullet-ant": (373.705955, 2650.495),
    "bullet-walker2d": (16.523877, 1623.6476303317536),
    "bullet-maze2d-open": (8.75, 64.15),
    "bullet-maze2d-umaze": (32.46, 153.99),
    "bullet-maze2d-medium": (14.87, 238.05),
    "bullet-maze2d-large": (1.82, 285.92),
}

#: Ids without published reference returns that begin with the words of ids that have some.
_WITHOUT_REFERENCE = ("maze2d-eval", "carla-town-full")

#: Prefixes of D4RL's file names and the corresponding prefixes of ids.
_FILE_PREFIXES = (
    (r"ant-maze", "antmaze"),
    (r"walker-(?=mixed)", "walker2d-"),
    (r"minigrid4rooms", "minigrid-fourrooms"),
    (r"mini-kitchen", "kitchen"),
    (r"carla-lane-follow", "carla-lane"),
    (r"carla-town-flat", "carla-town-full"),
)


def d4rl_environment(name: str) -> str | None:
    """Returns the key in `REFERENCE_RETURNS` for the name of a dataset or file, or None.

    Accepts D4RL's ids (`maze2d-umaze-dense-v1`), the names of its files, including old ones (`walker_mixed.hdf5`,
    `maze2d-open-sparse.hdf5`, `mini_kitchen_microwave_kettle_light_slider-v0.hdf5`), and TFDS's names
    (`d4rl_mujoco_hopper/v2-medium`).
    """
    plain = re.sub(r"\.hdf5$", "", name.lower()).replace("_", "-")
    tfds_prefix = re.match(r"d4rl-(mujoco-|adroit-)?", plain)
    if tfds_prefix:
        plain = plain[tfds_prefix.end() :].replace("/", "-")
    elif "/" in plain:  # Minari's environments differ from D4RL's.
        return None
    for file_prefix, id_prefix in _FILE_PREFIXES:
        plain = re.sub(rf"^{file_prefix}", id_prefix, plain)
    words = [word for word in plain.split("-") if word != "sparse"]
    if _longest_prefix(words, _WITHOUT_REFERENCE):
        return None
    environment = _longest_prefix(words, REFERENCE_RETURNS)
    is_ambiguous = [environment] == words and not tfds_prefix  # hopper.hdf5 need not be D4RL's.
    return None if is_ambiguous else environment


def _longest_prefix(words: list[str], keys: Iterable[str]) -> str | None:
    """Returns the longest key whose words are the first of `words`, or None."""
    prefixes = [key for key in keys if words[: key.count("-") + 1] == key.split("-")]
    return max(prefixes, key=len) if prefixes else None


def d4rl_score(mean_return: float, reference: tuple[float, float]) -> float:
    """Returns the normalised score of a return; `reference` contains the returns of a random policy and an expert."""
    random, expert = reference
    if not 0 < abs(expert - random) < math.inf:
        raise ValueError(f"the two reference returns must be finite and differ, got {random:g} and {expert:g}")
    return 100 * (mean_return - random) / (expert - random)
