"""The metadata of LeRobot datasets, checked before any file that they name is read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest

from .agreement import require_agreement
from .episode_metadata import make_metadata, to_metadata_array
from .json_files import as_dict, read_json

#: The text of the task of each step.
TASK = "task"
TIMESTAMP, EPISODE_INDEX, TASK_INDEX = "timestamp", "episode_index", "task_index"
FRAME_INDEX, INDEX = "frame_index", "index"
#: Columns that LeRobot makes itself.
BOOKKEEPING = (TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX)
REWARD, DONE, SUCCESS, TRUNCATED = "next.reward", "next.done", "next.success", "next.truncated"
_ENDS = (DONE, SUCCESS, TRUNCATED)
#: Dtype of columns with lists of annotations, which LeRobot 0.6 names `language_persistent` and `language_events`.
LANGUAGE = "language"
#: Metadata with the names of the elements of columns, such as motors, as JSON.
FEATURE_NAMES = "feature_names"
#: File in which rlds2reverb describes the steps that it wrote, and the environment.
OWN_FILE = "rlds2reverb.json"
_VERSIONS = ("v2.0", "v2.1", "v3.0")
_PLACEHOLDER = re.compile(r"\{(episode_chunk|episode_index|chunk_index|file_index|video_key)(:0\d{1,2}d)?\}")
#: Dtypes of metadata, which JSON does not keep.
_NUMBER = re.compile(r"bool|float(16|32|64)|u?int(8|16|32|64)")
_MAX_DIMENSIONS = 5


@dataclass(frozen=True)
class Feature:
    """A column of the dataset.

    Attributes:
      name: its name, such as 'observation.state'.
      dtype: 'image', 'video', or the type of its numbers or strings.
      shape: shape of a row; for images height, width and number of channels.
      path: its place in a step, such as ('observation', 'state').
      depth: for videos of depth, how it is quantised; otherwise None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: tuple[str, ...]
    depth: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Span:
    """The place of an episode in a video.

    Attributes:
      path: the MP4 file.
      start: time of its first frame in the file, in seconds: `from_timestamp`.
      stop: time at which it ends: `to_timestamp`; None if it is not stated.
      before: end of the span before it in the file, 0 for the first one; None if it is not known.
      after: start of the span after it in the file; None if there is none.
    """

    path: Path
    start: float = 0.0
    stop: float | None = None
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class StoredEpisode:
    """The place of an episode in the files.

    Attributes:
      index: its `episode_index`.
      num_rows: its number of rows.
      data: the parquet file.
      first_row: its first row in that file.
      videos: the place in a video, by camera.
      tasks: texts of the tasks of its rows; empty if they are not stated.
      seed: seed of the environment, if rlds2reverb wrote the dataset.
      metadata: further fields in `meta/`; see `Episode.metadata`.
    """

    index: int
    num_rows: int
    data: Path
    first_row: int
    videos: Mapping[str, Span]
    tasks: Sequence[Any] = ()
    seed: int | None = None
    metadata: dict[str, Nest] = field(default_factory=dict)


@dataclass
class Metadata:
    """The content of `meta/`.

    Attributes:
      root: directory of the dataset.
      info: content of `info.json`.
      features: all columns, by name.
      tasks: texts by `task_index`.
      episodes: the episodes, in order.
      own: description of the steps by rlds2reverb; empty for other writers.
      unread: names of fields of episodes that are left out, because their types or shapes differ between episodes.
      num_undecided: number of episodes that may end with `next.done`, but with neither success nor truncation; 0 if
        rlds2reverb wrote the dataset.
    """

    root: Path
    info: dict[str, Any]
    features: dict[str, Feature]
    tasks: dict[int, bytes]
    episodes: list[StoredEpisode] = field(repr=False)
    own: dict[str, Any]
    unread: list[str]
    num_undecided: int

    @property
    def names(self) -> dict[str, Any]:
        """The names of the elements of columns that are not images, by column."""
        described = {name: as_dict(self.info["features"][name]) for name in self.features}
        return {
            name: feature["names"]
            for name, feature in described.items()
            if feature.get("names") and feature.get("dtype") not in ("image", "video")
        }


