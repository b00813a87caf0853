"""The transfer of a data set to a destination: from its beginning, or from where an earlier run ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rlds2reverb import fields
from rlds2reverb._encoding.encoder import Encoder
from rlds2reverb._encoding.item_blocks import in_groups
from rlds2reverb._server.memory import needed_bytes
from rlds2reverb.episode_batches import EpisodeBatch, in_batches
from rlds2reverb.episodes import Episode, find_problems
from rlds2reverb.errors import InvalidEpisodeError, Problem, ResumeError
from rlds2reverb.sources import Source
from rlds2reverb.sources.summary import Fingerprint
from rlds2reverb.tables import MAX_ITEMS

from .conversion import ItemConversion, OnInvalid
from .destination import OTHER_DATA, Destination, TransferState
from .report import IngestReport

_PROBLEMS_KEPT = 20
#: The most bytes of a data set that the check keeps in memory, so that it is read once.
_KEPT_BYTES = 512 << 20

#: Items of the first episode from which the memory of the server is estimated.
_EXAMPLE_ITEMS = 4096

#: Called with a stage ('check', 'resume' or 'write') and each episode that went through it.
Progress = Callable[[str, Episode], None]


def too_many_items(num_items: int, max_items: int) -> ValueError:
    """Returns the error for more items than a table holds."""
    return ValueError(
        f"the data set gives {num_items:,} items or more, and the smallest table holds {max_items:,}; give a larger "
        "max_size (--max-size), or allow that older items are removed (allow_eviction, --allow-eviction)"
    )


@dataclass
class Transfer:
    """Reads, checks and converts the episodes of a source, and gives their items to a destination.

    Attributes:
      source: the data set.
      conversion: from episodes to items.
      on_invalid: see `ingestion.ingest`.
      resume: whether to continue an earlier run.
      report: filled during the transfer.
      progress: called during the transfer.
      max_items: of the smallest table, where it is an error to write more.
      num_steps: of the whole data set, once `check` has read it.
    """

    source: Source
    conversion: ItemConversion
    on_invalid: OnInvalid
    resume: bool
    report: IngestReport
    progress: Progress
    max_items: int = MAX_ITEMS
    num_steps: int | None = None

    @property
    def is_checked(self) -> bool:
        """Whether `check` has read all episodes and found them valid."""
        return self.num_steps is not None

    def check(self) -> None:
        """Reads and checks everything before anything is written, and keeps it in memory if there is little enough.

        Raises:
          InvalidEpisodeError: at the first episode that has problems.
        """
        kept: list[Episode] = []
        kept_bytes = num_steps = 0
        with self.report.stage("check"):
            for batch in in_batches(self._shown("check")):
                self._require_valid(batch)
                for episode in batch.episodes:
                    num_steps += episode.num_steps
                    kept_bytes += episode.num_bytes
                if kept_bytes <= _KEPT_BYTES:
                    kept += batch.episodes
                else:
                    kept.clear()
        self.num_steps = num_steps
        if kept_bytes <= _KEPT_BYTES:
            self.source = replace(self.source, read=lambda: iter(kept))

    def _shown(self, stage: str) -> Iterator[Episode]:
        """Yields the episodes of the source, each after it was given to `progress`."""
        for episode in self.source:
            self.progress(stage, episode)
            yield episode

    def _require_valid(self, batch: EpisodeBatch) -> None:
        if batch.is_valid(self.conversion.step_spec):
            return
        for episode in batch.episodes:
            problems = find_problems(episode, self.conversion.step_spec)
            if problems:
                raise InvalidEpisodeError(problems)

    def estimate_memory(self, encoder: Encoder) -> None:
        """Notes in the report about how much memory a server will need, judged by the items of the first episode."""
        num_steps = self.num_steps if self.is_checked else self.source.num_rows
        if num_steps is None or not len(self.conversion.example.starts):
            return
        example = self.conversion.example.part(0, _EXAMPLE_ITEMS)
        batches = list(encoder.encode([example]))
        for_example = needed_bytes(
            items=sum(batch.num_items for batch in batches) * len(encoder.tables),
            chunks=sum(len(batch.chunk_keys) for batch in batches),
            chunk_bytes=sum(batch.chunk_bytes for batch in batches),
            columns=len(self.conversion.specs),
        )
        self.report.memory_bytes = for_example * num_steps // example.num_rows

    def fits_surely(self, num_items: int) -> bool:
        """Whether the data set surely gives at most `num_items` items, if no more than one starts at a row.

        Without knowing the rows, nothing is sure. An adder may make more items than there are rows: `run` counts.
        """
        if self.num_steps is not None:
            return self.num_steps <= num_items
        # A row is a transition; an episode of one row has one step more.
        return self.source.num_rows is not None and 2 * self.source.num_rows <= num_items

    def count_items(self) -> int:
        """Reads the whole data set and returns how many items it gives, without writing any."""
        num_items = 0
        with self.report.stage("check"):
            for episode in self._shown("check"):
                if not self._is_left_out(self._problems(episode)):
                    num_items += len(self.conversion.adder(episode))
        return num_items

    def require_same_data(self, state: TransferState) -> None:
        """Checks that the data set begins with what an earlier run wrote, before anything of this run is written.

        Raises:
          ResumeError: if it does not.
        """
        fingerprint = Fingerprint()
        seen = 0
        for episode in itertools.islice(self.source, state.seen):
            seen += 1
            if not self._is_left_out(self._problems(episode)):
                fingerprint.add(episode)
        if seen < state.seen:
            raise ResumeError(OTHER_DATA.format(f"it ends after {seen} episodes"))
        if fingerprint.hexdigest() != state.fingerprint:
            raise ResumeError(OTHER_DATA.format(f"its first {state.seen} episodes are others"))

    def run(self, destination: Destination) -> None:
        """Writes from the beginning, or from where an earlier run ended, to the end.

        Raises:
          InvalidEpisodeError: at an episode that has problems, if they are errors and were not found by `check`.
          ResumeError: if the data set is not the one that the earlier run wrote.
        """
        report = self.report = self.report.restarted()
        saved = destination.open(resume=self.resume)
        fingerprint = Fingerprint()
        seen = 0
        for group in in_groups(self._timed_episodes(), first_end=saved.seen if saved else 0):
            is_resumed = saved is not None and seen < saved.seen
            blocks = []
            for batch in in_batches(group):
                with report.stage("convert"):
                    seen += len(batch.episodes)
                    kept = self._to_write(batch)
                    if kept is not None:
                        fingerprint.add_batch(kept)
                        report.add_batch(kept)
                        made = [] if is_resumed else self.conversion.blocks(kept)
                        report.items += sum(len(block.starts) for block in made)
                        report.episodes_too_short += sum(int((block.num_items == 0).sum()) for block in made)
                        self._require_room()
                        blocks += made
                for episode in batch.episodes:
                    self.progress("resume" if is_resumed else "write", episode)
            if not is_resumed:
                with report.stage("write"):
                    destination.write(blocks, self._state(seen, fingerprint))
            elif saved is not None and seen == saved.seen:
                self._take_over(saved, fingerprint)
        if saved is not None and seen < saved.seen:
            raise ResumeError(OTHER_DATA.format(f"it ends after {seen} episodes"))
        report.fingerprint = fingerprint.hexdigest()
        with report.stage("write"):
            destination.finish(self._state(seen, fingerprint))

    def _require_room(self) -> None:
        if self.report.items > self.max_items:
            raise too_many_items(self.report.items, self.max_items)

    def _state(self, seen: int, fingerprint: Fingerprint) -> TransferState:
        return TransferState(seen, fingerprint.hexdigest(), self.report.items, self.report.episodes_too_short)

    def _take_over(self, saved: TransferState, fingerprint: Fingerprint) -> None:
        """The counts of the earlier run, if the data set is still the one that it wrote."""
        if fingerprint.hexdigest() != saved.fingerprint:
            raise ResumeError(OTHER_DATA.format(f"its first {saved.seen} episodes are others"))
        report = self.report
        report.items, report.episodes_too_short = saved.items, saved.episodes_too_short
        report.resumed_episodes, report.resumed_steps = report.episodes, report.steps

    def _timed_episodes(self) -> Iterator[Episode]:
        episodes = iter(self.source)
        while True:
            with self.report.stage("read"):
                episode = next(episodes, None)
            if episode is None:
                return
            yield episode

    def _problems(self, episode: Episode) -> list[Problem]:
        if self.on_invalid == "error" and self.is_checked:
            return []
        return find_problems(episode, self.conversion.step_spec)

    def _is_left_out(self, problems: list[Problem]) -> bool:
        """Whether an episode with these problems is left out: always where no table can hold it."""
        if problems and self.on_invalid == "error":
            raise InvalidEpisodeError(problems)
        is_impossible = any(problem.field == fields.STEPS for problem in problems)
        return bool(problems) and (self.on_invalid == "skip_episode" or is_impossible)

    def _to_write(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        """Returns the episodes of a batch that are to be written, if there are any; notes the problems of all."""
        is_checked = self.on_invalid == "error" and self.is_checked
        if is_checked or batch.is_valid(self.conversion.step_spec):
            return batch
        kept = [episode for episode in batch.episodes if self._is_to_write(episode)]
        return EpisodeBatch(kept) if kept else None

    def _is_to_write(self, episode: Episode) -> bool:
        """Whether an episode is to be written; notes its problems."""
        report = self.report
        problems = self._problems(episode)
        is_left_out = self._is_left_out(problems)
        report.problems += problems[: _PROBLEMS_KEPT - len(report.problems)]
        if is_left_out:
            report.skipped_episodes += 1
        else:
            report.kept_problems += len(problems)
        return not is_left_out
