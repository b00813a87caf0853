"""The conversion of a dataset in parts, which any number of processes encode independently of each other.

The bytes of a table's files depend only on the episodes, on the groups that `group_by_size` makes of them, and on the
number of items before each group. A first pass over the dataset therefore measures every episode (`scan_episodes`),
`plan_parts` divides the groups into parts, and a second pass encodes the parts in any order (`encode_part`). The
concatenated parts are what a conversion in a single process writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.errors import ErrorFinding
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.episodes import Episode, locate_discontinuity
from rlds2reverb.types.fingerprints import Fingerprint, episode_digests

from ..wire.encoder import Encoder
from ..wire.item_blocks import group_by_size
from .directory_destination import FILES, iterate_contents
from .item_conversion import ItemConversion
from .report import IngestReport
from .sharding import assign_shards
from .transfer import TransferState


@dataclass
class Scan:
    """Measurements of consecutive episodes.

    Attributes:
      num_bytes: size of each episode.
      num_items: number of items of each episode; -1 if it is skipped.
      digests: `episode_digests` of all episodes, concatenated; zeros for skipped ones.
      report: counts of the episodes that are not skipped.
      num_discontinuities: number of discontinuities in all episodes.
      first_discontinuity: location of the first one, or ''.
    """

    num_bytes: list[int]
    num_items: list[int]
    digests: bytes
    report: IngestReport
    num_discontinuities: int = 0
    first_discontinuity: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the scan as plain values, for JSON."""
        return {**asdict(self), "digests": self.digests.hex()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Scan:
        """Creates a scan from the values of `as_dict`."""
        report = dict(values["report"])
        report["errors"] = [ErrorFinding(**error) for error in report["errors"]]
        return cls(**{**values, "digests": bytes.fromhex(values["digests"]), "report": IngestReport(**report)})


_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Part:
    """Consecutive groups of a shard's episodes, which are encoded together.

    Attributes:
      shard: index of the shard.
      number: number of the part in its shard.
      begin, end: indices of the first episode and of the one after the last.
      group_sizes: number of the shard's episodes in each group.
      first_item: number of the shard's items before the part.
      num_items: number of its items.
      digest: hash of the episodes.
    """

    shard: int
    number: int
    begin: int
    end: int
    group_sizes: tuple[int, ...]
    first_item: int
    num_items: int
    digest: str


@dataclass(frozen=True)
class ShardPlan:
    """The parts of a shard, and the state of its transfer after the last one."""

    parts: tuple[Part, ...]
    state: TransferState


def scan_episodes(conversion: ItemConversion, episodes: Iterable[Episode]) -> Scan:
    """Reads and measures consecutive episodes.

    Raises:
      InvalidEpisodeError: At an invalid episode, if those are errors.
      SpecMismatchError: If the columns of the items differ from those of the first episode.
    """
    report = IngestReport("", ())
    scan = Scan([], [], b"", report)
    for batch in batch_episodes(episodes):
        for episode in batch.episodes:
            scan.num_bytes.append(episode.num_bytes)
            if episode.discontinuities:
                scan.num_discontinuities += len(episode.discontinuities)
                scan.first_discontinuity = scan.first_discontinuity or locate_discontinuity(episode)
        kept = conversion.drop_skipped(batch, report)
        num_items = dict.fromkeys((episode.index for episode in batch.episodes), -1)
        digests = dict.fromkeys(num_items, bytes(_DIGEST_BYTES))
        if kept is not None:
            report.add_batch(kept, conversion.adder)
            counts = conversion.count_items(kept)
            report.items += int(counts.sum())
            report.episodes_too_short += int((counts == 0).sum())
            indices = [episode.index for episode in kept.episodes]
            num_items.update(zip(indices, counts.tolist(), strict=True))
            digests.update(zip(indices, episode_digests(kept), strict=True))
        scan.num_items += num_items.values()
        scan.digests += b"".join(digests.values())
    return scan


def encode_part(
    conversion: ItemConversion, encoder: Encoder, episodes: Iterator[Episode], part: Part
) -> dict[str, np.ndarray]:
    """Returns what a part appends to each of `FILES`, uint8 `[size]`.

    Args:
      conversion: the conversion of episodes to items.
      encoder: a new encoder of the items, with `number_items`.
      episodes: the episodes of the part's shard in its range.
      part: the part.
    """
    encoder.num_items = part.first_item
    contents: dict[str, list[np.ndarray]] = {name: [] for name in FILES}
    report = IngestReport("", ())
    for size in part.group_sizes:
        blocks = []
        for batch in batch_episodes(islice(episodes, size)):
            kept = conversion.drop_skipped(batch, report)
            if kept is not None:
                blocks += conversion.convert(kept)
        for encoded in encoder.encode(blocks):
            for name, content in iterate_contents(encoded):
                contents[name].append(np.ascontiguousarray(content).reshape(-1).view(np.uint8))
    return {name: np.concatenate([np.zeros(0, np.uint8), *arrays]) for name, arrays in contents.items()}


class _Measured(NamedTuple):
    """An episode in the plan."""

    number: int
    num_bytes: int
    num_items: int
    digest: bytes


def plan_parts(scans: Sequence[Scan], *, num_shards: int, part_bytes: int) -> list[ShardPlan]:
    """Divides the scanned episodes into parts.

    Args:
      scans: scans of all episodes, in order.
      num_shards: number of shards that the episodes are distributed over.
      part_bytes: size of the episodes from which a part is complete.
    """
    episodes: list[_Measured] = []
    for scan in scans:
        digests = (scan.digests[at : at + _DIGEST_BYTES] for at in range(0, len(scan.digests), _DIGEST_BYTES))
        for num_bytes, num_items, digest in zip(scan.num_bytes, scan.num_items, digests, strict=True):
            episodes.append(_Measured(len(episodes), num_bytes, num_items, digest))
    shards = assign_shards(np.arange(len(episodes)), num_shards).tolist()
    members: list[list[_Measured]] = [[] for _ in range(num_shards)]
    for episode, shard in zip(episodes, shards, strict=True):
        members[shard].append(episode)
    return [_plan_shard(shard, own, part_bytes) for shard, own in enumerate(members)]


def _plan_shard(shard: int, episodes: list[_Measured], part_bytes: int) -> ShardPlan:
    groups_of_parts: list[list[list[_Measured]]] = []
    for group in group_by_size(episodes):
        if not groups_of_parts or sum(episode.num_bytes for episode in chain(*groups_of_parts[-1])) >= part_bytes:
            groups_of_parts.append([])
        groups_of_parts[-1].append(group)
    parts: list[Part] = []
    first_item = 0
    for groups in groups_of_parts:
        members = list(chain(*groups))
        num_items = sum(max(episode.num_items, 0) for episode in members)
        digest = Fingerprint(b"".join(episode.digest for episode in members)).hexdigest()
        begin, end = members[0].number, members[-1].number + 1
        sizes = tuple(map(len, groups))
        parts.append(Part(shard, len(parts), begin, end, sizes, first_item, num_items, digest))
        first_item += num_items
    kept = [episode for episode in episodes if episode.num_items >= 0]
    fingerprint = Fingerprint(b"".join(episode.digest for episode in kept))
    too_short = sum(episode.num_items == 0 for episode in kept)
    return ShardPlan(tuple(parts), TransferState(len(episodes), fingerprint.hexdigest(), first_item, too_short))
