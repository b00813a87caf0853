"""Writing of directories as TFDS prepares them: TFRecord files of episodes, `features.json` and `dataset_info.json`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.reverb.wire import tfrecords
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import Nest, leaves, path_name

from ..mapping.robot_layouts import OCTO, find_changes
from ..readers.rlds import EPISODE_FIELDS
from ..source import Source
from .rlds_features import Features, require_features
from .tf_examples import encode_episode, make_features
from .written_episodes import WrittenEpisodes, has_tuple, make_refusal, require_plain_names

#: Default size of the files of a dataset.
SHARD_BYTES = 256 << 20
_SPLIT = "train"
_VERSION = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}")
_FIRST_VERSION = "1.0.0"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def write_rlds(
    directory: Path,
    batches: WrittenEpisodes,
    step_spec: Mapping[str, Nest],
    source: Source,
    *,
    location: Path,
    shard_bytes: int = SHARD_BYTES,
) -> tuple[str, ...]:
    """Writes episodes to a new directory, as the split 'train'.

    The last row of an episode is its final observation, or in all episodes the last action; see `WrittenEpisodes`.

    Args:
      directory: the directory to create.
      batches: the episodes.
      step_spec: spec of a step, without tuples.
      source: the source of the episodes, which provides the values of `metadata.json` and descriptions of features.
      location: final path of the directory, from which the name and version of the dataset are taken.
      shard_bytes: size from which a new file is started.

    Returns:
      Sentences for the report.

    Raises:
      SourceError: If TFDS cannot represent the spec, or a described feature does not fit its field.
      OSError: If the files cannot be written.
    """
    metadata_spec = source.episode_metadata_spec
    require_rlds_spec(step_spec, metadata_spec)
    described = require_features(source.descriptions, step_spec)
    directory.mkdir()
    shards = _write_shards(directory, encode_records(batches, step_spec, metadata_spec, described), shard_bytes)
    options: Any = {"features": described, "has_final_steps": batches.has_final_steps}
    return finish_rlds(directory, shards, step_spec, source, location=location, **options)


def finish_rlds(
    directory: Path,
    shards: Sequence[tuple[Path, int, int]],
    step_spec: Mapping[str, Nest],
    source: Source,
    *,
    location: Path,
    features: Features,
    has_final_steps: bool,
) -> tuple[str, ...]:
    """Moves files of episodes into a directory, and writes the files that describe them.

    Args:
      directory: the directory.
      shards: path, number of episodes and size of each file.
      step_spec: see `write_rlds`.
      source: see `write_rlds`.
      location: see `write_rlds`.
      features: descriptions that were checked.
      has_final_steps: see `WrittenEpisodes`.

    Returns:
      Sentences for the report.
    """
    name, version = _choose_name(location)
    split = {
        "name": _SPLIT,
        "filepathTemplate": _TEMPLATE,
        "shardLengths": [str(num_episodes) for _, num_episodes, _ in shards],
        "numBytes": str(sum(num_bytes for _, _, num_bytes in shards)),
    }
    # TFDS reads files that are not shuffled one after the other.
    info = {"name": name, "version": version, "fileFormat": "tfrecord", "disableShuffling": True, "splits": [split]}
    for number, (path, _, _) in enumerate(shards):
        shutil.move(path, directory / f"{name}-{_SPLIT}.tfrecord-{number:05d}-of-{len(shards):05d}")
    make_features(step_spec, features, source.episode_metadata_spec).save_config(directory)
    if metadata := source.full_metadata:
        _save_json(directory / "metadata.json", metadata)
    _save_json(directory / "dataset_info.json", info)
    if not find_changes(step_spec, features, has_final_steps=has_final_steps):
        return ()
    return (Message("Octo and OpenVLA read this dataset differently; write it in their layout", mapping=OCTO),)


def _choose_name(location: Path) -> tuple[str, str]:
    """Returns the name and version of a dataset, from `.../NAME/VERSION` or `.../NAME`."""
    has_version = _VERSION.fullmatch(location.name)
    folder, version = (location.parent.name, location.name) if has_version else (location.name, _FIRST_VERSION)
    name = re.sub(r"[^a-z0-9]+", "_", folder.lower()).strip("_")
    return (name if name[:1].isalpha() else f"dataset_{name}".rstrip("_")), version


def _write_shards(directory: Path, records: Iterator[bytes], shard_bytes: int) -> list[tuple[Path, int, int]]:
    """Returns the path, number of episodes and size of each file."""
    shards: list[tuple[Path, int, int]] = []
    record = next(records, None)
    while record is not None:
        path = directory / f"shard-{len(shards)}"
        num_episodes = 0
        with path.open("wb") as stream:
            while record is not None and stream.tell() < shard_bytes:
                stream.write(record)
                num_episodes += 1
                record = next(records, None)
        shards.append((path, num_episodes, path.stat().st_size))
    return shards


def encode_records(
    batches: Iterable[EpisodeBatch], step_spec: Nest, metadata_spec: Nest, features: Features
) -> Iterator[bytes]:
    """Yields the TFRecord of each episode."""
    for batch in batches:
        for episode in batch.episodes:
            record = np.frombuffer(encode_episode(episode, step_spec, features, metadata_spec), np.uint8)
            yield tfrecords.frame(record[None]).tobytes()


def _save_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def require_rlds_spec(step_spec: Mapping[str, Nest], metadata_spec: Mapping[str, Nest]) -> None:
    """Raises `SourceError` if steps contain tuples, or steps or metadata names or shapes that TFDS cannot store."""
    require_plain_names(step_spec, "RLDS")
    if taken := {fields.STEPS, *EPISODE_FIELDS} & set(metadata_spec):
        raise SourceError(f"the field {min(taken)!r} of an episode would replace that of RLDS; drop it", DropFields=...)
    for path, spec in leaves(dict(step_spec)):
        if not all(isinstance(part, str) for part in path) or has_tuple(step_spec, path):
            where = path_name(path)
            raise SourceError(f"{where} is in a tuple, which RLDS cannot represent; use dicts, or the format 'minari'")
        if None in spec.shape:
            raise make_refusal(path, spec, "have a fixed shape", "RLDS")
        if spec.dtype == np.uint32 and 0 in spec.shape:  # TFDS cannot read its bytes, and TensorFlow its values.
            raise make_refusal(path, spec, "not be empty", "RLDS")
