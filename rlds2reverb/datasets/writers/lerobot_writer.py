"""Writing of LeRobot datasets of versions 2.1 and 3.0, without the `lerobot` package.

A row is an observation, the action taken there and its reward, so that an episode of `T` transitions has `T` rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import ArgumentError, Message, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, path_name

from ..readers.episode_metadata import decode_metadata
from ..readers.json_files import parse_object
from ..readers.lerobot_meta import BOOKKEEPING, DONE, FEATURE_NAMES, OWN_FILE, REWARD, TASK, TRUNCATED
from ..source import Source
from ..steps.image_files import encode_png
from ..task_texts import TASK_FIELDS, find_task
from .lerobot_statistics import Statistics, summarize_columns
from .written_episodes import has_tuple, make_refusal, require_log_fields

#: The versions that are written, the default first.
VERSIONS = ("v3.0", "v2.1")
#: Rate that timestamps assume if the source does not know its own.
DEFAULT_FPS = 30
#: Size from which version 3.0 starts a new data file, and number of files in a directory, as in LeRobot.
FILE_MB, VIDEO_MB = 100, 200
CHUNKS_SIZE = 1000
ROW_GROUP_BYTES = 16 << 20
EPISODES_PER_GROUP = 500
_IMAGE_CHANNELS = (1, 3, 4)
_MAX_DIMENSIONS = 5
#: Maximum difference between a timestamp and that of a constant rate, as in LeRobot.
_MAX_CHANGE_SECS = 1e-4
_VIDEO_OPTIONS = {"crf": "12", "g": "2"}
_PATHS = {
    "v3.0": {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    },
    "v2.1": {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    },
}


def write_lerobot(
    directory: Path,
    batches: Iterable[EpisodeBatch],
    step_spec: Mapping[str, Nest],
    source: Source,
    *,
    location: Path,
    lerobot_version: str = VERSIONS[0],
    fps: float | None = None,
    video: bool = False,
) -> tuple[str, ...]:
    """Writes episodes to a new directory.

    Args:
      directory: the directory to create.
      batches: the episodes.
      step_spec: spec of a step.
      source: the source of the episodes, which provides the metadata.
      location: final path of the directory.
      lerobot_version: one of `VERSIONS`.
      fps: rows per second; None for that of the source, or `DEFAULT_FPS`.
      video: whether images with three channels become videos, which are lossy, rather than PNG images.

    Returns:
      Sentences about what was assumed and what was lost.

    Raises:
      ImportError: If videos are requested, but PyAV is not installed.
      SourceError: If LeRobot cannot represent the data.
      OSError: If the files cannot be written.
    """
    columns = make_columns(step_spec, video=video)
    if video and not any(column.kind == "video" for column in columns):
        raise ArgumentError(
            "requires images with three channels, which the dataset does not contain", about="video", value=True
        )
    known_fps = source.metadata.get("fps")
    rate = fps or (known_fps if isinstance(known_fps, (int, float)) and known_fps > 0 else DEFAULT_FPS)
    rate = int(rate) if rate == int(rate) else rate  # LeRobot requires an integer where it can be one.
    files = _Version3 if lerobot_version == "v3.0" else _Version2
    writer = files(directory, columns, rate, _choose_task(step_spec), source)
    for batch in batches:
        for episode in batch.episodes:
            writer.add(episode)
    writer.finish()
    sentences: list[str] = []
    names = {column.name for column in columns}
    if "observation.state" not in names and any(name.startswith("observation.") for name in names):
        sentences.append(Message("LeRobot's policies expect a vector 'observation.state'; join one", mapping=...))
    if not any(writer.tasks):
        sentences.append(Message("the texts of all tasks are empty; set a constant 'task'", mapping=...))
    if rate != fps and rate != known_fps:
        sentences.append(Message(f"timestamps assume {DEFAULT_FPS} rows per second; set the rate", fps=...))
    if writer.num_irregular:
        sentences.append(
            f"the timestamps of {writer.num_irregular:,} episodes are changed to those of {rate:g} rows per second"
        )
    for name, error in writer.video_errors.items():
        sentences.append(f"'{name}' is a video, which is lossy: its pixels differ by up to {error} of 255")
    return tuple(sentences)


@dataclass(frozen=True)
class Column:
    """A column of the dataset.

    Attributes:
      name: name of the feature.
      path: place in a step; () for LeRobot's own columns.
      spec: dtype and shape of a step.
      kind: 'array', 'string', 'image' or 'video'.
    """

    name: str
    path: tuple[str, ...]
    spec: ArraySpec
    kind: str = "array"

    @property
    def dtype(self) -> str:
        """The dtype in `info.json`."""
        return self.spec.dtype.name if self.kind == "array" else self.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in `info.json`: that of a scalar is `(1,)`."""
        return tuple(size or 0 for size in self.spec.shape) or (1,)

    def describe(self, fps: float, names: Any) -> dict[str, Any]:
        """Returns the feature in `info.json`, with the names of its elements."""
        described: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "names": names}
        if self.kind in ("image", "video"):
            described["names"] = ["height", "width", "channels"]
        if self.kind == "video":
            height, width, channels = self.shape
            described["info"] = {
                **{"video.height": height, "video.width": width, "video.codec": "h264", "video.pix_fmt": "yuv420p"},
                **{"video.is_depth_map": False, "video.fps": fps, "video.channels": channels, "has_audio": False},
            }
        return described

    def describe_for_datasets(self) -> dict[str, Any]:
        """Returns the feature in the form of the `datasets` package."""
        value = {"dtype": self.dtype, "_type": "Value"}
        if self.kind == "image":
            return {"_type": "Image"}
        if self.shape == (1,):
            return value
        if len(self.shape) == 1:
            return {"feature": value, "length": self.shape[0], "_type": "Sequence"}
        return {"shape": list(self.shape), "dtype": self.dtype, "_type": f"Array{len(self.shape)}D"}

    def to_arrow(self, column: np.ndarray, where: str) -> Any:
        """Returns the rows of an episode as a column of a parquet file."""
        import pyarrow as pa

        if self.kind == "image":
            images = [{"bytes": encode_png(image), "path": f"frame_{row:06d}.png"} for row, image in enumerate(column)]
            return pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        if self.kind == "string":
            return pa.array(_to_texts(column, f"{where}: {path_name(self.path)}"), pa.string())
        values = pa.array(np.ascontiguousarray(column).reshape(-1))
        if len(self.shape) == 1:
            return values if self.shape == (1,) else pa.FixedSizeListArray.from_arrays(values, self.shape[0])
        for size in reversed(self.shape):
            values = pa.ListArray.from_arrays(np.arange(0, len(values) + 1, size, dtype=np.int32), values)
        return values


