"""RLDS datasets: a `tf.data.Dataset` of episodes, a directory that TFDS prepared, or the name of a TFDS builder."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import tree

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves, path_name

from ..formats import Format
from ..source import Source, identify_files, split_metadata
from .array_records import ARRAY_RECORD, read_array_records
from .columns import Paths, match_paths
from .json_files import as_dict, read_json
from .rlds_conventions import (
    AUTO,
    BOUNDARY,
    TRANSITION,
    Conventions,
    LastStep,
    describe_missing,
    find_assumed,
    has_rewards,
    infer_last_step,
    require_missing,
    require_step_fields,
)
from .tfds_files import require_harmless, require_shards, require_split

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets as tfds

UNTERMINATED, SEED = "unterminated", "seed"
#: Marks of the ends of an episode. The last row is a transition if its next observation is unknown, or was left out.
_MARKS = (UNTERMINATED, "unknown_final_observation", "dropped_last_transition")
#: Value of the field for a seed that is not known.
UNKNOWN_SEED = -1
#: Dtypes of the fields of an episode that rlds2reverb writes: attributes of `Episode`.
EPISODE_FIELDS = {SEED: np.int64, **dict.fromkeys(_MARKS, np.bool_)}
#: Beginning of the names of TFDS's builders for D4RL.
_D4RL_BUILDERS = "d4rl_"
_BUILDER_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}(/[A-Za-z0-9_.\-]{1,99})?(:\d{1,9}\.\d{1,9}\.\d{1,9})?")
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
#: Name of a `tf.data.Dataset`, which decodes its fields itself.
_UNPREPARED = "RLDS dataset"
_MAX_EPISODES_COMPARED = 16
#: Fields whose last rows tell what last rows mean.
_EVIDENCE = (fields.ACTION, fields.REWARD, fields.IS_LAST)
#: TensorFlow's message for rows of different shapes, with the index of the field.
_RAGGED = re.compile(r"batch tensors with different shapes in component (\d+)")


def from_rlds_dataset(
    dataset: tf.data.Dataset,
    *,
    last_step: LastStep = AUTO,
    missing: Mapping[str, float] | None = None,
) -> Source:
    """Returns a source for an RLDS dataset: a `tf.data.Dataset` of dicts whose `steps` is a dataset of steps.

    An episode without steps becomes an `Episode` of length 0, so that it can be reported.

    Args:
      dataset: the dataset.
      last_step: see `loading.load`.
      missing: see `loading.load`.

    Raises:
      SourceError: If there are no `steps`, a step has no observation or action, or the last rows of episodes do not
        tell what they mean; while iterating, if a record is damaged.
    """
    conventions = _find_conventions(_UNPREPARED, dataset, last_step, missing or {}, [lambda: dataset])
    described = _describe_conventions(conventions, dataset.element_spec)
    return Source(conventions.name, "rlds", lambda: _read_episodes(conventions, dataset), **described)


def _find_conventions(
    name: str,
    dataset: tf.data.Dataset,
    last_step: LastStep,
    missing: Mapping[str, float],
    open_parts: Sequence[Callable[[], tf.data.Dataset]],
) -> Conventions:
    """Returns the conventions of a dataset, for which the first episodes of one of its parts are read.

    This is the first part in which an episode can be read; it may end at one that is damaged.
    """
    require_one_of("last_step", last_step, get_args(LastStep))
    require_missing(missing)
    spec = dataset.element_spec
    require_step_fields(name, _get_step_spec(name, spec), missing)
    is_own = all(_is_scalar(spec, field, EPISODE_FIELDS[field]) for field in (UNTERMINATED, SEED))
    if is_own or name.startswith(_D4RL_BUILDERS):  # rlds2reverb, and TFDS's builders for D4RL, write boundaries.
        return Conventions(name, BOUNDARY if last_step == AUTO else last_step, missing)
    episodes: list[dict[str, Any]] = []
    errors: list[SourceError] = []
    for open_part in open_parts:
        try:
            for columns, _ in _read_rows(name, open_part().take(_MAX_EPISODES_COMPARED), ()):
                episodes.append({field: columns[field] for field in _EVIDENCE if field in columns})
        except SourceError as error:
            errors.append(error)
        if episodes:
            break
    if errors and not episodes:
        raise errors[0]
    has_ends = any(np.any(columns.get(fields.IS_LAST, True)) for columns in episodes)
    if last_step != AUTO:
        return Conventions(name, last_step, missing, has_ends)
    last_step = infer_last_step(name, episodes)
    is_assumed = last_step == BOUNDARY and not has_rewards(episodes)
    return Conventions(name, last_step, missing, has_ends, is_inferred=True, is_assumed=is_assumed)


def _describe_conventions(conventions: Conventions, episode_spec: Any) -> dict[str, Any]:
    """Returns the attributes of a source that say which fields are assumed, and that an added boundary is."""
    present, missing = episode_spec[fields.STEPS].element_spec, conventions.missing
    warnings = describe_missing(conventions.name, present, missing)
    if conventions.is_inferred and conventions.last_step == TRANSITION:
        sentence = (
            f"{conventions.name}: the last row of an episode is read as a transition, because its action or reward "
            "is not zero; its next observation is unknown. Change this if the row is only a final observation"
        )
        warnings += (Message(sentence, last_step=BOUNDARY),)
    if conventions.is_assumed:
        sentence = (
            f"{conventions.name}: the last row of an episode is assumed to be only a final observation, because "
            "its action is zero or repeated, and there are no rewards that tell; set "
            f"'{BOUNDARY}' to confirm it, or '{TRANSITION}' if the action is real"
        )
        warnings += (Message(sentence, last_step=...),)
    unread = [name for name, spec in episode_spec.items() if name != fields.STEPS and not _is_readable(spec)]
    if unread:
        warnings += (f"{conventions.name}: fields of episodes that are not arrays are not read: {', '.join(unread)}",)
    return {"warnings": warnings, "assumed_fields": find_assumed(present, missing)}


def _get_step_spec(name: str, episode_spec: Any) -> Any:
    import tensorflow as tf

    steps = episode_spec.get(fields.STEPS) if isinstance(episode_spec, dict) else None
    if steps is not None and not isinstance(steps, tf.data.DatasetSpec):
        raise SourceError(
            f"{name}: 'steps' must be a dataset of steps (tfds.features.Dataset), got a {type(steps).__name__}; "
            "pass load() a tf.data.Dataset in which tf.data.Dataset.from_tensor_slices(steps) replaces it"
        )
    if steps is None:
        got = list(episode_spec) if isinstance(episode_spec, dict) else type(episode_spec).__name__
        raise SourceError(f"{name}: {fields.NO_STEPS} An episode must contain 'steps', got {got}.")
    return steps.element_spec


def _read_episodes(conventions: Conventions, dataset: tf.data.Dataset, index: int = 0) -> Iterator[Episode]:
    """Yields the episodes of an RLDS dataset; `index` is that of the first one."""
    spec = dataset.element_spec
    own_fields = [name for name, dtype in EPISODE_FIELDS.items() if _is_scalar(spec, name, dtype)]
    metadata_fields = [name for name in spec if name not in own_fields and _is_readable(spec[name])]
    for columns, others in _read_rows(conventions.name, dataset, [*own_fields, *metadata_fields], index):
        flags = {name: bool(others.get(name, False)) for name in _MARKS}
        seed = None if others.get(SEED, UNKNOWN_SEED) == UNKNOWN_SEED else int(others[SEED])
        yield conventions.make_episode(
            columns, index, **flags, seed=seed, metadata={name: others[name] for name in metadata_fields}
        )
        index += 1


def _read_rows(
    name: str, dataset: tf.data.Dataset, other_fields: Sequence[str], index: int = 0
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields what `read_episodes` does; raises `SourceError` if a record is damaged."""
    import tensorflow as tf

    from .rlds_episodes import read_episodes

    is_prepared = name != _UNPREPARED
    advice = "leave {} out" if is_prepared else "pass load() a tf.data.Dataset whose steps do not contain {}"
    remedy: dict[str, Any] = {"DropFields": ...} if is_prepared else {}
    try:
        for episode in read_episodes(dataset, other_fields):
            yield episode
            index += 1
    except tf.errors.OpError as error:
        if component := _RAGGED.search(str(error.message)):
            field = path_name(leaves(dataset.element_spec[fields.STEPS].element_spec)[int(component[1])][0])
            sentence = f"{name}: {field} differs in shape between the steps of episode {index}"
            raise SourceError(f"{sentence}; {advice.format('it')}", **remedy) from error
        # The message without the names of TensorFlow's graph nodes.
        reason = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error.message).splitlines()[0]).replace("'", "").strip()
        sentence = f"{name} is damaged at episode {index} ({reason}); copy or prepare it again"
        if isinstance(error, tf.errors.DataLossError):
            raise SourceError(sentence) from error
        raise SourceError(f"{sentence}, or {advice.format('a damaged field')}", **remedy) from error


