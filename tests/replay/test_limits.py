"""Tests of combined limits, with `sample` and `sample_batch`, and of staleness."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numbered_items import item, items

from rlds2reverb.replay import BufferConfig
from rlds2reverb.replay.configs import UNKNOWN_ITER
from rlds2reverb.replay.element_table import ElementTable


def sample_numbers(buffer, size, learner_iter=None, sample_range=None, *, as_dicts=False):
    """Returns the numbers of sampled elements, or None, from `sample` or `sample_batch`."""
    if not as_dicts:
        batch = buffer.sample_batch(size, learner_iter, sample_range)
        return batch.info.key.tolist() if batch else None
    sampled = buffer.sample(size, learner_iter, sample_range)
    return None if sampled is None else [int(s["replay_unique_id"].removeprefix("demo_")) for s in sampled]


with_both_calls = pytest.mark.parametrize("as_dicts", [False, True])


@with_both_calls
def test_probabilities_match_the_priorities_in_deep_trees(make, as_dicts):
    buffer = make(max_size=20_000, alpha=0.7, sample_min_limit_ratio=0, seed=1)
    priorities = np.random.default_rng(0).uniform(0.1, 3, 20_000)
    buffer.extend_columns({"x": np.arange(20_000)}, priorities=priorities)
    numbers = np.array([n for _ in range(10) for n in sample_numbers(buffer, 2000, as_dicts=as_dicts)])
    groups = np.digitize(priorities, [0.5, 1.0, 1.5, 2.0, 2.5])
    powers = priorities**0.7
    expected = np.bincount(groups, powers) / powers.sum() * len(numbers)
    chi_square = ((np.bincount(groups[numbers]) - expected) ** 2 / expected).sum()
    assert chi_square < 36  # 5 degrees of freedom: one in a million


@with_both_calls
def test_batch_never_exceeds_the_uses_left(make, as_dicts):
    buffer = make(max_use=2, sample_min_limit_ratio=0, alpha=1.0, seed=1)
    buffer.extend([item(n, priority=p) for n, p in enumerate([1e6, 1.0, 1.0])])
    assert sorted(sample_numbers(buffer, 6, as_dicts=as_dicts)) == [0, 0, 1, 1, 2, 2]
    assert len(buffer) == 0


@pytest.mark.slow
def test_others_keep_their_proportions_when_elements_are_used_up(make):
    buffer = make(max_use=1, alpha=1.0, seed=4, max_size=3)
    p = np.array([1, 2, 5]) / 8
    pairs = []
    for _ in range(1500):
        buffer.clear()
        first = buffer.push_count
        buffer.extend([item(n, priority=float(w)) for n, w in enumerate((1, 2, 5))])
        batch = buffer.sample_batch(2)
        pairs.append(tuple((batch.info.key - first).tolist()))
    chi_square = 0.0
    for first, second in [(a, b) for a in range(3) for b in range(3) if a != b]:
        expected = 1500 * p[first] * p[second] / (1 - p[first])
        chi_square += (pairs.count((first, second)) - expected) ** 2 / expected
    assert chi_square < 36  # 5 degrees of freedom: one in a million


@with_both_calls
def test_max_use_combines_with_no_replacement_range_and_rate(make, as_dicts):
    buffer = make(
        max_use=2, with_replacement=False, push_sample_rate_limit=(0.6, math.inf), max_staleness=10, max_size=20, seed=0
    )
    buffer.extend([item(n, collect_iter=n) for n in range(20)])
    assert sorted(sample_numbers(buffer, 5, 9, slice(-5, None), as_dicts=as_dicts)) == [15, 16, 17, 18, 19]
    assert sorted(sample_numbers(buffer, 5, 9, slice(-5, None), as_dicts=as_dicts)) == [15, 16, 17, 18, 19]
    assert len(buffer) == 15  # Five elements have reached max_use.
    # Elements 0, 1 and 2 are stale.
    assert sorted(sample_numbers(buffer, 3, 12, slice(None, 3), as_dicts=as_dicts)) == [3, 4, 5]
    assert len(buffer) == 12
    assert len(set(sample_numbers(buffer, 12, 12, as_dicts=as_dicts))) == 12
    assert sample_numbers(buffer, 9, 12, as_dicts=as_dicts) is None
    assert (
        "20 elements pushed and 25 sampled; sampling 9 more would leave fewer than 0.6" in buffer.sample_batch(9).reason
    )
    assert sample_numbers(buffer, 9, 12, slice(-2, None), as_dicts=as_dicts) is None


@with_both_calls
def test_sample_is_refused_if_its_range_has_too_few_uses_left(make, as_dicts):
    buffer = make(max_use=2, sample_min_limit_ratio=0)
    buffer.extend(items(*range(10)))
    assert sample_numbers(buffer, 5, None, slice(0, 2), as_dicts=as_dicts) is None
    reason = "buffer 'demo' can sample only 4 of 5 elements from slice(0, 2, None); widen it"
    assert buffer.sample_batch(5, None, slice(0, 2)).reason == reason
    assert buffer.sample_check(5, None, slice(0, 2)) == (False, reason)
    assert sorted(sample_numbers(buffer, 4, None, slice(0, 2), as_dicts=as_dicts)) == [0, 0, 1, 1]


def test_weights_are_normalized_by_buffer_or_by_batch(make):
    for normalization, expected in (("buffer", [0.25, 0.125]), ("batch", [1.0, 0.5])):
        buffer = make(alpha=1.0, beta=1.0, anneal_step=0, weight_normalization=normalization, sample_min_limit_ratio=0)
        buffer.extend([item(n, priority=p) for n, p in enumerate([1.0, 4.0, 8.0])])
        batch = buffer.sample_batch(100, None, slice(1, None))
        weights = dict(zip(batch.info.key.tolist(), batch.info.weight.tolist(), strict=True))
        np.testing.assert_allclose([weights[1], weights[2]], expected, rtol=1e-12)


def test_learner_iteration_is_optional(make):
    buffer = make(max_staleness=1)
    buffer.append(item(0, collect_iter=0))
    assert buffer.sample(1)[0]["staleness"] == -1 and buffer.sample_check(1)
    assert buffer.sample_batch(1).info.staleness.tolist() == [-1]
    assert not buffer.sample_check(1, 1)


def test_equal_seeds_sample_equal_elements(make):
    numbers = []
    for seed in (1, 1, 2):
        buffer = make(seed=seed, sample_min_limit_ratio=0)
        buffer.extend([item(n, priority=n + 1.0) for n in range(50)])
        numbers.append(sample_numbers(buffer, 60))
    assert numbers[0] == numbers[1] != numbers[2]


# --- staleness


def add(table, collect_iters):
    """Adds elements of one row to a table."""
    count = len(collect_iters)
    table.add(count, np.ones(count), np.array(collect_iters), np.zeros(count, int), np.ones(count, int))


@given(
    st.lists(st.one_of(st.lists(st.integers(-1, 5), min_size=1, max_size=6), st.integers(-1, 6)), max_size=12),
)
def test_stale_elements_are_found_once(actions):
    table, remaining = ElementTable(BufferConfig(max_size=30, max_staleness=1)), {}
    for action in actions:
        if isinstance(action, list):
            add(table, action)
            numbers = range(table.next_number - len(action), table.next_number)
            remaining |= dict(zip(numbers, action, strict=True))
            remaining = {n: iteration for n, iteration in remaining.items() if n >= table.first_number}
        else:
            stale = [n for n, iteration in remaining.items() if UNKNOWN_ITER != iteration <= action - 1]
            slots = table.find_stale(action)
            assert sorted(table.slots_to_numbers(slots).tolist()) == (stale if action != UNKNOWN_ITER else [])
            table.remove(slots)
            remaining = {n: iteration for n, iteration in remaining.items() if n not in stale}


def test_stale_elements_removed_earlier_are_not_removed_again(make):
    buffer = make(max_staleness=5, max_use=1, max_size=4, sample_min_limit_ratio=0)
    buffer.extend([item(n, collect_iter=0) for n in range(4)])
    (used,) = sample_numbers(buffer, 1, 0)
    buffer.extend([item(4, collect_iter=0), item(5, collect_iter=9)])  # These replace elements 0 and 1.
    remaining = {2, 3, 4, 5} - {used}
    assert len(buffer) == len(remaining)
    assert not buffer.sample_check(2, 9) and len(buffer) == 1
    assert sample_numbers(buffer, 1, 9) == [5]


def test_select_numbers_matches_list_slicing_after_removals():
    rng = np.random.default_rng(0)
    for size, num_pushed in ((40, 25), (40, 90), (7, 7)):
        table = ElementTable(BufferConfig(max_size=size))
        for _ in range(num_pushed):
            add(table, [-1])
        remaining = list(range(num_pushed))[-size:]
        while remaining:
            for _ in range(30):
                ends = [None if rng.random() < 0.2 else int(rng.integers(-50, 50)) for _ in range(2)]
                positions = slice(*ends, int(rng.choice([-3, -1, 1, 2])))
                assert table.select_numbers(positions).tolist() == remaining[positions]
            removed = rng.choice(remaining, min(3, len(remaining)), replace=False)
            table.remove(removed % size)
            remaining = [number for number in remaining if number not in removed]
        assert table.select_numbers().tolist() == []
