"""Minari datasets, read with the `minari` package (the extra `[minari]`)."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.system.installation import install_command
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import map_structure

from ..formats import Format
from ..source import Source, identify_files
from ..steps.image_files import decode_image
from ..writers.minari_spaces import is_unbounded
from . import hdf5
from .agreement import add_contradictions, require_agreement
from .columns import ColumnReader, Paths, as_columns, as_flags, make_log_episode
from .d4rl import require_new_names
from .episode_metadata import make_metadata
from .json_files import read_json

#: The metadata that describe the files; all others describe the data.
RESERVED = frozenset(
    {
        *("total_episodes", "total_steps", "data_format", "observation_space", "action_space", "env_spec"),
        *("dataset_size", "dataset_id", "minari_version", "jpeg_encoding", "combined_datasets", "requirements"),
        *("eval_env_spec", "ref_min_score", "ref_max_score", "num_episodes_average_score"),
    }
)
#: The metadata of an episode that Minari itself uses.
RESERVED_OF_EPISODES = frozenset(["id", "total_steps", "seed", "unknown_final_observation"])
_NAME = re.compile(r"([A-Za-z0-9_\-]{1,100}/){0,4}[A-Za-z0-9_\-]{1,100}-v\d{1,6}")


def is_minari_name(location: Any) -> bool:
    """Returns whether a location is a name of Minari's form, `namespace/name-v0`."""
    return isinstance(location, str) and bool(_NAME.fullmatch(location))


def dataset_root() -> Path:
    """Returns the directory in which Minari looks up names, whether or not it exists."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def is_installed(name: str) -> bool:
    """Returns whether a dataset of this name is in Minari's own root on this machine."""
    return (dataset_root() / name / "data").is_dir()


def open_minari(
    location: str | Path,
    *,
    extra_fields: Sequence[str] = (),
    download: bool = False,
    indices: Sequence[int] | None = None,
) -> Source:
    """Opens a Minari dataset by its directory, or by its name in Minari's own root (`MINARI_DATASETS_PATH`).

    Each episode keeps its own final observation. A termination is terminal, a truncation is not; an episode without
    either is `unterminated`. Observations and actions may be dicts or tuples. Strings become bytes. The description of
    the environment is kept as `Source.env_spec`, and nothing that it names is imported.

    Args:
      location: a directory (`Path`) or a name (str).
      extra_fields: names of `infos` to read as additional step fields.
      download: whether Minari may download a named dataset that is not on this machine.
      indices: indices of the episodes to read; None for all.

    Raises:
      SourceError: If `minari`, or for a download `huggingface_hub`, is not installed; if the dataset is damaged or
        refers to other files.
      FileNotFoundError: If a named dataset is missing and may not, or cannot, be downloaded.
    """
    if isinstance(location, str) and not download and not is_installed(location):
        sentence = f"there is no path {location!r}, and Minari has no dataset of that name in {dataset_root()}"
        raise FileNotFoundError(Message(f"{sentence}; allow the download", download=True))
    try:
        import minari
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise SourceError(
            f"Minari datasets require the minari package ({error}); run {install_command('minari')}"
        ) from error
    directory = location if isinstance(location, Path) else _download_if_missing(location)
    metadata = _read_metadata(directory)
    lengths = [length for file in sorted((directory / "data").glob("*.hdf5")) for length in _check_file(file)]
    if metadata["data_format"] == "hdf5":
        totals = {"total_episodes": len(lengths), "total_steps": None if None in lengths else sum(lengths)}
        facts = {key: {f"{key} in metadata.json": metadata[key], "in the files": n} for key, n in totals.items()}
        require_agreement(str(directory), facts)
    try:
        storage = MinariStorage.read(directory / "data")
    except Exception as error:  # minari raises AssertionError and lets through any error of its parsers.
        raise SourceError(f"{directory} cannot be opened by minari: {type(error).__name__}: {error}") from error
    name, version = str(metadata.get("dataset_id", directory.name)), metadata.get("minari_version")
    warnings: tuple[str, ...] = ()
    if version not in minari.supported_dataset_versions:
        warnings = (f"{name} was written by Minari {version}, which minari {minari.__version__} does not list",)
    require_new_names(extra_fields, name)
    total, unread = (
        metadata["total_episodes"],
        tuple(name for name in _list_infos(directory) if name not in extra_fields),
    )
    selected = range(total) if indices is None else indices

    def read(left_out: Paths, first: int, stop: int | None) -> Iterator[Episode]:
        space = _leave_out(storage.observation_space, left_out)
        kept = type(storage)(storage.data_path, space, storage.action_space) if left_out else storage
        return _read_episodes(directory, kept, selected[first:stop], tuple(extra_fields), first)

    source = Source(
        name,
        "minari",
        ColumnReader(read, lambda: _list_paths(storage.observation_space)).read,
        count=lambda: len(selected),
        num_episodes=len(selected),
        num_rows=metadata["total_steps"] if len(selected) == total else None,
        warnings=warnings,
        unread=tuple(f"infos/{name}" for name in unread),
        metadata={key: value for key, value in metadata.items() if key not in RESERVED and _is_plain(value)},
        env_spec=metadata.get("env_spec"),
        action_space=None if is_unbounded(storage.action_space) else storage.action_space,
        observation_space=None if is_unbounded(storage.observation_space) else storage.observation_space,
    )
    return identify_files(source, lambda: filter(Path.is_file, (directory / "data").rglob("*")))


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, (str, bool, int, float)) for item in items)


