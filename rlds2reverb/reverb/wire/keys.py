"""Keys of items and chunks, derived from their content so that data sent twice are stored once.

A key is a 64-bit hash of the content of an episode's items (dtypes, shapes and bytes of the columns, which depend on
the dataset and the adder with its parameters), the episode's index, the table and the position in the episode. The
probability that any two of `n` random keys in a range of 2^63 are equal is about n² / 2^64: 5e-8 for a million keys,
5e-4 for a hundred million.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2reverb.errors import KeyCollisionError
from rlds2reverb.types.fingerprints import hash_rows, mix_bits
from rlds2reverb.types.items import ItemBatch, Items

#: Keys are in [2^56, 2^63), where a varint always has 9 bytes.
MIN_KEY, KEY_LIMIT = 1 << 56, 1 << 63

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)


def content_digest(items: Items) -> bytes:
    """Returns a 128-bit hash (XXH3) of the columns of an episode's items and the rows of each item."""
    return content_digests(ItemBatch.from_items(items))[0]


def content_digests(batch: ItemBatch) -> list[bytes]:
    """Returns the `content_digest` of each episode's items."""
    items = batch.items
    starts = items.starts - np.repeat(batch.first_rows, batch.num_items)
    lengths = np.ascontiguousarray(items.lengths)
    digests = hash_rows(items.columns, batch.num_rows)
    ranges = itertools.pairwise([0, *np.cumsum(batch.num_items).tolist()])
    for digest, (begin, end) in zip(digests, ranges, strict=True):
        digest.update(f"{items.squeeze}{end - begin}".encode())
        digest.update(starts[begin:end].data)
        digest.update(lengths[begin:end].data)
    return [digest.digest() for digest in digests]


def make_seed(*parts: object) -> int:
    """Hashes the parts to a 64-bit seed for `make_keys`."""
    return _hash_to_seed(b"".join(_prefix_length(part) for part in parts))


def make_seeds(
    kind: str, digests: Sequence[bytes], episodes: Sequence[int], layouts: Sequence[int], rest: Any
) -> np.ndarray:
    """Returns `make_seed(kind, digest, episode, layout, *rest)` for each episode, uint64 `[E]`."""
    head, tail = _prefix_length(kind), b"".join(_prefix_length(part) for part in rest)
    ends = {layout: _prefix_length(layout) + tail for layout in set(layouts)}
    parts = zip(map(_prefix_length, digests), map(_prefix_length, episodes), layouts, strict=True)
    return np.array(
        [_hash_to_seed(head + digest + episode + ends[layout]) for digest, episode, layout in parts], np.uint64
    )


def _hash_to_seed(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little")


def _prefix_length(part: object) -> bytes:
    content = part if isinstance(part, bytes) else repr(part).encode()
    return len(content).to_bytes(8, "little") + content


def make_keys(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns the key at each position of the pseudorandom sequence of each seed.

    Applies `mix_bits` to `seed + position * golden ratio`, as SplitMix64 does, reduced to [2^56, 2^63).

    Args:
      seeds: uint64 `[n]`.
      positions: integers `[n]` from 0.

    Returns:
      uint64 `[n]`.
    """
    mixed = mix_bits(seeds + positions.astype(np.uint64) * _GOLDEN_RATIO)
    return mixed % np.uint64(KEY_LIMIT - MIN_KEY) + np.uint64(MIN_KEY)


def require_unique(keys: Sequence[np.ndarray]) -> None:
    """Raises `KeyCollisionError` if a key occurs twice in the concatenated arrays."""
    ordered = np.sort(np.concatenate([np.zeros(0, np.uint64), *keys]))
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise KeyCollisionError(
            f"{len(repeated)} keys collide, the first is {repeated[0]}, so that one of two items would be lost; "
            "convert again with a different key seed, into an empty table or a new directory",
            key_seed=...,
        )
