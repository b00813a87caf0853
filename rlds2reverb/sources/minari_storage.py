"""Minari data sets, through the `minari` package (the extra `[minari]`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tree

from rlds2reverb.episodes import Episode, from_transitions

from . import hdf5
from .source import Source, SourceError

_IDENTIFIER = re.compile(r"([A-Za-z0-9_\-]{1,100}/){0,4}[A-Za-z0-9_\-]{1,100}-v\d{1,6}")


def is_identifier(name: str) -> bool:
    """Whether a name is of Minari's form: `namespace/name-v0`."""
    return bool(_IDENTIFIER.fullmatch(name))


def open_minari(location: str | Path) -> Source:
    """A Minari data set as a source: its directory, or its name in Minari's own root (`MINARI_DATASETS_PATH`).

    A name that is not there is downloaded by Minari. Each episode has its own final observation; a termination is
    terminal, a truncation is not. Observations and actions may be dicts or tuples. Minari's `infos` are left out.

    Raises:
      SourceError: if `minari` is not installed, or the data set is damaged or reaches into other files.
      FileNotFoundError: if a name can be neither found nor downloaded.
    """
    try:
        import minari
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise SourceError("Minari data sets need the minari package: pip install 'rlds2reverb[minari]'") from error
    directory = location if isinstance(location, Path) else _installed(location)
    for file in sorted((directory / "data").glob("*.hdf5")):
        _require_plain_file(file)
    try:
        storage = MinariStorage.read(directory / "data")
    except Exception as error:  # minari asserts, or raises whatever its parsers raise; the files are what is wrong
        raise SourceError(f"{directory} cannot be opened by minari: {type(error).__name__}: {error}") from error
    metadata = storage.metadata
    name, version = str(metadata.get("dataset_id", directory.name)), metadata.get("minari_version")
    warnings: tuple[str, ...] = ()
    if version not in minari.supported_dataset_versions:
        warnings = (
            f"{name} was written by Minari {version}, which minari {minari.__version__} does not list; read anyway",
        )
    return Source(
        name,
        "minari",
        lambda: _episodes(directory, storage),
        num_episodes=int(storage.total_episodes),
        num_rows=int(storage.total_steps),
        warnings=warnings,
    )


def _installed(name: str) -> Path:
    import minari
    from minari.storage.datasets_root_dir import get_dataset_path

    directory = get_dataset_path(name)
    if not (directory / "data").is_dir():
        try:
            minari.download_dataset(name)
        except Exception as error:  # no network, no such data set: the hub has no common type for them
            raise FileNotFoundError(
                f"Minari's {name!r} is neither in {directory} nor to be downloaded ({error}); "
                "check the name, MINARI_DATASETS_PATH and the network"
            ) from error
    return directory


def _episodes(directory: Path, storage: Any) -> Iterator[Episode]:
    try:
        for index, episode in enumerate(storage.get_episodes(range(storage.total_episodes))):
            observations, actions = tree.map_structure(np.asarray, (episode["observations"], episode["actions"]))
            rewards, terminations = (np.asarray(episode[name]) for name in ("rewards", "terminations"))
            terminated = bool(len(terminations) and terminations[-1])
            yield Episode(from_transitions(observations, actions, rewards=rewards, terminated=terminated), index)
    except (OSError, KeyError, AssertionError) as error:
        raise SourceError(f"{directory} is damaged: {type(error).__name__}: {error}") from error


def _require_plain_file(path: Path) -> None:
    """Refuses links anywhere in a file of Minari's, since minari opens every group it finds."""
    with hdf5.open_hdf5(path) as file:
        pending: list[h5py.Group] = [file]
        while pending:
            group = pending.pop()
            members = [hdf5.member(group, name) for name in group]
            for dataset in (member for member in members if isinstance(member, h5py.Dataset)):
                hdf5.require_own_data(dataset, f"{path.name}: '{dataset.name}'")
            pending += [member for member in members if isinstance(member, h5py.Group)]
