"""RLDS datasets: a `tf.data.Dataset` of episodes, a directory that TFDS prepared, or the name of a TFDS builder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import Message, SourceError

from .columns import as_steps
from .formats import Format
from .source import Source, split_metadata
from .tfds_files import require_harmless, require_shards, require_split

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets as tfds

#: Fields of an episode that rlds2reverb writes: whether it is unterminated, and the seed of its environment.
UNTERMINATED, SEED = "unterminated", "seed"
#: Value of the field for a seed that is not known.
UNKNOWN_SEED = -1
_EPISODE_FIELDS = {UNTERMINATED: np.bool_, SEED: np.int64}
#: Maximum size of a `metadata.json`.
_MAX_METADATA_BYTES = 1 << 20
_BUILDER_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}(/[A-Za-z0-9_.\-]{1,99})?(:\d{1,9}\.\d{1,9}\.\d{1,9})?")
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_MAX_EPISODES_COMPARED = 16


def from_rlds_dataset(
    dataset: tf.data.Dataset, *, name: str = "RLDS dataset", num_episodes: int | None = None
) -> Source:
    """Returns a source for an RLDS dataset: a `tf.data.Dataset` of dicts whose `steps` is a dataset of steps.

    An episode without steps becomes an `Episode` of length 0, so that it can be reported.

    Raises:
      SourceError: If there are no `steps`, or a step is missing a field; while iterating, if a record is damaged.
    """
    _require_step_fields(name, dataset.element_spec)
    return Source(name, "rlds", lambda: _read_episodes(name, dataset), num_episodes=num_episodes)


def _require_step_fields(name: str, episode_spec: Any) -> None:
    import tensorflow as tf

    steps = episode_spec.get(fields.STEPS) if isinstance(episode_spec, dict) else None
    if not isinstance(steps, tf.data.DatasetSpec):
        got = list(episode_spec) if isinstance(episode_spec, dict) else type(episode_spec).__name__
        raise SourceError(f"{name}: {fields.NO_STEPS} An episode must contain 'steps', got {got}.")
    step_spec = steps.element_spec
    if not isinstance(step_spec, dict):
        raise SourceError(
            f"{name}: a step must be a dict of {list(fields.STEP_FIELDS)}, got a {type(step_spec).__name__}"
        )
    missing = [field for field in fields.STEP_FIELDS if field not in step_spec]
    if missing:
        raise SourceError(
            f"{name}: a step is missing {', '.join(missing)}; it must contain {list(fields.STEP_FIELDS)}, "
            f"got {list(step_spec)}"
        )


def _read_episodes(name: str, dataset: tf.data.Dataset, index: int = 0) -> Iterator[Episode]:
    """Yields the episodes of an RLDS dataset; `index` is that of the first one."""
    import tensorflow as tf

    from .rlds_episodes import read_episodes

    spec = dataset.element_spec
    other_fields = [name for name, dtype in _EPISODE_FIELDS.items() if _is_scalar(spec, name, dtype)]
    try:
        for columns, others in read_episodes(dataset, other_fields):
            seed = int(others.get(SEED, UNKNOWN_SEED))
            yield Episode(
                as_steps(columns, f"{name}: episode {index}: step"),
                index,
                unterminated=bool(others.get(UNTERMINATED, False)),
                seed=None if seed == UNKNOWN_SEED else seed,
            )
            index += 1
    except tf.errors.OpError as error:
        # The message without the names of TensorFlow's graph nodes.
        reason = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error.message).splitlines()[0]).replace("'", "").strip()
        raise SourceError(f"{name} is damaged at episode {index} ({reason}); copy or prepare it again") from error


def _is_scalar(episode_spec: dict[str, Any], name: str, dtype: type) -> bool:
    import tensorflow as tf

    spec = episode_spec.get(name)
    return isinstance(spec, tf.TensorSpec) and spec.shape == () and spec.dtype == dtype


def open_directory(path: Path, *, split: str = "train") -> Source:
    """Opens a directory that TFDS prepared, which contains `dataset_info.json` and `features.json`.

    Both files are checked before TFDS reads them; see `tfds_files`.

    Args:
      path: directory of one version of a dataset.
      split: name of a split, which may be sliced (`train[:10%]`).

    Raises:
      SourceError: If a file is missing, truncated or hostile, the split is unknown, or steps are missing fields.
    """
    require_shards(path, require_harmless(path), split)
    prepared = _PreparedEpisodes(path, split)
    source = Source(
        prepared.name,
        "rlds",
        prepared.read,
        num_episodes=prepared.count(),
        count=prepared.count if len(prepared.ranges) == 1 else None,
    )
    if prepared.builder.info.name.startswith("d4rl_"):
        source.warnings = _describe_shared_ends(prepared.name, prepared.dataset)
    return replace(source, **split_metadata(_read_metadata(path / "metadata.json")))


class _PreparedEpisodes:
    """The episodes of a split of a dataset that TFDS prepared; those of a single range can be read in parts.

    Pickling it keeps the directory and the split; the other process opens them again.
    """

    def __init__(self, path: Path, split: str):
        """Opens the dataset, whose files must have been checked; see `open_directory` for the errors."""
        self._path, self._split = path, split
        self.builder = _open_builder_directory(path)
        info = self.builder.info
        self.name = "/".join(part for part in (info.name, info.config_name) if part)
        if self.count() < 1:
            raise SourceError(f"{path}: the split {split!r} has no episodes; choose another")
        _require_step_fields(self.name, self.dataset.element_spec)

    def __reduce__(self) -> Any:
        return _PreparedEpisodes, (self._path, self._split)

    @cached_property
    def dataset(self) -> tf.data.Dataset:
        """The RLDS dataset of the whole split."""
        return self._make_dataset(self._split)

    @cached_property
    def ranges(self) -> list[tuple[str, int, int]]:
        """The complete split, the first episode and the one after the last, of each range that the split joins."""
        import tensorflow_datasets as tfds

        splits = self.builder.info.splits
        with self._split_errors():
            ranges = tfds.core.ReadInstruction.from_spec(self._split).to_absolute(splits)
        return [
            (part.splitname, part.from_ or 0, splits[part.splitname].num_examples if part.to is None else part.to)
            for part in ranges
        ]

    def count(self) -> int:
        """Returns the number of episodes."""
        return sum(stop - first for _, first, stop in self.ranges)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Returns an iterator over all episodes, or over those of a range."""
        import tensorflow_datasets as tfds

        if stop is None:
            return _read_episodes(self.name, self.dataset)
        if stop <= first:
            return iter(())
        name, begin, _ = self.ranges[0]
        part = tfds.core.ReadInstruction(name, from_=begin + first, to=begin + stop, unit="abs")
        return _read_episodes(self.name, self._make_dataset(part), first)

    def _make_dataset(self, split: Any) -> tf.data.Dataset:
        from rlds2reverb._internals.tfds import hide_deprecations

        with self._split_errors(), hide_deprecations():
            return self.builder.as_dataset(split=split, shuffle_files=False)

    @contextlib.contextmanager
    def _split_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # TFDS has no common type for invalid slices and shards of a different length.
            raise SourceError(f"{self._path}: the split {self._split!r} cannot be read ({error})") from error


