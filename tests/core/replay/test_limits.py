"""All limits together, over both ways to sample: no option excludes another, and chances stay what they should be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replayed import buffers, item, items

from rlds2reverb.replay.element_table import ElementTable
from rlds2reverb.replay.staleness import UNKNOWN_ITER, StalenessQueue


@pytest.fixture
def make():
    with buffers() as build:
        yield build


def numbers_of(buffer, size, learner_at=None, places=None, *, as_dicts=False):
    """Numbers of sampled elements, or None; by either way."""
    if not as_dicts:
        batch = buffer.sample_batch(size, learner_at, places)
        return None if batch is None else batch.info.replay_unique_id.tolist()
    sampled = buffer.sample(size, learner_at, places)
    return None if sampled is None else [int(s["replay_unique_id"].removeprefix("demo_")) for s in sampled]


both = pytest.mark.parametrize("as_dicts", [False, True])


@both
def test_chances_are_powers_of_priorities_over_many_levels_of_the_trees(make, as_dicts):
    buffer = make(max_size=20_000, alpha=0.7, sample_min_limit_ratio=0, seed=1)
    priorities = np.random.default_rng(0).uniform(0.1, 3, 20_000)
    buffer.extend_columns({"x": np.arange(20_000)}, priorities=priorities)
    drawn = np.array([n for _ in range(10) for n in numbers_of(buffer, 2000, as_dicts=as_dicts)])
    groups = priorities.argsort() * 0 + np.digitize(priorities, [0.5, 1.0, 1.5, 2.0, 2.5])
    powers = priorities**0.7
    wanted = np.bincount(groups, powers) / powers.sum() * len(drawn)
    assert ((np.bincount(groups[drawn]) - wanted) ** 2 / wanted).sum() < 36  # 5 degrees of freedom: one in a million


@both
def test_uses_in_one_batch_are_never_more_than_are_left(make, as_dicts):
    buffer = make(max_use=2, sample_min_limit_ratio=0, alpha=1.0, seed=1)
    buffer.extend([item(n, priority=p) for n, p in enumerate([1e6, 1.0, 1.0])])
    assert sorted(numbers_of(buffer, 6, as_dicts=as_dicts)) == [0, 0, 1, 1, 2, 2]
    assert buffer.count() == 0


def test_once_used_up_the_next_is_drawn_from_the_others_in_proportion(make):
    buffer = make(max_use=1, alpha=1.0, seed=4, max_size=3)
    p = np.array([1, 2, 5]) / 8
    pairs = []
    for _ in range(1500):
        batch = None
        buffer.clear()
        first = buffer.push_count
        buffer.extend([item(n, priority=float(w)) for n, w in enumerate((1, 2, 5))])
        batch = buffer.sample_batch(2)
        pairs.append(tuple((batch.info.replay_unique_id - first).tolist()))
    statistic = 0.0
    for first, second in [(a, b) for a in range(3) for b in range(3) if a != b]:
        want = 1500 * p[first] * p[second] / (1 - p[first])
        statistic += (pairs.count((first, second)) - want) ** 2 / want
    assert statistic < 36  # chi-square with 5 degrees of freedom: one in a million


@both
def test_max_use_goes_with_no_replacement_a_range_and_a_rate(make, as_dicts):
    buffer = make(
        max_use=2, replace=False, push_sample_rate_limit=(0.6, math.inf), max_staleness=10, max_size=20, seed=0
    )
    buffer.extend([item(n, collect_iter=n) for n in range(20)])
    assert sorted(numbers_of(buffer, 5, 9, slice(-5, None), as_dicts=as_dicts)) == [15, 16, 17, 18, 19]
    assert sorted(numbers_of(buffer, 5, 9, slice(-5, None), as_dicts=as_dicts)) == [15, 16, 17, 18, 19]
    assert buffer.count() == 15  # used up
    assert sorted(numbers_of(buffer, 3, 12, slice(None, 3), as_dicts=as_dicts)) == [3, 4, 5]  # 0, 1, 2 are too old
    assert buffer.count() == 12
    assert len(set(numbers_of(buffer, 12, 12, as_dicts=as_dicts))) == 12
    assert numbers_of(buffer, 9, 12, as_dicts=as_dicts) is None
    assert "20 were pushed and 25 sampled; sampling 9 more would leave less than 0.6 pushed" in buffer.refusal
    assert numbers_of(buffer, 9, 12, slice(-2, None), as_dicts=as_dicts) is None


@both
def test_a_range_with_too_few_uses_is_refused(make, as_dicts):
    buffer = make(max_use=2, sample_min_limit_ratio=0)
    buffer.extend(items(*range(10)))
    assert numbers_of(buffer, 5, None, slice(0, 2), as_dicts=as_dicts) is None
    assert buffer.refusal == "buffer 'demo' has 4 elements to draw at slice(0, 2, None): widen it"
    assert sorted(numbers_of(buffer, 4, None, slice(0, 2), as_dicts=as_dicts)) == [0, 0, 1, 1]


def test_weights_are_relative_to_the_buffer_or_to_the_batch(make):
    for weights, wanted in (("buffer", [0.25, 0.125]), ("batch", [1.0, 0.5])):
        buffer = make(alpha=1.0, beta=1.0, anneal_step=0, weights=weights, sample_min_limit_ratio=0)
        buffer.extend([item(n, priority=p) for n, p in enumerate([1.0, 4.0, 8.0])])
        batch = buffer.sample_batch(100, None, slice(1, None))
        known = dict(zip(batch.info.replay_unique_id.tolist(), batch.info.IS.tolist(), strict=True))
        np.testing.assert_allclose([known[1], known[2]], wanted, rtol=1e-12)


def test_the_learners_iteration_may_be_left_out(make):
    buffer = make(max_staleness=1)
    buffer.append(item(0, collect_iter=0))
    assert buffer.sample(1)[0]["staleness"] == -1 and buffer.sample_check(1)
    assert buffer.sample_batch(1).info.staleness.tolist() == [-1]
    assert not buffer.sample_check(1, 1)


def test_a_seed_makes_draws_the_same(make):
    drawn = []
    for seed in (1, 1, 2):
        buffer = make(seed=seed, sample_min_limit_ratio=0)
        buffer.extend([item(n, priority=n + 1.0) for n in range(50)])
        drawn.append(numbers_of(buffer, 60))
    assert drawn[0] == drawn[1] != drawn[2]


# --- staleness


@given(
    st.lists(st.one_of(st.lists(st.integers(-1, 5), min_size=1, max_size=6), st.integers(-1, 6)), max_size=12),
)
def test_the_queue_gives_each_element_once_when_it_is_too_old(actions):
    queue, left, number = StalenessQueue(), {}, 0
    for action in actions:
        if isinstance(action, list):
            queue.add(number, np.array(action))
            left |= {number + i: it for i, it in enumerate(action) if it != UNKNOWN_ITER}
            number += len(action)
        else:
            gone = [n for n, iteration in left.items() if iteration <= action]
            assert queue.take(action).tolist() == gone
            left = {n: iteration for n, iteration in left.items() if n not in gone}


def test_the_queue_forgets_what_has_left():
    queue = StalenessQueue()
    for number in range(10_000):
        queue.add(number, np.array([number % 7]))
        queue.forget(number - 100)
    assert len(queue._runs) < 3000
    assert queue.take(6).tolist()[-100:] == list(range(9_900, 10_000))


def test_elements_that_left_for_another_reason_are_not_removed_again(make):
    buffer = make(max_staleness=5, max_use=1, max_size=4, sample_min_limit_ratio=0)
    buffer.extend([item(n, collect_iter=0) for n in range(4)])
    (used,) = numbers_of(buffer, 1, 0)
    buffer.extend([item(4, collect_iter=0), item(5, collect_iter=9)])  # in the places of 0 and 1
    there = {2, 3, 4, 5} - {used}
    assert buffer.count() == len(there)
    assert not buffer.sample_check(2, 9) and buffer.count() == 1
    assert numbers_of(buffer, 1, 9) == [5]


def test_a_range_is_that_of_a_list_also_where_elements_have_left_early():
    rng = np.random.default_rng(0)
    for size, pushed in ((40, 25), (40, 90), (7, 7)):
        ledger = ElementTable(size, alpha=0.6, max_use=None, max_staleness=None)
        ledger.add(np.ones(pushed), np.full(pushed, -1))
        there = list(range(pushed))[-size:]
        while there:
            for _ in range(30):
                ends = [None if rng.random() < 0.2 else int(rng.integers(-50, 50)) for _ in range(2)]
                places = slice(*ends, int(rng.choice([-3, -1, 1, 2])))
                assert ledger.numbers(places).tolist() == there[places]
            leaving = rng.choice(there, min(3, len(there)), replace=False)
            ledger.remove(leaving)
            there = [number for number in there if number not in leaving]
        assert ledger.numbers().tolist() == []
