"""Minari datasets, read with the `minari` package (the extra `[minari]`)."""

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
from .columns import as_columns, as_flags, make_log_episode
from .source import Source

_NAME = re.compile(r"([A-Za-z0-9_\-]{1,100}/){0,4}[A-Za-z0-9_\-]{1,100}-v\d{1,6}")


def is_minari_name(name: str) -> bool:
    """Returns whether a name has Minari's form, `namespace/name-v0`."""
    return bool(_NAME.fullmatch(name))


def _dataset_path(name: str) -> Path:
    """Returns the directory of a dataset in Minari's own root, whether or not it exists."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return (Path(root) if root else Path.home() / ".minari" / "datasets") / name


def is_installed(name: str) -> bool:
    """Returns whether a dataset of this name is in Minari's own root on this machine."""
    return (_dataset_path(name) / "data").is_dir()


def open_minari(location: str | Path, *, download: bool = False) -> Source:
    """Opens a Minari dataset by its directory, or by its name in Minari's own root (`MINARI_DATASETS_PATH`).

    Each episode keeps its own final observation. A termination is terminal, a truncation is not. Observations and
    actions may be dicts or tuples. Minari's `infos` are ignored. The description of the environment is kept as
    `Source.env_spec`, and nothing that it names is imported.

    Args:
      location: a directory (`Path`) or a name (str).
      download: whether Minari may download a named dataset that is not on this machine.

    Raises:
      SourceError: If `minari`, or for a download `huggingface_hub`, is not installed; if the dataset is damaged or
        refers to other files.
      FileNotFoundError: If a named dataset is missing and may not, or cannot, be downloaded.
    """
    if isinstance(location, str) and not download and not is_installed(location):
        raise FileNotFoundError(
            f"there is no path {location!r}, and Minari has no dataset of that name in {_dataset_path('.')}; pass "
            "download=True to download it"
        )
    try:
        import minari
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise SourceError(
            "Minari datasets require the minari package: run pip install '.[minari]' in the checkout"
        ) from error
    directory = location if isinstance(location, Path) else _download_if_missing(location)
    metadata = _read_metadata(directory)
    num_groups = sum(_check_file(file) for file in sorted((directory / "data").glob("*.hdf5")))
    if metadata["data_format"] == "hdf5" and num_groups != metadata["total_episodes"]:
        raise SourceError(
            f"{directory} contains {num_groups} episodes, but its metadata.json says {metadata['total_episodes']}; "
            "copy or download it again"
        )
    try:
        storage = MinariStorage.read(directory / "data")
    except Exception as error:  # minari raises AssertionError and lets through any error of its parsers.
        raise SourceError(f"{directory} cannot be opened by minari: {type(error).__name__}: {error}") from error
    name, version = str(metadata.get("dataset_id", directory.name)), metadata.get("minari_version")
    warnings: tuple[str, ...] = ()
    if version not in minari.supported_dataset_versions:
        warnings = (f"{name} was written by Minari {version}, which minari {minari.__version__} does not list",)
    return Source(
        name,
        "minari",
        lambda: _read_episodes(directory, storage, metadata["total_episodes"]),
        num_episodes=metadata["total_episodes"],
        num_rows=metadata["total_steps"],
        warnings=warnings,
        env_spec=metadata.get("env_spec"),
        action_space=storage.action_space,
    )


def _read_metadata(directory: Path) -> dict[str, Any]:
    """Returns metadata.json after checking the required fields.

    The spaces are required because minari would otherwise build the environment and import what `env_spec` names.
    """
    path = directory / "data" / "metadata.json"
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read as JSON ({error}); copy or download it again") from error
    if not isinstance(metadata, dict):
        raise SourceError(f"{path} must contain a JSON object; copy or download it again")
    for key in ("observation_space", "action_space", "data_format"):
        if not isinstance(metadata.get(key), str):
            raise SourceError(f"{path}: {key} must be a string, got {metadata.get(key)!r}")
    if not isinstance(metadata.get("env_spec"), (str, type(None))):
        raise SourceError(f"{path}: env_spec must be a string, got {metadata['env_spec']!r}")
    for key in ("total_episodes", "total_steps"):
        value = metadata.get(key)
        if type(value) is not int or value < 0:
            raise SourceError(f"{path}: {key} must be an integer >= 0, got {value!r}")
    return metadata


def _download_if_missing(name: str) -> Path:
    import minari

    if not is_installed(name):
        try:
            with contextlib.redirect_stdout(sys.stderr):
                minari.download_dataset(name)
        except ImportError as error:
            raise SourceError(
                "Minari's downloads require huggingface_hub: run pip install '.[minari]' in the checkout, or download "
                "the dataset elsewhere and pass its directory"
            ) from error
        except Exception as error:  # The hub has no common type for network failures and unknown datasets.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FileNotFoundError(
                f"Minari cannot download {name!r} to {_dataset_path(name)} ({reason}); check the name and the network"
            ) from error
    return _dataset_path(name)


def _read_episodes(directory: Path, storage: Any, num_episodes: int) -> Iterator[Episode]:
    episodes: Iterator[dict[str, Any]] = iter(())
    for index in range(num_episodes):
        try:
            if not index:
                episodes = iter(storage.get_episodes(range(num_episodes)))
            episode = next(episodes)
        except Exception as error:  # minari raises AssertionError and lets through any error of numpy and h5py.
            raise SourceError(f"{directory} is damaged at episode {index}: {type(error).__name__}: {error}") from error
        yield _make_episode(episode, index, f"{directory.name}: episode {index}")


def _make_episode(episode: dict[str, Any], index: int, where: str) -> Episode:
    columns = {
        name: as_columns(episode[name], f"{where}['{name}']")
        for name in ("rewards", "terminations", "observations", "actions")
    }
    terminations = as_flags(columns["terminations"], f"{where}['terminations']")
    if terminations[:-1].any():
        raise SourceError(f"{where} continues after terminations[{int(np.argmax(terminations))}] is True")
    return make_log_episode(
        where,
        index,
        columns["observations"],
        columns["actions"],
        rewards=columns["rewards"],
        terminated=bool(terminations.any()),
    )


def _check_file(path: Path) -> int:
    """Checks every object that minari will open in a file, and returns the number of episodes."""
    with hdf5.open_hdf5(path) as file:
        groups: list[h5py.Group] = [file]
        visited = set()
        datasets = []
        while groups:
            group = groups.pop()
            address = h5py.h5o.get_info(group.id).addr
            if address in visited:
                raise SourceError(f"{path.name}: '{group.name}' has several paths; a group must have a single path")
            visited.add(address)
            for name in hdf5.list_names(group):
                member = hdf5.open_member(group, name)
                if isinstance(member, h5py.Dataset):
                    where = f"{path.name}: '{member.name}'"
                    hdf5.require_own_data(member, where)
                    hdf5.require_within_limits([member], where, hdf5.Limits())
                    datasets.append(member)
                elif isinstance(member, h5py.Group):
                    groups.append(member)
        hdf5.require_within_limits(datasets, f"{path.name}: all columns together", hdf5.Limits())
        return sum(name.startswith("episode_") for name in hdf5.list_names(file))