def _read_metadata(directory: Path) -> dict[str, Any]:
    """Returns metadata.json after checking the required fields.

    The spaces are required because minari would otherwise build the environment and import what `env_spec` names.
    """
    path = directory / "data" / "metadata.json"
    metadata = read_json(path)
    if not isinstance(metadata, dict):
        raise SourceError(f"{path} must contain a JSON object; copy or download it again")
    for key in ("observation_space", "action_space", "data_format"):
        if not isinstance(metadata.get(key), str):
            raise SourceError(f"{path}: {key} must be a string, got {metadata.get(key)!r}")
    for key in ("env_spec", "minari_version"):
        if not isinstance(metadata.get(key), (str, type(None))):
            raise SourceError(f"{path}: {key} must be a string, got {metadata[key]!r}")
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
                f"Minari's downloads require huggingface_hub ({error}); run {install_command('minari')}, or download "
                "the dataset elsewhere and pass its directory"
            ) from error
        except Exception as error:  # The hub has no common type for network failures and unknown datasets.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FileNotFoundError(
                f"Minari cannot download {name!r} to {dataset_root() / name} ({reason}); check the name and the network"
            ) from error
    return dataset_root() / name


def _read_episodes(
    directory: Path, storage: Any, indices: Sequence[int], extra_fields: Sequence[str], first: int
) -> Iterator[Episode]:
    """Yields the episodes with these indices in the files, numbered from `first`."""
    episodes: Iterator[tuple[dict[str, Any], dict[str, Any]]] | None = None
    for index in range(first, first + len(indices)):
        try:
            if episodes is None:
                loaded = _load_episodes(storage, indices, extra_fields)
                episodes = zip(loaded, storage.get_episode_metadata(indices), strict=True)
            episode, metadata = next(episodes)
        except Exception as error:  # minari raises AssertionError and lets through any error of numpy and h5py.
            reason = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
            raise SourceError(f"{directory} is damaged at episode {index}: {reason}") from error
        where = f"{directory.name}: episode {index}"
        extras = {name: _select_info(episode["infos"], name, where) for name in extra_fields}
        seed = metadata.get("seed")
        made = _make_episode(episode, extras, index, where, is_copied=bool(metadata.get("unknown_final_observation")))
        stated = {"total_steps": metadata.get("total_steps"), "the number of rewards": len(episode["rewards"])}
        made = replace(
            made, seed=None if seed is None else int(seed), metadata=make_metadata(metadata, RESERVED_OF_EPISODES)
        )
        yield add_contradictions(made, {"length": stated})


