"""Tests of the order of epochs and its division among processes: laws for any sizes, and frequencies."""

import numpy as np
from hypothesis import given, strategies as st

from rlds2reverb.datasets.steps.item_index import find_shard, permute, permute_epochs

counts = st.integers(1, 300)


@given(counts, st.integers(0, 2**31 - 1), st.integers(0, 2**40))
def test_permute_returns_each_item_once_and_any_part_alone(num_items, seed, epoch):
    order = permute(np.arange(num_items), num_items, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(num_items))
    part = np.arange(num_items)[num_items // 3 :: 2]
    np.testing.assert_array_equal(permute(part, num_items, seed=seed, epoch=epoch), order[part])


def test_permute_orders_stay_the_same_in_later_versions():
    """Runs and loaders continue by the number of a step alone."""
    assert permute(np.arange(10), 10, seed=1, epoch=2).tolist() == [9, 7, 6, 5, 8, 0, 2, 1, 3, 4]
    assert permute(np.arange(4), 10**6, seed=0, epoch=0).tolist() == [710897, 926570, 893596, 110047]


def test_permute_orders_differ_between_epochs_and_seeds():
    orders = {tuple(permute(np.arange(40), 40, seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    large = 10**15
    assert (np.diff(permute(np.arange(100), large, seed=0, epoch=0)) != 1).all()


@given(counts, st.integers(0, 900), st.integers(0, 99), st.integers(0, 2**31 - 1))
def test_permute_epochs_matches_one_order_after_the_other(num_items, first, count, seed):
    num_epochs = (first + count) // num_items + 1
    orders = [permute(np.arange(num_items), num_items, seed=seed, epoch=epoch) for epoch in range(num_epochs)]
    positions = np.arange(first, first + count)
    np.testing.assert_array_equal(
        permute_epochs(positions, num_items, seed=seed), np.concatenate(orders)[first : first + count]
    )


def test_permute_places_and_pairs_are_uniform():
    num_items, num_epochs = 7, 700
    orders = np.array([permute(np.arange(7), num_items, seed=3, epoch=epoch) for epoch in range(num_epochs)])
    places = np.array([np.bincount(column, minlength=7) for column in orders.T])
    assert np.square(places - num_epochs / 7).sum() / (num_epochs / 7) < 67.99  # The 0.999 quantile for 36 degrees.
    pairs = np.bincount((orders[:, :-1] * 7 + orders[:, 1:]).ravel(), minlength=49).reshape(7, 7)
    assert (np.diag(pairs) == 0).all()
    expected, others = num_epochs * 6 / 42, pairs[~np.eye(7, dtype=bool)]
    assert np.square(others - expected).sum() / expected < 74.7  # The same for 41 degrees.


@given(counts, st.integers(1, 9), st.integers(1, 9))
def test_find_shard_divides_an_epoch_without_duplicates_or_gaps(num_items, batch_size, world_size):
    num_steps = -(-num_items // (batch_size * world_size))
    shards = [
        [find_shard(step, batch_size, num_items, rank=rank, world_size=world_size) for rank in range(world_size)]
        for step in range(num_steps)
    ]
    np.testing.assert_array_equal(np.concatenate([part for step in shards for part in step]), np.arange(num_items))
    assert all(len(part) == batch_size for step in shards[:-1] for part in step)
    lengths = [len(part) for part in shards[-1]]
    assert max(lengths) <= batch_size and max(lengths) - min(lengths) <= 1
