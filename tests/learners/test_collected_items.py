"""`CollectedItems`: adding, replacing, sampling and saving items; and `JoinedFeed`."""

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.errors import CheckpointError, SpecMismatchError
from rlds2reverb.learners.collected_items import CollectedItems
from rlds2reverb.learners.feeds import InMemoryDataset, JoinedFeed
from rlds2reverb.types.items import Items

SPEC = {"number": tf.TensorSpec([], tf.int64), "vector": tf.TensorSpec([2], tf.float32)}


def make_items(numbers, width=2):
    """Returns items whose vector is their number."""
    numbers = np.asarray(numbers)
    columns = {"number": numbers, "vector": np.repeat(numbers[:, None], width, 1).astype(np.float32)}
    return Items(columns, np.arange(len(numbers)), np.ones(len(numbers), np.int64), squeeze=True)


def read(feed, step=0):
    """Returns the experience of one iteration."""
    data, _ = feed.read(step, 1)
    return feed.to_experience(tf.nest.map_structure(lambda column: tf.constant(column[0]), data))


def sample(feed, *, num_batches=20):
    """Returns the numbers of several batches, after checking that the vectors belong to them."""
    numbers = []
    for step in range(num_batches):
        batch = read(feed, step)
        np.testing.assert_array_equal(batch["vector"], np.repeat(batch["number"].numpy()[:, None], 2, 1))
        numbers += batch["number"].numpy().tolist()
    return numbers


def test_new_items_replace_the_oldest_and_all_are_sampled():
    feed = CollectedItems(SPEC, 5, 8)
    feed.append(make_items([0, 1, 2]))
    assert set(sample(feed)) == {0, 1, 2} and len(feed) == 3
    feed.append(make_items([3, 4, 5, 6]))
    assert set(sample(feed)) == {2, 3, 4, 5, 6} and len(feed) == 5
    feed.append(make_items(range(7, 19)))
    assert set(sample(feed)) == {14, 15, 16, 17, 18}
    feed.append(make_items([]))
    feed.append(make_items([19]))
    assert set(sample(feed)) == {15, 16, 17, 18, 19} and feed.num_added == 20


def test_items_with_a_time_axis_keep_their_rows():
    feed = CollectedItems({"number": tf.TensorSpec([2], tf.int64)}, 4, 16)
    feed.append(Items({"number": np.array([10, 11, 12])}, np.array([0, 1]), np.array([2, 2])))
    batch = read(feed)
    assert {tuple(row) for row in batch["number"].numpy().tolist()} == {(10, 11), (11, 12)}


def test_samples_depend_on_seed_and_iteration_and_survive_saving(tmp_path):
    feed, restored, different = (CollectedItems(SPEC, 6, 8, seed=seed) for seed in (1, 1, 2))
    for instance in (feed, different):
        instance.append(make_items(range(9)))
    feed.save_data(tmp_path)
    restored.load_data(tmp_path)
    assert sample(restored) == sample(feed) != sample(different)
    for instance in (feed, restored):
        instance.append(make_items([9, 10]))
    assert sample(restored) == sample(feed) and restored.num_added == 11
    with pytest.raises(CheckpointError, match="contains 6 collected items of a different kind or capacity"):
        CollectedItems(SPEC, 7, 8).load_data(tmp_path)
    with pytest.raises(CheckpointError, match="of a different kind"):
        CollectedItems({**SPEC, "vector": tf.TensorSpec([3], tf.float32)}, 6, 8).load_data(tmp_path)


def test_joined_feed_has_the_batches_of_all_feeds_in_order():
    collected = CollectedItems(SPEC, 3, 2)
    collected.append(make_items([100, 101]))
    joined = JoinedFeed([InMemoryDataset(make_items([1, 2]), 3), collected])
    numbers = np.array(sample(joined)).reshape(-1, 5)
    assert set(numbers[:, :3].ravel()) == {1, 2} and set(numbers[:, 3:].ravel()) == {100, 101}
    with pytest.raises(SpecMismatchError, match="the feeds must have the same experience"):
        JoinedFeed([InMemoryDataset(make_items([1, 2], width=3), 3), collected])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (make_items([0, 1], width=1), r"item\['vector'\] must be float32 \[2\], got float32 \[1\]"),
        (make_items(np.float64([0.5])), r"item\['number'\] must be int64 \[\], got float64 \[\]"),
    ],
)
def test_items_of_other_specs_are_neither_cast_nor_broadcast(items, message):
    with pytest.raises(SpecMismatchError, match=message):
        CollectedItems(SPEC, 5, 8).append(items)