def read_metadata(root: Path) -> Metadata:
    """Returns the metadata of a dataset of version 2.0, 2.1 or 3.0.

    Raises:
      SourceError: If a file is missing, damaged or hostile, or the version is not supported.
    """
    path = root / "meta" / "info.json"
    info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise SourceError(f"{path} must be a JSON object with 'features'; copy or download it again")
    storage = info.get("storage_format")
    if storage not in (None, "parquet"):
        raise SourceError(
            f"{path}: storage_format must be 'parquet', got {storage!r}; write the dataset again as parquet and MP4 "
            "files, which LeRobotDataset of the lerobot package does"
        )
    version = info.get("codebase_version")
    if version not in _VERSIONS:
        raise SourceError(
            f"{path}: codebase_version must be one of {', '.join(_VERSIONS)}, got {version!r}; convert the dataset "
            "with a script of the lerobot package"
        )
    own_path = path.with_name(OWN_FILE)
    own = as_dict(read_json(own_path) if own_path.is_file() else {})
    features = {name: _read_feature(name, feature, own, path) for name, feature in info["features"].items()}
    if not own:
        features = _name_other_columns(features)
    read = _read_v3 if version == "v3.0" else _read_v2
    tasks, rows = read(root, info, [name for name in features if features[name].dtype == "video"])
    further = [{name: value for name, value in row.items() if _is_metadata(name)} for _, _, row in rows]
    metadata, unread = _make_metadata(further, as_dict(own.get("episode_metadata")))
    seeds = [row.get("seed") if type(row.get("seed")) is int else None for _, _, row in rows]
    parts = zip(rows, seeds, metadata, strict=True)
    episodes = [replace(stored, seed=seed, metadata=values) for (stored, _, _), seed, values in parts]
    expected = info.get("total_episodes", len(episodes))
    if expected != len(episodes) or len({episode.index for episode in episodes}) != len(episodes):
        raise SourceError(
            f"{root}: meta/ lists {len(episodes)} episodes, but info.json says {expected}; download it again"
        )
    empty = [episode.index for episode in episodes if not episode.num_rows]
    if empty:
        raise SourceError(f"{root}: episode {empty[0]} has no rows; remove it, or copy or download the dataset again")
    undecided = 0 if own else sum(_is_undecided(maxima, features) for _, maxima, _ in rows)
    return Metadata(root, info, features, tasks, episodes, own, unread, undecided)


def _list_tasks(row: Mapping[str, Any]) -> Sequence[Any]:
    tasks = row.get("tasks")
    return tasks if isinstance(tasks, list) else ()


def join_spans(episodes: Sequence[StoredEpisode], cameras: Sequence[str]) -> list[StoredEpisode]:
    """Returns the episodes with the neighbours of each span in its file."""
    joined = [dict(episode.videos) for episode in episodes]
    for name in cameras:
        order = sorted((videos[name].path, videos[name].start, number) for number, videos in enumerate(joined))
        for _, group in itertools.groupby(order, key=lambda place: place[0]):
            before: float | None = 0.0
            numbers = [number for _, _, number in group]
            for number, following in itertools.zip_longest(numbers, numbers[1:]):
                span = joined[number][name]
                after = None if following is None else joined[following][name].start
                if span.stop is not None:
                    joined[number][name] = replace(span, before=before, after=after)
                before = span.stop
    return [replace(episode, videos=videos) for episode, videos in zip(episodes, joined, strict=True)]


