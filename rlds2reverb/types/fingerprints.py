"""Fingerprints of the content of episodes and datasets, and hashes of numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import xxhash

from .episode_batches import EpisodeBatch
from .specs import Nest, leaves

#: An incremental 128-bit hash (XXH3) of the `episode_digests` of all episodes, in order. It is equal for datasets with
#: the same content in the same order, and the digests can be computed in several processes.
Fingerprint = xxhash.xxh3_128


def episode_digests(batch: EpisodeBatch) -> list[bytes]:
    """Returns a 128-bit hash (XXH3) of the field names, dtypes, shapes and bytes of each episode."""
    return [digest.digest() for digest in hash_rows(batch.steps, batch.num_steps)]


def hash_rows(columns: Nest, num_rows: np.ndarray) -> list[Any]:
    """Returns the incremental hash (XXH3) of the field names, dtypes, shapes and bytes of each episode's rows.

    Args:
      columns: nest of arrays `[R, ...]`, concatenated over all episodes.
      num_rows: int64 `[E]`, the number of rows of each episode. The columns of a single one may differ in length.
    """
    named = [(f"{path}{column.dtype.str}", np.ascontiguousarray(column)) for path, column in leaves(columns)]
    digests = []
    headers: dict[int, list[bytes]] = {}  # Of each number of rows.
    for begin, end in itertools.pairwise([0, *np.cumsum(num_rows).tolist()]):
        digest = xxhash.xxh3_128()
        parts = [column[begin:end] if len(num_rows) > 1 else column for _, column in named]
        if end - begin not in headers:
            headers[end - begin] = [
                f"{name}{part.shape}".encode() for (name, _), part in zip(named, parts, strict=True)
            ]
        for header, part in zip(headers[end - begin], parts, strict=True):
            digest.update(header)
            if part.dtype.kind == "O":
                for row in part.reshape(-1):
                    text = row if isinstance(row, bytes) else str(row).encode()
                    digest.update(f"{len(text)}:".encode() + text)
            else:
                digest.update(part.data)
        digests.append(digest)
    return digests


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Returns hashes of numbers, uint64, with the finaliser of SplitMix64.

    Steele, Lea & Flood (2014), "Fast splittable pseudorandom number generators", figure 17.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))
