"""Trees of sums and minima against numpy, and that nothing drifts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.replay.trees import MinTree, SumTree

SIZES = [1, 3, 16, 17, 4096, 4097, 70_000]


def test_the_running_sum_of_three_leaves_by_hand():
    tree = SumTree(3)
    tree.set(np.arange(3), np.array([1.0, 0.0, 3.0]))
    assert tree.root == 4.0
    assert tree.find(np.array([0.0, 0.2, 0.25, 0.999999])).tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("size", SIZES)
def test_a_search_is_that_of_numpys_running_sum(size):
    rng = np.random.default_rng(size)
    values = rng.integers(0, 5, size).astype(float)  # sums of integers are exact, in any order
    values[rng.integers(size)] = 1.0
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    shares = np.append(rng.random(2000), [0.0, np.nextafter(1.0, 0)])
    wanted = np.searchsorted(
        np.cumsum(values), np.minimum(shares * values.sum(), np.nextafter(values.sum(), 0)), "right"
    )
    assert tree.find(shares).tolist() == wanted.tolist()
    assert tree.root == values.sum()


@pytest.mark.parametrize("size", SIZES)
def test_no_share_finds_an_empty_leaf(size):
    rng = np.random.default_rng(size)
    values = np.where(rng.random(size) < 0.1, 10.0 ** rng.uniform(-300, 12, size), 0.0)
    values[-1] = 0.0
    values[0] = values[0] or 1e-290
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    shares = np.append(rng.random(3000), [0.0, 1e-300, np.nextafter(1.0, 0)])
    assert (values[tree.find(shares)] > 0).all()


CHANGES = st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1), st.floats(0, 1e12)), max_size=8)


@given(CHANGES)
def test_changes_in_any_order_give_what_the_leaves_say(changes):
    sums, least, leaves = SumTree(40), MinTree(40), np.zeros(100)
    sums.grow(100)
    least.grow(100)
    for places, value in changes:
        sums.set(np.array(places), value)
        least.set(np.array(places), value or np.inf)
        leaves[places] = value
    assert sums.leaves[:100].tolist() == leaves.tolist()
    assert sums.root == pytest.approx(leaves.sum(), rel=1e-12)
    assert least.root == (leaves[leaves > 0].min() if leaves.any() else np.inf)


def test_growing_keeps_the_leaves():
    sums, least = SumTree(5), MinTree(5)
    for size in (5, 100, 5000, 100_000):
        sums.grow(size)
        least.grow(size)
        sums.set(np.array([size - 1]), 2.0)
        least.set(np.array([size - 1]), float(size))
    assert sums.root == 8.0 and least.root == 5.0
    assert sums.find(np.array([0.0, 0.25, 0.5, 0.75])).tolist() == [4, 99, 4999, 99_999]


@pytest.mark.parametrize("count", [3000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_a_hundred_million_updates_drift_by_nothing(count):
    """Of 256 leaves each, of every magnitude; in the fast tests fewer."""
    rng = np.random.default_rng(0)
    tree = SumTree(10_000)
    for _ in range(count):
        tree.set(rng.integers(10_000, size=256), 10.0 ** rng.integers(-6, 12))
    tree.set(np.arange(1, 10_000), 1e-3)  # what is left of large numbers would show beside these
    tree.set(np.array([0]), 0.0)
    assert tree.root == pytest.approx(tree.leaves.sum(), rel=1e-12) == pytest.approx(9.999, rel=1e-9)
