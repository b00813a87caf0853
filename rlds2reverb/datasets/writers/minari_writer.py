"""Writing of Minari datasets: a group of columns per episode in an HDF5 file, and `metadata.json`.

The layout is that of Minari's own storage, in which each episode keeps its final observation and its `infos`. Images
that Minari stores as JPEG are written as PNG, which `minari` reads in the same way, but without loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.installation import install_command
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.nest_paths import Keys
from rlds2reverb.types.spaces import choose_space
from rlds2reverb.types.specs import Nest, leaves, map_structure, path_name

from ..readers import minari
from ..readers.episode_metadata import write_attributes
from ..readers.json_files import parse_object
from ..source import Source
from ..steps.image_files import encode_png
from .hdf5_output import create_hdf5
from .minari_spaces import map_space
from .written_episodes import has_tuple, make_refusal, require_log_fields, select_extras

_VERSIONED_NAME = re.compile(r"[A-Za-z0-9_\-]+-v\d+")
#: Numbers of channels, after height and width, of the images that PNG represents.
_PNG_CHANNELS = (2, 3, 4)
_LISTS = ("author", "author_email")


def choose_dataset_id(location: Path) -> str:
    """Returns the id of a dataset: its path below Minari's own root, or else the name of its directory.

    Raises:
      ValueError: If this is not a name of Minari's form.
    """
    try:
        name = location.resolve().relative_to(minari.dataset_root().resolve()).as_posix()
    except ValueError:
        name = location.name
    if not _VERSIONED_NAME.fullmatch(location.name) or not minari.is_minari_name(name):
        stem = re.sub(r"-v\d+$", "", location.stem)
        suggested = re.sub(r"[^A-Za-z0-9_\-]+", "_", stem).strip("_-") or "dataset"
        raise ValueError(
            "the path of a Minari dataset must end in a name with a version, of ASCII letters, digits, '_' and '-', "
            f"got {location.name!r}; use {location.with_name(suggested + '-v0')}"
        )
    return name


def write_minari(
    directory: Path, batches: Iterable[EpisodeBatch], step_spec: Mapping[str, Nest], source: Source, *, location: Path
) -> None:
    """Writes episodes to a new directory; all have at least one transition.

    The final observation of an episode is marked as a copy if it is unknown; see `WrittenEpisodes`.

    Args:
      directory: the directory to create.
      batches: the episodes.
      step_spec: spec of a step.
      source: the source of the episodes, which provides spaces and metadata.
      location: final path of the directory, from which the id of the dataset is taken.

    Raises:
      ImportError: If `minari` is not installed.
      SourceError: If Minari cannot represent the data.
      ValueError: If the location is not a Minari name.
      OSError: If the files cannot be written; with `ENOSPC` if the disk is full.
    """
    serialize_space, is_image_space, version = import_minari()
    dataset_id = choose_dataset_id(location)
    _require_minari_spec(step_spec)
    spec = {"observations": step_spec[fields.OBSERVATION], "actions": step_spec[fields.ACTION]}
    own_spaces = {"observations": source.observation_space, "actions": source.action_space}
    columns = _ColumnWriter(choose_space(spec, own_spaces), is_image_space)
    metadata_spec = source.episode_metadata_spec
    data = directory / "data"
    data.mkdir(parents=True)
    num_episodes = num_steps = 0
    with create_hdf5(data / "main_data.hdf5") as (file, raise_error):
        for batch in batches:
            for episode in batch.episodes:
                group = file.create_group(f"episode_{num_episodes}")
                columns.write(group, episode, num_episodes)
                write_attributes(group, episode, metadata_spec, "Minari", minari.RESERVED_OF_EPISODES)
                num_episodes += 1
                num_steps += episode.num_transitions
            raise_error()
    spaces = columns.make_spaces()
    metadata = {
        **_describe(source),
        "total_episodes": num_episodes,
        "total_steps": num_steps,
        "data_format": "hdf5",
        "observation_space": serialize_space(spaces["observations"]),
        "action_space": serialize_space(spaces["actions"]),
        "dataset_size": round((data / "main_data.hdf5").stat().st_size / 1e6, 1),
        "dataset_id": dataset_id,
        "minari_version": version,
    }
    (data / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")


def import_minari() -> tuple[Any, Any, str]:
    """Returns Minari's functions that serialise a space and recognise an image, and its version.

    Raises:
      ImportError: If `minari` is not installed.
    """
    try:
        from minari import __version__
        from minari.dataset.minari_storage import is_image_space
        from minari.serialization import serialize_space
    except ImportError as error:
        raise ImportError(
            f"Minari datasets require the minari package ({error}); run {install_command('minari')}"
        ) from error
    return serialize_space, is_image_space, __version__


def _describe(source: Source) -> dict[str, Any]:
    """Returns the metadata of a source in the form that Minari expects."""
    described = {name: value for name, value in source.metadata.items() if name not in minari.RESERVED}
    for name in _LISTS:
        if isinstance(described.get(name), str):
            described[name] = [described[name]]
    if parse_object(source.env_spec):
        described["env_spec"] = source.env_spec
    return json.loads(json.dumps(described, default=str))


class _ColumnWriter:
    """Writes the columns of episodes, and adapts the spaces to their images and strings."""

    def __init__(self, spaces: Any, is_image_space: Any):
        self._is_image_space = is_image_space
        self._spaces = map_space(self._replace_unpackable, spaces)
        self._texts: dict[tuple[Any, ...], tuple[int, set[str]]] = {}  # The maximum length and the characters.

    def _replace_unpackable(self, space: Any, keys: Keys) -> Any:
        """Returns a space of wider integers for images that PNG cannot represent, so that they remain arrays."""
        from gymnasium import spaces

        if self._is_image_space(space) and len(space.shape) == 3 and space.shape[2] not in _PNG_CHANNELS:
            return spaces.Box(0, 255, space.shape, np.int16)
        return space

    def write(self, group: h5py.Group, episode: Episode, number: int) -> None:
        """Writes an episode to its group."""
        steps = episode.steps
        is_terminal = steps[fields.IS_TERMINAL][1:]
        truncations = np.zeros(episode.num_transitions, bool)
        truncations[-1] = not is_terminal[-1] and not episode.unterminated
        group.attrs["id"] = number
        group.attrs["total_steps"] = episode.num_transitions
        if episode.unknown_final_observation:
            group.attrs["unknown_final_observation"] = True
        if episode.seed is not None:
            group.attrs["seed"] = episode.seed
        group["rewards"] = steps[fields.REWARD][:-1]
        group["terminations"] = is_terminal
        group["truncations"] = truncations
        actions = map_structure(lambda column: column[:-1], steps[fields.ACTION])
        nests = {"observations": steps[fields.OBSERVATION], "actions": actions}
        extras = select_extras(steps)
        try:
            for name, nest in nests.items():
                self._write(group, nest, self._spaces[name], (name,))
            if extras:
                self._write(group, extras, None, ("infos",))
        except UnicodeDecodeError as error:
            raise SourceError(f"strings must be UTF-8 for Minari (episode {episode.index}: {error})") from error
        except ValueError as error:  # Of h5py, about NUL characters.
            raise SourceError(f"episode {episode.index} cannot be written for Minari ({error})") from error

    def _write(self, group: h5py.Group, nest: Nest, space: Any, path: tuple[Any, ...]) -> None:
        name = path[-1] if isinstance(path[-1], str) else f"_index_{path[-1]}"
        if not isinstance(nest, np.ndarray):
            inner = group.create_group(name)
            for key, part in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
                self._write(inner, part, None if space is None else space.spaces[key], (*path, key))
        elif nest.dtype == object:
            if space is not None:
                texts = [text.decode() if isinstance(text, bytes) else text for text in nest]
                length, characters = self._texts.get(path, (1, set()))
                self._texts[path] = max(length, *map(len, texts)), characters.union(*texts)
            group.create_dataset(name, data=nest, dtype=h5py.string_dtype())
        elif space is not None and self._is_image_space(space):
            frames = np.empty(len(nest), object)
            frames[:] = [np.frombuffer(encode_png(frame), np.uint8) for frame in nest]
            group.create_dataset(name, data=frames, dtype=h5py.vlen_dtype(np.uint8))
        else:
            group.create_dataset(name, data=nest)

    def make_spaces(self) -> Any:
        """Returns the spaces of what was written, 'observations' and 'actions'."""
        from gymnasium import spaces

        def add_limits(space: Any, keys: Keys) -> Any:
            if keys not in self._texts:
                return space
            length, characters = self._texts[keys]
            return spaces.Text(length, min_length=0, charset="".join(sorted(characters)) or " ")

        return map_space(add_limits, self._spaces)


def _require_minari_spec(step_spec: Mapping[str, Nest]) -> None:
    """Raises `SourceError` if Minari cannot represent steps of this spec."""
    require_log_fields(step_spec, "Minari")
    for path, spec in leaves(dict(step_spec)):
        if path[0] not in fields.STEP_FIELDS and has_tuple(step_spec, path):
            where = path_name(path)
            raise SourceError(f"{where} is in a tuple, which Minari's infos cannot represent; use dicts")
        if 0 in spec.shape[:-1] and path[0] in fields.STEP_FIELDS:
            raise make_refusal(path, spec, "not be empty", "Minari")
        if spec.dtype == object and path[0] in fields.STEP_FIELDS and spec.shape:
            raise make_refusal(path, spec, "be one string per step", "Minari", ", or use the format 'rlds'")
