"""`convert_with_beam`, which does what `ingest` into a directory does on Beam's workers, with the same bytes."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from apache_beam.io.filesystems import FileSystems

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import Source
from rlds2reverb.datasets.readers.continuity import ContinuityCheck
from rlds2reverb.datasets.readers.d4rl import CONTINUITY_ADVICE
from rlds2reverb.datasets.transforms import Transform
from rlds2reverb.errors import CheckpointError
from rlds2reverb.ingestion import IngestOptions, IngestRun, example_hash, make_table_configs
from rlds2reverb.reverb.server.checkpoint_root import CheckpointRoot
from rlds2reverb.reverb.wire.encoder import Encoder
from rlds2reverb.reverb.writing.directory_destination import DirectoryDestination
from rlds2reverb.reverb.writing.item_conversion import ItemConversion, Layout, OnInvalid
from rlds2reverb.reverb.writing.parts import Part, Scan, ShardPlan, encode_part, plan_parts, scan_episodes
from rlds2reverb.reverb.writing.report import IngestReport
from rlds2reverb.reverb.writing.sharding import filter_shard, require_no_empty_shard, select_shard
from rlds2reverb.reverb.writing.transfer import TransferState, capacity_error, changed_data_error
from rlds2reverb.types.arguments import require_count, require_defaults
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import EpisodeAdder
from rlds2reverb.types.locations import expand_path, shard_name
from rlds2reverb.types.priorities import ByReturn, Priority
from rlds2reverb.types.tables import TableConfig

from .datasets import BeamOptions, Dataset, Slice, Workers, open_dataset, release_datasets
from .fitting import combine_returns, fit_transforms
from .storage import WorkFolder, is_remote, lock_destination, upload

_PART_BYTES = 32 << 20
_DEFAULT_OPTIONS, _DEFAULT_BEAM_OPTIONS = IngestOptions(), BeamOptions()


def convert_with_beam(
    source: Any,
    destination: str | Path,
    tables: str | TableConfig | Sequence[str | TableConfig] = "replay",
    *,
    adder: EpisodeAdder | None = None,
    priority: Priority | Literal["return"] = 1.0,
    transforms: Sequence[Transform] = (),
    layout: Layout = "columns",
    on_invalid: OnInvalid = "error",
    num_shards: int | None = None,
    resume: bool = True,
    options: IngestOptions = _DEFAULT_OPTIONS,
    beam_options: BeamOptions = _DEFAULT_BEAM_OPTIONS,
    part_bytes: int = _PART_BYTES,
    **load_options: Any,
) -> IngestReport:
    """Writes a dataset into directories that servers can start from, on Beam's workers.

    The files are the same, byte for byte, as those that `ingest` writes, for any number of workers. The dataset is read
    twice: to count and check, and to encode. Every part is written under a temporary name and renamed, its name
    contains a hash of its episodes, and its content depends on nothing else, so that it does no harm if a worker fails
    or the runner repeats or duplicates its work. After a failure, the next call with the same arguments encodes only
    the parts that are missing. They are in `<destination>.parts`, which is deleted at the end.

    Args:
      source: a path, an address such as `gs://bucket/data-*.hdf5`, a pattern, a name, or a list of these. Workers copy
        a remote file or directory to their disk before they read it.
      destination: the directory to create. On several machines, it must be on a disk that they share, or an address
        such as `gs://bucket/hopper`; copy such a directory to a server's disk before you start the server.
      tables: see `ingest`.
      adder: see `ingest`; every worker receives a copy.
      priority: see `ingest`; 'return' stands for `ByReturn` with the lowest and highest return of the dataset.
      transforms: transforms of the episodes, as for `datasets.transforms.apply_transforms`.
      layout: see `ingest`.
      on_invalid: see `ingest`.
      num_shards: number of directories `shard_0`, `shard_1`, ... in the destination over which the episodes are
        distributed by a hash of their index, for as many servers; None writes the destination itself.
      resume: whether parts of an earlier run are used; if False, they are deleted.
      options: advanced options of `ingest` into a directory.
      beam_options: runner and options of the pipelines.
      part_bytes: size of the episodes from which a part is complete; a worker keeps a part in memory.
      **load_options: further arguments of `load`.

    Returns:
      An `IngestReport`.

    Raises:
      The errors of `ingest` into a directory.
      TypeError: If `source` is not a location or a list of locations.
    """
    require_count("num_shards", num_shards or 1, 1)
    require_count("part_bytes", part_bytes, 1)
    options.require_for_directory()
    require_defaults(options, ("verify",), "on Beam")
    run = IngestRun(
        make_table_configs(tables),
        adder or TrajectoryWindows(),
        1.0 if priority == "return" else priority,
        layout=layout,
        on_invalid=on_invalid,
        options=options,
    )
    work = WorkFolder(f"{_absolute(destination)}.parts")
    with lock_destination(_absolute(destination)), work, release_datasets():
        if not resume:
            work.delete()
        workers = Workers(beam_options, work)
        dataset, opened = open_dataset(source, load_options, workers)
        dataset, opened = fit_transforms(dataset, opened, transforms, workers)
        if priority == "return":
            run = replace(run, priority=ByReturn(*combine_returns(dataset, workers)))
        shards: list[tuple[int, int] | None] = [None]
        if num_shards is not None:
            require_no_empty_shard(opened, num_shards)
            shards = [(shard, num_shards) for shard in range(num_shards)]
        targets = tuple(_make_target(run, opened, shard) for shard in shards)
        job = _Job(dataset, work, tuple(run.configs), _absolute(destination), targets)
        report = replace(run.make_report(opened), left_out_fields=targets[0].conversion.left_out_fields)
        _run(job, report, workers, part_bytes)
    report.emit_note_warnings()
    return report


def _run(job: _Job, report: IngestReport, workers: Workers, part_bytes: int) -> None:
    """Scans the dataset, writes the parts and joins them; completes the report."""
    complete = job.find_complete()
    with report.stage("check"):
        scans = [Scan.from_dict(scan) for scan in workers.map("scan", job.scan, job.dataset.slices)]
    _require_continuity(job.dataset.slices, scans)
    plans = plan_parts(scans, num_shards=len(job.targets), part_bytes=part_bytes)
    _require_capacity(plans, job.configs)
    for state, plan in zip(complete, plans, strict=True):
        if state is not None and state != plan.state:
            raise changed_data_error("its episodes differ")
    parts = [part for state, plan in zip(complete, plans, strict=True) if state is None for part in plan.parts]
    with report.stage("write"):
        workers.map("written", job.write_part, parts)
        memory = workers.map("assembled", job.assemble, list(enumerate(plans)))
    for scan in scans:
        report.merge_counts(scan.report)
    if not parts:
        report.resumed_episodes, report.resumed_steps = report.episodes, report.steps
    report.set_fingerprint([plan.state.fingerprint for plan in plans])
    report.memory_bytes = sum(memory)
    report.table_sizes = dict.fromkeys(report.tables, report.items)


@dataclass(frozen=True)
class _Target:
    """One directory to write.

    Attributes:
      shard: index of the shard and number of shards, or None for the only directory.
      conversion: the conversion of its episodes to items.
      make_encoder: function that returns a new encoder of the items.
      description: arguments of the run, for the manifest.
    """

    shard: tuple[int, int] | None
    conversion: ItemConversion
    make_encoder: Callable[[], Encoder]
    description: dict[str, Any]


def _make_target(run: IngestRun, source: Source, shard: tuple[int, int] | None) -> _Target:
    """Returns what `ingest` derives from the first episode of a dataset or shard."""
    source = source if shard is None else select_shard(source, *shard)
    conversion = run.make_conversion(source)
    arguments = run.names, run.options.chunk_length, run.options.key_seed
    make_encoder = functools.partial(conversion.make_encoder, *arguments, number_items=True)
    description = {**run.describe(source, conversion, shard), "example": example_hash(conversion)}
    return _Target(shard, conversion, make_encoder, description)


@dataclass(frozen=True)
class _Job:
    """The steps of a conversion that run on workers, and what they need."""

    dataset: Dataset
    work: WorkFolder
    configs: tuple[TableConfig, ...]
    destination: str
    targets: tuple[_Target, ...]

    def find_complete(self) -> list[TransferState | None]:
        """Returns the state of the run that wrote each directory, or None for those that do not exist.

        Raises:
          CheckpointError: If a different conversion wrote one of them.
        """
        states: list[TransferState | None] = []
        for shard in range(len(self.targets)):
            location = self._locate(shard)
            if not is_remote(location):
                states.append(self._make_destination(Path(location), shard).find_complete(resume=True))
            elif FileSystems.exists(f"{location}/rlds2reverb.json"):
                raise CheckpointError(f"{location} exists already; use a new address, or delete it")
            else:
                states.append(None)
        return states

    def scan(self, part: Slice) -> dict[str, Any]:
        """Measures the episodes of a slice."""
        return scan_episodes(self.targets[0].conversion, self.dataset.read(part)).as_dict()

    def write_part(self, part: Part) -> None:
        """Encodes a part, unless its file exists."""
        name = self._name(part)
        if self.work.exists(name):
            return
        stream = io.BytesIO()
        target = self.targets[part.shard]
        np.savez(stream, **encode_part(target.conversion, target.make_encoder(), self._read(part), part))
        self.work.write(name, stream.getvalue())

    def _read(self, part: Part) -> Iterator[Episode]:
        """Yields the episodes of a part's shard in its range."""
        for piece in self.dataset.slices:
            clipped = piece.clip(part.begin, part.end)
            if clipped.first < clipped.stop:
                yield from filter_shard(self.dataset.read(clipped), part.shard, len(self.targets))

    def assemble(self, numbered: tuple[int, ShardPlan]) -> int:
        """Joins the parts of a shard to a directory; returns the estimated memory of a server for it in bytes."""
        shard, plan = numbered
        location = self._locate(shard)
        if not is_remote(location):
            return self._assemble(Path(location), shard, plan)
        with tempfile.TemporaryDirectory(prefix="rlds2reverb-") as folder:
            memory = self._assemble(Path(folder) / "root", shard, plan)
            upload(Path(folder) / "root", location)
            return memory

    def _assemble(self, path: Path, shard: int, plan: ShardPlan) -> int:
        destination = self._make_destination(path, shard)
        if destination.find_complete(resume=True) is None:
            with destination:
                destination.open(resume=False)
                for part in plan.parts:
                    with np.load(io.BytesIO(self.work.read(self._name(part))), allow_pickle=False) as contents:
                        destination.append_part(contents, part.num_items)
                destination.finish(plan.state)
        return int(CheckpointRoot(path, create=False).data()["memory_bytes"])

    def _make_destination(self, path: Path, shard: int) -> DirectoryDestination:
        target = self.targets[shard]
        signature, encoder = target.conversion.signature, target.make_encoder()
        return DirectoryDestination(path, self.configs, signature, encoder, description=target.description)

    def _locate(self, shard: int) -> str:
        return self.destination if self.targets[shard].shard is None else f"{self.destination}/{shard_name(shard)}"

    def _name(self, part: Part) -> str:
        """Returns the name of a part's file, which depends on everything that its content depends on."""
        content = json.dumps([asdict(part), self.targets[part.shard].description], sort_keys=True)
        return f"part-{part.shard:04d}-{part.number:06d}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.npz"


def _absolute(destination: str | Path) -> str:
    location = str(destination)
    return location.rstrip("/") if is_remote(location) else str(expand_path(location, "destination").absolute())


def _require_continuity(slices: Sequence[Slice], scans: Sequence[Scan]) -> None:
    """Raises `SourceError` if a dataset has too many discontinuities, which none of its slices can find out."""
    checks: dict[str, ContinuityCheck] = {}
    for part, scan in zip(slices, scans, strict=True):
        if scan.num_discontinuities:
            name = part.location.rpartition("/")[2]
            check = checks.setdefault(part.location, ContinuityCheck(name, part.num_rows, CONTINUITY_ADVICE))
            check.add_count(scan.num_discontinuities, scan.first_discontinuity)


def _require_capacity(plans: Sequence[ShardPlan], configs: Sequence[TableConfig]) -> None:
    capacity = min(config.capacity for config in configs)
    for plan in plans:
        if plan.state.items > capacity:
            raise capacity_error(plan.state.items, capacity)
