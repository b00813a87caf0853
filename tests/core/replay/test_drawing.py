"""Which elements of a buffer are drawn: by priority, uniformly, without replacement, from a range."""

import numpy as np
import pytest
from replayed import buffers, item, items, number_in

from rlds2reverb.replay import AdvancedReplayBuffer, NaiveReplayBuffer


@pytest.fixture
def make():
    with buffers() as build:
        yield build


# --- priorities


def test_a_missing_priority_is_the_highest_so_far(make):
    buffer = make(max_size=100)
    buffer.append(item(0))
    buffer.extend([item(1, priority=0.25), item(2, priority=None), item(3, priority=5.0), item(4)])
    buffer.append(item(5))
    found = {number_in(s): s["priority"] for _ in range(40) for s in buffer.sample(6, 0)}
    assert found == {0: 1.0, 1: 0.25, 2: 1.0, 3: 5.0, 4: 5.0, 5: 5.0} and buffer.highest_priority == 5.0


def test_an_update_changes_priorities_of_what_is_there(make):
    buffer = make(max_size=3, eps=0.5)
    ids = buffer.extend(items(*range(5)))
    assert buffer.update({"replay_unique_id": [ids[0], ids[3], ids[4]], "priority": np.array([9.0, 2.0, 3.0])}) == 2
    assert buffer.highest_priority == 3.0
    found = {number_in(s): s["priority"] for _ in range(20) for s in buffer.sample(3, 0)}
    assert found == {2: 1.0, 3: 2.5, 4: 3.5}
    assert buffer.update({"replay_unique_id": [ids[4]] * 2, "priority": [7.0, 1.0]}) == 2
    assert {s["priority"] for _ in range(20) for s in buffer.sample(3, 0) if number_in(s) == 4} == {1.5}
    assert buffer.update({"replay_unique_id": ids}) == 0
    assert buffer.update({"replay_unique_id": ["demo_99"], "priority": [1.0]}) == 0


def test_a_priority_of_0_is_never_drawn(make):
    buffer = make(eps=0.0, alpha=1.0, sample_min_limit_ratio=0)
    ids = buffer.extend(items(0, 1))
    buffer.update({"replay_unique_id": ids, "priority": [0.0, 1.0]})
    assert {number_in(s) for s in buffer.sample(500, 0)} == {1}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_elements_are_drawn_by_priority_and_weighted_against_it(make, alpha):
    buffer = make(alpha=alpha, beta=0.5, anneal_step=0, eps=0.0, sample_min_limit_ratio=0)
    priorities = np.array([0.1, 0.5, 1.0, 4.0])
    buffer.extend([item(n, priority=float(p)) for n, p in enumerate(priorities)])
    chance = priorities**alpha / (priorities**alpha).sum()
    sampled = buffer.sample(4000, 0)
    counts = np.bincount([number_in(s) for s in sampled], minlength=4)
    statistic = ((counts - 4000 * chance) ** 2 / (4000 * chance)).sum()
    assert statistic < 30  # chi-square with 3 degrees of freedom: one in a million
    weights = {number_in(s): s["IS"] for s in sampled}
    want = (1 / (4 * chance)) ** 0.5
    np.testing.assert_allclose([weights[n] for n in range(4)], want / want.max(), rtol=1e-9)


def test_beta_rises_to_one_with_the_samples(make):
    buffer = make(beta=0.4, anneal_step=3)
    buffer.append(item(0))
    betas = []
    for _ in range(5):
        betas.append(buffer.beta)
        buffer.sample(1, 0)
    np.testing.assert_allclose(betas, [0.4, 0.6, 0.8, 1.0, 1.0])
    buffer.beta = 0.25
    assert buffer.beta == 0.25
    with pytest.raises(ValueError, match="beta is 1.5, expected a number from 0 to 1"):
        buffer.beta = 1.5


