"""`write_dataset`, which writes a source as a D4RL or robomimic file, or an RLDS, Minari or LeRobot directory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.installation import explain_left_out
from rlds2reverb.system.text import format_bytes, format_facts
from rlds2reverb.types.arguments import require_count, require_one_of
from rlds2reverb.types.episodes import ProgressCallback
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.short_repr import short_repr

from ..formats import require_applicable
from ..loading import load
from ..source import Source
from ..steps.stores import OnProgress, build_store, delete_store, open_store
from ..valid_episodes import count_skipped, skip_invalid
from .atomic_output import atomic_output, require_vacant
from .d4rl_writer import write_d4rl
from .lerobot_writer import VERSIONS, write_lerobot
from .minari_writer import choose_dataset_id, import_minari, write_minari
from .read_back import find_lossy, require_same_episodes
from .rlds_writer import SHARD_BYTES, write_rlds
from .robomimic_writer import write_robomimic
from .written_episodes import FormatLimits, UnknownFinalObservationError, WrittenEpisodes, choose_layouts

Format = Literal["d4rl", "rlds", "minari", "lerobot", "robomimic"]
OnInvalid = Literal["error", "skip_episode", "keep"]
#: The limits of each format.
FORMAT_LIMITS = {
    "d4rl": FormatLimits("D4RL", write_d4rl, has_episodes=False, reads_extras_by_name=True),
    "rlds": FormatLimits("RLDS", write_rlds, ("shard_bytes",), has_discounts=True, has_descriptions=True),
    "minari": FormatLimits("Minari", write_minari, layouts=(True,), reads_extras_by_name=True),
    "lerobot": FormatLimits(
        "LeRobot", write_lerobot, ("recompute_discounts", "lerobot_version", "fps", "video"), layouts=(False,)
    ),
    "robomimic": FormatLimits("robomimic", write_robomimic),
}
#: The values of `format`.
WRITTEN_FORMATS = tuple(FORMAT_LIMITS)


@dataclass(frozen=True)
class WriteReport:
    """Result of `write_dataset`.

    Attributes:
      source: name of the source.
      path: the written file or directory.
      format: its format.
      episodes: number of episodes written.
      transitions: number of transitions written.
      skipped_episodes: number of episodes left out because of `on_invalid="skip_episode"`.
      kept_errors: number of errors in episodes that were written because of `on_invalid="keep"`.
      size_bytes: size on disk.
      warnings: warnings of the source, and sentences about what the written dataset does not contain.
      statistics: values and changes of the transforms of the source; see `transforms.apply_transforms`.
      verified: what was compared because of `verify`, or ''.
    """

    source: str
    path: str
    format: str
    episodes: int
    transitions: int
    skipped_episodes: int
    kept_errors: int
    size_bytes: int
    warnings: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    verified: str = ""

    __repr__ = short_repr

    def __str__(self) -> str:
        return format_facts(f"{self.source} converted", self.facts())

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the transforms of the source."""
        return tuple(self.statistics.get("notes", ()))

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as a plain dict, for JSON."""
        return {**asdict(self), "notes": list(self.notes)}

    def facts(self) -> list[tuple[str, str]]:
        """Returns (name, value) pairs for display."""
        facts = [("path", self.path), ("format", FORMAT_LIMITS[self.format].name)]
        facts += [("episodes", f"{self.episodes:,}"), ("transitions", f"{self.transitions:,}")]
        if self.skipped_episodes:
            facts.append(("skipped", f"{self.skipped_episodes:,} invalid episodes"))
        if count := self.kept_errors:
            facts.append(("note", f"{count:,} error{'s' * (count != 1)} in episodes that were written anyway"))
        facts += [("verified", self.verified)] * bool(self.verified)
        facts += [("size", format_bytes(self.size_bytes)), *(("note", sentence) for sentence in self.notes)]
        return [*facts, *(("warning", sentence) for sentence in self.warnings)]


def write_dataset(
    source: Any,
    path: str | Path,
    *,
    format: Format,
    on_invalid: OnInvalid = "error",
    recompute_discounts: bool = False,
    shard_bytes: int | None = None,
    lerobot_version: str | None = None,
    fps: float | None = None,
    video: bool = False,
    verify: bool = False,
    num_workers: int | None = None,
    progress: ProgressCallback = lambda stage, episode: None,
    on_read: OnProgress = lambda read, total: None,
) -> WriteReport:
    """Writes all episodes of a source to a new dataset on disk, from which `load` reads equal episodes.

    Episodes are read gradually, so that the source may be larger than memory. The dataset appears under its path once
    it is complete. After an error or an interruption, nothing is there, and the call can be repeated. Data that the
    format cannot represent are an error.

    Both ends of an episode: all formats store whether it is terminal, truncated or unterminated. Every format except
    for LeRobot stores the final observations, if those of all episodes are known. If one is unknown, the last row of
    every episode is its last action, as in LeRobot; only Minari requires a final observation, so that a truncated
    episode then ends one action earlier, and a terminal one in a copy of its last observation. The report counts these
    episodes, and those that lose a known final observation. Only RLDS stores the action and reward of a step after the
    last action, which have no meaning; they are read back as zeros from the others.

    `Episode.metadata` are written in all formats except for D4RL, and must have the same spec in all episodes.

    Args:
      source: a `Source`, or anything that `load` opens.
      path: the dataset to create: for D4RL and robomimic a file; for RLDS a directory, preferably NAME/VERSION as in
        TFDS's data directory (`hopper/1.0.0`); for Minari a directory whose name ends in a version (`hopper-v0`); for
        LeRobot a directory.
      format: 'd4rl' or 'robomimic' (HDF5 files), 'rlds' (directory as TFDS prepares it), 'minari' or 'lerobot'
        (directories).
      on_invalid: handling of episodes with errors (see `episodes.find_errors`), which except for RLDS include
        episodes without a transition: 'error'; 'skip_episode', which also leaves out episodes that cannot be read; or
        'keep', which writes numbers that are NaN or Inf, and to RLDS datasets also any flags.
      recompute_discounts: all formats except for RLDS: whether to replace the dataset's discounts if they are not
        those that these formats imply: 0 for the transition into a terminal state and for the terminal step, 1
        everywhere else.
      shard_bytes: RLDS only: size in bytes from which the next episode starts a new file; 256 MB by default.
      lerobot_version: LeRobot only: 'v3.0' (the default) or 'v2.1'.
      fps: LeRobot only: rows per second, from which timestamps are made; by default `fps` in the metadata of the
        source, or else 30.
      video: LeRobot only: whether images with three channels become H.264 videos rather than PNG images. Videos are
        lossy; the report states the maximum error of a pixel.
      verify: whether to read the written dataset, and compare every field of every episode with the source. Images
        that are stored with loss may differ, and the report states by how much.
      num_workers: number of processes that read the source first, into a store next to `path` (`.NAME.steps`); 0 for
        the calling process. The same call then continues with the episode at which it was interrupted, and the written
        dataset is the same for any number. After an interruption while writing, it writes again from the store. None to
        read and write in one pass, of which nothing is kept.
      progress: function called with 'writing' and each episode.
      on_read: function called with the number of episodes that were read into the store, and of all, or None.

    Returns:
      A report of what was written.

    Raises:
      FileExistsError: If the path exists.
      ImportError: If the format requires a package that is not installed.
      InvalidEpisodeError: If an episode has errors and `on_invalid` is 'error'.
      SourceError: If the source cannot be read, has no episodes, or has fields that the format cannot represent; with
        `verify`, also if the written dataset, which is kept, differs from the source.
      SpecMismatchError: If `on_invalid` is 'keep' and the spec of an episode differs from that of the first.
      StorageFullError: If the disk is full.
      ResourceInUseError: If another process is writing to the path.
      ValueError: If the format or an option is unknown, an option does not apply to the format, or a Minari path is
        not a Minari name.
    """
    require_destination(path, format)
    require_one_of("on_invalid", on_invalid, get_args(OnInvalid))
    options = {
        "recompute_discounts": recompute_discounts or None,
        "shard_bytes": shard_bytes,
        "lerobot_version": lerobot_version,
        "fps": fps,
        "video": video or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    limits = FORMAT_LIMITS[format]
    require_applicable(given, limits.options, f"the format {format!r}")
    require_count("shard_bytes", SHARD_BYTES if shard_bytes is None else shard_bytes, 1)
    require_one_of("lerobot_version", lerobot_version or VERSIONS[0], VERSIONS)
    if fps is not None and not 0 < fps < float("inf"):
        raise ArgumentError(f"must be a number > 0, got {fps}", about="fps")
    given.pop("recompute_discounts", None)
    path = expand_path(path, "path").absolute()
    source, num_skipped = load(source), 0
    source = skip_invalid(source) if on_invalid == "skip_episode" else source
    steps = path.with_name(f".{path.name}.steps")
    if num_workers is not None:
        require_vacant(path)
        build_store(source, steps, num_workers=num_workers, on_progress=on_read)
        stored = open_store(steps, image_decoding=False)
        num_skipped = count_skipped(source, stored.num_episodes or 0)
        source = replace(source, read=stored.read)
    for has_final_steps in choose_layouts(source, limits):
        with (
            contextlib.suppress(UnknownFinalObservationError),
            explain_left_out(f"the format {format!r}"),
            atomic_output(path) as partial,
        ):
            checks: Any = {"on_invalid": on_invalid, "recompute_discounts": recompute_discounts}
            episodes = WrittenEpisodes(source, limits, **checks, progress=progress, has_final_steps=has_final_steps)
            sentences = limits.write(partial, episodes, episodes.step_spec, source, location=path, **given) or ()
            num_bytes = sum(file.stat().st_size for file in [partial, *partial.rglob("*")] if file.is_file())
            warnings = (*episodes.make_warnings(), *limits.describe_lost_metadata(source), *sentences)
            counts = dict(episodes.counts)
            break
    num_skipped = num_skipped or len(source.skipped or ())
    counts["skipped_episodes"] += num_skipped
    verified = ""
    if verify:
        again = WrittenEpisodes(source, limits, **checks, progress=progress, has_final_steps=episodes.has_final_steps)
        lossy = find_lossy(episodes.step_spec, source.descriptions, video=video)
        verified = require_same_episodes(path, again, limits, lossy, source.episode_metadata_spec)
    if num_workers is not None:
        delete_store(steps)
    report = make_report(source, path, format, counts, num_bytes=num_bytes, warnings=warnings)
    return replace(report, verified=verified)


def make_report(
    source: Source, path: Path, format: str, counts: Mapping[str, int], *, num_bytes: int, warnings: Sequence[str]
) -> WriteReport:
    """Returns the report of a written dataset.

    Args:
      source: its source.
      path: the written file or directory.
      format: its format.
      counts: the counts of `WrittenEpisodes`.
      num_bytes: size on disk.
      warnings: sentences about what the written dataset does not contain.
    """
    values: dict[str, Any] = {
        **counts,
        "warnings": (*source.warnings, *source.described_unread, *warnings),
        "statistics": source.statistics,
    }
    return WriteReport(source.name, str(path), format, size_bytes=num_bytes, **values)


def require_destination(path: str | Path, format: str) -> None:
    """Raises the errors of `write_dataset` that do not depend on the data, for callers that first make them.

    Args:
      path: see `write_dataset`.
      format: see `write_dataset`.

    Raises:
      FileExistsError: If the path exists.
      ImportError: If the format requires a package that is not installed.
      ValueError: If the format is unknown, or a Minari path is not a Minari name.
    """
    require_one_of("format", format, WRITTEN_FORMATS)
    path = expand_path(path, "path").absolute()
    require_vacant(path)
    if format == "minari":
        import_minari()
        choose_dataset_id(path)