def _is_readable(spec: Any) -> bool:
    """Returns whether a field of an episode is a tensor that NumPy can represent, or nested dicts of these."""
    import tensorflow as tf

    if isinstance(spec, dict):
        return all(map(_is_readable, spec.values()))
    dtypes = tf.bool, tf.string, tf.float16, tf.float32, tf.float64
    return isinstance(spec, tf.TensorSpec) and (spec.dtype in dtypes or spec.dtype.is_integer)


def _is_scalar(episode_spec: dict[str, Any], name: str, dtype: type) -> bool:
    import tensorflow as tf

    spec = episode_spec.get(name)
    return isinstance(spec, tf.TensorSpec) and spec.shape == () and spec.dtype == dtype


def open_directory(
    path: Path,
    *,
    split: str = "train",
    last_step: LastStep = AUTO,
    missing: Mapping[str, float] | None = None,
    image_decoding: bool = True,
) -> Source:
    """Opens a directory that TFDS prepared, which contains `dataset_info.json` and `features.json`.

    Both files are checked before TFDS reads them; see `tfds_files`.

    Args:
      path: directory of one version of a dataset.
      split: name of a split, which may be sliced (`train[:10%]`).
      last_step: see `loading.load`.
      missing: see `loading.load`.
      image_decoding: whether images become arrays; if False, they are the bytes of the file, such as JPEG.

    Raises:
      SourceError: If a file is missing, truncated or hostile, the split is unknown, steps have no observation or
        action, or the last rows of episodes do not tell what they mean.
    """
    require_harmless(path)
    prepared = _PreparedEpisodes(path, split, image_decoding=image_decoding)
    require_shards(path, prepared.builder.info.splits, split)
    if prepared.count() < 1:
        raise SourceError(f"{path}: the split {split!r} has no episodes; choose another")
    prepared.conventions = _find_conventions(
        prepared.name, prepared.dataset, last_step, missing or {}, [prepared.open_evidence, prepared.open_rest]
    )
    count = prepared.count if len(prepared.ranges) == 1 else None
    described = _describe_conventions(prepared.conventions, prepared.dataset.element_spec)
    source = Source(prepared.name, "rlds", prepared.read, num_episodes=prepared.count(), count=count, **described)
    if prepared.builder.info.name.startswith(_D4RL_BUILDERS):
        source.warnings += _describe_shared_ends(prepared.conventions, prepared.dataset)
    described = split_metadata(_read_metadata(path / "metadata.json"))
    source = replace(source, version=str(prepared.builder.version), **described)
    return identify_files(source, prepared.list_files)


