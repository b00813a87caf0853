"""Keys of items and chunks that stand for their content: what is sent again is stored once.

A key is a 64-bit hash of the content of an episode's items (dtypes, shapes and bytes of the columns, which follow from
the data set and the adder with its parameters), the episode's number, the table and the place in the episode. Of `n`
random keys in a range of 2^63, two coincide with a chance of about n² / 2^64: 5e-8 for a million, 5e-4 for a hundred
million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from rlds2reverb.errors import KeyCollisionError
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.specs import leaves

#: Keys are in [2^56, 2^63), where a varint always has 9 bytes.
LOWEST, HIGHEST = 1 << 56, 1 << 63


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def content_digest(items: Items) -> bytes:
    """Returns a 128-bit hash (XXH3) of the columns of an episode's items and of where each item begins and ends."""
    return content_digests(ItemBatch.of_one(items))[0]


def content_digests(batch: ItemBatch) -> list[bytes]:
    """Returns the `content_digest` of the items of each episode of a batch."""
    items = batch.items
    columns = [(f"{path}{column.dtype.str}", np.ascontiguousarray(column)) for path, column in leaves(items.columns)]
    starts = items.starts - np.repeat(batch.first_rows, batch.num_items)
    lengths = np.ascontiguousarray(items.lengths)
    digests = []
    row = item = 0
    for num_rows, num_items in zip(batch.num_rows.tolist(), batch.num_items.tolist(), strict=True):
        digest = xxhash.xxh3_128()
        rows, some = slice(row, row + num_rows), slice(item, item + num_items)
        row, item = rows.stop, some.stop
        for head, column in columns:
            part = column[rows]
            digest.update(f"{head}{part.shape}".encode())
            digest.update(part.data)
        digest.update(f"{items.squeeze}{num_items}".encode())
        digest.update(starts[some].data)
        digest.update(lengths[some].data)
        digests.append(digest.digest())
    return digests


def seed(*parts: object) -> int:
    """Returns 64 bits that stand for the parts, for `keys_at`."""
    return _seed_of(b"".join(_tagged(part) for part in parts))


def seeds(
    kind: str, digests: Sequence[bytes], episodes: Sequence[int], layouts: Sequence[int], rest: Any
) -> np.ndarray:
    """Returns `seed(kind, digest, episode, layout, *rest)` for each episode, uint64 `[E]`."""
    begin, end = _tagged(kind), b"".join(_tagged(part) for part in rest)
    each = zip(digests, episodes, layouts, strict=True)
    found = [_seed_of(begin + _tagged(one) + _tagged(two) + _tagged(three) + end) for one, two, three in each]
    return np.array(found, np.uint64)


def _seed_of(text: bytes) -> int:
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def _tagged(part: object) -> bytes:
    content = part if isinstance(part, bytes) else repr(part).encode()
    return len(content).to_bytes(8, "little") + content


def keys_at(seeds: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the keys at places of the sequences that begin with seeds.

    The finaliser of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators") over
    `seed + place * golden ratio`, folded into [2^56, 2^63).

    Args:
      seeds: uint64 `[n]`.
      places: integers `[n]` from 0.

    Returns:
      uint64 `[n]`.
    """
    with np.errstate(over="ignore"):
        mixed = seeds + places.astype(np.uint64) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed % np.uint64(HIGHEST - LOWEST) + np.uint64(LOWEST)


def require_different(parts: Sequence[np.ndarray]) -> None:
    """Raises `KeyCollisionError` if a key occurs twice in the arrays, taken together."""
    everything = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
    repeated = everything[1:][everything[1:] == everything[:-1]]
    if len(repeated):
        raise KeyCollisionError(
            f"{len(repeated)} keys coincide, {repeated[0]} the first, so that one of two items would be lost; "
            "convert again, into an empty table or a new directory, with another key_seed"
        )
