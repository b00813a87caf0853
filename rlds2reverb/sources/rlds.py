"""RLDS data sets: a `tf.data.Dataset` of episodes, a prepared TFDS directory, or a TFDS builder's name."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode

from .source import Source, SourceError

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets as tfds

_BUILDER_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}(/[A-Za-z0-9_.\-]{1,99})?(:\d{1,9}\.\d{1,9}\.\d{1,9})?")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
_FILE_TEMPLATE = re.compile(r"[A-Za-z0-9_.\-{}]{1,200}")
_SPLIT = re.compile(r"[A-Za-z0-9_]{1,100}(\[[0-9%:\-]{0,40}\])?")
_FEATURE_CLASSES = "tensorflow_datasets.core.features."
_EPISODES_LOOKED_AT = 16
_EPISODE_BATCH = np.iinfo(np.int64).max


def from_rlds_dataset(
    dataset: tf.data.Dataset,
    *,
    name: str = "RLDS data set",
    num_episodes: int | None = None,
    warnings: tuple[str, ...] = (),
) -> Source:
    """Any RLDS data set as a source: a `tf.data.Dataset` of dicts whose `steps` is a data set of steps.

    An episode without steps comes out as an `Episode` of length 0, so that it can be reported.

    Raises:
      SourceError: if there are no `steps`, or a step lacks a field, naming it; while iterating, if a record is
        damaged.
    """
    _require_step_fields(name, dataset.element_spec)
    return Source(name, "rlds", lambda: _episodes(name, dataset), num_episodes=num_episodes, warnings=warnings)


def _require_step_fields(name: str, episode_spec: Any) -> None:
    import tensorflow as tf

    steps = episode_spec.get(fields.STEPS) if isinstance(episode_spec, dict) else None
    if not isinstance(steps, tf.data.DatasetSpec):
        found = list(episode_spec) if isinstance(episode_spec, dict) else type(episode_spec).__name__
        raise SourceError(f"{name}: {fields.NO_STEPS} An episode has {found}, wanted 'steps'.")
    step_spec = steps.element_spec
    missing = [field for field in fields.STEP_FIELDS if field not in step_spec]
    if missing:
        raise SourceError(
            f"{name}: a step lacks {', '.join(missing)}; wanted {list(fields.STEP_FIELDS)}, found {list(step_spec)}"
        )


def _episodes(name: str, dataset: tf.data.Dataset) -> Iterator[Episode]:
    import tensorflow as tf

    def to_columns(episode: dict[str, Any]) -> tf.data.Dataset:
        columns = episode[fields.STEPS].batch(_EPISODE_BATCH)
        nothing = tree.map_structure(
            lambda spec: tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype), columns.element_spec
        )
        return columns.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)

    iterator = dataset.flat_map(to_columns).prefetch(2).as_numpy_iterator()
    index = 0
    while True:
        try:
            columns = next(iterator)
        except StopIteration:
            return
        except (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError) as error:
            raise SourceError(
                f"{name} is damaged at episode {index} ({_reason(error)}); copy or prepare it again"
            ) from error
        yield Episode(columns, index)
        index += 1


def _reason(error: tf.errors.OpError) -> str:
    """TensorFlow's message without the names of its nodes."""
    return re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error.message).splitlines()[0]).strip(" '")


def open_directory(path: Path, *, split: str = "train") -> Source:
    """A directory that TFDS prepared (it holds `dataset_info.json` and `features.json`), as a source.

    Both files are read and checked before TFDS sees them: TFDS follows `../` in names and templates and imports the
    modules that `features.json` names.

    Args:
      path: the directory of one version.
      split: a split's name, a slice of it allowed (`train[:10%]`).

    Raises:
      SourceError: if a file is missing, cut or hostile, the split is unknown, or steps lack fields.
    """
    info = _read_json(path / "dataset_info.json")
    features = _read_json(path / "features.json")
    _require_plain_info(path, info)
    _require_known_features(path, features)
    _require_shards(path, info, split)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(path)
    except Exception as error:  # TFDS raises whatever its parsers raise; the files are what is wrong
        raise SourceError(f"{path} cannot be opened by TFDS: {type(error).__name__}: {error}") from error
    return _from_builder(builder, split, location=path)


def open_builder(name: str, *, split: str = "train", data_dir: str | Path | None = None) -> Source:
    """A TFDS data set by name, such as `d4rl_mujoco_hopper/v2-medium`, prepared (downloaded) where it is not yet.

    Raises:
      SourceError: if the name is no TFDS name or leaves its root.
      FileNotFoundError: if the data can be neither found nor downloaded. (TFDS tries a download ten times, which
        takes minutes without a network.)
    """
    if not _BUILDER_NAME.fullmatch(name) or ".." in name:
        raise SourceError(f"{name[:100]!r} is no TFDS name; wanted 'data_set/config' or 'data_set/config:1.0.0'")
    _require_split(name, split)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir)
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare()
    except Exception as error:  # unknown names, no network, full disks: TFDS has no common type for them
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"TFDS can neither find nor prepare {name!r} ({reason}); check the name, the network, and data_dir"
        ) from error
    return _from_builder(builder, split, location=Path(builder.data_path))


