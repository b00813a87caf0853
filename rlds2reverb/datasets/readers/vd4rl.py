"""V-D4RL and DrQ-v2: episodes of images in npz files, or all in one HDF5 file.

Format: Lu et al. 2023, arXiv:2206.04779, and Yarats et al. 2021, arXiv:2107.09645. Row `t` contains observation `t` and
the action, reward and discount that led to it, so that row 0 has no transition. DrQ-v2 stores the discount 0 of a
terminal state as 1, so that no episode of its buffers can be recognised as terminal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode

from ..concatenation import concatenate_sources
from ..formats import Format
from ..source import Source, identify_files
from . import hdf5, npz
from .agreement import add_contradictions, require_agreement
from .columns import as_columns, as_flags, make_log_episode, require_equal_lengths

_ACTION, _REWARD, _DISCOUNT, _STEP_TYPE = "action", "reward", "discount", "step_type"
_OBSERVATIONS = ("image", "observation")
_FIRST, _LAST = 0, 2
#: All columns that are read, or that state ends once more.
_USED = {*_OBSERVATIONS, _ACTION, _REWARD, _DISCOUNT, _STEP_TYPE, *fields.FLAG_FIELDS}
_TERMINALS_LOST = "{}: DrQ-v2 stores the discount 0 of terminal states as 1, so that they cannot be recognised"
#: `TIME-ID-LENGTH.npz` of DreamerV2 and `TIME_INDEX_LENGTH.npz` of DrQ-v2.
_FILE_NAME = re.compile(r"\d{8}T\d{6}(?:-[0-9a-f]+|_(?P<index>\d+))[-_](?P<length>\d{1,9})\.npz")


def open_folder(folder: Path) -> Source:
    """Opens a folder of npz files, each of one episode: V-D4RL's 64-pixel data, or a buffer of DrQ-v2.

    The order is that of the names, and of the numbers of episodes in a buffer. Without npz files, the HDF5 files of
    V-D4RL's 84-pixel data in the folder are read one after the other, in the order of the numbers in their names.

    Raises:
      SourceError: If a file is refused (see `npz`), or is missing a column.
    """
    if files := _list_files(folder):
        return _open_episodes(folder.name, files)
    shards = _list_shards(folder)
    source = concatenate_sources(list(map(open_file, shards))) if len(shards) > 1 else open_file(shards[0])
    return identify_files(replace(source, name=folder.name), lambda: shards)


def _open_episodes(name: str, paths: list[Path]) -> Source:
    """Opens npz files, each of one episode."""

    def read(first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        for index in range(len(paths))[first:stop]:
            with npz.open_npz(paths[index]) as arrays:
                where = f"{paths[index].parent.name}/{paths[index].name}"
                if not _has_columns(arrays):
                    raise SourceError(
                        f"{where} must contain {_ACTION}, {_REWARD}, {_DISCOUNT}, and image or observation, got "
                        f"{', '.join(sorted(arrays)[:10]) or 'nothing'}"
                    )
                names = (*_OBSERVATIONS, _ACTION, _REWARD, _DISCOUNT, fields.IS_TERMINAL)
                columns = {key: as_columns(arrays[key].read(), f"{where}: '{key}'") for key in names if key in arrays}
            made, stated = _make_episode(where, index, columns), _FILE_NAME.fullmatch(paths[index].name)
            lengths = (made.num_transitions, made.num_steps)  # DrQ-v2 states the first, and DreamerV2 the second.
            if stated and int(stated["length"]) not in lengths:
                facts = {"the length in the file's name": int(stated["length"]), "it has the rows": lengths[1]}
                made = add_contradictions(made, {"length": facts})
            yield made

    arrays: frozenset[str] = next(filter(_has_columns, map(npz.list_arrays, paths)), frozenset())
    described: dict[str, Any] = {"unread": tuple(sorted(arrays - _USED))}
    described["warnings"] = () if fields.IS_TERMINAL in arrays else (_TERMINALS_LOST.format(name),)
    count = len(paths)
    source = Source(name, "vd4rl", read, num_episodes=count, count=lambda: count, **described)
    return identify_files(source, lambda: paths)


def open_file(path: Path) -> Source:
    """Opens an HDF5 file with all episodes, V-D4RL's 84-pixel data, or an npz file with one of them.

    In HDF5 files, the `step_type` 0 begins an episode, which is `unterminated` unless a 2 ends it.

    Raises:
      SourceError: If the file is refused (see `hdf5`), or columns are missing or differ in length.
    """
    if npz.is_npz(path):
        return _open_episodes(path.name, [path])
    names = (_OBSERVATIONS[1], _ACTION, _REWARD, _DISCOUNT)
    with hdf5.open_hdf5(path) as file:
        columns = {name: _open_column(file, name) for name in (*names, _STEP_TYPE)}
        hdf5.require_safe(columns.values(), f"{path.name}: all columns together")
        require_equal_lengths(path.name, columns)
        step_types = columns[_STEP_TYPE][()].reshape(-1)
        unread = tuple(sorted({*hdf5.list_names(file)} - _USED))
    if step_types[0] != _FIRST:
        raise SourceError(f"{path.name}: step_type must be 0 in the first one of the rows, got {step_types[0]}")
    follows_last = step_types[1:][step_types[:-1] == _LAST]
    require_agreement(path.name, {_STEP_TYPE: {_STEP_TYPE: follows_last, "after a last step, it must be": _FIRST}})
    starts = [*np.flatnonzero(step_types == _FIRST).tolist(), len(step_types)]

    def read(first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        with hdf5.open_hdf5(path) as file:
            for index in range(len(starts) - 1)[first:stop]:
                where = f"{path.name}: rows from {starts[index]:,} (episode {index})"
                rows = slice(*starts[index : index + 2])
                block = {name: as_columns(_open_column(file, name)[rows], f"{where}: '{name}'") for name in names}
                is_unterminated = step_types[starts[index + 1] - 1] != _LAST
                yield _make_episode(where, index, block, is_unterminated=bool(is_unterminated))

    count = len(starts) - 1
    described: dict[str, Any] = {"num_episodes": count, "num_rows": len(step_types), "unread": unread}
    return Source(path.name, "vd4rl", read, count=lambda: count, **described)


def _open_column(file: h5py.File, name: str) -> h5py.Dataset:
    column = hdf5.open_column(file, name)
    if column is None or not column.shape:
        raise SourceError(f"{Path(file.filename).name}: '{name}' is missing, or is not a column")
    return column


def _make_episode(
    where: str, index: int, columns: Mapping[str, np.ndarray], *, is_unterminated: bool = False
) -> Episode:
    """Returns the episode of some rows, whose actions, rewards and discounts belong to the transitions before them."""
    observations = next(columns[name] for name in _OBSERVATIONS if name in columns)
    require_equal_lengths(where, columns)
    rewards, discounts = (columns[name].reshape(len(observations), -1) for name in (_REWARD, _DISCOUNT))
    if rewards.shape[1] != 1 or discounts.shape[1] != 1:
        raise SourceError(f"{where}: rewards and discounts must be one number per row")
    flags = columns.get(fields.IS_TERMINAL)
    is_terminal = discounts[-1] == 0 if flags is None else as_flags(flags, f"{where}: {fields.IS_TERMINAL}")[-1:]
    actions, terminated = columns[_ACTION][1:], bool(is_terminal.any() and len(observations) > 1)
    made = make_log_episode(where, index, observations, actions, rewards=rewards[1:, 0], terminated=terminated)
    made.steps[fields.DISCOUNT][:-1] = discounts[1:, 0]
    return Episode(made.steps, index, unterminated=is_unterminated)


def _has_columns(names: Collection[str]) -> bool:
    return any(name in names for name in _OBSERVATIONS) and all(name in names for name in (_ACTION, _REWARD, _DISCOUNT))


def _list_files(folder: Path) -> list[Path]:
    """Returns the files of episodes in order."""

    def order(path: Path) -> tuple[int, str]:
        match = _FILE_NAME.fullmatch(path.name)
        return int(match["index"] or 0) if match else 0, path.name

    return sorted((path for path in folder.glob("*.npz") if _FILE_NAME.fullmatch(path.name)), key=order)


def _list_shards(folder: Path) -> list[Path]:
    """Returns the HDF5 files of a folder, those with the number 2 before those with 10."""

    def order(path: Path) -> list[tuple[int, str]]:
        return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", path.name)]

    return sorted(folder.glob("*.hdf5"), key=order)


def _is_folder(location: Any) -> bool:
    if not isinstance(location, Path) or not location.is_dir():
        return False
    if files := _list_files(location):
        return any(map(_has_columns, map(npz.list_arrays, files)))  # The first one may be damaged.
    shards = _list_shards(location)
    return bool(shards) and all(map(_is_file, shards))


def _is_file(location: Any) -> bool:
    if not isinstance(location, Path) or not location.is_file():
        return False
    if not h5py.is_hdf5(location):
        return _has_columns(npz.list_arrays(location))
    with hdf5.open_hdf5(location) as file:
        return _STEP_TYPE in file and _has_columns(set(file))


FOLDER = Format("a folder of V-D4RL or DrQ-v2 episodes", _is_folder, open_folder, (), "V-D4RL")
FILE = Format("a V-D4RL file", _is_file, open_file)
