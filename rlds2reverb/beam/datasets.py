"""Datasets that Beam's workers open by their locations and read in slices, and the pipelines over them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from rlds2reverb import errors
from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.concatenation import concatenate_sources
from rlds2reverb.datasets.mapping.mapping import DatasetMapping
from rlds2reverb.datasets.source import split_metadata
from rlds2reverb.datasets.transforms import EpisodeFn, map_episodes
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.episodes import Episode

from .storage import DATA_ERRORS, WorkFolder, copy_to_disk, expand_locations, is_remote

#: Beam's name of each runner. `FnApiRunner` is the one that `DirectRunner` chooses for batches; it runs without
#: downloading anything.
RUNNERS = {"direct": "FnApiRunner", "flink": "FlinkRunner", "spark": "SparkRunner", "dataflow": "DataflowRunner"}
_SLICE_BYTES = 64 << 20
#: The attributes of a `Source` that workers return.
_DESCRIPTION = ("name", "kind", "num_rows", "num_episodes", "warnings", "unread", "descriptions", "full_metadata",
                "statistics")  # fmt: skip


@dataclass(frozen=True)
class BeamOptions:
    """The runner and the options of a pipeline.

    Attributes:
      runner: 'direct' (this machine), 'flink', 'spark', 'dataflow', or the name of any other Beam runner.
      flags: Beam's pipeline options, such as `['--direct_num_workers=4', '--direct_running_mode=multi_processing']`.
      slice_bytes: approximate size of the episodes that a worker reads at a time.
    """

    runner: str = "direct"
    flags: tuple[str, ...] = ()
    slice_bytes: int = _SLICE_BYTES

    def __post_init__(self) -> None:
        require_count("slice_bytes", self.slice_bytes, 1)

    def run(self, build: Callable[[beam.Pipeline], Any]) -> None:
        """Builds a pipeline, runs it, and waits for its end."""
        runner = RUNNERS.get(self.runner, self.runner)
        pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(list(self.flags)))
        build(pipeline)
        pipeline.run().wait_until_finish()


@dataclass(frozen=True)
class Slice:
    """Consecutive episodes of one dataset.

    Attributes:
      location: location of the dataset.
      first, stop: the first episode and the one after the last, counted in this dataset.
      offset: number of the episodes of all datasets before this one.
      num_rows: number of rows of this dataset, or None if it is not known.
    """

    location: str
    first: int
    stop: int
    offset: int
    num_rows: int | None = None

    def clip(self, begin: int, end: int) -> Slice:
        """Returns the part of the slice between two indices among the episodes of all datasets."""
        first, stop = max(self.first, begin - self.offset), min(self.stop, end - self.offset)
        return replace(self, first=first, stop=stop)


@dataclass(frozen=True)
class Dataset:
    """Datasets of one kind, read one after the other as a single one.

    Attributes:
      load_options: arguments of `load`, as pairs of a name and a value.
      run_id: identifier of the run, so that a process which makes several runs reads changed files again.
      slices: slices of about equal size that cover all episodes in order.
      functions: transforms of each episode.
    """

    load_options: tuple[tuple[str, Any], ...]
    run_id: str
    slices: tuple[Slice, ...] = ()
    functions: tuple[EpisodeFn, ...] = ()

    def open(self, location: str) -> Source:
        """Returns one of the datasets, with its episodes transformed."""
        return functools.reduce(map_episodes, self.functions, _open(location, self.load_options, self.run_id))

    def describe(self, location: str) -> dict[str, Any]:
        """Opens a dataset and returns its description, the number of its episodes and the size of the first one."""
        source = self.open(location)
        count = source.count() if source.count else source.num_episodes
        return {
            "source": {name: getattr(source, name) for name in _DESCRIPTION},
            "count": sum(1 for _ in source) if count is None else count,
            "episode_bytes": source.first_episode.num_bytes,
        }

    def read(self, part: Slice) -> Iterator[Episode]:
        """Yields the episodes of a slice, numbered among those of all datasets."""
        source = self.open(part.location)
        for episode in source.read_range(part.first, part.stop):
            yield replace(episode, index=episode.index + part.offset)


def _make_hashable(value: Any) -> Any:
    """Returns a list or a dict as a tuple, which `load` accepts as well."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=8)
def _open(location: str, load_options: tuple[tuple[str, Any], ...], run_id: str) -> Source:
    """Opens a dataset, from a copy on this machine if it is remote, which is deleted once nothing uses the source."""
    if not is_remote(location):
        return load(Path(location) if os.path.isabs(location) else location, **dict(load_options))
    copy = copy_to_disk(location)
    source = load(copy, **dict(load_options))
    weakref.finalize(source, shutil.rmtree, copy.parent, ignore_errors=True)
    return source


@contextlib.contextmanager
def release_datasets() -> Iterator[None]:
    """Closes the datasets that this process has opened, and deletes their copies, at the end of the context."""
    try:
        yield
    finally:
        _open.cache_clear()


