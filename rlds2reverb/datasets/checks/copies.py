"""Checks of copies of episodes, contradictions and texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.fingerprints import episode_digests

from ..source import Source
from .findings import Finding, Tallies, Tally
from .transition_blocks import Block


class Contradictions:
    """Statements about episodes that differ from their rows, which the reader has found."""

    def __init__(self, source: Source):
        self._found: dict[tuple[str, str], tuple[Tally, str]] = {}

    def add(self, block: Block) -> None:
        """Adds a block."""
        for episode in block.batch.episodes:
            for step, field, message, check in episode.contradictions:
                tally, _ = self._found.setdefault((check, field), (Tally(), message))
                tally.add_counts(1, 1, episode.index, step)

    def finish(self) -> Iterator[Finding]:
        """Yields what was found, with the values of the first episode."""
        for (check, field), (tally, message) in self._found.items():
            yield from tally.report(check, field, message)


class Copies:
    """Episodes with the same content as an earlier one."""

    def __init__(self) -> None:
        self._digests: set[int] = set()

    def find(self, block: Block, tallies: Tallies) -> None:
        """Finds the copies in a block."""
        digests = [int.from_bytes(digest[:8], "little") for digest in episode_digests(block.batch)]
        is_copy = np.zeros(len(digests), bool)
        for number, digest in enumerate(digests):
            if block.lengths[number] > 1:
                is_copy[number] = digest in self._digests
                self._digests.add(digest)
        message = "all steps equal those of an earlier episode"
        tallies["duplicate-episodes", fields.STEPS, message].add_episodes(block, is_copy)


def find_empty_texts(block: Block, tallies: Tallies) -> None:
    """Finds empty strings."""
    for field in block.fields:
        if field.is_text and len(field.rows):
            is_empty = [any(not text.strip() for text in row) for row in field.flat.tolist()]
            tallies["missing-text", field.name, "empty strings"].add(block, np.array(is_empty, bool))
