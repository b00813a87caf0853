"""LeRobot datasets of versions 2.0, 2.1 and 3.0, read without the `lerobot` package.

Format: a row of a parquet file is the observation at time t, the action taken there, and the reward of that action.
All actions are real, and the observation after the last action of an episode is not stored.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import ArgumentError, Message, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_one_of
from rlds2reverb.types.episodes import Contradiction, Episode

from ..formats import Format
from ..source import Source, identify_files, split_metadata
from .agreement import Facts, find_contradictions
from .columns import as_flags, insert_column, make_log_episode, match_paths, select_cameras
from .d4rl import require_new_names
from .json_files import as_dict
from .lerobot_meta import (
    BOOKKEEPING,
    DONE,
    EPISODE_INDEX,
    FEATURE_NAMES,
    FRAME_INDEX,
    INDEX,
    REWARD,
    SUCCESS,
    TASK,
    TASK_INDEX,
    TIMESTAMP,
    TRUNCATED,
    Feature,
    Metadata,
    StoredEpisode,
    read_metadata,
)

#: Meanings of `next.done` in an episode that neither succeeds nor is truncated.
DONE_MEANINGS = ("terminal", "truncated")
_VERSIONS_ADVICE = "convert the dataset again, or copy meta/ and data/ from the same version of it"


def open_lerobot(
    path: Path,
    *,
    split: str | None = None,
    extra_fields: Sequence[str] = (),
    done: str | None = None,
    cameras: Sequence[str] | None = None,
    tolerance_s: float | None = None,
) -> Source:
    """Opens a LeRobot dataset.

    Columns `observation.*` become the nested dict `observation`, `next.reward` becomes the reward, and the text of the
    task becomes the step field `task`. Images and video frames are uint8 `[T, height, width, channels]`. Columns of
    shape `(1,)` are scalars. Without `next.reward`, rewards are zeros.

    The names of the elements of columns, such as motors, are JSON in the metadata `feature_names`; `next.success` is
    a step field as well.

    Both ends of an episode: the last row decides. `next.success` makes the end terminal and `next.truncated` makes it
    truncated. `next.done` alone is decided by `done`. Without any of them, the episode is truncated and `unterminated`.
    There is no final observation: a terminal episode ends in zeros, and a truncated one loses its last transition.

    Args:
      path: directory that contains `meta/info.json`.
      split: name of a range of episodes in `info.json`, such as 'train'; None for all episodes.
      extra_fields: names of further columns to read as step fields, such as `timestamp`.
      done: meaning of `next.done` without `next.success` and without `next.truncated`: 'terminal' or 'truncated'. By
        default 'truncated' if the dataset records success, but no truncation, otherwise 'terminal'; a warning says so.
      cameras: columns of images and videos to read, such as 'observation.images.front' or the end of such a name after
        a dot, 'front'; None for all. The others are neither opened nor decoded.
      tolerance_s: maximum difference in seconds between the timestamp of a row and that of its frame, the nearest one;
        None for a quarter of the interval between rows. Differences above 0.1 ms are contradictions of the episode.

    Raises:
      SourceError: If metadata are missing, damaged or hostile, or there is no such split, column or camera; while
        iterating, if a file is missing or damaged, a video has no frame at a timestamp, or it has that of a different
        episode.
      ValueError: If `done` is unknown or without effect, or `tolerance_s` is not a number >= 0.
    """
    if tolerance_s is not None and not 0 <= tolerance_s < float("inf"):
        raise ArgumentError(f"must be a number >= 0, got {tolerance_s}", about="tolerance_s")
    if done is not None:
        require_one_of("done", done, DONE_MEANINGS)
    metadata = read_metadata(path)
    if done is not None and DONE not in metadata.features:
        sentence = f"requires the column {DONE}, which {path.name} does not contain; leave it out"
        raise ArgumentError(sentence, about="done", value=done)
    if cameras is not None:
        metadata.features = _select_cameras(metadata, cameras)
    features = metadata.features
    if split is not None:
        metadata.episodes = _select_split(metadata, split)
    paths = _select_fields(metadata, extra_fields)
    if tolerance_s is not None and not any(features[name].dtype == "video" for name in paths):
        sentence = f"requires videos, which {path.name} does not contain or read; leave it out"
        raise ArgumentError(sentence, about="tolerance_s", value=tolerance_s)
    reader = _EpisodeReader(metadata, paths, done or _choose_done(features), tolerance_s)
    num_episodes, num_rows = len(metadata.episodes), sum(episode.num_rows for episode in metadata.episodes)
    own = metadata.own.get("metadata")
    if not isinstance(own, dict):
        own = {name: metadata.info.get(name) for name in ("codebase_version", "robot_type", "fps")}
        if metadata.names:
            own[FEATURE_NAMES] = json.dumps(metadata.names)
    described = split_metadata({name: value for name, value in own.items() if isinstance(value, (str, int, float))})
    described["warnings"] = _describe_assumptions(path.resolve().name, metadata, done)
    described["assumed_fields"] = () if REWARD in features else (fields.REWARD,)
    used = (*reader.paths, *BOOKKEEPING, REWARD, DONE, SUCCESS, TRUNCATED)
    described["unread"] = tuple(name for name in features if name not in used)
    described |= {"num_episodes": num_episodes, "num_rows": num_rows}
    source = Source(path.resolve().name, "lerobot", reader.read, count=lambda: num_episodes, **described)
    return identify_files(source, reader.list_files)


def _choose_done(features: Mapping[str, Feature]) -> str:
    return "truncated" if SUCCESS in features and TRUNCATED not in features else "terminal"


def _describe_assumptions(name: str, metadata: Metadata, done: str | None) -> tuple[str, ...]:
    sentences: list[str] = []
    num_rows = sum(episode.num_rows for episode in metadata.episodes)
    rows, tasks = (metadata.info.get(f"total_{noun}") for noun in ("frames", "tasks"))
    totals = {
        "rows": {"total_frames in info.json": rows, "the sum of lengths in meta/": num_rows},
        "tasks": {"total_tasks in info.json": tasks, "the number in meta/": len(metadata.tasks)},
    }
    sentences += [f"{name}: {found.message}" for found in find_contradictions(totals)]
    if metadata.num_undecided and done is None:
        assumed = _choose_done(metadata.features)
        (other,) = set(DONE_MEANINGS) - {assumed}
        sentence = (
            f"{name}: up to {metadata.num_undecided:,} episodes end with next.done, but with neither next.success nor "
            f"next.truncated, and are assumed to be {assumed}; confirm it with the same value, or change it"
        )
        sentences.append(Message(sentence, done=other))
    if metadata.unread:
        names = ", ".join(metadata.unread)
        sentences.append(f"{name}: fields of episodes that are not alike in all of them are not read: {names}")
    if REWARD not in metadata.features:
        sentences.append(f"{name} has no {REWARD}; its rewards are zeros, which only cloning can use")
    return tuple(sentences)


def _select_cameras(metadata: Metadata, cameras: Sequence[str]) -> dict[str, Feature]:
    """Returns the columns without the images and videos of other cameras; raises as `select_cameras`."""
    known = [name for name, feature in metadata.features.items() if feature.dtype in ("image", "video")]
    selected = select_cameras(known, cameras, metadata.root.name)
    return {name: feature for name, feature in metadata.features.items() if name in selected or name not in known}


def _select_fields(metadata: Metadata, extra_fields: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the columns to read as step fields, with their paths.

    Raises:
      SourceError: If there are no observations or actions, or an extra field is not a column.
    """
    features, root = metadata.features, metadata.root
    require_new_names(extra_fields, root.name)
    for name in extra_fields:
        if name not in features:
            others = [other for other in features if not features[other].path]
            raise SourceError(f"{root.name} has no column '{name}'; use one of: {', '.join(others)}")
    paths = {name: feature.path for name, feature in features.items() if feature.path}
    kept = (*extra_fields, *([SUCCESS] if SUCCESS in features else []))
    paths |= {name: (name,) for name in kept if name not in paths}
    for required in (fields.OBSERVATION, fields.ACTION):
        if not any(path[0] == required for path in paths.values()):
            raise SourceError(f"{root.name} has no columns '{required}.*'; it has {', '.join(features)}")
    return paths


