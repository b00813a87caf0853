"""A check of the behaviour of adders that `ingest` and users rely on."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import EpisodeAdder, Items
from rlds2reverb.types.specs import make_step_spec, require_match, to_tensor_spec

from .adder import ItemAdder


def check_adder(adder: EpisodeAdder, episodes: Any) -> int:
    """Checks that an adder behaves as `ingest` and users expect.

    The items of each episode must lie within its rows, match the adder's `item_spec`, and be the same bit for bit if
    the episode is converted again, or together with others in a batch. The episode must not be modified. If the adder
    is an `ItemAdder`, the dataset of items must have `item_spec` as its `element_spec` and contain the same items in
    order (floats may differ by rounding, since TensorFlow may optimise its graphs).

    Args:
      adder: the adder to check.
      episodes: a `Source`, or episodes: each an `Episode`, or a dict of columns `[N, ...]`.

    Returns:
      The number of items.

    Raises:
      AssertionError: At the first violation, naming the episode and item.
      SpecMismatchError: If the items do not match the spec, naming the field.
      ValueError: If no episode has steps.
    """
    source = [one if isinstance(one, Episode) else Episode(one, index) for index, one in enumerate(episodes)]
    with_steps = [one.steps for one in source if one.num_steps]
    if not with_steps:
        raise ValueError("check_adder requires an episode with steps, got none")
    step_spec = to_tensor_spec(make_step_spec(with_steps[0]))
    spec = adder.item_spec(step_spec)
    expected: list[Any] = []
    crosses_episodes = isinstance(adder, ItemAdder) and adder.crosses_episodes
    if not crosses_episodes:
        for episode in source:
            expected += _check_episode(adder, episode, spec)
        for batch in batch_episodes(source):
            _check_batch(adder, batch)
    if not isinstance(adder, ItemAdder):
        return len(expected)
    signature = tree.map_structure(lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), step_spec)
    columns = [tree.map_structure(np.asarray, steps) for steps in with_steps]
    dataset = tf.data.Dataset.from_generator(lambda: iter(columns), output_signature=signature).apply(adder)
    if not _is_same_spec(dataset.element_spec, spec):
        raise SpecMismatchError(f"element_spec of the dataset must be item_spec, {spec}, got {dataset.element_spec}")
    num_items = 0
    for num_items, item in enumerate(dataset.as_numpy_iterator(), start=1):
        if not crosses_episodes and (num_items > len(expected) or not _is_close(item, expected[num_items - 1])):
            raise AssertionError(f"item {num_items - 1} of the dataset differs from the item made from its episode")
    if not crosses_episodes and num_items != len(expected):
        raise AssertionError(f"the dataset has {num_items} items, but its episodes have {len(expected)}")
    return num_items


def _check_episode(adder: EpisodeAdder, episode: Episode, spec: Any) -> list[Any]:
    name = f"episode {episode.index}"
    before = tree.map_structure(np.copy, episode.steps)
    first = adder(episode)
    if not _is_identical(before, episode.steps):
        raise AssertionError(f"{name}: the adder modified the episode")
    if not _is_identical(vars(first), vars(adder(episode))):
        raise AssertionError(f"{name}: the adder made different items the second time")
    items = [_get_item(first, number) for number in range(len(first))]
    for item in items:
        require_match(item, spec, holder="item_spec", advice="make them agree in the adder", root=f"{name}: item")
    return items


def _check_batch(adder: EpisodeAdder, batch: EpisodeBatch) -> None:
    convert_batch = getattr(adder, "convert_batch", None)
    converted = convert_batch and convert_batch(batch)
    if not converted:
        return
    for number, episode in enumerate(batch.episodes):
        if not _is_identical(vars(converted.episode_items(number)), vars(adder(episode))):
            raise AssertionError(f"episode {episode.index}: the adder makes different items in a batch than alone")


def _get_item(items: Items, number: int) -> Any:
    start, length = items.starts[number], items.lengths[number]
    rows = tree.map_structure(lambda column: column[start : start + length], items.columns)
    return tree.map_structure(lambda column: np.asarray(column[0], column.dtype), rows) if items.squeeze else rows


def _is_same_spec(one: Any, other: Any) -> bool:
    try:
        tree.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    pairs = zip(tree.flatten(one), tree.flatten(other), strict=True)
    return all(a.shape.as_list() == b.shape.as_list() and tf.as_dtype(a.dtype) == b.dtype for a, b in pairs)


def _is_identical(one: Any, other: Any) -> bool:
    """Returns whether two nests of the same structure are equal bit for bit."""
    return all(_is_identical_leaf(a, b) for a, b in zip(tree.flatten(one), tree.flatten(other), strict=True))


def _is_identical_leaf(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return bool(one == other)
    if one.dtype == object:  # The bytes of an array of strings are pointers.
        return np.array_equal(one, other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _is_close(one: Any, other: Any) -> bool:
    """Returns whether two nests are equal up to the rounding of floats."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(tree.flatten(one), tree.flatten(other), strict=True)]
    return all(
        a.shape == b.shape
        and (np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) if a.dtype.kind == "f" else np.array_equal(a, b))
        for a, b in pairs
    )
