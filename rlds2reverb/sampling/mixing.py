"""Batches with exact shares of several data sets, such as half from an expert's table and half from the agent's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import reverb
import tensorflow as tf
import tree

from rlds2reverb._arguments import require_count, require_number
from rlds2reverb._shares import by_largest_remainders
from rlds2reverb.specs import make_step_spec, require_match

_ROUNDING = 1e-6


def mixed_dataset(
    parts: Mapping[str, Callable[[int], tf.data.Dataset]],
    batch_size: int,
    *,
    shares: Mapping[str, float],
    prefetch: int = 1,
) -> tf.data.Dataset:
    """Batches in each of which every part has its exact share, without an end.

    RLPD takes half of each batch from offline data and half from online data (Ball et al. 2023, arXiv:2302.02948,
    section 4.1):

        servers = {"expert": expert, "online": online}
        parts = {name: partial(sample_dataset, server, "replay") for name, server in servers.items()}
        batches = mixed_dataset(parts, 256, shares={"expert": 0.5, "online": 0.5})
        priorities = PriorityWriter(servers, "replay")

    A part has `share * batch_size` items in every batch. Where that is not an integer, it is rounded down, and the
    items that are left over go to the parts of the largest remainders (the first of equal ones, by their names): each
    batch has the same counts. The items of a part stand together, and the parts in the order of their names.

    Each part is sampled ahead on its own. A batch waits for all parts: one that gives nothing within its own time-out
    raises its error here, and no other takes its place. (The servers of one part still fill in for each other.)

    Args:
      parts: functions by name that give the data set of a part for its number of items in a batch: `sample_dataset`
        with a server and a table.
      batch_size: items in a batch.
      shares: of the parts, above 0, by their names; they add up to 1.
      prefetch: batches that are made ready ahead, besides those of the parts.

    Returns:
      Data set of `reverb.ReplaySample`, as `sample_dataset` gives it. `info.part` is the place of the item's part
      among the sorted names, and `info.server` its server among those of the part: `PriorityWriter` takes both.
      `info.weight` makes up for the priorities within the item's own part and is relative to the largest of that part
      (or of its tables, with `min_priority`); it does not make up for the shares.

    Raises:
      SpecMismatchError: if the items of the parts differ, naming the field and both parts.
      TypeError: if a part is not a function.
      ValueError: if there are other names in `shares` than in `parts`, the shares do not add up to 1, one is so small
        that it gives no item, or a number is out of its range; and what a part raises.
    """
    require_count("prefetch", prefetch)
    counts = shared_out(batch_size, _checked(shares, parts))
    datasets = {name: parts[name](count) for name, count in counts.items()}
    _require_alike(datasets)

    def join(*samples: Any) -> Any:
        marked = [
            sample._replace(info=sample.info._replace(part=tf.fill(tf.shape(sample.info.key), place)))
            for place, sample in enumerate(samples)
        ]
        return tree.map_structure(joined_columns, *marked)

    return tf.data.Dataset.zip(tuple(datasets.values())).map(join).prefetch(prefetch)


def shared_out(batch_size: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Returns the items of each part in a batch, by largest remainders; of equal ones the first counts.

        count_i = floor(share_i * B), and one more for the parts of the largest share_i * B - floor(share_i * B)

    Raises:
      ValueError: if a part gets no item, or the size is not an integer from 1.
    """
    require_count("batch_size", batch_size)
    counts = by_largest_remainders(batch_size, shares.values())
    for (name, share), count in zip(shares.items(), counts, strict=True):
        if not count:
            raise ValueError(f"a share of {share:g} gives part {name!r} none of {batch_size} items; give it more")
    return {name: int(count) for name, count in zip(shares, counts, strict=True)}


def _checked(shares: Mapping[str, float], parts: Mapping[str, Any]) -> dict[str, float]:
    """Returns the shares in the order of their names, of sum 1."""
    for name, part in parts.items():
        if not callable(part):
            raise TypeError(
                f"part {name!r} is a {type(part).__name__}, expected a function of the number of its items in a batch, "
                "such as functools.partial(sample_dataset, server, table)"
            )
    if not parts or set(shares) != set(parts):
        raise ValueError(
            f"there are shares of {_listed(shares)} and parts {_listed(parts)}; expected one share for each part"
        )
    for name, share in shares.items():
        require_number(f"the share of part {name!r}", share, 0, 1)
        if not share:
            raise ValueError(f"the share of part {name!r} is 0, expected a number above 0; leave the part out")
    total = sum(shares.values())
    if abs(total - 1) > _ROUNDING:
        raise ValueError(f"the shares {dict(shares)} add up to {total:g}, expected 1")
    return {name: shares[name] / total for name in sorted(shares)}


def _require_alike(datasets: Mapping[str, tf.data.Dataset]) -> None:
    for name, dataset in datasets.items():
        if not isinstance(dataset.element_spec, reverb.ReplaySample):
            raise TypeError(
                f"part {name!r} gives {dataset.element_spec}, expected batches as sample_dataset gives them"
            )
    specs = {name: make_step_spec(dataset.element_spec.data) for name, dataset in datasets.items()}
    for (name, got), (other, wanted) in permutations(specs.items(), 2):  # each allows the other's sizes
        require_match(
            got, wanted, holder=f"part {other!r}", advice="mix parts of like items", root=f"an item of part {name!r}"
        )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def joined_columns(*columns: tf.Tensor) -> tf.Tensor:
    """Columns `[N, ...]` one after the other; axes of unknown sizes are filled up with zeros."""
    if columns[0].shape[1:].is_fully_defined():
        return tf.concat(columns, 0)
    sizes = tf.reduce_max([tf.shape(column)[1:] for column in columns], 0)

    def padded(column: tf.Tensor) -> tf.Tensor:
        missing = tf.concat([[0], sizes - tf.shape(column)[1:]], 0)
        return tf.pad(column, tf.stack([tf.zeros_like(missing), missing], 1))

    return tf.concat([padded(column) for column in columns], 0)