def make_columns(step_spec: Mapping[str, Nest], *, video: bool) -> list[Column]:
    """Returns the columns for the observations, actions and additional fields of a step, and LeRobot's own.

    Raises:
      SourceError: If LeRobot cannot represent the spec.
    """
    require_log_fields(step_spec, "LeRobot")
    task = _choose_task(step_spec)
    columns: list[Column] = []
    for path, spec in leaves(dict(step_spec)):
        if path[0] in (fields.OBSERVATION, fields.ACTION) or path[0] not in (*fields.STEP_FIELDS, task):
            _require_representable(path, spec, is_tuple=has_tuple(step_spec, path))
            columns.append(_make_column(path, spec, video=video))
    names = [column.name for column in columns]
    for column in columns:
        if column.name in (*BOOKKEEPING, REWARD, DONE, TRUNCATED, TASK):
            raise SourceError(
                f"{path_name(column.path)} would replace LeRobot's own column '{column.name}'; drop it", DropFields=...
            )
        if names.count(column.name) > 1:
            raise SourceError(f"two fields of a step would become the column '{column.name}' of LeRobot; rename one")
    own = {REWARD: step_spec[fields.REWARD].dtype, DONE: np.bool_, TRUNCATED: np.bool_, "timestamp": np.float32}
    own |= dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), np.int64)
    return columns + [Column(name, (), ArraySpec((), np.dtype(dtype))) for name, dtype in own.items()]


def _require_representable(path: tuple[Any, ...], spec: ArraySpec, *, is_tuple: bool) -> None:
    if is_tuple:
        where = path_name(path)
        raise SourceError(f"{where} is in a tuple, which LeRobot cannot represent; use dicts, or format='minari'")
    if spec.dtype == object and spec.shape:
        raise make_refusal(path, spec, "be one string per step", "LeRobot")
    if None in spec.shape or 0 in spec.shape or len(spec.shape) > _MAX_DIMENSIONS:
        requirement = f"have a fixed shape of at most {_MAX_DIMENSIONS} dimensions, none of them 0,"
        raise make_refusal(path, spec, requirement, "LeRobot")


