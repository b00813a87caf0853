"""D4RL's dataset names and the URLs of their files.

Source of names and URLs: `d4rl/infos.py` of D4RL (Fu et al. 2020, arXiv:2004.07219).
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from . import d4rl, minari
from .formats import Format
from .source import Source

_ROOT = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
_MUJOCO_ROBOTS = ("halfcheetah", "hopper", "walker2d", "ant")
_HANDS = ("pen", "hammer", "relocate", "door")
_MAZE2D = ("umaze", "medium", "large")
#: Files of version 0; those of later versions are named like the datasets.
_HAND_FILES = {"human": "{}-v0_demos_clipped", "cloned": "{}-demos-v0-bc-combined", "expert": "{}-v0_expert_clipped"}
_ANTMAZE_FILES = {
    "umaze": "u-maze_noisy_multistart_False_multigoal_False",
    "umaze-diverse": "u-maze_noisy_multistart_True_multigoal_True",
    "medium-play": "big-maze_noisy_multistart_True_multigoal_False",
    "medium-diverse": "big-maze_noisy_multistart_True_multigoal_True",
    "large-play": "hardest-maze_noisy_multistart_True_multigoal_False",
    "large-diverse": "hardest-maze_noisy_multistart_True_multigoal_True",
}
_OTHER_FILES = {
    "maze2d-open-v0": "maze2d/maze2d-open-sparse",
    "maze2d-open-dense-v0": "maze2d/maze2d-open-dense",
    "minigrid-fourrooms-v0": "minigrid/minigrid4rooms",
    "minigrid-fourrooms-random-v0": "minigrid/minigrid4rooms_random",
    "kitchen-complete-v0": "kitchen/mini_kitchen_microwave_kettle_light_slider-v0",
    "kitchen-partial-v0": "kitchen/kitchen_microwave_kettle_light_slider-v0",
    "kitchen-mixed-v0": "kitchen/kitchen_microwave_kettle_bottomburner_light-v0",
    "flow-ring-random-v0": "flow/flow-ring-v0-random",
    "flow-ring-controller-v0": "flow/flow-ring-v0-idm",
    "flow-merge-random-v0": "flow/flow-merge-v0-random",
    "flow-merge-controller-v0": "flow/flow-merge-v0-idm",
    "carla-lane-v0": "carla/carla_lane_follow_flat-v0",
    "carla-town-v0": "carla/carla_town_subsamp_flat-v0",
    "carla-town-full-v0": "carla/carla_town_flat-v0",
}


def file_url(name: str) -> str | None:
    """Returns the URL of the file of a D4RL dataset such as `hopper-medium-v2`, or None for any other name."""
    file = _files().get(name)
    return None if file is None else f"{_ROOT}{file}.hdf5"


def dataset_dir() -> Path:
    """Returns the directory to which D4RL downloads its files."""
    configured = os.environ.get("D4RL_DATASET_DIR")
    return Path(configured) if configured else Path.home() / ".d4rl" / "datasets"


def find_downloaded(name: str) -> Path | None:
    """Returns the path of a D4RL dataset in D4RL's own directory, or None if there is no such name or file."""
    file = _files().get(name)
    path = None if file is None else dataset_dir() / f"{file.rpartition('/')[2]}.hdf5"
    return path if path is not None and path.is_file() else None


def _is_missing(name: Any) -> bool:
    return isinstance(name, str) and file_url(name) is not None and not minari.is_installed(name)


def _raise_missing(name: str, **options: Any) -> Source:
    raise FileNotFoundError(
        f"D4RL's {name} is not on this machine; download {file_url(name)} to {dataset_dir()}, or download it anywhere "
        "and pass the path of the file"
    )


#: The name of a dataset that is not in D4RL's own directory.
NAME = Format("a D4RL name", _is_missing, _raise_missing, (*d4rl.OPTIONS, "download"))


def _files() -> dict[str, str]:
    return {**_mujoco_files(), **_hand_files(), **_maze_files(), **_bullet_files(), **_OTHER_FILES}


def _mujoco_files() -> dict[str, str]:
    files = {}
    for robot, kind in itertools.product(
        _MUJOCO_ROBOTS, ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
    ):
        for version in ("v1", "v2"):
            files[f"{robot}-{kind}-{version}"] = f"gym_mujoco_{version}/{robot}_{kind.replace('-', '_')}-{version}"
        if kind != "full-replay":
            old = {"medium-replay": "mixed", "medium-expert": "medium_expert"}.get(kind, kind)
            files[f"{robot}-{kind}-v0"] = f"gym_mujoco/{robot}_{old}"
    files["walker2d-medium-replay-v0"] = "gym_mujoco/walker_mixed"
    files["ant-random-expert-v0"] = "gym_mujoco/ant_random_expert"
    return files


def _hand_files() -> dict[str, str]:
    files = {}
    for hand, (kind, old) in itertools.product(_HANDS, _HAND_FILES.items()):
        files[f"{hand}-{kind}-v0"] = f"hand_dapg/{old.format(hand)}"
        files[f"{hand}-{kind}-v1"] = f"hand_dapg_v1/{hand}-{kind}-v1"
    return files


def _maze_files() -> dict[str, str]:
    files = {}
    for kind, file in _ANTMAZE_FILES.items():
        files[f"antmaze-{kind}-v0"] = f"ant_maze_new/Ant_maze_{file}_sparse"
        files[f"antmaze-{kind}-v2"] = f"ant_maze_v2/Ant_maze_{file}_sparse_fixed"
    for size, role in itertools.product(_MAZE2D, ("", "eval-")):
        files[f"maze2d-{role}{size}-v1"] = f"maze2d/maze2d-{role}{size}-sparse-v1"
        files[f"maze2d-{role}{size}-dense-v1"] = f"maze2d/maze2d-{role}{size}-dense-v1"
    return files


def _bullet_files() -> dict[str, str]:
    files = {}
    for robot, kind in itertools.product(
        _MUJOCO_ROBOTS, ("random", "medium", "expert", "medium-expert", "medium-replay")
    ):
        files[f"bullet-{robot}-{kind}-v0"] = f"bullet/bullet-{robot}_{kind.replace('-', '_')}"
    for size in ("open", *_MAZE2D):
        files[f"bullet-maze2d-{size}-v0"] = f"bullet/bullet-maze2d-{size}-sparse"
    return files