def _from_builder(builder: tfds.core.DatasetBuilder, split: str, *, location: Path) -> Source:
    name = "/".join(part for part in (builder.info.name, builder.info.config_name) if part)
    try:
        num_episodes = builder.info.splits[split].num_examples
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    except Exception as error:  # a bad slice, a shard that does not fit its length: TFDS has no common type
        raise SourceError(f"{location}: the split {split!r} cannot be read ({error})") from error
    _require_step_fields(name, dataset.element_spec)
    warnings = _shared_end_warning(name, dataset) if builder.info.name.startswith("d4rl_") else ()
    return from_rlds_dataset(dataset, name=name, num_episodes=num_episodes, warnings=warnings)


def _shared_end_warning(name: str, dataset: tf.data.Dataset) -> tuple[str, ...]:
    """TFDS's D4RL builder gives every episode the last next observation of the whole file."""
    ends: list[bytes] = []
    for episode in _episodes(name, dataset.take(_EPISODES_LOOKED_AT)):
        if episode.num_steps:
            last = tree.map_structure(lambda column: column[-1], episode.steps[fields.OBSERVATION])
            if any(np.any(leaf) for leaf in tree.flatten(last)):
                ends.append(b"".join(leaf.tobytes() for leaf in tree.flatten(last)))
    if len(ends) < 2 or len(set(ends)) > 1:
        return ()
    return (
        f"{name}: all of the first {len(ends)} episodes end in the same observation. TFDS's D4RL builder appends the "
        "last next_observations row of the whole file to every episode; rebuild from the D4RL HDF5 file "
        "(rlds2reverb convert FILE.hdf5), which gives each episode its own",
    )


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise SourceError(f"{path.parent} has no {path.name}; it is not a data set that TFDS prepared")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{path} is not valid JSON ({error}); prepare the data set again") from error


def _require_plain_info(path: Path, info: Any) -> None:
    if not isinstance(info, dict) or not isinstance(info.get("splits"), list) or not info["splits"]:
        raise SourceError(f"{path / 'dataset_info.json'} lists no splits; prepare the data set again")
    names = {"name": info.get("name"), "configName": info.get("configName"), "version": info.get("version")}
    for key, value in names.items():
        if value is None and key == "configName":
            continue
        if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value) or ".." in value:
            raise SourceError(f"{path}: {key} is {value!r}, which is no plain name; refused")
    for split in info["splits"]:
        template = split.get("filepathTemplate", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
        if not isinstance(template, str) or not _FILE_TEMPLATE.fullmatch(template) or ".." in template:
            raise SourceError(f"{path}: filepathTemplate {template!r} leaves the directory; refused")
        if not _SPLIT.fullmatch(str(split.get("name"))):
            raise SourceError(f"{path}: a split is named {split.get('name')!r}, which is no plain name; refused")


def _require_known_features(path: Path, node: Any) -> None:
    """Every class that features.json names has to be one of TFDS's own features."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("pythonClassName", "type") and isinstance(value, str) and "." in value:
                if not value.startswith(_FEATURE_CLASSES):
                    raise SourceError(f"{path / 'features.json'} names {value!r}, not a feature of TFDS; refused")
            else:
                _require_known_features(path, value)
    elif isinstance(node, list):
        for value in node:
            _require_known_features(path, value)


def _require_split(name: str, split: str) -> str:
    if not _SPLIT.fullmatch(split):
        raise SourceError(f"{name}: {split[:100]!r} is no split; wanted a name such as 'train' or 'train[:10%]'")
    return split.split("[")[0]


def _require_shards(path: Path, info: dict[str, Any], split: str) -> None:
    wanted = _require_split(str(path), split)
    splits = {entry["name"]: entry for entry in info["splits"]}
    if wanted not in splits:
        raise SourceError(f"{path} has no split {wanted!r}; it has {', '.join(sorted(splits))}")
    num_shards = len(splits[wanted].get("shardLengths") or [])
    template = splits[wanted].get("filepathTemplate", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
    for shard in range(num_shards):
        file = template.format(
            DATASET=info["name"],
            SPLIT=wanted,
            FILEFORMAT=info.get("fileFormat", "tfrecord"),
            SHARD_INDEX=f"{shard:05d}",
            NUM_SHARDS=f"{num_shards:05d}",
            SHARD_X_OF_Y=f"{shard:05d}-of-{num_shards:05d}",
        )
        if not (path / file).is_file():
            raise SourceError(f"{path} lacks the shard {file}; copy or prepare the data set again")