def _make_column(path: tuple[str, ...], spec: ArraySpec, *, video: bool) -> Column:
    is_image = spec.dtype == np.uint8 and len(spec.shape) == 3 and spec.shape[2] in _IMAGE_CHANNELS
    kind = "string" if spec.dtype == object else "image" if is_image else "array"
    name = ".".join(path)
    if path == (fields.OBSERVATION,):
        name = f"{name}.image" if is_image else f"{name}.state"
    if video and is_image and spec.shape[2] == 3:
        if any((size or 0) % 2 for size in spec.shape[:2]):
            raise SourceError(
                f"{path_name(path)} must have an even height and width to become a video, got {describe(spec)}; "
                "to store PNG images, leave out the option",
                video=...,
            )
        kind = "video"
    return Column(name, path, spec, kind)


def _choose_task(step_spec: Mapping[str, Nest]) -> str | None:
    """Returns the name of the step field that is the text of a task, or None."""
    text = ArraySpec((), np.dtype(object))
    return next((name for name in TASK_FIELDS if step_spec.get(name) == text), None)


def _to_texts(column: np.ndarray, where: str) -> list[str]:
    try:
        return [(text if isinstance(text, bytes) else str(text).encode()).decode() for text in column]
    except UnicodeError as error:
        raise SourceError(f"{where} must be UTF-8 for LeRobot ({error}); drop it", DropFields=...) from error


def _select_names(names: Mapping[str, Any], column: Column) -> Any:
    """Returns the names of the elements of a column, unless their number is not that of a list."""
    found = names.get(column.name)
    return None if isinstance(found, list) and len(found) != column.shape[-1] else found


def _write_video(path: Path, frames: np.ndarray, fps: float) -> int:
    """Writes a video, and returns the maximum difference between its pixels and those of the frames."""
    from ..readers.lerobot_videos import REPORTED_SECS, import_av, read_frames

    av = import_av()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(str(fps)), options=_VIDEO_OPTIONS)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode(None))
    decoded, _ = read_frames(path, np.arange(len(frames)) / fps, frames.shape[1:], path.name, REPORTED_SECS)
    return max(int(np.abs(one.astype(int) - other).max()) for one, other in zip(decoded, frames, strict=True))


