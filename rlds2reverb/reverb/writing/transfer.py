"""The transfer of a dataset to a destination, from the beginning or from the point where an earlier run stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from rlds2reverb.datasets import Source
from rlds2reverb.errors import ArgumentError, ResumeError
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode, ProgressCallback, show_progress
from rlds2reverb.types.fingerprints import Fingerprint, episode_digests
from rlds2reverb.types.tables import MAX_ITEMS

from ..server.table_memory import estimate_server_bytes
from ..wire.encoder import Encoder
from ..wire.item_blocks import ItemBlock, group_by_size
from .item_conversion import ItemConversion
from .report import IngestReport

#: A dataset up to this size is kept in memory by the check, so that it is read only once.
_MAX_CACHED_BYTES = 512 << 20
#: Number of items of the first episode from which the server's memory is estimated.
_EXAMPLE_ITEMS = 4096


@dataclass(frozen=True)
class TransferState:
    """The progress of a transfer, for a run that continues it.

    Attributes:
      seen: number of episodes of the source that were read, written or not.
      fingerprint: fingerprint of the written episodes; see `fingerprints.Fingerprint`.
      items: number of written items.
      episodes_too_short: number of episodes that are too short for an item.
    """

    seen: int
    fingerprint: str
    items: int
    episodes_too_short: int

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransferState:
        """Creates a state from a dict with the names of its attributes as keys; other keys are ignored."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def require_same_data(self, seen: int, fingerprint: Fingerprint) -> None:
        """Raises `ResumeError` unless a dataset begins with the episodes that led to this state.

        Args:
          seen: number of episodes read, at most `self.seen`.
          fingerprint: fingerprint of these episodes.
        """
        if seen < self.seen:
            raise changed_data_error(f"it ends after {seen} episodes")
        if fingerprint.hexdigest() != self.fingerprint:
            raise changed_data_error(f"its first {self.seen} episodes differ")


def changed_data_error(difference: str) -> ResumeError:
    """Returns the error for a dataset that differs from the one that the earlier run wrote."""
    return ResumeError(
        f"the dataset does not match the one that the earlier run wrote: {difference}; write to an empty table or "
        "a new directory, or start again, which keeps the items of both in a table",
        resume=False,
    )


def capacity_error(num_items: int, max_items: int, *, can_evict: bool = False) -> ValueError:
    """Returns the error for more items than a table holds; `can_evict` if the tables are those of a server."""
    sentence = f"the dataset has at least {num_items:,} items, but the smallest table holds {max_items:,}"
    if not can_evict:
        return ArgumentError(f"{sentence}; use a larger one", max_size=...)
    remedy = "use a larger one, or let new items replace older ones"
    return ArgumentError(f"{sentence}; {remedy}", max_size=..., allow_eviction=True)


class Destination(Protocol):
    """A place to write items to, which remembers the progress of the transfer."""

    def open(self, *, resume: bool) -> TransferState | None:
        """Opens the destination; with `resume`, returns the last state that an earlier run stored durably, if any."""

    def write(self, blocks: Sequence[ItemBlock], state: TransferState) -> None:
        """Writes the items of some whole episodes; `state` describes the transfer after them."""

    def finish(self, state: TransferState) -> None:
        """Waits until everything is stored durably."""


