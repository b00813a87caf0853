"""Tests of returns and advantages: hand-computed values, slow loops, TF-Agents, properties, and invalid arguments."""

import math
import re

import numpy as np
import pytest
import reference_impls
import tensorflow as tf
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import CHUNK_COLUMNS, Chunk, chunks, random_chunk
from tf_agents.utils import value_ops

from rlds2reverb.adders import (
    discounted_returns,
    generalized_advantage_estimation,
    lambda_returns,
    n_step_returns,
    returns_to_go,
    td_errors,
)

GAE, ENDS = generalized_advantage_estimation, ("next_values", "is_last", "lambda_")
FUNCTIONS = {
    "discounted": lambda c, **k: c.call(discounted_returns, bootstrap_value=c.final, **k),
    "to_go": lambda c, **k: returns_to_go(c.rewards, gamma=c.gamma, **k),
    "n_step_sum": lambda c, **k: c.call(n_step_returns, "n", **k)[0],
    "n_step_discount": lambda c, **k: c.call(n_step_returns, "n", **k)[1],
    "td_bootstrap": lambda c, **k: c.call(td_errors, "values", bootstrap_value=c.final, **k),
    "td_next": lambda c, **k: c.call(td_errors, "values", "next_values", **k),
    "gae_bootstrap": lambda c, **k: c.call(GAE, "values", "lambda_", bootstrap_value=c.final, **k),
    "gae_next": lambda c, **k: c.call(GAE, "values", *ENDS, **k),
    "lambda": lambda c, **k: c.call(lambda_returns, *ENDS, **k),
    "discounted_last": lambda c, **k: c.call(discounted_returns, "next_values", "is_last", **k),
    "n_step_sum_last": lambda c, **k: c.call(n_step_returns, "n", "is_last", **k)[0],
    "n_step_discount_last": lambda c, **k: c.call(n_step_returns, "n", "is_last", **k)[1],
    "td_n_bootstrap": lambda c, **k: c.call(td_errors, "values", "n", bootstrap_value=c.final, **k),
    "td_n_last": lambda c, **k: c.call(td_errors, "values", "next_values", "n", "is_last", **k),
}
CUT_AT_ENDS = ("gae_next", "lambda", *[name for name in FUNCTIONS if name.endswith("_last")])


def apply_per_episode(slow):
    """Returns a function that applies the slow loop to each episode of a chunk."""
    return lambda chunk: [number for part in chunk.episodes for number in slow(part)]


REFERENCES = {
    "discounted": lambda c: reference_impls.slow_discounted_returns(c.rewards, c.factors, c.final),
    "to_go": lambda c: reference_impls.slow_returns_to_go(c.rewards, c.gamma),
    "n_step_sum": lambda c: [sums for sums, _ in reference_impls.slow_n_step_returns(c.rewards, c.factors, c.n)],
    "n_step_discount": lambda c: [
        discount for _, discount in reference_impls.slow_n_step_returns(c.rewards, c.factors, c.n)
    ],
    "td_bootstrap": lambda c: reference_impls.slow_td_errors(c.rewards, c.factors, c.values, c.shifted),
    "td_next": lambda c: reference_impls.slow_td_errors(c.rewards, c.factors, c.values, c.next_values),
    "gae_bootstrap": lambda c: reference_impls.slow_gae(
        c.rewards, c.factors, c.values, c.shifted, c.is_last & 0, c.lambda_
    ),
    "gae_next": lambda c: reference_impls.slow_gae(c.rewards, c.factors, c.values, c.next_values, c.is_last, c.lambda_),
    "lambda": lambda c: reference_impls.slow_lambda_returns(c.rewards, c.factors, c.next_values, c.is_last, c.lambda_),
    "td_n_bootstrap": lambda c: reference_impls.slow_n_step_td_errors(c.rewards, c.factors, c.values, c.shifted, c.n),
}
REFERENCES |= {
    "discounted_last": apply_per_episode(REFERENCES["discounted"]),
    "n_step_sum_last": apply_per_episode(REFERENCES["n_step_sum"]),
    "n_step_discount_last": apply_per_episode(REFERENCES["n_step_discount"]),
    "td_n_last": apply_per_episode(
        lambda c: reference_impls.slow_n_step_td_errors(c.rewards, c.factors, c.values, c.next_values, c.n)
    ),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)
