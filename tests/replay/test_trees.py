"""Tests of sum and minimum trees against NumPy."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rlds2reverb.replay.trees import MinTree, SumTree

SIZES = [1, 3, 16, 17, 4096, 4097, 70_000]


def test_prefix_sums_of_three_leaves_match_hand_computed_values():
    tree = SumTree(3)
    tree.set(np.arange(3), np.array([1.0, 0.0, 3.0]))
    assert tree.root == 4.0
    assert tree.find(np.array([0.0, 0.2, 0.25, 0.999999])).tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("size", SIZES)
def test_find_matches_numpy_searchsorted(size):
    rng = np.random.default_rng(size)
    values = rng.integers(0, 5, size).astype(float)  # Sums of integers are exact in any order.
    values[rng.integers(size)] = 1.0
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    fractions = np.append(rng.random(2000), [0.0, np.nextafter(1.0, 0)])
    expected = np.searchsorted(
        np.cumsum(values), np.minimum(fractions * values.sum(), np.nextafter(values.sum(), 0)), "right"
    )
    assert tree.find(fractions).tolist() == expected.tolist()
    assert tree.root == values.sum()


@pytest.mark.parametrize("size", SIZES)
def test_find_never_returns_an_empty_leaf(size):
    rng = np.random.default_rng(size)
    values = np.where(rng.random(size) < 0.1, 10.0 ** rng.uniform(-300, 12, size), 0.0)
    values[-1] = 0.0
    values[0] = values[0] or 1e-290
    tree = SumTree(size)
    tree.set(np.arange(size), values)
    fractions = np.append(rng.random(3000), [0.0, 1e-300, np.nextafter(1.0, 0)])
    assert (values[tree.find(fractions)] > 0).all()


CHANGES = st.lists(st.tuples(st.lists(st.integers(0, 99), min_size=1), st.floats(0, 1e12)), max_size=8)


@given(CHANGES)
def test_roots_match_the_leaves_after_any_changes(changes):
    sums, minima, leaves = SumTree(40), MinTree(40), np.zeros(100)
    sums.grow(100)
    minima.grow(100)
    for indices, value in changes:
        sums.set(np.array(indices), value)
        minima.set(np.array(indices), value or np.inf)
        leaves[indices] = value
    assert sums.leaves[:100].tolist() == leaves.tolist()
    assert sums.root == pytest.approx(leaves.sum(), rel=1e-12)
    assert minima.root == (leaves[leaves > 0].min() if leaves.any() else np.inf)


def test_grow_keeps_the_leaves():
    sums, minima = SumTree(5), MinTree(5)
    for size in (5, 100, 5000, 100_000):
        sums.grow(size)
        minima.grow(size)
        sums.set(np.array([size - 1]), 2.0)
        minima.set(np.array([size - 1]), float(size))
    assert sums.root == 8.0 and minima.root == 5.0
    assert sums.find(np.array([0.0, 0.25, 0.5, 0.75])).tolist() == [4, 99, 4999, 99_999]


@pytest.mark.parametrize("count", [3000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_root_does_not_drift_after_many_updates(count):
    """Each update changes 256 leaves to one of many magnitudes; the slow test makes 100 million changes."""
    rng = np.random.default_rng(0)
    tree = SumTree(10_000)
    for _ in range(count):
        tree.set(rng.integers(10_000, size=256), 10.0 ** rng.integers(-6, 12))
    tree.set(np.arange(1, 10_000), 1e-3)  # Rounding errors of large values would be visible next to these.
    tree.set(np.array([0]), 0.0)
    assert tree.root == pytest.approx(tree.leaves.sum(), rel=1e-12) == pytest.approx(9.999, rel=1e-9)