def _open_builder_directory(path: Path) -> tfds.core.DatasetBuilder:
    import tensorflow_datasets as tfds

    try:
        return tfds.builder_from_directory(path)
    except Exception as error:  # TFDS lets through any error of its parsers.
        raise SourceError(f"{path} cannot be opened by TFDS: {type(error).__name__}: {error}") from error


def _read_metadata(path: Path) -> dict[str, Any]:
    """Returns the numbers and strings in TFDS's file of a dataset's metadata, or nothing if it cannot be read."""
    try:
        content = json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_METADATA_BYTES else {}
    except (OSError, ValueError, RecursionError):  # Metadata are optional.
        return {}
    values = content.items() if isinstance(content, dict) else ()
    return {name: value for name, value in values if isinstance(value, (str, bool, int, float))}


def open_builder(
    name: str, *, split: str = "train", data_dir: str | Path | None = None, download: bool = False
) -> Source:
    """Opens a TFDS dataset by name, such as `d4rl_mujoco_hopper/v2-medium`, in the newest version on this machine.

    Args:
      name: 'dataset', 'dataset/config' or 'dataset/config:1.0.0'.
      split: see `open_directory`.
      data_dir: TFDS's data directory; None for `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.
      download: whether TFDS may download and prepare a missing dataset.

    Raises:
      SourceError: If the name is not a TFDS name, or matches several datasets; also as `open_directory`.
      FileNotFoundError: If the dataset is missing and may not, or cannot, be downloaded.
    """
    if not _BUILDER_NAME.fullmatch(name) or ".." in name:
        raise SourceError(
            f"a TFDS name must look like 'dataset/config' or 'dataset/config:1.0.0', got {name[:100]!r}; check the name"
        )
    require_split(name, split)
    root = Path(data_dir or os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets").expanduser()
    prepared = _find_prepared(root, name)
    if prepared is None:
        if not download:
            raise FileNotFoundError(
                Message(
                    f"there is no path {name!r}, and TFDS has not prepared a dataset of that name in {root}; allow the "
                    "download",
                    download=True,
                )
            )
        prepared = _download_and_prepare(root, name)
    return open_directory(prepared, split=split)


def _find_prepared(root: Path, name: str) -> Path | None:
    """Returns the directory of the newest prepared version of a dataset, or None if there is none."""
    folder, _, version = name.partition(":")
    directories = [info.parent for depth in ("*", "*/*") for info in (root / folder).glob(f"{depth}/features.json")]
    matches = {path: _VERSION.fullmatch(path.name) for path in directories if not version or path.name == version}
    versions = {path: tuple(map(int, match.groups())) for path, match in matches.items() if match}
    configs = sorted({str(path.parent.relative_to(root)) for path in versions})
    if len(configs) > 1:
        raise SourceError(
            f"{root / folder} contains {len(configs)} datasets; specify one of them: {', '.join(configs[:5])}"
        )
    return max(versions, key=lambda path: versions[path]) if versions else None


def _download_and_prepare(root: Path, name: str) -> Path:
    import tensorflow_datasets as tfds

    from rlds2reverb._internals.tfds import quiet_downloads

    try:
        with contextlib.redirect_stdout(sys.stderr), quiet_downloads():
            builder = tfds.builder(name, data_dir=root)
            builder.download_and_prepare()
    except Exception as error:  # TFDS has no common type for unknown names, network failures and full disks.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"TFDS can neither find nor prepare {name!r} ({reason}); check the name, the network and the data directory"
        ) from error
    return Path(builder.data_path)


