"""Batches that mix items of several datasets or buffers: how many of each, whether they match, and how they are joined.

RLPD takes half of each batch from offline data and half from online data (Ball et al. 2023, arXiv:2302.02948, section
4.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import tree

from rlds2reverb.errors import SpecMismatchError

from .arguments import require_count
from .sample_info import SampleInfo
from .specs import Nest, concatenate, require_match

#: Fields of `SampleInfo` that only buffers have, with -1 for unknown.
_BUFFER_FIELDS = ("staleness", "collect_iter", "slot")


def apportion(batch_size: int, shares: Iterable[float]) -> np.ndarray:
    """Splits `batch_size` by shares that sum to 1, using the largest-remainder method; the first of equal ones wins.

    For example, shares of 0.5, 0.3 and 0.2 of 5 items (2.5, 1.5 and 1 items) become 3, 1 and 1 items.
    """
    quotas = batch_size * np.array(list(shares))
    counts = np.floor(quotas).astype(int)
    counts[np.argsort(counts - quotas, kind="stable")[: batch_size - counts.sum()]] += 1
    return counts


def allocate_items(batch_size: int, weights: Mapping[str, float], *, kind: str = "dataset") -> dict[str, int]:
    """Returns the number of items of each part per batch, by largest remainders; see `apportion`.

    Args:
      batch_size: number of items per batch.
      weights: fraction of each part, above 0; they sum to 1.
      kind: name for a part in messages.

    Raises:
      ValueError: If a part gets no item, or the batch size is not an integer of at least 1.
    """
    require_count("batch_size", batch_size)
    counts = apportion(batch_size, weights.values())
    for (name, weight), count in zip(weights.items(), counts, strict=True):
        if not count:
            raise ValueError(
                f"the weight of {kind} {name!r}, {weight:g}, leaves it no item in a batch of {batch_size}; raise the "
                "weight or the batch size"
            )
    return {name: int(count) for name, count in zip(weights, counts, strict=True)}


def require_same_items(item_specs: Mapping[str, Nest], has_mask: Mapping[str, bool], *, kind: str = "dataset") -> None:
    """Raises `SpecMismatchError` unless the items of all parts have one spec.

    Args:
      item_specs: spec of one item of each part.
      has_mask: whether the batches of each part have a mask.
      kind: name for a part in messages.
    """
    advice = f"mix {kind}s whose items have the same spec"
    for name, other in permutations(item_specs, 2):  # Both orders, since the match is one-sided: None allows any size.
        holder, root = f"{kind} {other!r}", f"an item of {kind} {name!r}"
        require_match(item_specs[name], item_specs[other], holder=holder, advice=advice, root=root)
        if has_mask[name] and not has_mask[other]:
            raise SpecMismatchError(f"{kind} {name!r} pads its items, but {kind} {other!r} does not; {advice}")


def join_batches(batches: Sequence[Any], indices: Sequence[int]) -> tuple[Nest, SampleInfo]:
    """Returns the data and the info of one batch with the items of several, whose specs match.

    Args:
      batches: batches with `data` and `info`, a `SampleInfo`.
      indices: `SampleInfo.dataset_index` of each batch.
    """
    missing = [
        name for name in _BUFFER_FIELDS if any(not isinstance(getattr(batch.info, name), tuple) for batch in batches)
    ]

    def complete(info: SampleInfo, index: int) -> SampleInfo:
        size = len(info.key)
        added = {name: np.full(size, -1) for name in missing if isinstance(getattr(info, name), tuple)}
        return info._replace(dataset_index=np.full(size, index, np.int32), **added)

    pairs = [(batch.data, complete(batch.info, index)) for batch, index in zip(batches, indices, strict=True)]
    joined: tuple[Nest, SampleInfo] = tree.map_structure(_concatenate_padded, *pairs, check_types=False)
    return joined


def _concatenate_padded(*columns: np.ndarray) -> np.ndarray:
    """Concatenates arrays `[N, ...]`, padded with zeros to the largest size of each axis."""
    if len({column.shape[1:] for column in columns}) > 1:
        sizes = np.max([column.shape[1:] for column in columns], 0)
        widths = [[(0, 0), *((0, size) for size in sizes - column.shape[1:])] for column in columns]
        columns = tuple(np.pad(column, width) for column, width in zip(columns, widths, strict=True))
    return concatenate(columns)
