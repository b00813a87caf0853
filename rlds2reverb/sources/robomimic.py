"""robomimic's HDF5 layout: `data/demo_0, demo_1, ...`, each one episode with its own columns.

Format: robomimic v0.1 (Mandlekar et al. 2021, arXiv:2108.03298). `dones[t]` marks success or the end of a
demonstration; the demonstrations end there and none is cut off, so the last row is terminal where `dones` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import Episode, from_transitions

from . import hdf5
from .source import Source, SourceError


def is_robomimic(file: h5py.File) -> bool:
    """Whether an open file has `data/demo_<n>` groups."""
    return bool(_demos(file))


def open_robomimic(path: Path, *, limits: hdf5.Limits = hdf5.Limits()) -> Source:  # noqa: B008
    """A robomimic file of low-dimensional observations as a source; observations are a dict.

    Each episode gets its own final observation from `next_obs`.

    Raises:
      SourceError: if the file is refused (see `hdf5`) or a demonstration lacks a column.
    """
    with hdf5.open_hdf5(path) as file:
        demos = _demos(file)
        num_rows = sum(len(_required(file, f"{demo}/rewards", limits)) for demo in demos)

    def read() -> Iterator[Episode]:
        with hdf5.open_hdf5(path) as file:
            for index, demo in enumerate(demos):
                yield Episode(_steps(file, demo, limits), index)

    return Source(path.name, "robomimic", read, num_episodes=len(demos), num_rows=num_rows)


def _demos(file: h5py.File) -> list[str]:
    data = hdf5.member(file, "data")
    names = [name for name in data or () if name.startswith("demo_") and name[5:].isdigit()]
    return [f"data/{name}" for name in sorted(names, key=lambda name: int(name[5:]))]


def _required(file: h5py.File, name: str, limits: hdf5.Limits) -> h5py.Dataset:
    column = hdf5.column(file, name, limits)
    if column is None:
        raise SourceError(f"{Path(file.filename).name} has no '{name}'")
    return column


def _steps(file: h5py.File, demo: str, limits: hdf5.Limits) -> dict[str, Any]:
    def nest(group: str) -> dict[str, np.ndarray]:
        return {name: _required(file, f"{demo}/{group}/{name}", limits)[:] for name in sorted(file[demo][group])}

    for group in ("obs", "next_obs"):
        if not isinstance(file[demo].get(group, getlink=True), h5py.HardLink):
            raise SourceError(f"{Path(file.filename).name} has no '{demo}/{group}'")
    actions, rewards, dones = (_required(file, f"{demo}/{name}", limits)[:] for name in ("actions", "rewards", "dones"))
    return from_transitions(
        nest("obs"),
        actions,
        rewards=rewards,
        terminated=bool(dones[-1]),
        final_observation={name: column[-1] for name, column in nest("next_obs").items()},
    )