class _Files:
    """The files of a dataset that is being written; the layout is that of the subclass."""

    version: str

    def __init__(self, directory: Path, columns: Sequence[Column], fps: float, task: str | None, source: Source):
        """Creates the directory.

        Args:
          directory: the directory to create.
          columns: all columns.
          fps: rows per second.
          task: name of the step field that is the text of the task, or None; see `find_task`.
          source: the source of the episodes.
        """
        self._meta = directory / "meta"
        self._meta.mkdir(parents=True)
        self._directory, self._columns, self._fps, self._task = directory, columns, fps, task
        self._source, self._metadata_spec = source, source.episode_metadata_spec
        self._videos = [column.name for column in columns if column.kind == "video"]
        self._stored = [column for column in columns if column.kind != "video"]
        described = {column.name: column.describe_for_datasets() for column in self._stored}
        #: The schema in the form of the `datasets` package, with which LeRobot reads the files.
        self._schema_metadata = {"huggingface": json.dumps({"info": {"features": described}})}
        self.tasks: dict[str, int] = {}
        self._num_episodes = self._num_rows = self.num_irregular = 0
        self._statistics = Statistics()
        self.video_errors: dict[str, int] = {}

    def add(self, episode: Episode) -> None:
        """Writes an episode, of which every step is a real action."""
        import pyarrow as pa

        num_rows = episode.num_steps
        where = f"episode {episode.index}"
        values = dict(episode.columns)
        text = find_task(episode, self._source.metadata) if self._task is None else episode.steps[self._task]
        texts = _to_texts(text, f"{where}: step['{self._task or TASK}']")
        rows = {column.name: values[column.path] for column in self._columns if column.path}
        for column in self._columns:
            if column.spec.dtype == np.uint64 and column.path and rows[column.name].max() >> np.uint64(63):
                raise SourceError(
                    f"{where}: {path_name(column.path)} must be below 2^63 for LeRobot, got "
                    f"{rows[column.name].max()}; drop it, or use the format 'rlds' or 'minari'",
                    DropFields=...,
                )
        rows |= self._make_own_columns(episode, texts)
        if (times := episode.timestamps) is not None:
            changes = times[:num_rows] - times[0] - rows["timestamp"][: len(times)]
            self.num_irregular += bool(np.abs(changes).max() > _MAX_CHANGE_SECS)
        table = {column.name: column.to_arrow(rows[column.name], where) for column in self._stored}
        for name in self._videos:
            error = _write_video(self._make_path("video_path", video_key=name), rows[name], self._fps)
            self.video_errors[name] = max(self.video_errors.get(name, 0), error)
        numbers = {column.name: rows[column.name] for column in self._columns if column.kind != "string"}
        images = [column.name for column in self._columns if column.kind in ("image", "video")]
        statistics = summarize_columns(numbers, images)
        self._statistics.add(statistics)
        described = {"episode_index": self._num_episodes, "tasks": list(dict.fromkeys(texts)), "length": num_rows}
        metadata = decode_metadata(episode, self._metadata_spec, "LeRobot", (*described, "seed"))
        described |= {name: value.tolist() for name, value in metadata.items()}
        rows_table = pa.table(table).replace_schema_metadata(self._schema_metadata)
        self._write(rows_table, described, statistics, episode.seed)
        self._num_episodes += 1
        self._num_rows += num_rows

    def _make_own_columns(self, episode: Episode, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns LeRobot's own columns, given the text of the task of each row."""
        num_rows = len(texts)
        done, truncated = np.zeros((2, num_rows), bool)
        done[-1] = not episode.unterminated
        truncated[-1] = done[-1] and not episode.is_terminal
        numbers = np.arange(num_rows)
        return {
            REWARD: episode.steps[fields.REWARD],
            DONE: done,
            TRUNCATED: truncated,
            "timestamp": (numbers / self._fps).astype(np.float32),
            "frame_index": numbers,
            "episode_index": np.full(num_rows, self._num_episodes),
            "index": numbers + self._num_rows,
            "task_index": np.array([self.tasks.setdefault(text, len(self.tasks)) for text in texts], np.int64),
        }

    def _make_path(self, key: str, **values: Any) -> Path:
        """Returns the path of a file of the next episode, and creates its folder."""
        chunk, number = divmod(self._num_episodes, CHUNKS_SIZE)
        numbers = {"chunk_index": chunk, "file_index": number}
        numbers |= {"episode_chunk": chunk, "episode_index": self._num_episodes}
        path = self._directory / _PATHS[self.version][key].format(**{**numbers, **values})
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _write(self, table: Any, episode: dict[str, Any], statistics: Any, seed: int | None) -> None:
        """Writes the rows and the metadata of the next episode."""
        raise NotImplementedError

    def _close(self) -> dict[str, Any]:
        """Writes the remaining metadata, and returns the entries of `info.json` that only this version has."""
        raise NotImplementedError

    def finish(self) -> None:
        """Writes the metadata of the dataset."""
        own_info, source = self._close(), self._source
        names = parse_object(source.metadata.get(FEATURE_NAMES))
        info = {
            "codebase_version": self.version,
            "robot_type": source.metadata.get("robot_type"),
            "total_episodes": self._num_episodes,
            "total_frames": self._num_rows,
            "total_tasks": len(self.tasks),
            **own_info,
            "chunks_size": CHUNKS_SIZE,
            "fps": self._fps,
            "splits": {"train": f"0:{self._num_episodes}"},
            **_PATHS[self.version],
            "features": {
                column.name: column.describe(self._fps, _select_names(names, column)) for column in self._columns
            },
        }
        metadata = {name: value for name, value in source.full_metadata.items() if name != "codebase_version"}
        own = {
            "metadata": metadata if self._fps == DEFAULT_FPS else {**metadata, "fps": self._fps},
            "task": self._task,
            "paths": {column.name: column.path for column in self._columns if column.path},
            "episode_metadata": {
                "/".join(path): "string" if spec.dtype == object else spec.dtype.name
                for path, spec in leaves(self._metadata_spec)
            },
            "vectors": [column.name for column in self._columns if column.spec.shape == (1,)],
        }
        for name, content in {"info.json": info, OWN_FILE: own}.items():
            (self._meta / name).write_text(json.dumps(content, indent=4, default=str), encoding="utf-8")


class _Version2(_Files):
    """One parquet file per episode, and metadata in JSON lines."""

    version = "v2.1"

    def _write(self, table: Any, episode: dict[str, Any], statistics: Any, seed: int | None) -> None:
        import pyarrow.parquet as pq

        pq.write_table(table, self._make_path("data_path"))
        self._append("episodes.jsonl", episode if seed is None else {**episode, "seed": seed})
        self._append("episodes_stats.jsonl", {"episode_index": self._num_episodes, "stats": statistics})

    def _append(self, name: str, content: Any) -> None:
        with (self._meta / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")

    def _close(self) -> dict[str, Any]:
        for text, index in self.tasks.items():
            self._append("tasks.jsonl", {"task_index": index, "task": text})
        num_videos = self._num_episodes * len(self._videos)
        return {"total_videos": num_videos, "total_chunks": (self._num_episodes - 1) // CHUNKS_SIZE + 1}


class _Version3(_Files):
    """Parquet files with many episodes, and metadata in parquet files."""

    version = "v3.0"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._num_files = 0
        self._data: Any = None
        self._index: Any = None
        self._tables: list[Any] = []
        self._num_bytes = 0
        self._episodes: list[dict[str, Any]] = []

    @property
    def _data_file(self) -> dict[str, int]:
        """The numbers of the chunk and file to which the next rows go."""
        return dict(zip(("chunk_index", "file_index"), divmod(self._num_files, CHUNKS_SIZE), strict=True))

    def _write(self, table: Any, episode: dict[str, Any], statistics: Any, seed: int | None) -> None:
        import pyarrow.parquet as pq

        if self._data is None:
            self._path = self._make_path("data_path", **self._data_file)
            self._data = pq.ParquetWriter(self._path, table.schema)
        self._tables.append(table)
        self._num_bytes += table.nbytes
        place = {f"data/{name}": number for name, number in self._data_file.items()}
        rows = {"dataset_from_index": self._num_rows, "dataset_to_index": self._num_rows + episode["length"]}
        chunk, number = divmod(self._num_episodes, CHUNKS_SIZE)
        times = {"from_timestamp": 0.0, "to_timestamp": episode["length"] / self._fps}
        video = {"chunk_index": chunk, "file_index": number, **times}
        videos_at = {f"videos/{name}/{key}": value for name in self._videos for key, value in video.items()}
        stats = {f"stats/{name}/{key}": value for name, of in statistics.items() for key, value in of.items()}
        index = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        self._episodes.append({**episode, **place, **rows, **videos_at, **stats, **index, "seed": seed})
        if len(self._episodes) == EPISODES_PER_GROUP:
            self._flush_episodes()
        if self._num_bytes >= ROW_GROUP_BYTES:
            self._flush()
            if self._path.stat().st_size >= FILE_MB << 20:
                self._data.close()
                self._data = None
                self._num_files += 1

    def _flush(self) -> None:
        import pyarrow as pa

        if self._tables:
            self._data.write_table(pa.concat_tables(self._tables))
            self._tables, self._num_bytes = [], 0

    def _flush_episodes(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._index is None:
            path = self._meta / "episodes" / "chunk-000" / "file-000.parquet"
            path.parent.mkdir(parents=True)
            schema = pa.Table.from_pylist(self._episodes).schema
            place = schema.get_field_index("seed")
            self._index = pq.ParquetWriter(path, schema.set(place, pa.field("seed", pa.int64())))
        self._index.write_table(pa.Table.from_pylist(self._episodes, schema=self._index.schema))
        self._episodes = []

    def _close(self) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._flush()
        if self._data is not None:
            self._data.close()
        if self._episodes:
            self._flush_episodes()
        self._index.close()
        index = "__index_level_0__"
        pandas = {  # The texts are the index of a pandas table.
            "index_columns": [index],
            "column_indexes": [],
            "columns": [
                {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
                {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"},
            ],
        }
        tasks = pa.table({"task_index": pa.array(self.tasks.values(), pa.int64()), index: list(self.tasks)})
        pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), self._meta / "tasks.parquet")
        (self._meta / "stats.json").write_text(json.dumps(self._statistics.as_dict(), indent=4), encoding="utf-8")
        return {"data_files_size_in_mb": FILE_MB, "video_files_size_in_mb": VIDEO_MB}