def test_draws_follow_priorities_that_change(make):
    buffer = make(alpha=0.6, eps=0.0, sample_min_limit_ratio=0)
    ids = buffer.extend(items(*range(5)))
    for priorities in ([0.0, 1.0, 2.0, 3.0, 4.0], [8.0, 0.0, 1e-3, 1.0, 1.0]):
        buffer.update({"replay_unique_id": ids, "priority": priorities})
        counts = np.bincount([number_in(s) for s in buffer.sample(5000, 0)], minlength=5)
        chance = np.array(priorities) ** 0.6 / (np.array(priorities) ** 0.6).sum()
        drawn = chance > 0
        assert not counts[~drawn].any()
        assert ((counts - 5000 * chance)[drawn] ** 2 / (5000 * chance)[drawn]).sum() < 30


def test_the_remembered_priority_decays_only_when_asked(make):
    for decay, wanted in ((None, 8.0), (0.5, 2.0)):
        buffer = make(priority_decay=decay)
        (unique_id,) = buffer.extend([item(0, priority=8.0)])
        for _ in range(2):
            buffer.update({"replay_unique_id": [unique_id], "priority": [0.125]})
        assert buffer.highest_priority == wanted
        buffer.update({"replay_unique_id": [unique_id], "priority": [6.0]})
        assert buffer.highest_priority == max(6.0, wanted)


# --- uniform, without replacement, ranges


def test_a_naive_buffer_takes_no_notice_of_priorities(make):
    buffer = make(NaiveReplayBuffer, sample_min_limit_ratio=0)
    buffer.extend([item(n, priority=float(n)) for n in range(4)])
    sampled = buffer.sample(4000, 0)
    counts = np.bincount([number_in(s) for s in sampled])
    assert ((counts - 1000) ** 2 / 1000).sum() < 30 and {s["IS"] for s in sampled} == {1.0}


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_without_replacement_no_element_comes_twice(make, kind):
    buffer = make(kind, replace=False)
    buffer.extend([item(n, priority=n + 1.0) for n in range(30)])
    assert sorted(number_in(s) for s in buffer.sample(30, 0)) == list(range(30))
    for size in (1, 7, 29):
        numbers = [number_in(s) for s in buffer.sample(size, 0)]
        assert len(set(numbers)) == size
    assert buffer.sample(30, 0) and buffer.sample_count == 30 + 37 + 30


def test_without_replacement_the_second_is_drawn_from_the_others(make):
    buffer = make(alpha=1.0, replace=False)
    buffer.extend([item(n, priority=p) for n, p in enumerate([1.0, 2.0, 5.0])])
    pairs = [tuple(number_in(s) for s in buffer.sample(2, 0)) for _ in range(800)]
    p = np.array([1, 2, 5]) / 8
    statistic = 0.0
    for first, second in [(a, b) for a in range(3) for b in range(3) if a != b]:
        want = 800 * p[first] * p[second] / (1 - p[first])
        statistic += (pairs.count((first, second)) - want) ** 2 / want
    assert statistic < 36  # chi-square with 5 degrees of freedom: one in a million


def test_a_range_counts_from_the_oldest_that_is_there(make):
    buffer = make(max_size=20, sample_min_limit_ratio=0)
    buffer.extend(items(*range(30)))
    assert {number_in(s) for s in buffer.sample(20, 0, slice(-2, None))} == {28, 29}
    assert {number_in(s) for s in buffer.sample(20, 0, slice(0, 2))} == {10, 11}
    assert {number_in(s) for s in buffer.sample(20, 0, slice(None, None, -10))} == {29, 19}
    assert buffer.sample(1, 0, slice(20, None)) is None
    assert buffer.refusal == "buffer 'demo' has 0 elements to draw at slice(20, None, None): widen it"


def test_a_range_keeps_the_proportions(make):
    buffer = make(alpha=1.0, beta=1.0, sample_min_limit_ratio=0)
    buffer.extend([item(n, priority=float(n + 1)) for n in range(6)])
    sampled = buffer.sample(3000, 0, slice(0, 2))
    counts = np.bincount([number_in(s) for s in sampled])
    assert ((counts - [1000, 2000]) ** 2 / [1000, 2000]).sum() < 24
    assert {number_in(s): round(s["IS"], 9) for s in sampled} == {0: 1.0, 1: 0.5}


def test_a_range_that_is_hardly_ever_drawn_is_drawn_all_the_same(make):
    buffer = make(alpha=1.0)
    buffer.extend([item(0, priority=1e12), item(1, priority=1e-3)])
    assert number_in(buffer.sample(1, 0, slice(1, 2))[0]) == 1