class _PreparedEpisodes:
    """The episodes of a split of a dataset that TFDS prepared; those of a single range can be read in parts.

    Pickling it keeps the directory and how to read it; the other process opens it again.

    Attributes:
      name: name of the dataset.
      builder: TFDS's builder.
      conventions: the conventions of its rows, to be set before `read`.
    """

    def __init__(
        self,
        path: Path,
        split: str,
        *,
        image_decoding: bool = True,
        conventions: Conventions | None = None,
        left_out: Paths = frozenset(),
    ):
        """Opens the dataset, whose files must have been checked; see `open_directory` for the errors."""
        self._path, self._split, self._image_decoding, self._left_out = path, split, image_decoding, left_out
        self.builder = _open_builder_directory(path)
        self._datasets: dict[bool, tf.data.Dataset] = {}  # By whether images are decoded; copies share them.
        info = self.builder.info
        self.name = "/".join(part for part in (info.name, info.config_name) if part)
        self.conventions = Conventions(self.name, BOUNDARY) if conventions is None else conventions

    def __reduce__(self) -> Any:
        options = {"image_decoding": self._image_decoding, "conventions": self.conventions, "left_out": self._left_out}
        return partial(_PreparedEpisodes, self._path, self._split, **options), ()

    def _copy(self, **attributes: Any) -> _PreparedEpisodes:
        episodes = object.__new__(_PreparedEpisodes)  # Copying it would open the directory again.
        vars(episodes).update(vars(self), **attributes)
        return episodes

    @property
    def _features(self) -> Any:
        return _leave_out(self.builder.info.features, {(fields.STEPS, *path) for path in self._left_out})

    def list_paths(self) -> list[tuple[str, ...]]:
        """Returns the paths of the fields of steps that can be left out without reading them."""
        return list(_list_paths(self._features[fields.STEPS].feature))

    def leave_out(self, paths: Iterable[tuple[str, ...]]) -> _PreparedEpisodes:
        """Returns the episodes without some fields of steps."""
        return self._copy(_left_out=self._left_out.union(paths), _datasets={})

    def without(self, dropped: Sequence[str]) -> tuple[_PreparedEpisodes, list[str]]:
        """Returns a reader that does not read some fields, and the paths of those among them that it has read."""
        known = {path for path in self.list_paths() if len(path) > 1 or path[0] not in fields.STEP_FIELDS}
        paths, left_out = match_paths(dropped, known)
        if not {fields.OBSERVATION, fields.ACTION} <= {path[0] for path in self.list_paths() if path not in left_out}:
            return self, []
        return self.leave_out(left_out), paths

    @property
    def dataset(self) -> tf.data.Dataset:
        """The RLDS dataset of the whole split."""
        return self._open_once(self._image_decoding)

    def open_evidence(self, split: Any = None) -> tf.data.Dataset:
        """Returns the RLDS dataset of a split with only the fields that tell what last rows mean."""
        only = self.leave_out(path for path in self.list_paths() if path[0] not in _EVIDENCE)
        return only.open_dataset(split, image_decoding=False)

    def open_rest(self) -> tf.data.Dataset:
        """Returns the same without the first episode, which is skipped without reading it."""
        return self.open_evidence(self._select(1, max(2, self.count())))

    def _open_once(self, image_decoding: bool) -> tf.data.Dataset:
        image_decoding = image_decoding or not self._make_skip_decoders()
        if image_decoding not in self._datasets:
            self._datasets[image_decoding] = self.open_dataset(image_decoding=image_decoding)
        return self._datasets[image_decoding]

    @property
    def encoded(self) -> _PreparedEpisodes | None:
        """See `source.keep_images_encoded`."""
        return self._copy(_image_decoding=False) if self._image_decoding else None

    @cached_property
    def ranges(self) -> list[tuple[str, int, int]]:
        """The complete split, the first episode and the one after the last, of each range that the split joins."""
        import tensorflow_datasets as tfds

        splits = self.builder.info.splits
        with self._split_errors():
            ranges = tfds.core.ReadInstruction.from_spec(self._split).to_absolute(splits)
        ends = [splits[part.splitname].num_examples if part.to is None else part.to for part in ranges]
        return [(part.splitname, part.from_ or 0, end) for part, end in zip(ranges, ends, strict=True)]

    def list_files(self) -> list[Path]:
        """Returns the files that are read: those of the split, the descriptions, and the names of classes."""
        splits = self.builder.info.splits
        shards = [Path(file) for name in {name for name, *_ in self.ranges} for file in splits[name].filepaths]
        return [*shards, *self._path.glob("*.json"), *self._path.glob("*.labels.txt")]

    def count(self) -> int:
        """Returns the number of episodes."""
        return sum(stop - first for _, first, stop in self.ranges)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Returns an iterator over all episodes, or over those of a range."""
        stop = self.count() if stop is None else min(stop, self.count())
        if stop <= first:
            return iter(())
        if (first, stop) == (0, self.count()):
            dataset = self.dataset
        else:
            dataset = self.open_dataset(self._select(first, stop), image_decoding=self._image_decoding)
        return self._check_count(_read_episodes(self.conventions, dataset, first), first, stop)

    def _check_count(self, episodes: Iterator[Episode], first: int, stop: int) -> Iterator[Episode]:
        """Yields episodes; raises unless there are `stop - first`, which TFDS would do in the first iteration only."""
        index = first
        for episode in itertools.islice(episodes, stop - first + 1):
            if index < stop:
                yield episode
            index += 1
        if index != stop:
            kind = "more" if index > stop else "fewer"
            raise SourceError(
                f"{self.name} is damaged at episode {min(index, stop)} (dataset_info.json counts {self.count()} in the "
                f"split {self._split!r}, but the files contain {kind}); copy or prepare it again"
            )

    def _select(self, first: int, stop: int) -> Any:
        import tensorflow_datasets as tfds

        name, begin, _ = self.ranges[0]
        return tfds.core.ReadInstruction(name, from_=begin + first, to=begin + stop, unit="abs")

    def open_dataset(self, split: Any = None, *, image_decoding: bool) -> tf.data.Dataset:
        """Returns the RLDS dataset of a split, or of the whole one; see `open_directory`."""
        import tensorflow_datasets as tfds

        from rlds2reverb.libraries.tfds import decode_only, hide_deprecations

        features = self._features
        decoders = {} if image_decoding else {fields.STEPS: self._make_skip_decoders()}
        split = self._split if split is None else split
        if self.builder.info.file_format.value == ARRAY_RECORD:
            return read_array_records(self.builder.info.splits[split], features, decoders)
        with self._split_errors(), hide_deprecations():
            # One file after the other. After a damaged record, TFDS's cache would lack the rest of its file.
            config = tfds.ReadConfig(interleave_cycle_length=1, assert_cardinality=False, try_autocache=False)
            only = decode_only(features, decoders) if self._left_out else decoders
            return self.builder.as_dataset(split=split, decoders=only, read_config=config, shuffle_files=False)

    def _make_skip_decoders(self) -> dict[str, Any]:
        """Returns the decoders of TFDS that leave images encoded; may be empty."""
        return _skip_images(self._features[fields.STEPS])

    @contextlib.contextmanager
    def _split_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # TFDS has no common type for invalid slices and shards of a different length.
            raise SourceError(f"{self._path}: the split {self._split!r} cannot be read ({error})") from error


def _leave_out(features: Any, left_out: Collection[tuple[str, ...]]) -> Any:
    """Returns nested features of TFDS without some, nor groups that become empty."""
    import tensorflow_datasets as tfds

    if not left_out:
        return features
    if isinstance(features, tfds.features.Dataset):
        return tfds.features.Dataset(_leave_out(features.feature, left_out), length=features._length)
    parts = {
        name: _leave_out(part, {path[1:] for path in left_out if path[0] == name})
        for name, part in features.items()
        if (name,) not in left_out
    }
    is_group = tfds.features.FeaturesDict
    return is_group({name: part for name, part in parts.items() if not isinstance(part, is_group) or [*part.keys()]})


def _list_paths(features: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of nested features of TFDS."""
    import tensorflow_datasets as tfds

    for name, part in features.items():
        is_group = isinstance(part, tfds.features.FeaturesDict)
        yield from _list_paths(part, (*above, name)) if is_group else [(*above, name)]