#: One function of each kind, with each way to end episodes.
VARIED = ("discounted_last", "to_go", "n_step_sum_last", "td_next", "td_n_bootstrap", "gae_next", "lambda")
few_examples = examples(25)


def assert_close(got, expected, dtype=np.float32):
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=10 * tolerance)


# --- hand-computed values


def test_discounted_returns_match_hand_computed_values():
    # G_2 = 3 + 8/2 = 7, G_1 = 2 + 7/2 = 5.5, G_0 = 1 + 5.5/2 = 3.75; a terminal after step 1: G_1 = 2, G_0 = 1 + 2/2
    for discounts, expected in (([1.0, 1, 1], [3.75, 5.5, 7]), ([1.0, 0, 1], [2, 2, 7])):
        assert discounted_returns([1.0, 2, 3], discounts, gamma=0.5, bootstrap_value=8).tolist() == expected
    assert returns_to_go([1.0, 2, 3]).tolist() == [6, 5, 3]


def test_n_step_returns_match_hand_computed_values():
    # T = 6, n = 3: 1 + 0.9 + 0.81 = 2.71 and 0.9^3 = 0.729 for steps 0 to 3, then two steps and one step.
    assert_close(n_step_returns(np.ones(6), np.ones(6), n=3, gamma=0.9)[0], [2.71] * 4 + [1.9, 1], np.float64)
    assert_close(n_step_returns(np.ones(6), np.ones(6), n=3, gamma=0.9)[1], [0.729] * 4 + [0.81, 0.9], np.float64)
    # Terminal after step 1: 10 + 11/2 and 0; 11 and 0; 12 + 13/2 and 1/4; 13 and 1/2.
    sums, discounts = n_step_returns([10.0, 11, 12, 13], [1.0, 0, 1, 1], n=2, gamma=0.5)
    assert (sums.tolist(), discounts.tolist()) == ([15.5, 11, 18.5, 13], [0, 0, 0.25, 0.5])


def test_td_errors_gae_and_lambda_returns_match_hand_computed_values():
    # All deltas are 1: 1 + 4/2 - 2, 2 + 6/2 - 4, 3 + 8/2 - 6; with the weight 1/4: 1, 1 + 1/4, 1 + 1.25/4.
    numbers = {"values": [2.0, 4, 6], "bootstrap_value": 8.0, "gamma": 0.5}
    assert td_errors([1.0, 2, 3], [1.0, 1, 1], **numbers).tolist() == [1, 1, 1]
    advantages = generalized_advantage_estimation([1.0, 2, 3], [1.0, 1, 1], **numbers, lambda_=0.5)
    assert advantages.tolist() == [1.3125, 1.25, 1]
    # G_2 = 3 + 8/2 = 7, G_1 = 2 + (6/2 + 7/2)/2 = 5.25, G_0 = 1 + (4/2 + 5.25/2)/2 = 3.3125
    returns = lambda_returns([1.0, 2, 3], [1.0, 1, 1], next_values=[4.0, 6, 8], gamma=0.5, lambda_=0.5)
    assert returns.tolist() == [3.3125, 5.25, 7]


def test_truncation_keeps_the_bootstrap():
    # Two episodes of two steps: truncated after step 1, where V is 10, and terminal after step 3.
    # The deltas are 1 + 4/2 - 2 = 1, 2 + 10/2 - 4 = 3, 3 + 6/2 - 8 = -2, 4 - 6 = -2; A = 1 + 3/4, 3, -2 - 2/4, -2
    rewards, discounts, values = [1.0, 2, 3, 4], [1.0, 1, 1, 0], [2.0, 4, 8, 6]
    numbers = {"next_values": [4.0, 10, 6, 99], "is_last": [False, True, False, True], "gamma": 0.5, "lambda_": 0.5}
    advantages = generalized_advantage_estimation(rewards, discounts, values=values, **numbers)
    assert advantages.tolist() == [1.75, 3, -2.5, -2]
    # The lambda-returns are the advantages plus the values.
    assert lambda_returns(rewards, discounts, **numbers).tolist() == [3.75, 7, 5.5, 4]


CUT = {"is_last": [False, True, False, False]}


