"""Repairs of LeRobot datasets: the metadata, numbers of rows and statistics that follow from the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlds2reverb.errors import SourceError

from ..checks.times import round_rate
from ..readers.json_files import as_dict, read_json
from ..readers.lerobot_files import parquet_errors, to_array
from ..readers.lerobot_meta import BOOKKEEPING, EPISODE_INDEX, FRAME_INDEX, INDEX, OWN_FILE, TIMESTAMP, read_metadata
from .lerobot_statistics import Statistics, summarize_columns

#: Maximum deviation of a rate from `fps`, and of statistics, relative to their sizes, that is left alone.
_MAX_RATE_ERROR, _MAX_STATISTICS_ERROR = 0.05, 1e-3
#: Places of the statistics that are compared; the quantiles of other writers may differ.
_COMPARED = ("min", "max", "mean", "std", "count")


def repair_lerobot(root: Path) -> Iterator[str]:
    """Corrects what follows from the rows of a LeRobot dataset in place, and yields a sentence for each repair.

    This is `fps` and the totals in `info.json`, the places of the episodes in the data files, the columns `frame_index`
    and `index` and the order of rows that are shuffled, and the statistics of the columns of numbers.

    Raises:
      SourceError: If the metadata or the rows cannot be read.
    """
    return _Repair(root).repair()


class _Repair:
    """Repairs a dataset in place."""

    def __init__(self, root: Path):
        self._root, self._info_path = root, root / "meta" / "info.json"
        self._metadata = read_metadata(root)
        self._info = dict(self._metadata.info)
        self._starts = np.cumsum([0, *(episode.num_rows for episode in self._metadata.episodes)]).tolist()
        #: Positions of the episodes in `meta/` by `episode_index`, and the files with their rows.
        self._numbers = {episode.index: number for number, episode in enumerate(self._metadata.episodes)}
        self._places: dict[int, Path] = {}
        self._intervals: list[float] = []
        self._statistics = Statistics()
        self._episode_statistics: dict[int, Any] = {}

    def repair(self) -> Iterator[str]:
        """Yields a sentence for each repair."""
        for path in sorted((self._root / "data").rglob("*.parquet")):
            yield from self._repair_rows(path)
        missing = self._numbers.keys() - self._places.keys()
        if missing:
            raise SourceError(f"{self._root.name}: the rows of episode {min(missing)} are not in data/; copy it again")
        for path in sorted(self._root.glob("meta/episodes/*/*.parquet")):
            yield from self._repair_places(path)
        yield from self._repair_info()
        yield from self._repair_statistics()

    def _repair_rows(self, path: Path) -> Iterator[str]:
        """Corrects the order and numbers of the rows of a file, and adds them to the statistics."""
        with parquet_errors(path):
            table = pq.read_table(path)
        indices = table[EPISODE_INDEX].to_numpy() if EPISODE_INDEX in table.column_names else np.zeros(0, np.int64)
        bounds = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)] if len(indices) else [0]
        order, numbers = np.arange(len(table)), {FRAME_INDEX: np.zeros(len(table), np.int64)}
        numbers[INDEX] = numbers[FRAME_INDEX].copy()
        for start, stop in pairwise(bounds):
            number = self._numbers.get(int(indices[start]))
            if number is None or stop - start != self._metadata.episodes[number].num_rows:
                continue  # Rows of episodes that were removed, or an error of reading.
            self._places[int(indices[start])] = path
            order[start:stop] += self._find_order(table.slice(start, stop - start)) - np.arange(stop - start)
            numbers[FRAME_INDEX][start:stop] = np.arange(stop - start)
            numbers[INDEX][start:stop] = self._starts[number] + np.arange(stop - start)
        changes = []
        if (order != np.arange(len(order))).any():
            table = table.take(pa.array(order))
            changes.append(f"{path.name}: rows sorted by {FRAME_INDEX}")
        for name, values in numbers.items():
            is_number = name in table.column_names and table[name].null_count == 0
            if is_number and len(indices) and (table[name].to_numpy() != values).any():
                field = table.schema.field(name)
                table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
                changes.append(f"{path.name}: {name} counted again")
        if changes:
            pq.write_table(table, path)
        for start, stop in pairwise(bounds):
            statistics = self._summarize(table.slice(start, stop - start))
            self._statistics.add(statistics)
            self._episode_statistics[int(indices[start])] = statistics
        yield from changes

    def _find_order(self, table: pa.Table) -> np.ndarray:
        """Returns the order of the rows of an episode: by `frame_index`, if the timestamps agree with it."""
        if not {FRAME_INDEX, TIMESTAMP} <= {*table.column_names}:
            return np.arange(len(table))
        order, times = np.argsort(table[FRAME_INDEX].to_numpy(), kind="stable"), table[TIMESTAMP].to_numpy()
        is_shuffled = (np.diff(times) <= 0).any() and (np.diff(times[order]) > 0).all()
        times = times[order] if is_shuffled else times
        self._intervals += [float(np.median(np.diff(times)))] if len(times) > 1 else []
        return order if is_shuffled else np.arange(len(table))

    def _summarize(self, table: pa.Table) -> dict[str, Any]:
        features = self._metadata.features
        columns = {}
        for name in set(table.column_names) & features.keys():
            if features[name].dtype.startswith(("float", "int", "uint", "bool")):
                column = to_array(table[name], features[name].shape, f"{self._root.name}: '{name}'")
                columns[name] = column.astype(np.uint8) if column.dtype == bool else column
        return summarize_columns(columns, ())

    def _repair_places(self, path: Path) -> Iterator[str]:
        """Corrects the places of the rows of the episodes in a file of their metadata."""
        with parquet_errors(path):
            table = pq.read_table(path)
        names = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
        stated = np.stack([table[name].to_numpy() for name in names], axis=1)
        expected = []
        for index in table[EPISODE_INDEX].to_pylist():
            number, place = self._numbers[index], self._places[index]
            chunk, file = (int(digits) for digits in re.findall(r"\d+", "/".join(place.parts[-2:]))[-2:])
            expected.append((chunk, file, self._starts[number], self._starts[number + 1]))
        is_wrong = (stated != np.array(expected)).any(axis=1)
        if not is_wrong.any():
            return
        for name, values in zip(names, np.array(expected).T, strict=True):
            field = table.schema.field(name)
            table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
        pq.write_table(table, path)
        yield f"{path.name} of meta/episodes: places of the rows of {is_wrong.sum():,} episodes corrected"

    def _repair_info(self) -> Iterator[str]:
        """Corrects the totals and the rate."""
        episodes = self._metadata.episodes
        totals = {"total_episodes": len(episodes), "total_frames": self._starts[-1]}
        totals["total_tasks"] = len(self._metadata.tasks)
        if self._info["codebase_version"] != "v3.0":
            num_videos = sum(len(episode.videos) for episode in episodes)
            num_chunks = max(self._numbers, default=0) // max(self._info["chunks_size"], 1) + 1
            totals |= {"total_videos": num_videos, "total_chunks": num_chunks}
        expected: dict[str, Any] = {name: total for name, total in totals.items() if self._info.get(name) != total}
        if "splits" not in self._info:
            expected["splits"] = {"train": f"0:{len(episodes)}"}
        fps, intervals = self._info.get("fps"), np.array(self._intervals)
        if len(intervals) and (intervals > 0).all():
            rate = 1 / float(np.median(intervals))
            is_same = np.abs(intervals * rate - 1).max() <= _MAX_RATE_ERROR
            is_known = isinstance(fps, (int, float)) and abs(fps / rate - 1) <= _MAX_RATE_ERROR
            if is_same and not is_known:
                expected["fps"] = round_rate(rate)
        if expected:
            shown = {name: json.dumps(self._info.get(name)) for name in expected}
            self._info |= expected
            self._info_path.write_text(json.dumps(self._info, indent=4), encoding="utf-8")
            own_path = self._info_path.with_name(OWN_FILE)
            own = as_dict(self._metadata.own.get("metadata"))
            if own.get("fps", self._info.get("fps")) != self._info.get("fps"):  # The metadata that `load` returns.
                changed = {**self._metadata.own, "metadata": {**own, "fps": self._info["fps"]}}
                own_path.write_text(json.dumps(changed, indent=4), encoding="utf-8")
            for name, value in expected.items():
                yield f"info.json: {name} is {json.dumps(value)} instead of {shown[name]}"

    def _repair_statistics(self) -> Iterator[str]:
        """Corrects the statistics of all episodes, or in version 2.1 of each; those of images are left alone."""
        version, is_of_all = self._info["codebase_version"], self._info["codebase_version"] == "v3.0"
        path = self._root / "meta" / ("stats.json" if is_of_all else "episodes_stats.jsonl")
        if version == "v2.0":
            return
        stated = read_json(path) if path.is_file() else None
        if is_of_all:
            corrected: Any = as_dict(stated)
            wrong = _correct(corrected, self._statistics.as_dict())
            text = json.dumps(corrected, indent=4)
        else:
            known = {row.get(EPISODE_INDEX): as_dict(row.get("stats")) for row in map(as_dict, stated or ())}
            corrected = {index: known.get(index, {}) for index in sorted(self._numbers)}
            parts = [_correct(corrected[index], self._episode_statistics[index]) for index in corrected]
            wrong = list(dict.fromkeys(name for part in parts for name in part))
            lines = [{EPISODE_INDEX: index, "stats": stats} for index, stats in corrected.items()]
            text = "".join(json.dumps(line) + "\n" for line in lines)
        if wrong:
            path.write_text(text, encoding="utf-8")
            others = [name for name in wrong if name not in BOOKKEEPING]
            verb = "added" if stated is None else "corrected"
            yield f"{path.name}: statistics of {', '.join(others or wrong)} {verb}"


def _correct(stated: dict[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Replaces statistics that are missing or wrong, and returns the names of their columns."""
    wrong = [name for name in found if not _are_close(as_dict(stated.get(name)), found[name])]
    stated.update((name, found[name]) for name in wrong)
    return wrong


def _are_close(stated: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Returns whether statistics of a column agree, apart from rounding."""
    try:
        pairs = [(np.array(stated[key], np.float64), np.array(found[key], np.float64)) for key in _COMPARED]
        size = max(float(np.abs(other).max()) for _, other in pairs[:2])
        return all(np.allclose(one, other, rtol=_MAX_STATISTICS_ERROR, atol=1e-6 + 1e-4 * size) for one, other in pairs)
    except (KeyError, TypeError, ValueError):
        return False
