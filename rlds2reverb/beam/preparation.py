"""`prepare_with_beam`, which writes an RLDS dataset as TFDS prepares it on Beam's workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args

from rlds2reverb.datasets import Source
from rlds2reverb.datasets.transforms import Transform
from rlds2reverb.datasets.writers.atomic_output import atomic_output
from rlds2reverb.datasets.writers.rlds_features import Features, require_features
from rlds2reverb.datasets.writers.rlds_writer import SHARD_BYTES, encode_records, finish_rlds, require_rlds_spec
from rlds2reverb.datasets.writers.writing import FORMAT_LIMITS, OnInvalid, WriteReport, make_report, require_destination
from rlds2reverb.datasets.writers.written_episodes import (
    UnknownFinalObservationError,
    WrittenEpisodes,
    choose_layouts,
    no_episode_error,
)
from rlds2reverb.types.arguments import require_count, require_one_of
from rlds2reverb.types.left_out import LeftOut
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.specs import Nest

from .datasets import BeamOptions, Dataset, Slice, Workers, open_dataset, release_datasets
from .fitting import fit_transforms
from .storage import WorkFolder, lock_destination

_DEFAULT_BEAM_OPTIONS = BeamOptions()


def prepare_with_beam(
    source: Any,
    path: str | Path,
    *,
    transforms: Sequence[Transform] = (),
    on_invalid: OnInvalid = "error",
    shard_bytes: int = SHARD_BYTES,
    beam_options: BeamOptions = _DEFAULT_BEAM_OPTIONS,
    **load_options: Any,
) -> WriteReport:
    """Writes the same RLDS directory as `write_dataset(format='rlds')`, byte for byte, on Beam's workers.

    Unlike TFDS's own builder for D4RL, it keeps the final observation of each episode. Each worker writes whole files
    of the directory.

    Args:
      source: see `convert_with_beam`.
      path: the directory to create, such as `hopper/1.0.0`, on a disk that all workers share.
      transforms: see `convert_with_beam`.
      on_invalid: see `write_dataset`.
      shard_bytes: size in bytes from which the next episode starts a new file; a worker keeps a file in memory.
      beam_options: runner and options of the pipelines.
      **load_options: further arguments of `load`.

    Raises:
      The errors of `write_dataset`.
      TypeError: If `source` is not a location or a list of locations.
    """
    require_destination(path, "rlds")
    require_one_of("on_invalid", on_invalid, get_args(OnInvalid))
    require_count("shard_bytes", shard_bytes, 1)
    path = expand_path(path, "path").absolute()
    work = WorkFolder(f"{path}.parts")
    with lock_destination(str(path)), work, release_datasets():
        workers = Workers(beam_options, work)
        dataset, opened = open_dataset(source, load_options, workers)
        dataset, opened = fit_transforms(dataset, opened, transforms, workers)
        step_spec = opened.step_spec
        metadata_spec = opened.episode_metadata_spec
        require_rlds_spec(step_spec, metadata_spec)
        described = require_features(opened.descriptions, step_spec)
        for has_final_steps in choose_layouts(opened, FORMAT_LIMITS["rlds"]):
            job = _Job(dataset, work, step_spec, metadata_spec, on_invalid, described, has_final_steps)
            scans = workers.map("scan", job.scan, dataset.slices)
            if None not in scans:
                break
        written = job.open_episodes(opened)
        for scan in scans:
            written.counts.update(scan["counts"])
            written.ends.update(scan["ends"])
            written.left_out.merge_left_out(LeftOut(**scan["left_out"]))
        if not written.counts["episodes"]:
            raise no_episode_error(opened.name)
        shards = _plan_shards([scan["sizes"] for scan in scans], shard_bytes)
        workers.map("written", job.write_shard, shards)
        with atomic_output(path) as partial:
            partial.mkdir()
            files = [(Path(work.location) / shard.name, shard.num_episodes, shard.num_bytes) for shard in shards]
            options: Any = {"features": described, "has_final_steps": has_final_steps}
            sentences = finish_rlds(partial, files, step_spec, opened, location=path, **options)
            num_bytes = sum(file.stat().st_size for file in partial.iterdir())
    warnings = (*written.make_warnings(), *sentences)
    return make_report(opened, path, "rlds", written.counts, num_bytes=num_bytes, warnings=warnings)


@dataclass(frozen=True)
class _Shard:
    """One file of the directory: valid episodes from the one number `skip` of the slice number `first_slice`."""

    number: int
    first_slice: int
    skip: int
    num_episodes: int
    num_bytes: int

    @property
    def name(self) -> str:
        return f"shard-{self.number:06d}-{self.first_slice}-{self.skip}-{self.num_episodes}"


@dataclass(frozen=True)
class _Job:
    """The steps that run on workers, and what they need."""

    dataset: Dataset
    work: WorkFolder
    step_spec: dict[str, Nest]
    metadata_spec: dict[str, Nest]
    on_invalid: OnInvalid
    features: Features
    has_final_steps: bool

    def scan(self, part: Slice) -> dict[str, Any] | None:
        """Returns the counts of a slice's episodes, and the size of each valid episode's record.

        Returns None if they cannot have this layout; see `WrittenEpisodes`.
        """
        episodes = self._valid_episodes(part)
        try:
            sizes = [len(record) for record in self._encode(episodes)]
        except UnknownFinalObservationError:
            return None
        facts = {"counts": episodes.counts, "ends": episodes.ends, "left_out": asdict(episodes.left_out)}
        return {**facts, "sizes": sizes}

    def write_shard(self, shard: _Shard) -> None:
        """Writes a file."""
        parts = map(self._valid_episodes, self.dataset.slices[shard.first_slice :])
        records = chain.from_iterable(map(self._encode, parts))
        self.work.write(shard.name, b"".join(islice(records, shard.skip, shard.skip + shard.num_episodes)))

    def _encode(self, episodes: WrittenEpisodes) -> Iterator[bytes]:
        return encode_records(episodes, self.step_spec, self.metadata_spec, self.features)

    def _valid_episodes(self, part: Slice) -> WrittenEpisodes:
        return self.open_episodes(Source("", "", lambda: self.dataset.read(part)))

    def open_episodes(self, source: Source) -> WrittenEpisodes:
        """Returns the episodes of a source, as they are written; nothing is read yet."""
        options: Any = {"step_spec": self.step_spec, "may_be_empty": True, "has_final_steps": self.has_final_steps}
        return WrittenEpisodes(source, FORMAT_LIMITS["rlds"], on_invalid=self.on_invalid, **options)


def _plan_shards(sizes: Sequence[Sequence[int]], shard_bytes: int) -> list[_Shard]:
    """Returns the files, given the sizes of the records of each slice.

    Each file ends with the episode that makes it as large as `shard_bytes`.
    """
    shards: list[_Shard] = []
    current = None
    for number, slice_sizes in enumerate(sizes):
        for place, size in enumerate(slice_sizes):
            if current is None:
                current = _Shard(len(shards), number, place, 0, 0)
            current = replace(current, num_episodes=current.num_episodes + 1, num_bytes=current.num_bytes + size)
            if current.num_bytes >= shard_bytes:
                shards.append(current)
                current = None
    return shards if current is None else [*shards, current]
