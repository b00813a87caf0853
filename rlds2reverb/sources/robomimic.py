"""robomimic's HDF5 format: groups `data/demo_0, demo_1, ...`, each with the columns of one episode.

Format: robomimic v0.1 (Mandlekar et al. 2021, arXiv:2108.03298). `dones[t]` marks success or the end of a
demonstration. No demonstration is truncated, so that an episode is terminal if `dones` is set in its last row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError

from . import hdf5
from .columns import as_columns, as_flags, make_log_episode
from .continuity import ContinuityCheck
from .formats import Format
from .source import Source


def is_robomimic(location: Any) -> bool:
    """Returns whether a location is a file with `data/demo_<n>` groups."""
    if not isinstance(location, Path) or location.is_dir():
        return False
    with hdf5.open_hdf5(location) as file:
        return bool(_list_demos(file))


def open_robomimic(path: Path, *, split: str | None = None) -> Source:
    """Opens a robomimic file of low-dimensional observations, which become dicts.

    The final observation of each episode is the last row of `next_obs`.

    Args:
      path: the file.
      split: filter key: only the demonstrations that `mask/<split>` lists are read; None for all.

    Raises:
      SourceError: If the file is refused (see `hdf5`), a demonstration is missing a column, or there is no such split.
    """
    with hdf5.open_hdf5(path) as file:
        demos = _list_demos(file) if split is None else _select_demos(file, split)
        num_rows = sum(len(_read_column(file, f"{demo}/rewards")) for demo in demos)

    def read(first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        check = ContinuityCheck(path.name, num_rows, "copy or download the file again")
        with hdf5.open_hdf5(path) as file:
            for index in range(len(demos))[first:stop]:
                episode = _read_episode(file, demos[index], index)
                check.add(episode)
                yield episode

    num_episodes = len(demos)
    return Source(
        path.name, "robomimic", read, num_episodes=num_episodes, num_rows=num_rows, count=lambda: num_episodes
    )


def _list_demos(file: h5py.File) -> list[str]:
    data = hdf5.open_member(file, "data")
    if not isinstance(data, h5py.Group):
        return []
    names = hdf5.list_names(data)
    demos = [name for name in names if name.startswith("demo_") and name[5:].isdecimal() and name.isascii()]
    return [f"data/{name}" for name in sorted(demos, key=lambda name: int(name[5:]))]


def _select_demos(file: h5py.File, split: str) -> list[str]:
    """Returns the demonstrations that a filter key lists, in the order of the file."""
    where = f"{Path(file.filename).name}: 'mask/{split}'"
    masks = hdf5.open_member(file, "mask")
    keys = hdf5.list_names(masks) if isinstance(masks, h5py.Group) else []
    if split not in keys:
        raise SourceError(f"{where} does not exist; use one of: {', '.join(keys) or '(the file has no splits)'}")
    mask = hdf5.open_member(masks, split)
    if not isinstance(mask, h5py.Dataset) or mask.dtype.kind not in "SO" or len(mask.shape or ()) != 1:
        raise SourceError(f"{where} must be a list of names of demonstrations")
    hdf5.require_safe([mask], where)
    names = {name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in mask[()]}
    demos = [demo for demo in _list_demos(file) if demo.removeprefix("data/") in names]
    if not demos or len(demos) < len(names):
        raise SourceError(f"{where} must list demonstrations of the file, got {sorted(names)[:5]}; fix the split")
    return demos


def _read_column(file: h5py.File, name: str) -> np.ndarray:
    where = f"{Path(file.filename).name}: '{name}'"
    dataset = hdf5.open_column(file, name)
    if dataset is None:
        raise SourceError(f"{where} is missing")
    return as_columns(dataset[()], where)


def _read_nest(file: h5py.File, demo: str, name: str) -> dict[str, np.ndarray]:
    group = hdf5.open_member(file[demo], name)
    if not isinstance(group, h5py.Group):
        raise SourceError(f"{Path(file.filename).name}: '{demo}/{name}' is missing, or is not a group of columns")
    return {key: _read_column(file, f"{demo}/{name}/{key}") for key in sorted(hdf5.list_names(group))}


def _read_episode(file: h5py.File, demo: str, index: int) -> Episode:
    where = f"{Path(file.filename).name}: '{demo}'"
    actions, rewards, dones = (_read_column(file, f"{demo}/{name}") for name in ("actions", "rewards", "dones"))
    observations, next_observations = (_read_nest(file, demo, name) for name in ("obs", "next_obs"))
    columns = (actions, rewards, dones, *observations.values(), *next_observations.values())
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or not len(rewards):
        raise SourceError(f"{where}: all columns must have the same number of rows >= 1, got {sorted(lengths)}")
    if observations.keys() != next_observations.keys():
        different = ", ".join(sorted(observations.keys() ^ next_observations.keys()))
        raise SourceError(f"{where}: obs and next_obs must have the same columns; they differ in {different}")
    return make_log_episode(
        where,
        index,
        observations,
        actions,
        rewards=rewards,
        terminated=bool(as_flags(dones, f"{where}: dones")[-1]),
        next_observations=next_observations,
    )


FILE = Format("a robomimic file", is_robomimic, open_robomimic, ("split",), "robomimic")