def test_truncation_inside_the_chunk_separates_episodes():
    rewards, ones = [0.0, 0, 100, 0], [1.0, 1, 1, 1]
    sums, discounts = n_step_returns(rewards, ones, n=3, gamma=0.5, **CUT)
    assert sums.tolist() == [0, 0, 100, 0]
    assert discounts.tolist() == [0.25, 0.5, 0.25, 0.5]  # These multiply the values after steps 1 and 3.
    assert discounted_returns(rewards, ones, **CUT).tolist() == [0, 0, 100, 0]
    assert discounted_returns(rewards, ones, bootstrap_value=8, **CUT).tolist() == [0, 0, 108, 8]
    # The value after step 1 is 4, after step 3 it is 8: 4/4, 4/2; 100 + 8/4, 8/2.
    numbers = {"next_values": [99.0, 4, 99, 8], "gamma": 0.5, **CUT}
    assert discounted_returns(rewards, ones, **numbers).tolist() == [1, 2, 102, 4]
    errors = td_errors(rewards, ones, values=[1.0, 1, 1, 1], n=3, **numbers)
    assert errors.tolist() == [0, 1, 101, 3]
    assert td_errors(rewards, ones, values=[1.0, 1, 1, 1], **numbers).tolist() == [48.5, 1, 148.5, 3]


@pytest.mark.parametrize("function", [td_errors, generalized_advantage_estimation])
def test_is_last_requires_next_values(function):
    options = {} if function is td_errors else {"lambda_": 0.5}
    with raises("is_last requires next_values instead of bootstrap_value: if an episode ends inside"):
        function(np.ones(4), np.ones(4), values=np.ones(4), bootstrap_value=0.0, gamma=0.5, **options, **CUT)


# --- slow loops and shapes


@each_function
@given(chunks())
@few_examples
def test_functions_match_the_slow_loops(name, case):
    got = FUNCTIONS[name](case)
    assert got.dtype == case.rewards.dtype and got.shape == case.rewards.shape
    assert_close(got, REFERENCES[name](case), got.dtype)


@each_function
def test_functions_compute_in_float64(name):
    case = random_chunk((16,), dtype=np.float64)
    np.testing.assert_allclose(FUNCTIONS[name](case), REFERENCES[name](case), rtol=1e-12)


@each_function
@pytest.mark.parametrize("length", mark_slow_except([0, 7], [0, 1, 2, 7, 16]))
def test_batched_matches_looped_for_either_time_axis(name, length):
    case = random_chunk((length, 3), length, np.float64)
    columns = [case.map_columns(lambda column, b=b: column[:, b])._replace(final=case.final[b]) for b in range(3)]
    looped = [FUNCTIONS[name](column) for column in columns]
    assert_close(FUNCTIONS[name](case), np.stack(looped, 1), np.float64)
    batch_major = FUNCTIONS[name](case.map_columns(np.transpose), time_axis=1)
    assert batch_major.shape == (3, length)
    assert_close(batch_major, np.stack(looped), np.float64)


@each_function
def test_axes_after_time_hold_independent_trajectories(name):
    case = random_chunk((5, 6), 1, np.float64)
    deep = case.map_columns(lambda column: column.reshape(5, 2, 3))._replace(final=case.final.reshape(2, 3))
    np.testing.assert_array_equal(FUNCTIONS[name](deep), FUNCTIONS[name](case).reshape(5, 2, 3))


@pytest.mark.parametrize("name", mark_slow_except(["discounted_last", "n_step_sum_last", "gae_next"], FUNCTIONS))
def test_tracing_with_unknown_length_matches_eager(name):
    spec = {key: tf.TensorSpec([None], tf.float32) for key in CHUNK_COLUMNS}
    spec |= {"is_last": tf.TensorSpec([None], tf.bool), "final": tf.TensorSpec([], tf.float32)}
    traced = tf.function(lambda *columns: FUNCTIONS[name](Chunk(*columns)), input_signature=list(spec.values()))
    for length in (0, 1, 2, 7, 40):
        case = random_chunk((length,), length)
        got = traced(*case[:6])
        assert got.shape == (length,)
        assert_close(got, FUNCTIONS[name](case))


@each_function
def test_result_is_a_tensor_if_any_argument_is_one(name):
    case = random_chunk((7,), 1)
    expected = FUNCTIONS[name](case)
    assert isinstance(expected, np.ndarray)
    used = []
    for column in CHUNK_COLUMNS:
        got = FUNCTIONS[name](case._replace(**{column: tf.constant(getattr(case, column))}))
        used.append(tf.is_tensor(got))
        assert_close(got, expected)
    assert any(used) and used[0]  # All functions have rewards, but not all of them every other argument.