def _make_metadata(
    rows: Sequence[Mapping[str, Any]], dtypes: Mapping[str, Any]
) -> tuple[list[dict[str, Nest]], list[str]]:
    """Returns the metadata of each episode, and the names of fields that are not alike in all of them.

    Args:
      rows: further fields of each episode, as JSON values.
      dtypes: names of the dtypes of fields that rlds2reverb wrote.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_restore(row.get(name), dtypes.get(name)) for row in rows] for name in names}
    alike = {name: column for name, column in columns.items() if _is_alike(column)}
    metadata = [make_metadata({name: column[number] for name, column in alike.items()}) for number in range(len(rows))]
    return metadata, [name for name in names if name not in alike]


def _restore(value: Any, dtype: Any) -> np.ndarray | None:
    array = to_metadata_array(value)
    is_number = array is not None and array.dtype != object and _NUMBER.fullmatch(str(dtype))
    return array.astype(dtype) if array is not None and is_number else array


def _is_alike(column: Sequence[np.ndarray | None]) -> bool:
    kinds = {None if array is None else (array.dtype.str, array.shape) for array in column}
    return len(kinds) == 1 and None not in kinds


def _is_undecided(maxima: Mapping[str, Any], features: Mapping[str, Feature]) -> bool:
    """Returns whether an episode may end with `next.done` alone, by the maxima of `_ENDS`, None if unknown."""
    if DONE not in features or _first(maxima[DONE]) is False:
        return False
    return not any(name in features and _first(maxima[name]) is True for name in (SUCCESS, TRUNCATED))


def _first(value: Any) -> bool | None:
    while isinstance(value, list) and value:
        value = value[0]
    return bool(value) if isinstance(value, (bool, int, float)) else None


def _read_feature(name: str, feature: Any, own: Mapping[str, Any], path: Path) -> Feature:
    described = as_dict(feature)
    dtype = described.get("dtype")
    shape: Any = described.get("shape")
    is_valid = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 31 for size in shape)
    if not isinstance(dtype, str) or not is_valid or not 1 <= len(shape) <= _MAX_DIMENSIONS:
        raise SourceError(f"{path}: the feature {name!r} must have a dtype and a shape, got {feature!r:.200}")
    if dtype in ("image", "video"):
        names = described.get("names")
        is_first = isinstance(names, list) and names[:1] in (["channel"], ["channels"])
        if len(shape) == 3 and (is_first or (names is None and shape[0] in (1, 3) and shape[2] not in (1, 3, 4))):
            shape = [*shape[1:], shape[0]]
        if len(shape) != 3 or (dtype == "video" and shape[2] not in (1, 3)):
            raise SourceError(f"{path}: the {dtype} {name!r} must have height, width and channels, got {shape}")
    depth = as_dict(described.get("info")) if dtype == "video" and _is_depth(described) else None
    if depth is not None and shape[2] != 1:
        raise SourceError(f"{path}: the depth video {name!r} must have one channel, got {shape}")
    place = as_dict(own.get("paths")).get(name)
    if isinstance(place, list) and place and all(isinstance(part, str) for part in place):
        if place[0] in fields.STEP_FIELDS and place[0] not in (fields.OBSERVATION, fields.ACTION):
            raise SourceError(f"{path.with_name(OWN_FILE)}: the path of {name!r} must not be {place}; delete the file")
        return Feature(name, dtype, tuple(shape), tuple(place), depth)
    parts = tuple(name.split("."))
    is_usual = parts[0] in (fields.OBSERVATION, fields.ACTION)
    return Feature(name, dtype, tuple(shape), parts if is_usual else (), depth)


def _is_depth(feature: Mapping[str, Any]) -> bool:
    """Returns whether a camera records depth, which LeRobot has marked in three places."""
    info, video_info = as_dict(feature.get("info")), as_dict(feature.get("video_info"))
    return bool(info.get("is_depth_map") or info.get("video.is_depth_map") or video_info.get("video.is_depth_map"))


def _name_other_columns(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Returns features of which those under other names than LeRobot's have their place in a step.

    The action is 'actions' if there is no 'action'. 'state' and images are observations if they are not there under
    'observation.*', and so are all other columns if there is no 'observation.*' at all.
    """
    found = {feature.path[0] for feature in features.values() if feature.path}

    def place(feature: Feature) -> Feature:
        name = feature.name
        if feature.path or name in BOOKKEEPING or name.startswith("next.") or feature.dtype == LANGUAGE:
            return feature
        if name == "actions" and fields.ACTION not in found:
            return replace(feature, path=(fields.ACTION,))
        is_usual = name == "state" and f"{fields.OBSERVATION}.state" not in features
        if fields.OBSERVATION in found and not is_usual and feature.dtype not in ("image", "video"):
            return feature
        return replace(feature, path=(fields.OBSERVATION, *name.split(".")))

    return {name: place(feature) for name, feature in features.items()}


def _locate(root: Path, info: Mapping[str, Any], key: str, **values: Any) -> Path:
    """Returns the path that a template of info.json stands for.

    Raises:
      SourceError: If it has other placeholders, or leaves the directory.
    """
    template = info.get(key)
    if not isinstance(template, str) or "{" in _PLACEHOLDER.sub("", template):
        raise SourceError(
            f"{root}: {key} must be a path with placeholders such as {{episode_index:06d}}, got {template!r}"
        )

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise SourceError(f"{root}: {key} must not contain {match[0]}, got {template!r}")
        value = values[match[1]]
        return format(value, (match[2] or ":")[1:]) if isinstance(value, int) else str(value)

    path = Path(_PLACEHOLDER.sub(fill, template))
    if path.is_absolute() or ".." in path.parts:
        raise SourceError(f"{root}: {key} {template!r} leaves the directory; refused")
    return root / path


