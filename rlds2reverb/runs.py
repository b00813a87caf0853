"""One run of `ingest`: from a source to a sink, block by block, from the beginning or from where another run ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rlds2reverb import fields
from rlds2reverb.batches import Encoder
from rlds2reverb.episodes import Episode, InvalidEpisode, find_problems
from rlds2reverb.memory import needed_bytes
from rlds2reverb.pieces import in_blocks
from rlds2reverb.plans import Plan
from rlds2reverb.reports import IngestReport
from rlds2reverb.sinks import Sink
from rlds2reverb.sources import Source
from rlds2reverb.summaries import Fingerprint

#: What to do with an episode that does not hold together.
ON_INVALID = ("error", "skip_episode", "keep")

_PROBLEMS_KEPT = 20
#: A data set of up to so many bytes is read once: what was read for the check is kept.
_KEPT_BYTES = 512 << 20

Progress = Callable[[str, Episode], None]


class ResumeError(ValueError):
    """The data set is not the one that an unfinished run was writing."""


@dataclass
class Run:
    """One ingestion: reads, checks and converts episodes, and gives them to a sink block by block."""

    source: Source
    plan: Plan
    on_invalid: str
    resume: bool
    report: IngestReport
    progress: Progress
    num_steps: int | None = None

    def check(self) -> None:
        """Reads and checks everything before anything is written."""
        with self.report.stage("check"):
            self.source, self.num_steps = _checked(self.source, self.progress)

    def estimate(self, encoder: Encoder) -> None:
        """Notes the memory that a server will need, by that for the first items."""
        num_steps = self.num_steps if self.num_steps is not None else self.source.num_rows
        if num_steps is None or not len(self.plan.example.starts):
            return
        batches = list(encoder.encode([self.plan.example]))
        of_example = needed_bytes(
            items=sum(batch.num_items for batch in batches) * len(encoder.tables),
            chunks=sum(len(batch.chunk_keys) for batch in batches),
            chunk_bytes=sum(batch.chunk_bytes for batch in batches),
            columns=len(self.plan.specs),
        )
        self.report.memory_bytes = of_example * num_steps // len(self.plan.example.columns[0])

    def write(self, sink: Sink) -> None:
        """From the beginning, or from where an earlier run was, to the end."""
        report = self.report = _anew(self.report)
        state = sink.open(resume=self.resume)
        fingerprint = Fingerprint()
        seen = 0
        for block in in_blocks(self._timed_episodes(), first_end=state["seen"] if state else 0):
            pieces = []
            resumed = state is not None and seen < state["seen"]
            for episode in block:
                with report.stage("convert"):
                    seen += 1
                    if not self._take(episode):
                        continue
                    fingerprint.add(episode)
                    self._count(episode)
                    if not resumed:
                        pieces.append(self.plan.piece(episode))
                        report.items += len(pieces[-1].starts)
                        report.too_short += not len(pieces[-1].starts)
                self.progress("resume" if resumed else "write", episode)
            if not resumed:
                with report.stage("write"):
                    sink.write(pieces, self._state(seen, fingerprint))
            elif state is not None and seen == state["seen"]:
                self._take_over(state, fingerprint)
        if state is not None and seen < state["seen"]:
            raise ResumeError(_OTHER_DATA.format(seen, f"ends after {seen} episodes"))
        report.fingerprint = fingerprint.hexdigest()
        with report.stage("write"):
            sink.finish(self._state(seen, fingerprint))

    def _state(self, seen: int, fingerprint: Fingerprint) -> dict[str, Any]:
        report = self.report
        return {
            "seen": seen,
            "fingerprint": fingerprint.hexdigest(),
            "items": report.items,
            "too_short": report.too_short,
        }

    def _take_over(self, state: dict[str, Any], fingerprint: Fingerprint) -> None:
        """The counts of the earlier run, if the data set is still the one that it wrote."""
        if fingerprint.hexdigest() != state["fingerprint"]:
            raise ResumeError(_OTHER_DATA.format(state["seen"], "is another"))
        report = self.report
        report.items, report.too_short = state["items"], state["too_short"]
        report.resumed_episodes, report.resumed_steps = report.episodes, report.steps

    def _timed_episodes(self) -> Iterator[Episode]:
        episodes = iter(self.source)
        while True:
            with self.report.stage("read"):
                episode = next(episodes, None)
            if episode is None:
                return
            yield episode

    def _take(self, episode: Episode) -> bool:
        """Whether an episode is to be written; notes its problems."""
        report = self.report
        if self.on_invalid == "error" and "check" in report.seconds:
            return True
        problems = find_problems(episode, self.source.step_spec)
        if problems and self.on_invalid == "error":
            raise InvalidEpisode(problems)
        report.problems += problems[: _PROBLEMS_KEPT - len(report.problems)]
        if not problems:
            return True
        if self.on_invalid == "skip_episode" or any(problem.field == fields.STEPS for problem in problems):
            report.skipped_episodes += 1
            return False
        report.kept_problems += len(problems)
        return True

    def _count(self, episode: Episode) -> None:
        report = self.report
        report.episodes += 1
        report.steps += episode.num_steps
        report.bytes += episode.num_bytes
        report.open_ends += episode.open_end


_OTHER_DATA = (
    "the data set is not the one that the earlier run wrote: after {} episodes it {}; convert without resuming, or "
    "to a new directory"
)


def _anew(report: IngestReport) -> IngestReport:
    """A report to begin again with; what was checked and how often the server was restarted stays."""
    kept = {
        name: getattr(report, name)
        for name in ("source", "tables", "memory_bytes", "restarts", "writer", "warnings", "seconds")
    }
    return IngestReport(**kept)


def _valid_episodes(source: Source, progress: Progress) -> Iterator[Episode]:
    for episode in source:
        progress("check", episode)
        problems = find_problems(episode, source.step_spec)
        if problems:
            raise InvalidEpisode(problems)
        yield episode


def _checked(source: Source, progress: Progress) -> tuple[Source, int]:
    """A source whose episodes are all valid, in memory if there is little enough of them; and how many steps it has."""
    kept: list[Episode] = []
    kept_bytes = num_steps = 0
    for episode in _valid_episodes(source, progress):
        num_steps += episode.num_steps
        kept_bytes += episode.num_bytes
        if kept_bytes <= _KEPT_BYTES:
            kept.append(episode)
        else:
            kept.clear()
    return replace(source, read=lambda: iter(kept)) if kept_bytes <= _KEPT_BYTES else source, num_steps
