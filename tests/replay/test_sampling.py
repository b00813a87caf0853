"""Tests of the elements that a buffer samples: by priority, uniformly, without replacement, from a range."""

import numpy as np
import pytest
from numbered_items import get_number, item, items

from rlds2reverb.replay import AdvancedReplayBuffer, NaiveReplayBuffer

# --- priorities


def test_missing_priority_defaults_to_the_highest(make):
    buffer = make(max_size=100)
    buffer.append(item(0))
    buffer.extend([item(1, priority=0.25), item(2, priority=None), item(3, priority=5.0), item(4)])
    buffer.append(item(5))
    priorities = {get_number(s): s["priority"] for _ in range(40) for s in buffer.sample(6, 0)}
    assert priorities == {0: 1.0, 1: 0.25, 2: 1.0, 3: 5.0, 4: 5.0, 5: 5.0} and buffer.highest_priority == 5.0


def test_update_changes_priorities_of_existing_elements(make):
    buffer = make(max_size=3, priority_eps=0.5)
    ids = buffer.extend(items(*range(5)))
    assert buffer.update({"replay_unique_id": [ids[0], ids[3], ids[4]], "priority": np.array([9.0, 2.0, 3.0])}) == 2
    assert buffer.highest_priority == 3.0
    priorities = {get_number(s): s["priority"] for _ in range(20) for s in buffer.sample(3, 0)}
    assert priorities == {2: 1.0, 3: 2.5, 4: 3.5}
    assert buffer.update({"replay_unique_id": [ids[4]] * 2, "priority": [7.0, 1.0]}) == 2
    assert {s["priority"] for _ in range(20) for s in buffer.sample(3, 0) if get_number(s) == 4} == {1.5}
    assert buffer.update({"replay_unique_id": ids}) == 0
    assert buffer.update({"replay_unique_id": ["demo_99"], "priority": [1.0]}) == 0


def test_element_with_priority_0_is_never_sampled(make):
    buffer = make(priority_eps=0.0, alpha=1.0, sample_min_limit_ratio=0)
    ids = buffer.extend(items(0, 1))
    buffer.update({"replay_unique_id": ids, "priority": [0.0, 1.0]})
    assert {get_number(s) for s in buffer.sample(500, 0)} == {1}


@pytest.mark.parametrize("alpha", [0.6, *(pytest.param(alpha, marks=pytest.mark.slow) for alpha in (0.0, 1.0))])
def test_probabilities_and_weights_match_the_priorities(make, alpha):
    buffer = make(alpha=alpha, beta=0.5, anneal_step=0, priority_eps=0.0, sample_min_limit_ratio=0)
    priorities = np.array([0.1, 0.5, 1.0, 4.0])
    buffer.extend([item(n, priority=float(p)) for n, p in enumerate(priorities)])
    probabilities = priorities**alpha / (priorities**alpha).sum()
    sampled = buffer.sample(4000, 0)
    counts = np.bincount([get_number(s) for s in sampled], minlength=4)
    chi_square = ((counts - 4000 * probabilities) ** 2 / (4000 * probabilities)).sum()
    assert chi_square < 30  # 3 degrees of freedom: one in a million
    weights = {get_number(s): s["IS"] for s in sampled}
    expected = (1 / (4 * probabilities)) ** 0.5
    np.testing.assert_allclose([weights[n] for n in range(4)], expected / expected.max(), rtol=1e-9)


def test_beta_rises_to_1_with_each_sample(make):
    buffer = make(beta=0.4, anneal_step=3)
    buffer.append(item(0))
    betas = []
    for _ in range(5):
        betas.append(buffer.beta)
        buffer.sample(1, 0)
    np.testing.assert_allclose(betas, [0.4, 0.6, 0.8, 1.0, 1.0])
    buffer.beta = 0.25
    assert buffer.beta == 0.25
    with pytest.raises(ValueError, match="beta must be a number in \\[0, 1\\], got 1.5"):
        buffer.beta = 1.5