class _DataFiles:
    """The data file that is open, from which episodes are read in order."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], images: Sequence[str]):
        self._shapes, self._images = shapes, images
        self._path: Path | None = None
        self._rows: Any = None

    def read(self, path: Path, first_row: int, stored: StoredEpisode, where: str) -> Any:
        """Returns the rows of an episode; raises `SourceError` unless they are there, and no others."""
        from .lerobot_files import RowReader

        if path != self._path or first_row < self._rows.row:
            self.close()
            self._rows = RowReader(path, self._shapes, self._images, first_row=first_row)
            self._path = path
        table = self._rows.read(first_row, stored.num_rows)
        if EPISODE_INDEX not in self._shapes:
            return table
        indices = table[EPISODE_INDEX].to_numpy()
        if (indices != stored.index).any():
            row = int(np.argmax(indices != stored.index))
            raise SourceError(
                f"{where}, step {row}: {path} has episode_index {indices[row]} where meta/ expects {stored.index}; "
                + _VERSIONS_ADVICE
            )
        if self._rows.peek(EPISODE_INDEX) == stored.index:
            raise SourceError(
                f"{path} has more rows of episode {stored.index} than the {stored.num_rows} that meta/ lists; "
                + _VERSIONS_ADVICE
            )
        return table

    def close(self) -> None:
        """Closes the file."""
        if self._path is not None:
            self._rows.close()
        self._path = None


class _EpisodeReader:
    """Reads the episodes of a dataset."""

    def __init__(self, metadata: Metadata, paths: dict[str, tuple[str, ...]], done: str, tolerance_s: float | None):
        self._metadata, self.paths, self._done, self._tolerance_s = metadata, paths, done, tolerance_s
        features = metadata.features
        own = [
            REWARD,
            DONE,
            SUCCESS,
            TRUNCATED,
            *(name for name in BOOKKEEPING if name != TASK_INDEX or metadata.tasks),
        ]
        needed = dict.fromkeys([*paths, *(name for name in own if name in features)])
        self._videos = [name for name in paths if features[name].dtype == "video"]
        if self._videos and TIMESTAMP not in features:
            raise SourceError(
                f"{metadata.root.name} has videos, but no column '{TIMESTAMP}'; convert the dataset again"
            )
        stored = [name for name in needed if name not in self._videos]
        vectors = metadata.own.get("vectors")
        #: Columns of scalars in a dataset that rlds2reverb wrote, which had the shape (1,) before.
        self._vectors = vectors if isinstance(vectors, list) else []
        self._images = [name for name in stored if features[name].dtype == "image"]
        self._shapes = {name: features[name].shape for name in stored if name not in self._images}
        #: The data file and the first row of each episode by its `episode_index`, if those in `meta/` are wrong.
        self._found: dict[int, tuple[Path, int]] | None = None

    def list_files(self) -> set[Path]:
        """Returns the files that are read: all metadata, and the rows and videos of the episodes."""
        episodes, meta = self._metadata.episodes, self._metadata.root / "meta"
        videos = {stored.videos[name].path for stored in episodes for name in self._videos}
        data = {*self._list_data(), *(stored.data for stored in episodes)}
        return data | videos | {path for path in meta.rglob("*") if path.is_file()}

    def without(self, dropped: Sequence[str]) -> tuple[_EpisodeReader, list[str]]:
        """Returns a reader that does not read some fields, and the paths of those among them that it has read."""
        paths, left_out = match_paths(dropped, self.paths.values())
        kept = {name: path for name, path in self.paths.items() if path not in left_out}
        if {path[0] for path in kept.values()} >= {fields.OBSERVATION, fields.ACTION}:
            reader = _EpisodeReader(self._metadata, kept, self._done, self._tolerance_s)
            return reader, paths
        return self, []

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields the episodes of a range."""
        with contextlib.closing(_DataFiles(self._shapes, self._images)) as files:
            for index in range(len(self._metadata.episodes))[first:stop]:
                stored = self._metadata.episodes[index]
                table, odd = self._read_rows(files, stored, f"{self._metadata.root.name}: episode {index}")
                yield self._make_episode(table, stored, index, odd)

    def _read_rows(self, files: _DataFiles, stored: StoredEpisode, where: str) -> tuple[Any, list[Contradiction]]:
        """Returns the rows of an episode, and what is odd about their place."""
        place = (self._found or {}).get(stored.index, (stored.data, stored.first_row))
        try:
            table = files.read(*place, stored, where)
        except SourceError:
            self._found = self._find_rows() if self._found is None else self._found
            if self._found.get(stored.index, place) == place:
                raise
            place = self._found[stored.index]
            table = files.read(*place, stored, where)
        if place[0] == stored.data:
            return table, []
        message = f"meta/ expects the rows in {stored.data.name}, but they are in {place[0].name}"
        return table, [Contradiction(None, "data/file_index", message, "stale-index")]

    def _find_rows(self) -> dict[int, tuple[Path, int]]:
        """Returns the file and the first row of each episode whose rows are next to each other, by `episode_index`."""
        from .lerobot_files import read_column

        found: dict[int, list[tuple[Path, int]]] = defaultdict(list)
        for path in self._list_data():
            indices = np.zeros(0, np.int64)
            with contextlib.suppress(SourceError):  # The error of the episode is raised instead.
                indices = read_column(path, EPISODE_INDEX)
            for row in np.flatnonzero(np.diff(indices, prepend=-1)).tolist():
                found[int(indices[row])].append((path, row))
        return {index: places[0] for index, places in found.items() if len(places) == 1}

    def _list_data(self) -> list[Path]:
        return sorted((self._metadata.root / "data").rglob("*.parquet"))

    def _make_episode(self, table: Any, stored: StoredEpisode, index: int, odd: list[Contradiction]) -> Episode:
        from .lerobot_files import decode_images, to_array

        where = f"{self._metadata.root.name}: episode {index}"
        columns = {name: to_array(table[name], shape, f"{where}: '{name}'") for name, shape in self._shapes.items()}
        features = self._metadata.features
        for name in self._images:
            columns[name] = decode_images(table[name], features[name].shape, f"{where}: '{name}'")
        for name in self._videos:
            from .lerobot_videos import read_camera

            span, times = stored.videos[name], columns[TIMESTAMP]
            columns[name], found = read_camera(features[name], span, times, where, self._tolerance_s)
            odd += found
        nest: dict[str, Any] = {}
        for name, path in self.paths.items():
            was_vector = columns[name].ndim == 1 and name in self._vectors
            insert_column(nest, path, columns[name][:, None] if was_vector else columns[name], where)
        task = self._metadata.own.get(TASK, TASK)
        if TASK_INDEX in columns and isinstance(task, str) and task not in nest:
            nest[task] = self._find_tasks(columns[TASK_INDEX], where)
        rewards = columns.get(REWARD, np.zeros(stored.num_rows, np.float32))
        is_terminal, is_ended = self._find_end(columns, where)
        observations, actions = nest.pop(fields.OBSERVATION), nest.pop(fields.ACTION)
        episode = make_log_episode(
            where, index, observations, actions, rewards=rewards, terminated=is_terminal, extras=nest
        )
        timestamps = None if TIMESTAMP in self.paths else columns.get(TIMESTAMP)
        episode = replace(episode, unterminated=not is_ended, timestamps=timestamps, metadata=stored.metadata)
        odd += find_contradictions(self._list_facts(columns, stored, where))
        return replace(episode, seed=stored.seed, contradictions=tuple(odd))

    def _list_facts(self, columns: Mapping[str, np.ndarray], stored: StoredEpisode, where: str) -> Facts:
        """Returns what rows state about their places and tasks."""
        rows, facts = np.arange(stored.num_rows), {}
        for name, first in ((FRAME_INDEX, 0), (INDEX, columns.get(INDEX, rows).min())):
            facts[name] = {name: columns.get(name), "the row requires": rows + first}
        listed = [text.encode() for text in stored.tasks if isinstance(text, str)]
        if TASK_INDEX in columns and listed:
            texts = self._find_tasks(columns[TASK_INDEX], where)
            stated = np.where(np.isin(texts, listed), texts, np.array(listed[0], object))
            facts[TASK_INDEX] = {"the task of the row": texts, "meta/ lists": stated}
        return facts

    def _find_tasks(self, indices: np.ndarray, where: str) -> np.ndarray:
        tasks = self._metadata.tasks
        unknown = [index for index in set(indices.tolist()) if index not in tasks]
        if unknown:
            raise SourceError(f"{where}: task_index {unknown[0]} is not in meta/tasks; copy or download it again")
        return np.array([tasks[index] for index in indices.tolist()], object)

    def _find_end(self, columns: Mapping[str, np.ndarray], where: str) -> tuple[bool, bool]:
        """Returns whether an episode ends in a terminal state, and whether the dataset says how it ends."""
        success, truncated, done = (
            bool(as_flags(columns[name][-1:], f"{where}: {name}")[0]) if name in columns else False
            for name in (SUCCESS, TRUNCATED, DONE)
        )
        return success or (done and not truncated and self._done == "terminal"), success or truncated or done


def _select_split(metadata: Metadata, split: str) -> list[StoredEpisode]:
    splits = as_dict(metadata.info.get("splits"))
    match = re.fullmatch(r"(\d+):(\d+)", str(splits.get(split)))
    if not match:
        known = ", ".join(splits) or "(info.json has no splits)"
        raise SourceError(f"{metadata.root.name} has no split {split!r}; use one of: {known}")
    selected = [episode for episode in metadata.episodes if int(match[1]) <= episode.index < int(match[2])]
    if not selected:
        raise SourceError(f"{metadata.root.name}: the split {split!r} ({match[0]}) has no episodes; choose another")
    return selected


def _is_directory(location: Any) -> bool:
    return isinstance(location, Path) and (location / "meta" / "info.json").is_file()


_OPTIONS = ("split", "extra_fields", "done", "cameras", "tolerance_s")
DIRECTORY = Format("a LeRobot directory", _is_directory, open_lerobot, _OPTIONS, "LeRobot")
