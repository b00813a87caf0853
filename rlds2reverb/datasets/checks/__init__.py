"""Checks of a dataset for mistakes that no rule of its format forbids: `check_dataset`.

Each check reads blocks of episodes, keeps a few counts, and reports its findings at the end, so that a dataset of any
size is read once, with one episode, or a megabyte of small ones, in memory. `findings.CHECKS` lists all of them. Those
whose findings follow from single blocks are functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.specs import Nest, leaves, make_step_spec

from ..source import Source
from . import actions, conventions, copies, ends, grippers, images, numbers, outliers, resets, times
from .findings import CHECKS, SEVERITIES, Finding, Tallies, Tally
from .transition_blocks import Block

__all__ = ["CHECKS", "SEVERITIES", "DatasetChecks", "Finding", "check_dataset"]


class _Check(Protocol):
    def add(self, block: Block) -> None: ...

    def finish(self) -> Iterator[Finding]: ...


_CHECKS: tuple[Callable[[Source], _Check], ...] = (
    *(numbers.Numbers, numbers.Constants, outliers.Jumps, actions.ActionBounds, images.FrozenCameras),
    *(ends.Rewards, ends.Lengths, conventions.Conventions, resets.Autoresets),
    *(copies.Contradictions, times.Times, grippers.Grippers),
)
_BLOCK_CHECKS: tuple[Callable[[Block, Tallies], None], ...] = (
    *(actions.find_repetitions, images.find_odd_images, ends.find_odd_ends, copies.find_empty_texts),
)


class DatasetChecks:
    """All checks of one dataset; call `add_batch` with all episodes, and `finish` at the end."""

    def __init__(self, source: Source, only: Sequence[Callable[[Source], _Check]] = ()):
        """Starts without episodes.

        Args:
          source: the dataset, which is not read.
          only: the classes of the checks; () for all checks.
        """
        self._checks: list[_Check] = [check(source) for check in only or _CHECKS]
        self._block_checks: list[Callable[[Block, Tallies], None]] = []
        if not only:
            self._block_checks += [*_BLOCK_CHECKS, copies.Copies().find]
        self._tallies: Tallies = defaultdict(Tally)
        self._step_spec: Nest = None

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds the next episodes, valid or not."""
        if self._is_regular(batch):
            with np.errstate(all="ignore"):
                block = Block(batch)
                for check in self._checks:
                    check.add(block)
                for find in self._block_checks:
                    find(block, self._tallies)

    def finish(self) -> list[Finding]:
        """Returns all findings: the most serious ones first, and then in the order of `CHECKS`."""
        with np.errstate(all="ignore"):
            findings = [finding for check in self._checks for finding in check.finish()]
        for key, tally in self._tallies.items():
            findings += tally.report(*key)
        names = list(CHECKS)
        return sorted(findings, key=lambda found: (-SEVERITIES.index(found.severity), names.index(found.check)))

    def _is_regular(self, batch: EpisodeBatch) -> bool:
        """Returns whether a batch can be checked; `find_errors` reports all others."""
        num_rows = int(batch.num_steps.sum())
        if not num_rows or any(len(column) != num_rows for _, column in leaves(batch.steps)):
            return False
        spec = make_step_spec(batch.steps)
        self._step_spec = spec if self._step_spec is None else self._step_spec
        return bool(spec == self._step_spec)


def check_dataset(source: Source) -> list[Finding]:
    """Reads a dataset once and returns what its checks find, the most serious findings first.

        for finding in check_dataset(load("hopper_medium-v2.hdf5")):
            print(finding.severity, finding.check, finding.place, finding.message)

    NaN apart, violations of RLDS's rules are not repeated here; `rlds2reverb validate` reports both.

    Args:
      source: the dataset. Invalid episodes are read, and those that differ in their fields from the first are skipped.

    Raises:
      SourceError: If the source cannot be read to its end.
    """
    checks = DatasetChecks(source)
    for batch in batch_episodes(source.read()):
        checks.add_batch(batch)
    return checks.finish()
