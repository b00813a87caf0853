"""Fingerprints of the content of episodes and datasets."""

from __future__ import annotations

import numpy as np
import xxhash

from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.specs import leaves

#: An incremental 128-bit hash (XXH3) of the `episode_digests` of all episodes, in order. It is equal for datasets with
#: the same content in the same order, and the digests can be computed in several processes.
Fingerprint = xxhash.xxh3_128


def episode_digests(batch: EpisodeBatch) -> list[bytes]:
    """Returns a 128-bit hash (XXH3) of the field names, dtypes, shapes and bytes of each episode."""
    columns = [(f"{path}{column.dtype.str}", np.ascontiguousarray(column)) for path, column in leaves(batch.steps)]
    digests = []
    first_row = 0
    for num_steps in batch.num_steps.tolist():
        rows = slice(first_row, first_row + num_steps)
        first_row = rows.stop
        digest = xxhash.xxh3_128()
        for header, column in columns:
            part = column[rows] if len(batch.episodes) > 1 else column
            digest.update(f"{header}{part.shape}".encode())
            if part.dtype.kind == "O":
                for row in part.reshape(-1):
                    text = row if isinstance(row, bytes) else str(row).encode()
                    digest.update(f"{len(text)}:".encode() + text)
            else:
                digest.update(part.data)
        digests.append(digest.digest())
    return digests