def _load_episodes(storage: Any, indices: Sequence[int], extra_fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields what `storage.get_episodes` does, one by one; from HDF5 files, only what is needed is read."""
    if storage.FORMAT != "hdf5":
        for index in indices:  # Arrow would open all of them before the first one.
            yield from storage.get_episodes([index])
        return
    with hdf5.open_hdf5(storage.data_path / "main_data.hdf5") as file:
        for index in indices:
            group = file[f"episode_{index}"]
            infos = group.get("infos", {})
            yield {
                "infos": {name: _load(infos, name, None) if name in extra_fields else None for name in infos},
                "observations": _load(group, "observations", storage.observation_space),
                "actions": _load(group, "actions", storage.action_space),
                **{name: _load(group, name, None) for name in ("rewards", "terminations", "truncations")},
            }


def _load(group: Any, name: str, space: Any) -> Any:
    """Returns a column of a group, or a nest of columns like the space, if there is one."""
    from gymnasium import spaces
    from minari.dataset.minari_storage import is_image_space

    member = group[name]  # `_check_file` has found no link.
    if isinstance(space, spaces.Tuple):
        return tuple(_load(member, f"_index_{place}", part) for place, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: _load(member, key, part) for key, part in space.spaces.items()}
    if isinstance(member, h5py.Group):
        return {key: _load(member, key, None) for key in member}
    where = f"'{member.name.strip('/')}'"
    hdf5.require_complete(member, where)
    if space is None or not is_image_space(space):
        return member[()]
    try:
        images = np.stack([decode_image(bytes(file)) for file in member[()]])
    except ValueError as error:
        raise SourceError(f"{where}: {error}; copy or download it again, or leave it out", DropFields=...) from error
    return images[..., 0] if len(space.shape) == 2 else images


def _leave_out(space: Any, left_out: Paths) -> Any:
    """Returns a space without some parts of nested dicts, nor dicts that become empty."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return space
    inner = {name: frozenset(path[1:] for path in left_out if path[0] == name) for name in space.spaces}
    parts = {name: _leave_out(part, inner[name]) for name, part in space.items() if (name,) not in left_out}
    return spaces.Dict({name: part for name, part in parts.items() if part != spaces.Dict()})


def _list_paths(space: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of the columns in nested dicts of spaces; a tuple is one column."""
    from gymnasium import spaces

    for name, part in space.items() if isinstance(space, spaces.Dict) else ():
        yield from _list_paths(part, (*above, name)) if isinstance(part, spaces.Dict) else [(*above, name)]


def _select_info(infos: Any, name: str, where: str) -> Any:
    if not isinstance(infos, dict) or name not in infos:
        known = sorted(infos) if isinstance(infos, dict) else []
        raise SourceError(f"{where} has no infos named {name!r}, but {known or 'none'}; fix the name", extra_fields=...)
    return _as_columns(infos[name], f"{where}['infos'][{name!r}]")


def _as_columns(nest: Any, where: str) -> Any:
    """Returns validated columns, with strings as bytes, as TFDS returns them."""

    def encode(column: np.ndarray) -> np.ndarray:
        if column.dtype != object:
            return column
        texts = [text.encode() if isinstance(text, str) else text for text in column.reshape(-1)]
        return np.array(texts, object).reshape(column.shape)

    return map_structure(encode, as_columns(nest, where))


def _make_episode(
    episode: dict[str, Any], extras: dict[str, Any], index: int, where: str, *, is_copied: bool
) -> Episode:
    """Returns an episode, without its final observation if that is a copy that rlds2reverb has written."""
    names = ("rewards", "terminations", "truncations", "observations", "actions")
    rewards, *flags, observations, actions = (_as_columns(episode[name], f"{where}['{name}']") for name in names)
    if is_copied:
        observations = map_structure(lambda rows: rows[:-1], observations)
    terminations = as_flags(flags[0], f"{where}['terminations']")
    if terminations[:-1].any():
        raise SourceError(f"{where} continues after terminations[{int(np.argmax(terminations))}] is True")
    truncations = as_flags(flags[1], f"{where}['truncations']")
    made = make_log_episode(where, index, observations, actions, rewards=rewards, terminated=bool(terminations.any()))
    rows = map_structure(lambda column: _fit_rows(column, made.num_steps, where), extras)
    is_unterminated = not (terminations[-1:].any() or truncations[-1:].any())
    return replace(made, steps={**made.steps, **rows}, unterminated=is_unterminated)


def _fit_rows(column: np.ndarray, num_steps: int, where: str) -> np.ndarray:
    """Returns a column of infos with a row per step; without a row for the final observation it gets zeros there."""
    if len(column) == num_steps - 1:
        zeros = np.full((1, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)
        return np.concatenate([column, zeros])
    if len(column) < num_steps - 1 or len(column) > num_steps + 1:
        raise SourceError(f"{where}['infos'] must have {num_steps} rows like the observations, got {len(column)}")
    return column[:num_steps]


def _check_file(path: Path) -> list[Any]:
    """Returns the stated length of each episode, or None; refuses references to other files, and excessive sizes."""
    with hdf5.open_hdf5(path) as file:
        datasets = [member for _, member in hdf5.walk(file) if isinstance(member, h5py.Dataset)]
        for dataset in datasets:
            hdf5.require_bounded([dataset], f"{path.name}: '{dataset.name}'")
        hdf5.require_bounded(datasets, f"{path.name}: all columns together")
        names = [name for name in hdf5.list_names(file) if name.startswith("episode_")]
        return [file[name].attrs.get("total_steps") for name in names]


def _list_infos(directory: Path) -> list[str]:
    """Returns the names of the infos of the first episode, if the data are in HDF5 files."""
    for path in sorted((directory / "data").glob("*.hdf5"))[:1]:
        with hdf5.open_hdf5(path) as file:
            with contextlib.suppress(SourceError):  # The error of the episode is raised instead.
                return list(dict.fromkeys(column[0] for column in hdf5.list_columns(file, "episode_0/infos")))
    return []


def _is_directory(location: Any) -> bool:
    return isinstance(location, Path) and (location / "data" / "metadata.json").is_file()


def _is_dataset(source: Any) -> bool:
    return type(source).__module__.startswith("minari.") and hasattr(source, "episode_indices")


def _open_dataset(dataset: Any, **options: Any) -> Source:
    """Opens the episodes that a `minari.MinariDataset` selects."""
    directory = Path(dataset.storage.data_path).parent
    return open_minari(directory, indices=[int(index) for index in dataset.episode_indices], **options)


DIRECTORY = Format("a Minari directory", _is_directory, open_minari, ("extra_fields", "autoreset"), "Minari")
NAME = Format(
    "a Minari name",
    is_minari_name,
    open_minari,
    ("extra_fields", "autoreset", "download"),
    "Minari names",
    example="mujoco/hopper/expert-v0",
)
OBJECT = Format("a MinariDataset", _is_dataset, _open_dataset, ("extra_fields", "autoreset"))