def _skip_images(features: Any) -> dict[str, Any]:
    """Returns TFDS's decoders that keep the images of a feature encoded, in nested dicts."""
    import tensorflow_datasets as tfds

    members = features.feature if isinstance(features, tfds.features.Dataset) else features
    decoders: dict[str, Any] = {}
    for name, feature in members.items():
        if isinstance(feature, tfds.features.Image):
            decoders[name] = tfds.decode.SkipDecoding()
        elif isinstance(feature, tfds.features.FeaturesDict) and (inner := _skip_images(feature)):
            decoders[name] = inner
    return decoders


def _open_builder_directory(path: Path) -> tfds.core.DatasetBuilder:
    import tensorflow_datasets as tfds

    try:
        return tfds.builder_from_directory(path)
    except Exception as error:  # TFDS lets through any error of its parsers.
        raise SourceError(f"{path} cannot be opened by TFDS: {type(error).__name__}: {error}") from error


def _read_metadata(path: Path) -> dict[str, Any]:
    """Returns the numbers and strings in TFDS's file of a dataset's metadata, or nothing if it cannot be read."""
    values: dict[str, Any] = {}
    with contextlib.suppress(SourceError):  # Metadata are optional.
        values = as_dict(read_json(path))
    return {name: value for name, value in values.items() if isinstance(value, (str, bool, int, float))}