def _require_integers(row: Mapping[str, Any], names: Sequence[str], where: Path) -> list[int]:
    values = [row.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if type(value) is not int or value < 0:
            raise SourceError(f"{where}: {name} must be an integer >= 0, got {value!r}; copy or download it again")
    return values  # type: ignore[return-value]


def _is_metadata(name: str) -> bool:
    return name not in _OWN_FIELDS and not name.startswith(_OWN_GROUPS)


#: Episodes with the maxima of the columns `_ENDS`, and with their rows of metadata.
_Rows = list[tuple[StoredEpisode, dict[str, Any], dict[str, Any]]]
#: Fields of an episode that LeRobot or rlds2reverb itself uses, and the groups of version 3.
_OWN_FIELDS = frozenset([EPISODE_INDEX, "tasks", "length", "seed", "dataset_from_index", "dataset_to_index"])
_OWN_GROUPS = ("data/", "videos/", "stats/", "meta/")


def _read_v2(root: Path, info: Mapping[str, Any], cameras: Sequence[str]) -> tuple[dict[int, bytes], _Rows]:
    """Returns the tasks and episodes of version 2."""
    meta = root / "meta"
    tasks = _make_tasks(read_json(meta / "tasks.jsonl"), TASK, meta / "tasks.jsonl")
    path = meta / "episodes.jsonl"
    (chunks_size,) = _require_integers(info, ["chunks_size"], meta / "info.json")
    stats_path = meta / "episodes_stats.jsonl"
    rows = map(as_dict, read_json(stats_path) if stats_path.is_file() else [])
    stats = {row.get(EPISODE_INDEX): as_dict(row.get("stats")) for row in rows}
    episodes: _Rows = []
    for row in map(as_dict, read_json(path)):
        index, length = _require_integers(row, [EPISODE_INDEX, "length"], path)
        values = {EPISODE_INDEX: index, "episode_chunk": index // max(chunks_size, 1)}
        videos = {name: Span(_locate(root, info, "video_path", video_key=name, **values)) for name in cameras}
        data = _locate(root, info, "data_path", **values)
        maxima = {name: as_dict(stats.get(index, {}).get(name)).get("max") for name in _ENDS}
        episodes.append((StoredEpisode(index, length, data, 0, videos, _list_tasks(row)), maxima, row))
    return tasks, sorted(episodes, key=lambda entry: entry[0].index)


def _read_v3(root: Path, info: Mapping[str, Any], cameras: Sequence[str]) -> tuple[dict[int, bytes], _Rows]:
    """Returns what `_read_v2` returns, for version 3."""
    from .lerobot_files import read_rows

    meta = root / "meta"
    path = meta / "tasks.parquet"
    rows = read_rows(path)
    texts = [name for name in (rows[0] if rows else {}) if name != TASK_INDEX]
    tasks = _make_tasks(rows, texts[0] if texts else TASK, path)
    files = sorted(meta.glob("episodes/*/*.parquet"))
    if not files:
        raise SourceError(f"{meta / 'episodes'} has no parquet files; copy or download the dataset again")
    names = [EPISODE_INDEX, "length", "data/chunk_index", "data/file_index", "dataset_from_index"]
    keys = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    positions = [f"videos/{name}/{key}" for name in cameras for key in keys]
    wanted = {*names, *positions, "tasks", "dataset_to_index", *(f"stats/{name}/max" for name in _ENDS), "seed"}
    found: list[tuple[Path, dict[str, Any]]] = []
    for file in files:
        found += [(file, row) for row in read_rows(file, lambda name: name in wanted or _is_metadata(name))]
    first_rows: dict[Path, int] = {}
    episodes: _Rows = []
    for file, row in sorted(found, key=lambda pair: _require_integers(pair[1], [EPISODE_INDEX], pair[0])):
        index, length, chunk, number, start = _require_integers(row, names, file)
        data = _locate(root, info, "data_path", chunk_index=chunk, file_index=number)
        stated = {"dataset_to_index": row.get("dataset_to_index"), "dataset_from_index + length": start + length}
        require_agreement(f"{file}: episode {index}", {"length": stated})
        first_row = start - first_rows.setdefault(data, start)
        videos = {name: _locate_video(root, info, name, row, file) for name in cameras}
        maxima = {name: row.get(f"stats/{name}/max") for name in _ENDS}
        episodes.append((StoredEpisode(index, length, data, first_row, videos, _list_tasks(row)), maxima, row))
    joined = join_spans([episode for episode, _, _ in episodes], cameras)
    return tasks, [(episode, maxima, row) for episode, (_, maxima, row) in zip(joined, episodes, strict=True)]


def _locate_video(root: Path, info: Mapping[str, Any], name: str, row: Mapping[str, Any], file: Path) -> Span:
    chunk, number = _require_integers(row, [f"videos/{name}/{key}_index" for key in ("chunk", "file")], file)
    start = row.get(f"videos/{name}/from_timestamp")
    if not isinstance(start, (int, float)) or not 0 <= start < float("inf"):
        raise SourceError(f"{file}: videos/{name}/from_timestamp must be a number >= 0, got {start!r}")
    stop = row.get(f"videos/{name}/to_timestamp")
    end = float(stop) if isinstance(stop, (int, float)) else None
    path = _locate(root, info, "video_path", video_key=name, chunk_index=chunk, file_index=number)
    return Span(path, float(start), end)


def _make_tasks(rows: Sequence[Any], text: str, path: Path) -> dict[int, bytes]:
    tasks = {}
    for row in map(as_dict, rows):
        task = row.get(text)
        (index,) = _require_integers(row, [TASK_INDEX], path)
        if not isinstance(task, str):
            raise SourceError(f"{path}: the task {index} must be a string, got {task!r}; copy or download it again")
        tasks[index] = task.encode()
    return tasks
