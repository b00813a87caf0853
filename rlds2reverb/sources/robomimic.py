"""robomimic's HDF5 layout: `data/demo_0, demo_1, ...`, each one episode with its own columns.

Format: robomimic v0.1 (Mandlekar et al. 2021, arXiv:2108.03298). `dones[t]` marks success or the end of a
demonstration; the demonstrations end there and none is cut off, so the last row is terminal where `dones` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError

from . import hdf5
from .columns import as_columns, as_flags, episode_of_log
from .continuity import ContinuityCheck
from .source import Source


def is_robomimic(file: h5py.File) -> bool:
    """Whether an open file has `data/demo_<n>` groups."""
    return bool(_demos(file))


def open_robomimic(path: Path, *, limits: hdf5.Limits = hdf5.Limits()) -> Source:  # noqa: B008
    """Opens a robomimic file of low-dimensional observations; observations are a dict.

    Each episode gets its own final observation from `next_obs`.

    Raises:
      SourceError: if the file is refused (see `hdf5`) or a demonstration lacks a column.
    """
    with hdf5.open_hdf5(path) as file:
        demos = _demos(file)
        num_rows = sum(len(_column(file, f"{demo}/rewards", limits)) for demo in demos)

    def read() -> Iterator[Episode]:
        check = ContinuityCheck(path.name, num_rows, "copy or download the file again")
        with hdf5.open_hdf5(path) as file:
            for index, demo in enumerate(demos):
                episode = _episode(file, demo, index, limits)
                check.add(episode, episode.num_transitions)
                yield episode

    return Source(path.name, "robomimic", read, num_episodes=len(demos), num_rows=num_rows)


def _demos(file: h5py.File) -> list[str]:
    data = hdf5.member(file, "data")
    if not isinstance(data, h5py.Group):
        return []
    names = [name for name in hdf5.names(data) if name.startswith("demo_") and name[5:].isdecimal() and name.isascii()]
    return [f"data/{name}" for name in sorted(names, key=lambda name: int(name[5:]))]


def _column(file: h5py.File, name: str, limits: hdf5.Limits) -> np.ndarray:
    where = f"{Path(file.filename).name}: '{name}'"
    dataset = hdf5.column(file, name, limits)
    if dataset is None:
        raise SourceError(f"{where} is missing")
    return as_columns(dataset[()], where)


def _nest(file: h5py.File, name: str, limits: hdf5.Limits) -> dict[str, np.ndarray]:
    demo, _, group = name.rpartition("/")
    node = hdf5.member(file[demo], group)
    if not isinstance(node, h5py.Group):
        raise SourceError(f"{Path(file.filename).name}: '{name}' is missing, or is not a group of columns")
    return {key: _column(file, f"{name}/{key}", limits) for key in sorted(hdf5.names(node))}


def _episode(file: h5py.File, demo: str, index: int, limits: hdf5.Limits) -> Episode:
    where = f"{Path(file.filename).name}: '{demo}'"
    actions, rewards, dones = (_column(file, f"{demo}/{name}", limits) for name in ("actions", "rewards", "dones"))
    observations, following = _nest(file, f"{demo}/obs", limits), _nest(file, f"{demo}/next_obs", limits)
    lengths = {len(column) for column in (actions, rewards, dones, *observations.values(), *following.values())}
    if len(lengths) != 1 or not len(rewards):
        raise SourceError(f"{where} has columns of {sorted(lengths)} rows; expected one length above 0")
    if observations.keys() != following.keys():
        different = ", ".join(sorted(observations.keys() ^ following.keys()))
        raise SourceError(f"{where}: obs and next_obs differ in their columns: {different}")
    return episode_of_log(
        where,
        index,
        observations,
        actions,
        rewards=rewards,
        terminated=bool(as_flags(dones, f"{where}: dones")[-1]),
        next_observations=following,
    )