def _describe_shared_ends(name: str, dataset: tf.data.Dataset) -> tuple[str, ...]:
    """Returns a warning if TFDS's D4RL builder ended every episode with the last observation of the whole file."""
    ends: list[bytes] = []
    for episode in _read_episodes(name, dataset.take(_MAX_EPISODES_COMPARED)):
        if episode.num_steps:
            last = [leaf[-1] for leaf in tree.flatten(episode.steps[fields.OBSERVATION])]
            if any(np.any(leaf) for leaf in last):
                ends.append(b"".join(leaf.tobytes() for leaf in last))
    if len(ends) < 2 or len(set(ends)) > 1:
        return ()
    return (
        f"{name}: all of the first {len(ends)} episodes end in the same observation, because TFDS's D4RL builder "
        "appends the last next_observations row of the whole file to every episode; load the D4RL HDF5 file instead, "
        "which keeps the final observation of each episode",
    )


def _is_prepared(location: Any) -> bool:
    names = ("dataset_info.json", "features.json")
    return isinstance(location, Path) and any((location / name).is_file() for name in names)


DIRECTORY = Format("a directory prepared by TFDS", _is_prepared, open_directory, ("split",), "TFDS")
NAME = Format(
    "a TFDS name", lambda name: isinstance(name, str), open_builder, ("split", "data_dir", "download"), "TFDS names"
)
DATASET = Format("an RLDS tf.data.Dataset", lambda source: hasattr(source, "element_spec"), from_rlds_dataset)