def test_bootstrap_value_of_a_network_keeps_its_gradient():
    rewards, final = np.ones(3, np.float32), tf.Variable(2.0)
    for compute in (
        lambda: discounted_returns(rewards, rewards, gamma=0.5, bootstrap_value=final),
        lambda: td_errors(rewards, rewards, values=rewards, gamma=0.5, bootstrap_value=final),
    ):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(compute())
        assert tape.gradient(total, final) is not None


# --- properties


@given(chunks())
@few_examples
def test_gae_matches_td_errors_with_lambda_0_and_returns_with_lambda_1(case):
    dtype = case.rewards.dtype
    assert_close(FUNCTIONS["gae_next"](case._replace(lambda_=0.0)), FUNCTIONS["td_next"](case), dtype)
    assert_close(
        FUNCTIONS["gae_bootstrap"](case._replace(lambda_=1.0)), FUNCTIONS["discounted"](case) - case.values, dtype
    )


@given(chunks(min_length=1))
@few_examples
def test_gae_matches_the_lambda_return_minus_value(case):
    case = case._replace(next_values=np.where(case.is_last, case.next_values, case.shifted))
    assert_close(FUNCTIONS["gae_next"](case), FUNCTIONS["lambda"](case) - case.values, case.rewards.dtype)


@pytest.mark.parametrize("name", mark_slow_except(["to_go", "td_n_bootstrap", "gae_next"], FUNCTIONS))
@given(chunks(), st.integers(0, 99))
@few_examples
def test_functions_are_linear_in_reward(name, case, seed):
    other = random_chunk(case.rewards.shape, seed, case.rewards.dtype).rewards
    mixes = (case.rewards + 2 * other, case.rewards, other, 0 * other)
    results = [FUNCTIONS[name](case._replace(rewards=rewards)) for rewards in mixes]
    assert_close(results[0], results[1] + 2 * (results[2] - results[3]), case.rewards.dtype)


@pytest.mark.parametrize("n", [7, 8, 100, 2**40])
def test_n_of_at_least_the_length_is_monte_carlo(n):
    case = random_chunk((7,), 3)
    sums, discounts = n_step_returns(case.rewards, case.discounts, n=n, gamma=0.9)
    assert_close(sums + discounts * case.final, FUNCTIONS["discounted"](case))


def change_after(case, position, number):
    """Returns the case with all floats after a position set to a number, and all flags and discounts there inverted."""
    rewards, discounts, values, next_values, is_last = (column.copy() for column in case[:5])
    for column in (rewards, values, next_values):
        column[position + 1 :] = number
    discounts[position + 1 :], is_last[position + 1 :] = 1 - discounts[position + 1 :], ~is_last[position + 1 :]
    return Chunk(rewards, discounts, values, next_values, is_last, case.final.dtype.type(number), *case[6:])


@pytest.mark.parametrize("number", [math.nan, *mark_slow_except((), [5, math.inf])])
@pytest.mark.parametrize("name", mark_slow_except(VARIED, [name for name in FUNCTIONS if name != "to_go"]))
@given(chunks(min_length=1), st.integers(0, 39))
@few_examples
def test_steps_after_a_zero_discount_are_ignored(name, number, case, position):
    position %= len(case.rewards)
    case.discounts[position] = 0
    changed = FUNCTIONS[name](change_after(case, position, number))
    np.testing.assert_array_equal(FUNCTIONS[name](case)[: position + 1], changed[: position + 1])


@pytest.mark.parametrize("number", mark_slow_except({math.nan}, [5, math.nan]))
@pytest.mark.parametrize("name", mark_slow_except({*VARIED, "td_n_last"}, CUT_AT_ENDS))
@given(chunks(min_length=1), st.integers(0, 39))
@few_examples
def test_steps_after_is_last_are_ignored(name, number, case, position):
    position %= len(case.rewards)
    case.discounts[position], case.is_last[position] = 1, True
    changed = FUNCTIONS[name](change_after(case, position, number))
    np.testing.assert_array_equal(FUNCTIONS[name](case)[: position + 1], changed[: position + 1])


# --- TF-Agents


@pytest.mark.parametrize("length", [1, 2, 9])
def test_functions_match_tf_agents(length):
    case = random_chunk((length, 3), length, np.float64)
    assert_close(
        FUNCTIONS["discounted"](case), value_ops.discounted_return(case.rewards, case.factors, case.final), np.float64
    )
    arguments = case.values, case.final, case.factors, case.rewards, case.lambda_
    assert_close(FUNCTIONS["gae_bootstrap"](case), value_ops.generalized_advantage_estimation(*arguments), np.float64)