def open_builder(
    name: str, *, split: str = "train", data_dir: str | Path | None = None, download: bool = False, **options: Any
) -> Source:
    """Opens a TFDS dataset by name, such as `d4rl_mujoco_hopper/v2-medium`, in the newest version on this machine.

    Args:
      name: 'dataset', 'dataset/config' or 'dataset/config:1.0.0'.
      split: see `open_directory`.
      data_dir: TFDS's data directory; None for `$TFDS_DATA_DIR` or `~/tensorflow_datasets`.
      download: whether TFDS may download and prepare a missing dataset.
      **options: see `open_directory`.

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
            sentence = f"there is no path {name!r}, and TFDS has not prepared a dataset of that name in {root}"
            hub = f"hf download --repo-type dataset {name} --local-dir {name}"
            advice = f", or if it is one of LeRobot's, run {hub}" if name.count("/") == 1 and ":" not in name else ""
            raise FileNotFoundError(f"{Message(f'{sentence}; allow the download', download=True)}{advice}")
        prepared = _download_and_prepare(root, name)
    return open_directory(prepared, split=split, **options)


def _find_prepared(root: Path, name: str) -> Path | None:
    """Returns the directory of the newest prepared version of a dataset, or None."""
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

    from rlds2reverb.libraries.tfds import quiet_downloads

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


def _describe_shared_ends(conventions: Conventions, dataset: tf.data.Dataset) -> tuple[str, ...]:
    """Returns a warning if TFDS's D4RL builder ended every episode with the last observation of the whole file."""
    episodes = _read_episodes(conventions, dataset.take(_MAX_EPISODES_COMPARED))
    steps = [tree.flatten(episode.steps[fields.OBSERVATION]) for episode in episodes if episode.num_steps]
    last = [[column[-1] for column in columns] for columns in steps]
    ends = [b"".join(row.tobytes() for row in rows) for rows in last if any(np.any(row) for row in rows)]
    if len(ends) < 2 or len(set(ends)) > 1:
        return ()
    return (
        f"{conventions.name}: all of the first {len(ends)} episodes end in the same observation, because TFDS's D4RL "
        "builder appends the last next_observations row of the whole file to every episode; load the D4RL HDF5 file "
        "instead, which keeps the final observation of each episode",
    )


def _is_prepared(location: Any) -> bool:
    names = ("dataset_info.json", "features.json")
    return isinstance(location, Path) and any((location / name).is_file() for name in names)


def _is_dataset(source: Any) -> bool:
    return hasattr(source, "element_spec")


_OPTIONS = ("split", "last_step", "missing", "image_decoding", "autoreset")
DIRECTORY = Format("a directory prepared by TFDS", _is_prepared, open_directory, _OPTIONS, "TFDS")
NAME = Format(
    "a TFDS name",
    lambda name: isinstance(name, str),
    open_builder,
    (*_OPTIONS, "data_dir", "download"),
    "TFDS names",
    example="d4rl_mujoco_hopper/v2-medium",
)
DATASET = Format("an RLDS tf.data.Dataset", _is_dataset, from_rlds_dataset, ("last_step", "missing", "autoreset"))