@dataclass
class Transfer:
    """Reads, checks and converts the episodes of a source, and writes their items to a destination.

    Attributes:
      source: the dataset.
      conversion: the conversion of episodes to items.
      resume: whether to continue an earlier run.
      report: report, completed during the transfer.
      progress: callback for each episode.
      max_items: number of items above which the transfer fails.
      num_steps: number of steps of the dataset, once `check` has read it.
    """

    source: Source
    conversion: ItemConversion
    resume: bool
    report: IngestReport
    progress: ProgressCallback
    max_items: int = MAX_ITEMS
    num_steps: int | None = None

    def check(self) -> None:
        """Reads all episodes before anything is written, and caches them if they are small enough.

        Raises:
          InvalidEpisodeError: At the first episode with errors, if `on_invalid` is 'error'.
        """
        cached: list[Episode] = []
        num_bytes = num_steps = 0
        with self.report.stage("check"):
            for batch in batch_episodes(show_progress(self.source.read(), self.progress, "check")):
                self._drop_skipped(batch)
                num_steps += int(batch.num_steps.sum())
                num_bytes += sum(episode.num_bytes for episode in batch.episodes)
                if num_bytes <= _MAX_CACHED_BYTES:
                    cached += batch.episodes
                else:
                    cached.clear()
        self.num_steps = num_steps
        if num_bytes <= _MAX_CACHED_BYTES:
            self.source = replace(self.source, read=lambda: iter(cached))

    def estimate_memory(self, encoder: Encoder) -> None:
        """Estimates the memory that a server will need from the items of the first episode; sets it in the report."""
        num_steps = self.source.num_rows if self.num_steps is None else self.num_steps
        if num_steps is None or not len(self.conversion.example.starts):
            return
        example = self.conversion.example.slice_items(0, _EXAMPLE_ITEMS)
        batches = list(encoder.encode([example]))
        example_bytes = estimate_server_bytes(
            items=sum(batch.num_items for batch in batches) * len(encoder.tables),
            chunks=sum(len(batch.chunk_keys) for batch in batches),
            chunk_bytes=sum(batch.chunk_bytes for batch in batches),
            columns=len(self.conversion.specs),
        )
        self.report.memory_bytes = example_bytes * num_steps // example.num_rows

    def definitely_fits(self, num_items: int) -> bool:
        """Returns whether the dataset has at most `num_items` items, provided that at most one starts at each step.

        False if the number of steps is unknown. An adder may make more items than there are steps; `run` counts them.
        """
        if self.num_steps is not None:
            return self.num_steps <= num_items
        # A row is a transition, and an episode of one row has two steps.
        return self.source.num_rows is not None and 2 * self.source.num_rows <= num_items

    def count_items(self) -> int:
        """Reads the whole dataset and returns the number of its items, without writing any."""
        num_items = 0
        with self.report.stage("check"):
            for batch in batch_episodes(show_progress(self.source.read(), self.progress, "check")):
                if (kept := self._drop_skipped(batch)) is not None:
                    num_items += int(self.conversion.count_items(kept).sum())
        return num_items

    def require_same_data(self, saved: TransferState) -> None:
        """Checks that the dataset begins with what an earlier run wrote, before this run writes anything.

        Raises:
          ResumeError: If it does not.
        """
        fingerprint = Fingerprint()
        seen = 0
        for batch in batch_episodes(itertools.islice(self.source.read(), saved.seen)):
            seen += len(batch.episodes)
            if (kept := self._drop_skipped(batch)) is not None:
                fingerprint.update(b"".join(episode_digests(kept)))
        saved.require_same_data(seen, fingerprint)

    def run(self, destination: Destination) -> None:
        """Writes everything that an earlier run did not write.

        Raises:
          InvalidEpisodeError: At an episode with errors, if `on_invalid` is 'error' and `check` was not called.
          ResumeError: If the dataset is not the one that the earlier run wrote.
          ValueError: If there are more items than `max_items`.
        """
        report = self.report = self.report.reset_counts()
        saved = destination.open(resume=self.resume)
        fingerprint = Fingerprint()
        seen = 0
        for group in group_by_size(self._read_to_write(), first_end=saved.seen if saved else 0):
            is_resumed = saved is not None and seen < saved.seen
            blocks = []
            for batch in batch_episodes(group):
                with report.stage("convert"):
                    seen += len(batch.episodes)
                    blocks += self._convert(batch, fingerprint, count_only=is_resumed)
                for episode in batch.episodes:
                    self.progress("resume" if is_resumed else "write", episode)
            if not is_resumed:
                with report.stage("write"):
                    destination.write(blocks, self._make_state(seen, fingerprint))
            elif saved is not None and seen == saved.seen:
                saved.require_same_data(seen, fingerprint)
                report.items, report.episodes_too_short = saved.items, saved.episodes_too_short
                report.resumed_episodes, report.resumed_steps = report.episodes, report.steps
        if saved is not None and seen < saved.seen:
            saved.require_same_data(seen, fingerprint)
        report.fingerprint = fingerprint.hexdigest()
        with report.stage("write"):
            destination.finish(self._make_state(seen, fingerprint))

    def _convert(self, batch: EpisodeBatch, fingerprint: Fingerprint, *, count_only: bool) -> list[ItemBlock]:
        """Returns the items of the episodes that are not skipped, and adds them to the report."""
        kept = self._drop_skipped(batch)
        if kept is None:
            return []
        fingerprint.update(b"".join(episode_digests(kept)))
        self.report.add_batch(kept, self.conversion.adder)
        blocks = [] if count_only else self.conversion.convert(kept)
        self.report.items += sum(len(block.starts) for block in blocks)
        self.report.episodes_too_short += sum(int((block.num_items == 0).sum()) for block in blocks)
        if self.report.items > self.max_items:
            raise capacity_error(self.report.items, self.max_items)
        return blocks

    def _make_state(self, seen: int, fingerprint: Fingerprint) -> TransferState:
        return TransferState(seen, fingerprint.hexdigest(), self.report.items, self.report.episodes_too_short)

    def _read_to_write(self) -> Iterator[Episode]:
        episodes = self.source.read()
        while True:
            with self.report.stage("read"):
                episode = next(episodes, None)
            if episode is None:
                return
            yield episode

    def _drop_skipped(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        is_checked = self.conversion.on_invalid == "error" and self.num_steps is not None  # `check` found no errors.
        return batch if is_checked else self.conversion.drop_skipped(batch, self.report)
