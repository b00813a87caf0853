"""The report of an ingestion."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from rlds2reverb.datasets.source import Source
from rlds2reverb.datasets.transforms import describe_changes
from rlds2reverb.errors import ErrorFinding
from rlds2reverb.system.text import format_bytes, format_facts, format_number
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.items import EpisodeAdder
from rlds2reverb.types.left_out import LeftOut
from rlds2reverb.types.short_repr import short_repr

#: The number of errors that a report lists.
MAX_REPORTED_ERRORS = 20
#: The attributes of a report that are known before the first item.
_KEPT = (
    *("source", "tables", "memory_bytes", "restarts", "writer"),
    *("warnings", "statistics", "unread", "left_out_fields", "seconds"),
)


class IngestWarning(RuntimeWarning):
    """A warning or note of an ingestion report, issued once by `ingest`."""


@dataclass
class IngestReport(LeftOut):
    """The result of an ingestion, with the counts of `LeftOut`.

    Attributes:
      source: name of the dataset.
      tables: names of the tables; each table got every item.
      episodes: number of episodes, including those that an earlier run wrote.
      steps: number of their steps, including the final observations.
      items: number of items in each table.
      size_bytes: size of the steps.
      resumed_episodes: number of episodes that an earlier run wrote.
      resumed_steps: number of their steps.
      unterminated: number of episodes whose end is missing in the source; written as truncated.
      episodes_too_short: number of episodes that are too short for an item.
      skipped_episodes: number of episodes skipped because of errors.
      kept_errors: number of errors in episodes that were written anyway.
      errors: the first 20 errors.
      seconds: seconds spent in each stage: 'check' (before anything is written), 'read', 'convert', 'write' and
        'verify'.
      memory_bytes: estimate of the memory that a server needs for the items; 0 if unknown.
      verified_items: number of items in each table that were read back and found equal to those of the dataset.
      restarts: how many times the server was restarted, after which everything was sent again.
      writer: 'bulk' or 'reverb'; see `ingestion.IngestOptions`.
      warnings: sentences that the user should see.
      statistics: values and changes of the transforms; see `datasets.transforms.apply_transforms`.
      unread: names of columns of the dataset that are not read, see `Source.unread`.
      left_out_fields: additional step fields that the items do not contain, with the reason.
      fingerprint: XXH3-128 of the written content; see `fingerprints.Fingerprint`. For several shards, that of
        their fingerprints.
      table_sizes: number of items in each table at the end, including items from other writers.
    """

    source: str
    tables: tuple[str, ...]
    episodes: int = 0
    steps: int = 0
    items: int = 0
    size_bytes: int = 0
    resumed_episodes: int = 0
    resumed_steps: int = 0
    unterminated: int = 0
    episodes_too_short: int = 0
    skipped_episodes: int = 0
    kept_errors: int = 0
    errors: list[ErrorFinding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    verified_items: int = 0
    restarts: int = 0
    writer: str = "bulk"
    warnings: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    left_out_fields: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    table_sizes: dict[str, int] = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def steps_per_sec(self) -> float:
        """The number of steps that this run wrote, divided by the total seconds of all stages but 'verify'."""
        total = sum(duration for stage, duration in self.seconds.items() if stage != "verify")
        return (self.steps - self.resumed_steps) / total if total else 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about data that are in the source but not in the tables, and the notes of transforms."""
        left_out = [f"the step field {name!r} is left out: {reason}" for name, reason in self.left_out_fields.items()]
        return (*self.describe_left_out(), *left_out, *self.statistics.get("notes", ()))

    def __str__(self) -> str:
        return format_facts(f"{self.source} converted", self.facts())

    def facts(self) -> list[tuple[str, str]]:
        """Returns the report as pairs of a name and a text; counts of zero are omitted."""
        seconds = ", ".join(f"{stage} {duration:.1f} s" for stage, duration in self.seconds.items())
        rate = f"{format_number(round(self.steps_per_sec))} ({seconds})"
        has_written = self.steps > self.resumed_steps or not self.steps
        facts = [
            ("tables", ", ".join(self.tables)),
            ("episodes", f"{self.episodes:,}"),
            ("steps", f"{self.steps:,} ({format_bytes(self.size_bytes)})"),
            ("items", f"{self.items:,} in each table"),
            ("steps per sec", rate if has_written else "nothing to write: an earlier run had written everything"),
        ]
        if self.verified_items:
            facts.append(
                ("verified", f"{self.verified_items:,} items read back, equal to those of the dataset bit for bit")
            )
        if self.unread:
            facts.append(("unread", ", ".join(self.unread)))
        facts += [("changed", sentence) for sentence in describe_changes(self.statistics)]
        if any(size != self.items for size in self.table_sizes.values()):
            sizes = ", ".join(f"{name}: {size:,} items" for name, size in self.table_sizes.items())
            facts.append(("table sizes", sizes))
        if self.memory_bytes:
            facts.append(("memory", f"about {format_bytes(self.memory_bytes)} in the server"))
        facts.append(("fingerprint", f"xxh128 {self.fingerprint}"))
        counts = [
            (self.resumed_episodes, "episode", "already written by an earlier run"),
            (self.restarts, "restart", "of the server; all items were sent again"),
            (self.unterminated, "episode", "without an end in the data; written as truncated"),
            (self.episodes_too_short, "episode", "too short for an item"),
            (self.skipped_episodes, "invalid episode", "skipped"),
            (self.kept_errors, "error", "in episodes that were written anyway"),
        ]
        facts += [("note", f"{count:,} {noun}{'s' * (count != 1)} {text}") for count, noun, text in counts if count]
        facts += [("note", sentence) for sentence in self.notes]
        facts += [("warning", sentence) for sentence in self.warnings]
        return facts + [("error", str(error)) for error in self.errors[:5]]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain dicts, for JSON."""
        return {**asdict(self), "notes": list(self.notes), "steps_per_sec": self.steps_per_sec}

    def warn(self, sentence: str) -> None:
        """Adds a warning to the report, and issues it as a Python warning as well."""
        self.warnings += (sentence,)
        _issue_warning(sentence)

    def emit_note_warnings(self) -> None:
        """Issues each note as a Python warning; called once, after everything is written."""
        for sentence in self.notes:
            _issue_warning(sentence)

    def add_batch(self, batch: EpisodeBatch, adder: EpisodeAdder) -> None:
        """Adds the counts of episodes whose items are written."""
        for episode in batch.episodes:
            self.episodes += 1
            self.steps += episode.num_steps
            self.size_bytes += episode.num_bytes
            self.unterminated += episode.unterminated
        self.count_left_out(batch, uses_all_actions=getattr(adder, "uses_all_actions", False))

    def add_skipped(self, source: Source) -> None:
        """Adds the episodes that the source has left out, and their errors."""
        skipped = source.skipped or {}
        self.skipped_episodes += len(skipped)
        errors = [skipped[episode] for episode in sorted(skipped)]
        self.errors += errors[: MAX_REPORTED_ERRORS - len(self.errors)]

    def merge_counts(self, other: IngestReport) -> None:
        """Adds the counts, seconds and errors of the report of other episodes of the same dataset."""
        for name, kind in IngestReport.__annotations__.items():
            if kind == "int":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        totals: Any
        added: Any
        for totals, added in ((self.seconds, other.seconds), (self.table_sizes, other.table_sizes)):
            for name, number in added.items():
                totals[name] = totals.get(name, 0) + number
        self.merge_left_out(other)
        self.errors = (self.errors + other.errors)[:MAX_REPORTED_ERRORS]

    def set_fingerprint(self, fingerprints: Sequence[str]) -> None:
        """Sets the fingerprint to that of a single shard, or to a hash of those of several shards."""
        digest = xxhash.xxh3_128(b"".join(map(bytes.fromhex, fingerprints))).hexdigest()
        self.fingerprint = fingerprints[0] if len(fingerprints) == 1 else digest

    def reset_counts(self) -> IngestReport:
        """Returns a report of the same run without counts; keeps the values determined before the first item."""
        return IngestReport(**{name: getattr(self, name) for name in _KEPT})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the duration of the context to the seconds of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _issue_warning(sentence: str) -> None:
    """Issues a Python warning at the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("rlds2reverb."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, IngestWarning, stacklevel=level)
