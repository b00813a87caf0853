"""The priorities, sample counts and ages of the items in a table: of all in a directory, or of a served sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.client import Connection, TableInfo, format_selector
from rlds2reverb.client.messages import PrioritizedItem
from rlds2reverb.errors import CheckpointError, ServerUnavailableError
from rlds2reverb.tables import Selector, TableConfig

from .checkpoint_contents import read_messages
from .checkpoint_root import CheckpointRoot
from .stored_items import find_reason_not_to_sample

#: Times of insertion before this one, in seconds since 1970, are the numbers that `ingest` stores, in microseconds.
_FIRST_DATE = 365 * 86_400
_NUM_SAMPLES = 4000
_MAX_SAMPLE_BYTES = 256 << 20


@dataclass(frozen=True)
class ItemStatistics:
    """Statistics of items of a table, with one entry per item.

    Attributes:
      table: name of the table.
      size: number of items in the table.
      sampler: selector of the items to sample, such as 'prioritized:0.6'.
      priorities: float64 [N].
      times_sampled: int64 [N], how often each item has been sampled.
      inserted_at: float64 [N], seconds since 1970; NaN if unknown.
      order: int64 [N], number of each item in the order of insertion; -1 if unknown.
      probabilities: float64 [N], the probability that the next sample is the item; None if the sampler has an order.
      weights: float64 [N], with sum 1, the share of the table's items that each entry represents. They are equal for
        all items of a table, and for sampled ones inversely proportional to the probability of being among them.
      num_samples: number of samples that contained these items; 0 for all items of a table.
      note: sentence about items that are missing; '' if there is nothing to say.
    """

    table: str
    size: int
    sampler: str
    priorities: np.ndarray
    times_sampled: np.ndarray
    inserted_at: np.ndarray
    order: np.ndarray
    probabilities: np.ndarray | None
    weights: np.ndarray
    num_samples: int = 0
    note: str = ""

    @property
    def is_sample(self) -> bool:
        """Whether these are sampled items rather than all items."""
        return self.num_samples > 0


def read_item_statistics(directory: str | Path) -> list[ItemStatistics]:
    """Reads the items of all tables in a directory that `ingest`, or a server with a checkpoint root, wrote.

    Raises:
      CheckpointError: If the directory is damaged or contains no checkpoint.
    """
    root = CheckpointRoot(Path(directory).expanduser(), create=False)
    checkpoint, tables = root.latest(), root.tables() or []
    if checkpoint is None:
        raise CheckpointError(f"{directory} contains no items yet; write some, or let its server write a checkpoint")
    items: defaultdict[str, list[tuple[float, int, float]]] = defaultdict(list)
    for item in read_messages(checkpoint / "items.tfrecord", PrioritizedItem):
        items[item.table].append(_read_item(item))
    return [_describe_all(config, items[config.name]) for config in tables]


def sample_item_statistics(address: str, info: TableInfo, *, timeout_secs: float = 10.0) -> ItemStatistics:
    """Samples items of a served table, unless that would affect other clients; this increases their sample counts.

    Args:
      address: address of the server.
      info: the server's information about the table.
      timeout_secs: maximum duration.
    """
    size = info.current_size
    reason = find_reason_not_to_sample(info, size) if size else "the table is empty"
    entries: list[Any] = []
    if reason is None:
        with Connection(address) as connection:
            entries = _sample(connection, info.name, timeout_secs)
        reason = None if entries else "it returned no sample in time"
    newest = {entry.item.key: entry for entry in entries}.values()
    probabilities = np.array([entry.probability for entry in newest])
    is_random = not info.sampler_options.is_deterministic
    weights = 1 / _compute_inclusion(probabilities, len(entries)) if is_random else np.ones(len(newest))
    return ItemStatistics(
        info.name,
        size,
        format_selector(info.sampler_options),
        **_make_columns([_read_item(entry.item) for entry in newest]),
        probabilities=probabilities if is_random else None,
        weights=weights / max(weights.sum(), 1e-300),
        num_samples=len(entries),
        note="" if reason is None else f"No items were sampled, because {reason}.",
    )


def _compute_inclusion(probabilities: np.ndarray, num_samples: int) -> np.ndarray:
    """Returns the probability that each item is in at least one of the samples: 1 - (1 - p)^n.

    Weights inverse to it are unbiased (Horvitz and Thompson, 1952), and exact if every item was sampled.
    """
    with np.errstate(divide="ignore"):
        return np.maximum(-np.expm1(num_samples * np.log1p(-probabilities)), 1e-300)


def _sample(connection: Connection, table: str, timeout_secs: float) -> list[Any]:
    """Returns the `SampleInfo` messages of some samples, as many as arrive in time."""
    entries: list[Any] = []
    num_bytes = 0
    with suppress(ServerUnavailableError):  # The time is over, or the table was emptied; what has arrived is used.
        for entry in connection.sample(table, num_samples=_NUM_SAMPLES, timeout_secs=timeout_secs):
            num_bytes += sum(chunk.ByteSize() for chunk in entry.data)
            if entry.HasField("info"):
                entry.info.item.ClearField("flat_trajectory")
                entries.append(entry.info)
            if num_bytes > _MAX_SAMPLE_BYTES:
                break
    return entries


def _describe_all(config: TableConfig, items: list[tuple[float, int, float]]) -> ItemStatistics:
    columns = _make_columns(items)
    return ItemStatistics(
        config.name,
        len(items),
        str(config.sampler),
        **columns,
        probabilities=_compute_probabilities(config.sampler, columns["priorities"]),
        weights=np.full(len(items), 1 / max(len(items), 1)),
        note="" if items else "The table is empty.",
    )


def _compute_probabilities(sampler: Selector, priorities: np.ndarray) -> np.ndarray | None:
    """Returns p^exponent / sum p^exponent, or equal probabilities for a uniform sampler; None if it has an order."""
    exponent = 0.0 if sampler.kind == "uniform" else sampler.exponent
    if exponent is None:
        return None
    powers = np.maximum(priorities, 0.0) ** exponent
    return powers / powers.sum() if powers.any() else np.full(len(powers), 1 / max(len(powers), 1))


def _read_item(item: Any) -> tuple[float, int, float]:
    time = item.inserted_at.seconds + 1e-9 * item.inserted_at.nanos if item.HasField("inserted_at") else np.nan
    return item.priority, item.times_sampled, time


def _make_columns(items: Iterable[tuple[float, int, float]]) -> dict[str, Any]:
    """Returns the priorities, sample counts, times of insertion and numbers of items, by name."""
    priorities, counts, times = np.array(list(items), np.float64).reshape(-1, 3).T
    is_number = times < _FIRST_DATE
    return {
        "priorities": priorities,
        "times_sampled": counts.astype(np.int64),
        "inserted_at": np.where(is_number, np.nan, times),
        "order": np.where(is_number, np.round(np.nan_to_num(times) * 1e6), -1).astype(np.int64),
    }
