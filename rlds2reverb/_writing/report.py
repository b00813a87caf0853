"""The report of an ingestion."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from rlds2reverb._text import facts_text, number_text
from rlds2reverb._units import bytes_text
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import discontinuity_place, notes
from rlds2reverb.errors import Problem
from rlds2reverb.sources.transforms import changes


class IngestWarning(RuntimeWarning):
    """What `ingest` warns of: each warning and note of its report, once."""


@dataclass
class IngestReport:
    """What an ingestion did.

    Attributes:
      source: name of the data set.
      tables: names of the tables, each of which got every item.
      episodes, steps, items, bytes: written, now or before a resumption; `steps` has those of final observations,
        `bytes` are of the steps.
      resumed_episodes, resumed_steps: of these, how many an earlier run had written.
      unterminated: episodes that the source just stops in, written as truncated.
      dropped_last_transition: transitions that were left out because their truncated episodes have no final observation.
      discontinuities: rows inside episodes whose `next_observations` is not the observation of the next row.
      first_discontinuity: where the first of them is.
      episodes_too_short: episodes shorter than a window, which give no item.
      skipped_episodes: left out because of problems.
      kept_problems: found and written all the same.
      problems: the first 20 of them.
      seconds: by stage: 'check' (reading and checking before anything is written), 'read', 'convert', 'write'.
      memory_bytes: what the server will need for it, about; 0 where that is not known.
      restarts: how often the server was restarted in the middle, and got everything again.
      writer: 'bulk' or 'public'.
      warnings: sentences that the user should see.
      table_sizes: items in each table at the end, those of other writers included.
      statistics: what transforms changed before, in sum; see `sources.transforms.apply_transforms`.
      fingerprint: XXH3-128 over the content of what was written; see `sources.summary.Fingerprint`.
    """

    source: str
    tables: tuple[str, ...]
    episodes: int = 0
    steps: int = 0
    items: int = 0
    bytes: int = 0
    resumed_episodes: int = 0
    resumed_steps: int = 0
    unterminated: int = 0
    dropped_last_transition: int = 0
    discontinuities: int = 0
    first_discontinuity: str = ""
    episodes_too_short: int = 0
    skipped_episodes: int = 0
    kept_problems: int = 0
    problems: list[Problem] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    restarts: int = 0
    writer: str = "bulk"
    warnings: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    table_sizes: dict[str, int] = field(default_factory=dict)

    @property
    def steps_per_second(self) -> float:
        """Steps written by this run over the seconds of all stages."""
        total = sum(self.seconds.values())
        return (self.steps - self.resumed_steps) / total if total else 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the data set holds and the tables do not (see `episodes.notes`), and the notes of transforms."""
        of_data = notes(self.dropped_last_transition, self.discontinuities, self.first_discontinuity)
        return (*of_data, *self.statistics.get("notes", ()))

    def __str__(self) -> str:
        return facts_text(f"{self.source} converted", self.facts())

    def facts(self) -> list[tuple[str, str]]:
        """The report as names and values for people; what is zero is left out."""
        seconds = ", ".join(f"{stage} {taken:.1f} s" for stage, taken in self.seconds.items())
        written = self.steps > self.resumed_steps or not self.steps
        speed = f"{number_text(round(self.steps_per_second))} steps/s ({seconds})"
        facts = [
            ("into", f"{'table' if len(self.tables) == 1 else 'tables'} {', '.join(self.tables)}"),
            ("episodes", f"{self.episodes:,}"),
            ("steps", f"{self.steps:,} ({bytes_text(self.bytes)})"),
            ("items", f"{self.items:,} in each table"),
            ("speed", speed if written else "nothing was written, all was there"),
        ]
        facts += [("changed", sentence) for sentence in changes(self.statistics)]
        if any(size != self.items for size in self.table_sizes.values()):
            facts.append(("now", ", ".join(f"{name}: {size:,} items" for name, size in self.table_sizes.items())))
        if self.memory_bytes:
            facts.append(("memory", f"about {bytes_text(self.memory_bytes)} in the server"))
        facts.append(("fingerprint", f"xxh128 {self.fingerprint}"))
        counts = [
            (self.resumed_episodes, "episodes from an earlier run are there already"),
            (self.restarts, "restarts of the server; it got everything again"),
            (self.unterminated, "episodes stop without an end in the data; written as truncated"),
            (self.episodes_too_short, "episodes are shorter than an item, and give none"),
            (self.skipped_episodes, "invalid episodes were left out"),
            (self.kept_problems, "problems were kept"),
        ]
        facts += [("note", f"{count:,} {what}") for count, what in counts if count]
        facts += [("note", sentence) for sentence in self.notes]
        facts += [("warning", sentence) for sentence in self.warnings]
        return facts + [("problem", str(problem)) for problem in self.problems[:5]]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts, for JSON."""
        return {**asdict(self), "notes": list(self.notes), "steps_per_second": self.steps_per_second}

    def warn(self, sentence: str) -> None:
        """Adds a warning, and gives it as a Python warning as well."""
        self.warnings += (sentence,)
        warnings.warn(sentence, IngestWarning, stacklevel=3)

    def warn_of_notes(self) -> None:
        """Gives each note as a Python warning as well; to be called once, when all is written."""
        for sentence in self.notes:
            warnings.warn(sentence, IngestWarning, stacklevel=3)

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Counts episodes that are written."""
        for episode in batch.episodes:
            self.episodes += 1
            self.steps += episode.num_steps
            self.bytes += episode.num_bytes
            self.unterminated += episode.unterminated
            self.dropped_last_transition += episode.dropped_last_transition
            if episode.discontinuities:
                self.discontinuities += len(episode.discontinuities)
                self.first_discontinuity = self.first_discontinuity or discontinuity_place(episode)

    def restarted(self) -> IngestReport:
        """A report of the same run that counts from scratch; what was found before the first item stays."""
        return IngestReport(
            source=self.source,
            tables=self.tables,
            memory_bytes=self.memory_bytes,
            restarts=self.restarts,
            writer=self.writer,
            warnings=self.warnings,
            statistics=self.statistics,
            seconds=self.seconds,
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the seconds spent inside to those of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
