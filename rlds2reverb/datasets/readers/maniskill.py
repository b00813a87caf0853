"""ManiSkill: an HDF5 file with a group `traj_N` per trajectory, and a JSON file of the same name next to it.

Format: Tao et al. 2024, arXiv:2410.00425. A trajectory of `T` actions has `T + 1` observations. `terminated` is set
whenever the task is solved or failed, also inside a trajectory that continues, so that its last row tells how the
trajectory ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode

from ..formats import Format
from ..source import Source, identify_files
from . import hdf5, npz
from .agreement import add_contradictions
from .columns import ColumnReader, Paths, as_flags, make_log_episode
from .episode_metadata import make_metadata
from .json_files import as_dict, read_json

_OBSERVATIONS, _ACTIONS, _REWARDS = "obs", "actions", "rewards"
_TERMINATED, _TRUNCATED, _SUCCESS, _FAIL = "terminated", "truncated", "success", "fail"
_USED = {_OBSERVATIONS, _ACTIONS, _REWARDS, _TERMINATED, _TRUNCATED, _SUCCESS, _FAIL}
_TRAJECTORY = re.compile(r"traj_(\d{1,9})")
#: Facts about an episode that become its metadata.
_EPISODE_FACTS = ("episode_id", "control_mode", _SUCCESS, _FAIL)
_REPLAY = "replay the file with mani_skill.trajectory.replay_trajectory and an observation mode such as -o state"


def open_maniskill(path: Path) -> Source:
    """Opens a file of trajectories, in the order of their numbers.

    `obs` and `actions` may be arrays or groups, which become nested dicts. `success` and `fail` become step fields. The
    JSON file describes the environment and each episode; without it, these remain unknown, and a warning says so.

    Both ends: `obs` contains the final observation. The last row decides: `terminated` makes the end terminal, and
    `truncated` makes it truncated; without either, the episode is truncated and `unterminated`.

    Args:
      path: the file.

    Raises:
      SourceError: If the file is refused (see `hdf5`), the JSON file is damaged, or a trajectory has no observations.
    """
    with hdf5.open_hdf5(path) as file:
        names = sorted(filter(_TRAJECTORY.fullmatch, hdf5.list_names(file)), key=lambda name: int(name[5:]))
        first = hdf5.open_group(file, names[0])
        members = {*hdf5.list_names(first)} if first is not None else set()
    sidecar = path.with_suffix(".json")
    stated = as_dict(read_json(sidecar)) if sidecar.is_file() else {}
    episodes = {f"traj_{facts['episode_id']}": facts for facts in stated.get("episodes", ()) if "episode_id" in facts}
    warnings = [] if stated else [f"{path.name} has no {sidecar.name} next to it, which describes the environment"]
    if _REWARDS not in members:
        warnings.append(f"{path.name} has no rewards, so that all are 0; use it for cloning")

    def list_columns() -> Iterable[tuple[str, ...]]:
        return hdf5.list_all_columns(path, [f"{name}/{_OBSERVATIONS}" for name in names])

    def read(left_out: Paths, first: int, stop: int | None) -> Iterator[Episode]:
        with hdf5.open_hdf5(path) as file:
            for index, name in enumerate(names[first:stop], first):
                yield _read_episode(file, name, index, f"{path.name}: '{name}", as_dict(episodes.get(name)), left_out)

    count = len(names)
    source = Source(
        *(path.name, "maniskill", ColumnReader(read, list_columns).read, count),
        warnings=tuple(warnings),
        unread=tuple(sorted(members - _USED)),
        assumed_fields=() if _REWARDS in members else (fields.REWARD,),
        count=lambda: count,
        **_describe_environment(as_dict(stated.get("env_info"))),
    )
    return identify_files(source, lambda: [path, *([sidecar] if stated else [])])


def _describe_environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `env_spec` and the metadata of `env_info`."""
    if not isinstance(facts.get("env_id"), str):
        return {}
    spec = json.dumps({"id": facts["env_id"], "kwargs": facts.get("env_kwargs")})
    plain = {name: facts.get(name) for name in ("env_id", "max_episode_steps")}
    return {"env_spec": spec, "metadata": {name: value for name, value in plain.items() if value is not None}}


def _read_episode(file: Any, name: str, index: int, where: str, facts: Mapping[str, Any], left_out: Paths) -> Episode:
    group, skipped = hdf5.open_group(file, name), {_OBSERVATIONS: left_out}
    nests: dict[str, Any] = {}
    if group is not None:
        nests = {key: hdf5.read_nest(group, key, where, left_out=skipped.get(key, ())) for key in _USED}
    observations, actions = nests.get(_OBSERVATIONS), nests.get(_ACTIONS)
    if actions is None or not tree.flatten(actions):
        raise SourceError(f"{where}' must have {_ACTIONS}, got {', '.join(sorted(nests)) or 'nothing'}")
    if observations is None or not tree.flatten(observations):
        raise SourceError(f"{where}' has no observations ({_OBSERVATIONS}); {_REPLAY}")
    num_rows = len(tree.flatten(actions)[0])
    rewards = nests[_REWARDS] if nests[_REWARDS] is not None else np.zeros(num_rows, np.float32)
    flags = {key: as_flags(nests[key], f"{where}/{key}'") for key in (_TERMINATED, _TRUNCATED, _SUCCESS, _FAIL)
             if nests[key] is not None}  # fmt: skip
    is_terminal, is_truncated = (bool(flags[key][-1:].any()) if key in flags else False
                                 for key in (_TERMINATED, _TRUNCATED))  # fmt: skip
    extras: Any = {key: flags[key] for key in (_SUCCESS, _FAIL) if key in flags}
    episode = make_log_episode(
        f"{where}'", index, observations, actions, rewards=rewards, terminated=is_terminal, extras=extras
    )
    seed, length = facts.get("episode_seed"), facts.get("elapsed_steps")
    episode = replace(
        episode,
        unterminated=not (is_terminal or is_truncated),
        seed=seed if isinstance(seed, int) else None,
        metadata=make_metadata({key: facts[key] for key in _EPISODE_FACTS if key in facts}),
    )
    return add_contradictions(episode, {"length": {"elapsed_steps": length, "the number of actions": num_rows}})


def _is_file(location: Any) -> bool:
    if not isinstance(location, Path) or location.is_dir() or npz.is_npz(location):
        return False
    with hdf5.open_hdf5(location) as file:
        return any(isinstance(name, str) and _TRAJECTORY.fullmatch(name) for name in file)


FILE = Format("a ManiSkill file", _is_file, open_maniskill, (), "ManiSkill")