def open_dataset(source: Any, load_options: Mapping[str, Any], workers: Workers) -> tuple[Dataset, Source]:
    """Opens one or more locations on the workers; returns the dataset, and a source that this process can read.

    Raises:
      TypeError: If `source` is not a location or a list of locations.
      FileNotFoundError: If a pattern or an address matches nothing.
      SourceError: If a dataset cannot be opened.
    """
    sources = [source] if isinstance(source, (str, Path)) else source
    if not isinstance(sources, (list, tuple)) or not all(isinstance(item, (str, Path)) for item in sources):
        raise TypeError(
            f"a conversion on Beam reads paths, addresses or names, which every worker can open, got a "
            f"{type(source).__name__}; use ingest() for data in memory"
        )
    if load_options.get("mapping") is not None:  # The workers may not have its file.
        load_options = {**load_options, "mapping": DatasetMapping.parse(load_options["mapping"])}
    load_options = {name: _make_hashable(value) for name, value in load_options.items()}
    locations = expand_locations([str(item) for item in sources])
    dataset = Dataset(tuple(sorted(load_options.items())), os.urandom(8).hex())
    opened = workers.map("opened", dataset.describe, locations)
    offsets = accumulate((description["count"] for description in opened), initial=0)
    slices: list[Slice] = []
    for location, description, offset in zip(locations, opened, offsets, strict=False):
        count = description["count"]
        num_bytes = count * description["episode_bytes"]
        num_slices = min(max(1, -(-num_bytes // workers.options.slice_bytes)), max(count, 1))
        bounds = np.linspace(0, count, num_slices + 1).astype(int).tolist()
        slices += [Slice(location, *pair, offset, description["source"]["num_rows"]) for pair in pairwise(bounds)]

    def read() -> Iterator[Episode]:
        return chain.from_iterable(map(dataset.read, slices))

    joined = concatenate_sources([_make_source(description["source"], read) for description in opened])
    return replace(dataset, slices=tuple(slices)), replace(joined, read=read)


def _make_source(description: Mapping[str, Any], read: Callable[[], Iterator[Episode]]) -> Source:
    values = {**description, **{name: tuple(description[name]) for name in ("warnings", "unread")}}
    metadata = split_metadata(values.pop("full_metadata"))
    return Source(**values, **metadata, read=read)


@dataclass(frozen=True)
class Workers:
    """The workers that run pipelines, and the folder through which their results travel as JSON.

    Not every runner returns results to the process that started it.
    """

    options: BeamOptions
    work: WorkFolder

    def map(self, name: str, function: Callable[[Any], Any], inputs: Sequence[Any]) -> list[Any]:
        """Returns the results of a function, called on the workers, in the order of its inputs.

        Args:
          name: name of the results in the folder.
          function: function that returns plain values for JSON.
          inputs: its inputs.

        Raises:
          Exception: The error of the first input that the function failed for, if it is one of the data.
        """
        work = self.work

        def call(numbered: tuple[int, Any]) -> None:
            number, value = numbered
            outcome = json.dumps(_call(function, value), default=str)
            content = json.dumps([json.loads(outcome), errors.describe_messages(outcome)])
            work.write(f"{name}-{number:06d}", content.encode())

        def build(pipeline: beam.Pipeline) -> None:
            pipeline | beam.Create(list(enumerate(inputs))) | beam.Reshuffle() | name >> beam.Map(call)

        self.options.run(build)
        outcomes = (json.loads(work.read(f"{name}-{number:06d}")) for number in range(len(inputs)))
        return [_get_result(*outcome) for outcome in outcomes]

    def combine(
        self, combiner: beam.CombineFn, dataset: Dataset, to_json: Callable[[Any], Any], from_json: Callable[[Any], Any]
    ) -> Any:
        """Returns the output of a combiner for all episodes.

        Args:
          combiner: combiner of episodes.
          dataset: the dataset.
          to_json: function from an accumulator of the combiner to plain values.
          from_json: the reverse of `to_json`.

        Raises:
          SourceError: If an episode cannot be read.
        """

        def accumulate_slice(part: Slice) -> Any:
            return to_json(functools.reduce(combiner.add_input, dataset.read(part), combiner.create_accumulator()))

        parts = self.map(f"combined-{os.urandom(8).hex()}", accumulate_slice, dataset.slices)
        return combiner.extract_output(combiner.merge_accumulators(map(from_json, parts)))


def _call(function: Callable[[Any], Any], value: Any) -> dict[str, Any]:
    """Returns the result of a function, or its error if that is one of the data, which the runner need not repeat."""
    try:
        return {"result": function(value)}
    except DATA_ERRORS as error:
        found = [vars(finding) for finding in getattr(error, "errors", [])]
        return {"error": type(error).__name__, "message": str(error), "errors": found}


def _get_result(outcome: Mapping[str, Any], messages: list[Any]) -> Any:
    """Returns the result of `_call`, or raises its error; the messages are those of the texts in it."""
    errors.restore_messages(messages)
    if "error" not in outcome:
        return outcome["result"]
    name = outcome["error"]
    if name == "InvalidEpisodeError":
        raise errors.InvalidEpisodeError([errors.ErrorFinding(**finding) for finding in outcome["errors"]])
    kinds = {kind.__name__: kind for kind in (ValueError, TypeError, FileNotFoundError)}
    raise getattr(errors, name, kinds.get(name, ValueError))(outcome["message"])