def test_probabilities_follow_updated_priorities(make):
    buffer = make(alpha=0.6, priority_eps=0.0, sample_min_limit_ratio=0)
    ids = buffer.extend(items(*range(5)))
    for priorities in ([0.0, 1.0, 2.0, 3.0, 4.0], [8.0, 0.0, 1e-3, 1.0, 1.0]):
        buffer.update({"replay_unique_id": ids, "priority": priorities})
        counts = np.bincount(buffer.sample_batch(5000, 0).data["inner"]["action"], minlength=5)
        probabilities = np.array(priorities) ** 0.6 / (np.array(priorities) ** 0.6).sum()
        positive = probabilities > 0
        assert not counts[~positive].any()
        assert ((counts - 5000 * probabilities)[positive] ** 2 / (5000 * probabilities)[positive]).sum() < 30


def test_highest_priority_decays_only_with_priority_decay(make):
    for decay, expected in ((None, 8.0), (0.5, 2.0)):
        buffer = make(priority_decay=decay)
        (unique_id,) = buffer.extend([item(0, priority=8.0)])
        for _ in range(2):
            buffer.update({"replay_unique_id": [unique_id], "priority": [0.125]})
        assert buffer.highest_priority == expected
        buffer.update({"replay_unique_id": [unique_id], "priority": [6.0]})
        assert buffer.highest_priority == max(6.0, expected)


# --- uniform, without replacement, ranges


def test_naive_buffer_ignores_priorities(make):
    buffer = make(NaiveReplayBuffer, sample_min_limit_ratio=0)
    buffer.extend([item(n, priority=float(n)) for n in range(4)])
    batch = buffer.sample_batch(4000, 0)
    counts = np.bincount(batch.data["inner"]["action"])
    assert ((counts - 1000) ** 2 / 1000).sum() < 30 and set(batch.info.weight) == {1.0}


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_elements_are_distinct_without_replacement(make, kind):
    buffer = make(kind, with_replacement=False)
    buffer.extend([item(n, priority=n + 1.0) for n in range(30)])
    assert sorted(get_number(s) for s in buffer.sample(30, 0)) == list(range(30))
    for size in (1, 7, 29):
        numbers = [get_number(s) for s in buffer.sample(size, 0)]
        assert len(set(numbers)) == size
    assert buffer.sample(30, 0) and buffer.sample_count == 30 + 37 + 30


def test_samples_without_replacement_match_sequential_sampling(make):
    buffer = make(alpha=1.0, with_replacement=False)
    buffer.extend([item(n, priority=p) for n, p in enumerate([1.0, 2.0, 5.0])])
    pairs = [tuple(buffer.sample_batch(2, 0).data["inner"]["action"].tolist()) for _ in range(800)]
    p = np.array([1, 2, 5]) / 8
    chi_square = 0.0
    for first, second in [(a, b) for a in range(3) for b in range(3) if a != b]:
        expected = 800 * p[first] * p[second] / (1 - p[first])
        chi_square += (pairs.count((first, second)) - expected) ** 2 / expected
    assert chi_square < 36  # 5 degrees of freedom: one in a million


def test_sample_range_counts_from_the_oldest_element(make):
    buffer = make(max_size=20, sample_min_limit_ratio=0)
    buffer.extend(items(*range(30)))
    assert {get_number(s) for s in buffer.sample(20, 0, slice(-2, None))} == {28, 29}
    assert {get_number(s) for s in buffer.sample(20, 0, slice(0, 2))} == {10, 11}
    assert {get_number(s) for s in buffer.sample(20, 0, slice(None, None, -10))} == {29, 19}
    assert buffer.sample(1, 0, slice(20, None)) is None
    reason = buffer.sample_batch(1, 0, slice(20, None)).reason
    assert reason == "buffer 'demo' can sample only 0 of 1 elements from slice(20, None, None); widen it"


def test_sample_range_keeps_the_proportions_of_priorities(make):
    buffer = make(alpha=1.0, beta=1.0, sample_min_limit_ratio=0)
    buffer.extend([item(n, priority=float(n + 1)) for n in range(6)])
    batch = buffer.sample_batch(3000, 0, slice(0, 2))
    numbers = batch.data["inner"]["action"]
    counts = np.bincount(numbers)
    assert ((counts - [1000, 2000]) ** 2 / [1000, 2000]).sum() < 24
    assert set(zip(numbers.tolist(), batch.info.weight.round(9).tolist(), strict=True)) == {(0, 1.0), (1, 0.5)}


def test_sample_range_can_select_improbable_elements(make):
    buffer = make(alpha=1.0)
    buffer.extend([item(0, priority=1e12), item(1, priority=1e-3)])
    assert get_number(buffer.sample(1, 0, slice(1, 2))[0]) == 1
