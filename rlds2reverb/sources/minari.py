"""Minari data sets, through the `minari` package (the extra `[minari]`)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError

from . import hdf5
from .columns import as_columns, as_flags, episode_of_log
from .source import Source

_IDENTIFIER = re.compile(r"([A-Za-z0-9_\-]{1,100}/){0,4}[A-Za-z0-9_\-]{1,100}-v\d{1,6}")


def is_identifier(name: str) -> bool:
    """Whether a name is of Minari's form: `namespace/name-v0`."""
    return bool(_IDENTIFIER.fullmatch(name))


def _path_of(name: str) -> Path:
    """Returns the directory where Minari keeps, or would keep, a data set."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return (Path(root) if root else Path.home() / ".minari" / "datasets") / name


def is_installed(name: str) -> bool:
    """Whether a data set of this name is in Minari's own root on this machine."""
    return (_path_of(name) / "data").is_dir()


def open_minari(location: str | Path, *, download: bool = False) -> Source:
    """Opens a Minari data set: its directory, or its name in Minari's own root (`MINARI_DATASETS_PATH`).

    Each episode has its own final observation; a termination is
    terminal, a truncation is not. Observations and actions may be dicts or tuples. Minari's `infos` are left out.

    Args:
      location: the directory, or the name.
      download: whether Minari downloads a name that is not there.

    Raises:
      SourceError: if `minari` is not installed, or for a download `huggingface_hub`; or if the data set is damaged or
        reaches into other files.
      FileNotFoundError: if a name is not there and may not, or cannot, be downloaded.
    """
    if isinstance(location, str) and not download and not is_installed(location):
        raise FileNotFoundError(
            f"there is no path {location!r}, and Minari has no data set of that name in {_path_of('.')}; to download "
            "it give download=True (on the command line --download)"
        )
    try:
        import minari
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise SourceError(
            "Minari data sets need the minari package: run pip install '.[minari]' in the checkout"
        ) from error
    directory = location if isinstance(location, Path) else _installed(location)
    metadata = _checked_metadata(directory)
    groups = [_checked_file(file) for file in sorted((directory / "data").glob("*.hdf5"))]
    if metadata["data_format"] == "hdf5" and sum(groups) != metadata["total_episodes"]:
        raise SourceError(
            f"{directory} holds {sum(groups)} episodes, its metadata.json says {metadata['total_episodes']}; "
            "copy or download it again"
        )
    try:
        storage = MinariStorage.read(directory / "data")
    except Exception as error:  # minari asserts, or raises whatever its parsers raise; the files are what is wrong
        raise SourceError(f"{directory} cannot be opened by minari: {type(error).__name__}: {error}") from error
    name, version = str(metadata.get("dataset_id", directory.name)), metadata.get("minari_version")
    warnings: tuple[str, ...] = ()
    if version not in minari.supported_dataset_versions:
        warnings = (f"{name} was written by Minari {version}, which minari {minari.__version__} does not list",)
    return Source(
        name,
        "minari",
        lambda: _episodes(directory, storage, metadata["total_episodes"]),
        num_episodes=metadata["total_episodes"],
        num_rows=metadata["total_steps"],
        warnings=warnings,
    )


def _checked_metadata(directory: Path) -> dict[str, Any]:
    """Returns metadata.json if it has the fields that we and minari need.

    Without the spaces minari would import what `env_spec` names.
    """
    path = directory / "data" / "metadata.json"
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read as JSON ({error}); copy or download it again") from error
    if not isinstance(metadata, dict):
        raise SourceError(f"{path} does not hold a JSON object; copy or download it again")
    for key in ("observation_space", "action_space", "data_format"):
        if not isinstance(metadata.get(key), str):
            raise SourceError(f"{path}: {key} is {metadata.get(key)!r}, expected a string")
    for key in ("total_episodes", "total_steps"):
        value = metadata.get(key)
        if type(value) is not int or value < 0:
            raise SourceError(f"{path}: {key} is {value!r}, expected a count")
    return metadata


def _installed(name: str) -> Path:
    import minari

    if not is_installed(name):
        try:
            with contextlib.redirect_stdout(sys.stderr):
                minari.download_dataset(name)
        except ImportError as error:
            raise SourceError(
                "Minari's downloads need huggingface_hub: run pip install '.[minari]' in the checkout, or download "
                "elsewhere and give the directory"
            ) from error
        except Exception as error:  # no network, no such data set: the hub has no common type for them
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FileNotFoundError(
                f"Minari cannot download {name!r} to {_path_of(name)} ({reason}); check the name and the network"
            ) from error
    return _path_of(name)


def _episodes(directory: Path, storage: Any, num_episodes: int) -> Iterator[Episode]:
    episodes: Iterator[dict[str, Any]] = iter(())
    for index in range(num_episodes):
        try:
            if not index:
                episodes = iter(storage.get_episodes(range(num_episodes)))
            episode = next(episodes)
        except Exception as error:  # minari asserts, or raises whatever numpy and h5py raise
            raise SourceError(f"{directory} is damaged at episode {index}: {type(error).__name__}: {error}") from error
        yield _episode(episode, index, f"{directory.name}: episode {index}")


def _episode(episode: dict[str, Any], index: int, where: str) -> Episode:
    rewards, ends = (as_columns(episode[name], f"{where}['{name}']") for name in ("rewards", "terminations"))
    terminations = as_flags(ends, f"{where}['terminations']")
    if terminations[:-1].any():
        raise SourceError(f"{where} continues after terminations[{int(np.argmax(terminations))}] is True")
    return episode_of_log(
        where,
        index,
        as_columns(episode["observations"], f"{where}['observations']"),
        as_columns(episode["actions"], f"{where}['actions']"),
        rewards=rewards,
        terminated=bool(terminations.any()),
    )


def _checked_file(path: Path) -> int:
    """Checks everything that minari will open in a file, and returns the number of its episodes."""
    with hdf5.open_hdf5(path) as file:
        groups: list[h5py.Group] = [file]
        seen = set()
        datasets = []
        while groups:
            group = groups.pop()
            address = h5py.h5o.get_info(group.id).addr
            if address in seen:
                raise SourceError(f"{path.name}: '{group.name}' is reached in two ways; groups may not form a circle")
            seen.add(address)
            for name in hdf5.names(group):
                member = hdf5.member(group, name)
                if isinstance(member, h5py.Dataset):
                    where = f"{path.name}: '{member.name}'"
                    hdf5.require_own_data(member, where)
                    hdf5.require_within([member], where, hdf5.Limits())
                    datasets.append(member)
                elif isinstance(member, h5py.Group):
                    groups.append(member)
        hdf5.require_within(datasets, f"{path.name}: all columns together", hdf5.Limits())
        return sum(name.startswith("episode_") for name in hdf5.names(file))
