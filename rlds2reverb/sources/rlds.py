"""RLDS data sets: a `tf.data.Dataset` of episodes, a prepared TFDS directory, or a TFDS builder's name."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SourceError

from .columns import as_steps
from .source import Source
from .tfds_files import require_harmless, require_shards, require_split

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets as tfds

_BUILDER_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}(/[A-Za-z0-9_.\-]{1,99})?(:\d{1,9}\.\d{1,9}\.\d{1,9})?")
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_EPISODES_LOOKED_AT = 16


def from_rlds_dataset(
    dataset: tf.data.Dataset,
    *,
    name: str = "RLDS data set",
    num_episodes: int | None = None,
    warnings: tuple[str, ...] = (),
) -> Source:
    """Returns any RLDS data set as a source: a `tf.data.Dataset` of dicts whose `steps` is a data set of steps.

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
        raise SourceError(f"{name}: {fields.NO_STEPS} An episode has {found}, expected 'steps'.")
    step_spec = steps.element_spec
    if not isinstance(step_spec, dict):
        raise SourceError(
            f"{name}: a step is a {type(step_spec).__name__}, expected a dict of {list(fields.STEP_FIELDS)}"
        )
    missing = [field for field in fields.STEP_FIELDS if field not in step_spec]
    if missing:
        raise SourceError(
            f"{name}: a step lacks {', '.join(missing)}; expected {list(fields.STEP_FIELDS)}, found {list(step_spec)}"
        )


def _episodes(name: str, dataset: tf.data.Dataset) -> Iterator[Episode]:
    import tensorflow as tf

    from .rlds_episodes import read_columns

    iterator = read_columns(dataset)
    index = 0
    while True:
        try:
            columns = next(iterator)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            raise SourceError(
                f"{name} is damaged at episode {index} ({_reason(error)}); copy or prepare it again"
            ) from error
        yield Episode(as_steps(columns, f"{name}: episode {index}: step"), index)
        index += 1


def _reason(error: tf.errors.OpError) -> str:
    """Returns TensorFlow's message without the names of its nodes."""
    return re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error.message).splitlines()[0]).replace("'", "").strip()


def open_directory(path: Path, *, split: str = "train") -> Source:
    """Opens a directory that TFDS prepared (it holds `dataset_info.json` and `features.json`).

    Both files are read and checked before TFDS sees them: TFDS follows `../` in names and templates and imports the
    modules that `features.json` names.

    Args:
      path: the directory of one version.
      split: a split's name, a slice of it allowed (`train[:10%]`).

    Raises:
      SourceError: if a file is missing, cut or hostile, the split is unknown, or steps lack fields.
    """
    require_shards(path, require_harmless(path), split)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(path)
    except Exception as error:  # TFDS raises whatever its parsers raise; the files are what is wrong
        raise SourceError(f"{path} cannot be opened by TFDS: {type(error).__name__}: {error}") from error
    return _from_builder(builder, split, location=path)


def open_builder(
    name: str, *, split: str = "train", data_dir: str | Path | None = None, download: bool = False
) -> Source:
    """Opens a TFDS data set by name, such as `d4rl_mujoco_hopper/v2-medium`.

    Of several versions on this machine the newest is taken.

    Args:
      name: 'data_set', 'data_set/config' or 'data_set/config:1.0.0'.
      split: see `open_directory`.
      data_dir: TFDS's data directory; None for `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.
      download: whether TFDS downloads and prepares what is not there.

    Raises:
      SourceError: if the name is not a TFDS name, or stands for several data sets; or as `open_directory`.
      FileNotFoundError: if the data are not there and may not, or cannot, be downloaded.
    """
    if not _BUILDER_NAME.fullmatch(name) or ".." in name:
        raise SourceError(f"{name[:100]!r} is not a TFDS name; expected 'data_set/config' or 'data_set/config:1.0.0'")
    require_split(name, split)
    root = Path(data_dir or os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets").expanduser()
    prepared = _prepared(root, name)
    if prepared is None:
        if not download:
            raise FileNotFoundError(
                f"there is no path {name!r}, and TFDS has not prepared a data set of that name in {root}; to download "
                "it give download=True (on the command line --download)"
            )
        prepared = _download(root, name)
    return open_directory(prepared, split=split)


def _prepared(root: Path, name: str) -> Path | None:
    """Returns the directory of the newest version of a data set below TFDS's data directory, or None."""
    folder, _, version = name.partition(":")
    found = [info.parent for depth in ("*", "*/*") for info in (root / folder).glob(f"{depth}/features.json")]
    versions = {path: _VERSION.fullmatch(path.name) for path in found if not version or path.name == version}
    numbered = {path: tuple(map(int, match.groups())) for path, match in versions.items() if match}
    configs = sorted({str(path.parent.relative_to(root)) for path in numbered})
    if len(configs) > 1:
        raise SourceError(f"{root / folder} holds {len(configs)} data sets; name one of them: {', '.join(configs[:5])}")
    return max(numbered, key=lambda path: numbered[path]) if numbered else None


def _download(root: Path, name: str) -> Path:
    import tensorflow_datasets as tfds

    from rlds2reverb._internals.tfds import few_retries_and_no_bars

    try:
        with contextlib.redirect_stdout(sys.stderr), few_retries_and_no_bars():
            builder = tfds.builder(name, data_dir=root)
            builder.download_and_prepare()
    except Exception as error:  # unknown names, no network, full disks: TFDS has no common type for them
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"TFDS can neither find nor prepare {name!r} ({reason}); check the name, the network, and data_dir"
        ) from error
    return Path(builder.data_path)


def _from_builder(builder: tfds.core.DatasetBuilder, split: str, *, location: Path) -> Source:
    name = "/".join(part for part in (builder.info.name, builder.info.config_name) if part)
    try:
        num_episodes = int(builder.info.splits[split].num_examples)
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    except Exception as error:  # a bad slice, a shard that does not fit its length: TFDS has no common type
        raise SourceError(f"{location}: the split {split!r} cannot be read ({error})") from error
    if num_episodes < 1:
        raise SourceError(f"{location}: the split {split!r} has no episodes; choose another")
    _require_step_fields(name, dataset.element_spec)
    warnings = _shared_end_warning(name, dataset) if builder.info.name.startswith("d4rl_") else ()
    return from_rlds_dataset(dataset, name=name, num_episodes=num_episodes, warnings=warnings)


def _shared_end_warning(name: str, dataset: tf.data.Dataset) -> tuple[str, ...]:
    """Returns a warning if TFDS's D4RL builder gave every episode the last next observation of the whole file."""
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