# --- invalid arguments

VALID = random_chunk((3,))


def raises(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}")


@each_function
@pytest.mark.parametrize("invalid", [-0.1, 1.1, math.nan])
def test_gamma_or_lambda_outside_0_1_raises(name, invalid):
    with raises(f"gamma must be a number in [0, 1], got {invalid}"):
        FUNCTIONS[name](VALID._replace(gamma=invalid))
    if name in ("gae_bootstrap", "gae_next", "lambda"):
        with raises(f"lambda_ must be a number in [0, 1], got {invalid}"):
            FUNCTIONS[name](VALID._replace(lambda_=invalid))


@pytest.mark.parametrize("invalid", [0, -1, True, 2.0, None])
@pytest.mark.parametrize("name", ["n_step_sum", "td_n_last"])
def test_invalid_n_raises(name, invalid):
    with raises(f"n must be an integer >= 1, got {invalid!r}"):
        FUNCTIONS[name](VALID._replace(n=invalid))


@each_function
def test_rewards_that_are_not_floats_with_time_raise(name):
    with raises("rewards must be floats [T] or [T, ...], got int32 (3,)"):
        FUNCTIONS[name](VALID._replace(rewards=np.arange(3, dtype=np.int32)))
    with raises("rewards must be floats [T] or [T, ...], got float32 ()"):
        FUNCTIONS[name](VALID._replace(rewards=np.float32(1)))
    with raises("rewards must be floats [B, T], got float32 (3,)"):
        FUNCTIONS[name](VALID, time_axis=1)
    with raises("time_axis must be 0 or 1, got 2"):
        FUNCTIONS[name](VALID, time_axis=2)


COLUMNS = [(name, "discounts") for name in FUNCTIONS if name != "to_go"]
COLUMNS += [("td_next", "values"), ("td_next", "next_values"), ("gae_bootstrap", "values"), ("lambda", "next_values")]


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_columns_with_different_shapes_or_dtypes_raise(name, column):
    with raises(f"{column} must have the dtype and shape of rewards, float32 (3,), got float32 (4,)"):
        FUNCTIONS[name](VALID._replace(**{column: np.ones(4, np.float32)}))
    with raises(f"{column} must have the dtype and shape of rewards, float32 (3,), got float64 (3,)"):
        FUNCTIONS[name](VALID._replace(**{column: tf.ones(3, tf.float64)}))


def test_numpy_columns_with_different_dtypes_raise():
    with raises("discounts must have the dtype and shape of rewards, float32 (3,), got float64 (3,)"):
        discounted_returns(VALID.rewards, np.ones(3))


@pytest.mark.parametrize("name", ["td_bootstrap", "gae_bootstrap", "td_next", "gae_next"])
def test_both_or_no_kinds_of_next_values_raise(name):
    both = {"bootstrap_value": 0.0} if name.endswith("next") else {"next_values": VALID.next_values}
    for case, options in ((VALID._replace(final=None, next_values=None), {}), (VALID, both)):
        with raises("pass exactly one of bootstrap_value, the value after the last step, and next_values"):
            FUNCTIONS[name](case, **options)


def test_discounted_returns_raise_for_both_kinds_of_next_values():
    with raises("pass either bootstrap_value or next_values, not both"):
        discounted_returns(VALID.rewards, VALID.discounts, bootstrap_value=0.0, next_values=VALID.next_values)


@pytest.mark.parametrize("name", ["discounted", "td_bootstrap", "gae_bootstrap"])
def test_bootstrap_value_with_a_time_axis_raises(name):
    for case, expected in ((VALID, "()"), (random_chunk((3, 2)), "(2,)")):
        with raises(f"bootstrap_value must be a number or float32 {expected}, got float32 (3,)"):
            FUNCTIONS[name](case._replace(final=np.ones(3, np.float32)))


@pytest.mark.parametrize("name", CUT_AT_ENDS)
@pytest.mark.parametrize("invalid", [np.zeros(3, np.float32), np.zeros(2, bool)])
def test_is_last_with_a_different_dtype_or_shape_raises(name, invalid):
    with raises(f"is_last must be bool (3,), got {invalid.dtype} ({len(invalid)},)"):
        FUNCTIONS[name](VALID._replace(is_last=invalid))
