"""Batches with fixed shares of several streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.sampling.mixing import by_largest_remainders, joined_columns
from rlds2reverb.specs import require_match, step_spec_of


def shares_of(ratio: Mapping[str, float]) -> dict[str, float]:
    """Shares of sum 1, from numbers of any sum.

    Raises:
      ValueError: if one is below 0 or not finite, or all are 0.
    """
    shares = np.array(list(ratio.values()), np.float64)
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
        raise ValueError(f"sample_ratio is {dict(ratio)}, expected finite shares of at least 0 that are not all 0")
    shares = shares / shares.max()
    return dict(zip(ratio, (shares / shares.sum()).tolist(), strict=True))


def fixed_counts(batch_size: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Items of each buffer in a batch, by largest remainders; buffers without a share are left out.

    Args:
      batch_size: what they add up to, at least 1.
      shares: at least 0, of sum 1.

    Raises:
      ValueError: if a buffer with a share gets no item.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected at least 1")
    counts = by_largest_remainders(batch_size, shares.values())
    for (name, share), count in zip(shares.items(), counts, strict=True):
        if share > 0 and not count:
            raise ValueError(
                f"a share of {share:g} gives buffer {name!r} none of {batch_size} items; give it more, or 0"
            )
    return {name: int(count) for name, count in zip(shares, counts, strict=True) if count}


def joined(parts: Mapping[str, tf.data.Dataset], *, places: Sequence[int]) -> tf.data.Dataset:
    """Batches of the batches of several buffers, one after the other.

    Args:
      parts: streams of `reverb.ReplaySample` by the buffer's name.
      places: of the buffers, which become `info.server` of their items.

    Raises:
      SpecMismatch: if the buffers' items differ, naming the field.
    """
    specs = {name: step_spec_of(part.element_spec.data) for name, part in parts.items()}
    for (name, got), (other, wanted) in permutations(specs.items(), 2):
        advice, root = "mix buffers of like items", f"an item of buffer {name!r}"
        require_match(got, wanted, holder=f"buffer {other!r}", advice=advice, root=root)

    def join(*samples: Any) -> Any:
        servers = [tf.fill(tf.shape(sample.info.key), place) for sample, place in zip(samples, places, strict=True)]
        marked = [s._replace(info=s.info._replace(server=server)) for s, server in zip(samples, servers, strict=True)]
        return tree.map_structure(joined_columns, *marked)

    return tf.data.Dataset.zip(tuple(parts.values())).map(join)
