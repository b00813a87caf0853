"""What every adder keeps to, as a check that can be run on one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episode_batches import EpisodeBatch, in_batches
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.items import Items
from rlds2reverb.sources import load
from rlds2reverb.specs import require_match

from .column_adder import ColumnAdder


def check_adder(adder: ColumnAdder, episodes: Any) -> int:
    """Checks that an adder keeps to what `ingest` and users rely on.

    The items of each episode are within its rows, are the same ones when they are made again, or of several episodes
    at once (bit for bit), and have the adder's `item_spec`; nothing is written into the episode; and the data set of
    items has `item_spec` as its `element_spec` and holds the same items, in order (floats to rounding: TensorFlow may
    rewrite a division in one of the two).

    Args:
      adder: the adder.
      episodes: a `Source`, or anything that `rlds2reverb.load` takes.

    Returns:
      How many items there were.

    Raises:
      AssertionError: at the first thing that is not so, saying in which episode and item.
      SpecMismatchError: if spec and items differ, naming the field.
    """
    source = load(episodes)
    spec = adder.item_spec(source.step_spec)
    expected: list[Any] = []
    if not adder.crosses_episodes:
        for episode in source:
            expected += _checked_items(adder, episode, spec)
        for batch in in_batches(source):
            _check_batch(adder, batch)
    dataset = source.to_rlds().apply(adder)
    if not _same_spec(dataset.element_spec, spec):
        raise SpecMismatchError(f"the data set's element_spec is {dataset.element_spec}, item_spec says {spec}")
    found = 0
    for found, item in enumerate(dataset.as_numpy_iterator(), start=1):
        if not adder.crosses_episodes and (found > len(expected) or not _close(item, expected[found - 1])):
            raise AssertionError(f"item {found - 1} of the data set is not the one that was made of its episode")
    if not adder.crosses_episodes and found != len(expected):
        raise AssertionError(f"the data set has {found} items, its episodes give {len(expected)}")
    return found


def _checked_items(adder: ColumnAdder, episode: Episode, spec: Any) -> list[Any]:
    where = f"episode {episode.index}"
    before = tree.map_structure(np.copy, episode.steps)
    made = adder(episode)
    if not _equal(before, episode.steps):
        raise AssertionError(f"{where}: the adder wrote into the episode")
    items = [_item(made, number) for number in range(len(made))]
    again = adder(episode)
    if len(again) != len(made) or not all(_equal(item, _item(again, at)) for at, item in enumerate(items)):
        raise AssertionError(f"{where}: the adder made other items the second time")
    for item in items:
        require_match(item, spec, holder="item_spec", advice="make the adder's two agree", root=f"{where}: item")
    return items


def _check_batch(adder: ColumnAdder, batch: EpisodeBatch) -> None:
    made = adder.convert_batch(batch)
    if made is None:
        return
    for number, episode in enumerate(batch.episodes):
        together, alone = made.of_episode(number), adder(episode)
        for got, wanted in ((together.columns, alone.columns), (together.starts, alone.starts)):
            if not _same_bits(got, wanted):
                raise AssertionError(
                    f"episode {episode.index}: among others the adder makes other items of it than alone"
                )


def _same_bits(one: Any, other: Any) -> bool:
    pairs = zip(tree.flatten(one), tree.flatten(other), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def _item(items: Items, number: int) -> Any:
    start, length = items.starts[number], items.lengths[number]
    run = tree.map_structure(lambda column: column[start : start + length], items.columns)
    return tree.map_structure(lambda column: np.asarray(column[0], column.dtype), run) if items.squeeze else run


def _same_spec(one: Any, other: Any) -> bool:
    try:
        tree.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    pairs = zip(tree.flatten(one), tree.flatten(other), strict=True)
    return all(a.shape.as_list() == b.shape.as_list() and tf.as_dtype(a.dtype) == b.dtype for a, b in pairs)


def _close(one: Any, other: Any) -> bool:
    """Returns whether both are equal, except for the rounding of floats."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(tree.flatten(one), tree.flatten(other), strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return False
    return all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) if a.dtype.kind == "f" else np.array_equal(a, b)
        for a, b in pairs
    )


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(tree.flatten(one), tree.flatten(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in pairs)
