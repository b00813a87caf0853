"""Tests of importance weights: hand-computed values and properties."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, strategies as st

from rlds2reverb.reverb.sampling.importance import (
    LinearSchedule,
    combine_servers,
    evaluate_beta,
    importance_weights,
    lowest_probabilities,
    require_beta,
    require_min_priority,
)

PROBABILITIES = np.array([0.5, 0.25, 0.125, 0.125])


def compute_weights(probabilities, sizes, beta, **options):
    probabilities = np.asarray(probabilities, np.float64)
    sizes = np.broadcast_to(sizes, probabilities.shape)
    return importance_weights(probabilities, sizes, beta, **options)


def test_weights_match_hand_computed_values():
    # N * P = 2, 1, 1/2, 1/2; to the power of -1: 1/2, 1, 2, 2; over the largest: 1/4, 1/2, 1, 1 (Schaul et al. 2016, 3.4).
    got = compute_weights(PROBABILITIES, 4, 1.0)
    assert got.dtype == np.float32 and got.tolist() == [0.25, 0.5, 1, 1]
    np.testing.assert_allclose(compute_weights(PROBABILITIES, 4, 0.5), [0.5, 0.5**0.5, 1, 1], rtol=1e-7)
    assert compute_weights(PROBABILITIES, 4, 0.0).tolist() == [1, 1, 1, 1]


def test_weights_use_the_table_size_when_an_item_was_sampled():
    # N * P is 4 * 0.5 = 2 and 8 * 0.5 = 4.
    assert compute_weights([0.5, 0.5], [4, 8], 1.0).tolist() == [1, 0.5]


def test_weights_relative_to_the_table_match_hand_computed_values():
    # p = 4, 2 of a table of 4, 2, 1, 1 (alpha 1): P = 1/2, 1/4; P_min = 1/8, its weight 2; w = 1/2 / 2, 1 / 2.
    lowest = lowest_probabilities(
        np.array([0.5, 0.25], np.float64),
        np.array([4.0, 2.0], np.float64),
        np.array(1.0, np.float64),
        np.array([1.0, 1.0], np.float64),
    )
    assert lowest.tolist() == [0.125, 0.125]
    assert compute_weights([0.5, 0.25], 4, 1.0, lowest_probabilities=lowest).tolist() == [0.25, 0.5]


def test_outdated_min_priority_keeps_weights_at_most_one():
    one = np.array([1.0], np.float64)
    lowest = lowest_probabilities(one / 2, one, np.array(3.0, np.float64), one)
    assert compute_weights([0.5], 2, 1.0, lowest_probabilities=lowest).tolist() == [1]
    # Items with priority 0 are sampled if the exponent is 0.
    lowest = lowest_probabilities(one / 2, 0 * one, np.array(3.0, np.float64), 0 * one)
    assert compute_weights([0.5], 2, 1.0, lowest_probabilities=lowest).tolist() == [1]


def test_combine_servers_matches_hand_computed_values():
    # Three items of server 0 (10 items), one of server 2 (30 items), none of server 1: fractions 3/4 and 1/4.
    probabilities, sizes = combine_servers(
        np.array([0.1, 0.2, 0.4, 0.5], np.float64),
        np.array([10, 10, 9, 30], np.int64),
        np.array([0, 0, 0, 2], np.int32),
        num_servers=3,
    )
    np.testing.assert_allclose(probabilities, [0.075, 0.15, 0.3, 0.125], rtol=1e-12)
    assert sizes.tolist() == [40, 40, 39, 40]


def test_combine_servers_returns_a_single_server_unchanged():
    local = np.array([0.1, 0.2], np.float64)
    probabilities, sizes = combine_servers(local, np.array([3, 4], np.int64), np.array([0, 0]), num_servers=1)
    assert probabilities is local and sizes.tolist() == [3, 4]


TABLES = st.lists(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(-10, 10)), min_size=1, max_size=20), min_size=1, max_size=4
)


@given(TABLES, st.floats(0, 2), st.lists(st.integers(1, 5), min_size=4, max_size=4))
def test_weighted_mean_matches_the_mean_over_all_tables(tables, alpha, repeats):
    """sum_i P_i w_i f_i / sum_i P_i w_i = mean f, in expectation, however many items each server contributes."""
    sizes = np.array([len(table) for table in tables])
    # The batch contains every item of table k repeats[k] times, so that the servers contribute differently.
    owners = np.repeat(np.arange(len(tables)), sizes * repeats[: len(tables)])
    items = np.concatenate([table * repeat for table, repeat in zip(tables, repeats, strict=False)])
    priorities, values = items.T
    local = priorities**alpha / np.array([sum(p**alpha for p, _ in table) for table in tables])[owners]
    probabilities, totals = combine_servers(
        local,
        sizes[owners],
        owners,
        num_servers=len(tables),
    )
    assert set(totals) == {sizes.sum()}
    weight = compute_weights(probabilities, totals, 1.0).astype(np.float64)
    # A server contributes n_k / B of the batch, and the copies of an item share the item's probability equally.
    sampled_probabilities = local * np.bincount(owners)[owners] / len(owners) / np.array(repeats)[owners]
    expected = np.mean([value for table in tables for _, value in table])
    np.testing.assert_allclose(
        (sampled_probabilities * weight * values).sum() / (sampled_probabilities * weight).sum(), expected, atol=1e-4
    )


@given(st.lists(st.floats(1e-12, 1), min_size=1, max_size=30), st.floats(0, 1), st.integers(1, 10**12))
def test_weights_are_in_0_1_with_maximum_1_and_decrease_with_probability(probabilities, beta, size):
    got = compute_weights(probabilities, size, beta)
    assert np.isfinite(got).all() and (got >= 0).all() and got.max() == 1
    assert np.all(np.diff(got[np.argsort(probabilities, kind="stable")]) <= 0)


def test_schedule_changes_linearly_and_then_stays_constant():
    schedule = LinearSchedule(0.4, 1.0, 10)
    for convert in (int, np.int64, lambda at: tf.constant(at, tf.int64)):
        got = [float(schedule(convert(at))) for at in (0, 5, 10, 11, 2**60)]
        np.testing.assert_allclose(got, [0.4, 0.7, 1, 1, 1], rtol=1e-12)
    assert float(evaluate_beta(0.25, 3)) == 0.25
    assert evaluate_beta(lambda at: tf.cast(at, tf.float32) / 8, np.int64(2)) == np.float64(0.25)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), True, "0.4"])
def test_invalid_exponents_raise(wrong):
    with pytest.raises(ValueError, match="start of a schedule must be a number in"):
        LinearSchedule(start=wrong)
    with pytest.raises(ValueError, match="end of a schedule must be a number in"):
        LinearSchedule(end=wrong)
    with pytest.raises(ValueError, match="beta must be a number in"):
        require_beta(wrong)


def test_invalid_schedules_raise():
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"num_batches of a schedule must be an integer >= 1, got {wrong}"):
            LinearSchedule(num_batches=wrong)
    for wrong in (2.0, float("nan"), [0.5, 0.5]):
        with pytest.raises(ValueError, match="beta must return a scalar in .*, got .* for the first batch"):
            require_beta(lambda at, wrong=wrong: tf.constant(wrong))


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), 1e308, True])
def test_invalid_min_priority_raises(wrong):
    with pytest.raises(ValueError, match="min_priority must be above 0 and at most"):
        require_min_priority(wrong, highest=1e12)
