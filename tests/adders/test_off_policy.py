"""Tests of V-trace and Retrace: hand-computed sums of the papers, slow loops, properties, and invalid arguments."""

import functools
import re

import numpy as np
import pytest
import reference_impls
import tensorflow as tf
from hypothesis import given, strategies as st
from properties import examples
from reference_impls import Chunk, chunks, random_chunk

from rlds2reverb.adders import discounted_returns, lambda_returns, retrace, td_errors, v_trace

few_examples = examples(25)


def run(function, case, **options):
    return function(
        case.rewards,
        case.discounts,
        values=case.values,
        ratios=case.ratios.astype(case.rewards.dtype),
        next_values=case.next_values,
        is_last=case.is_last,
        gamma=case.gamma,
        lambda_=case.lambda_,
        **options,
    )


FUNCTIONS = {
    "targets": lambda case, **options: run(v_trace, case, **options).targets,
    "advantages": lambda case, **options: run(v_trace, case, **options).advantages,
    "retrace": functools.partial(run, retrace),
}


def run_slow(function, case, *clips):
    return function(case.rewards, case.factors, case.values, case.next_values, case.ratios, case.lambda_, *clips)


def slow_v_trace(case, clip_rho=1.0, clip_c=1.0):
    return run_slow(reference_impls.slow_v_trace, case, clip_rho, clip_c)


REFERENCES = {
    "targets": lambda case, **options: slow_v_trace(case, **options)[0],
    "advantages": lambda case, **options: slow_v_trace(case, **options)[1],
    "retrace": functools.partial(run_slow, reference_impls.slow_retrace),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def connect_values(case):
    """Returns the case with each next value set to the value of the next step, except at the ends of episodes."""
    shifted = np.append(case.values[1:], case.final)[: len(case.values)]
    return case._replace(next_values=np.where(case.is_last, case.next_values, shifted).astype(case.values.dtype))


def apply_per_episode(slow, case, **options):
    return [number for part in case.episodes for number in slow(part, **options)]


def assert_close(got, expected, dtype=np.float64):
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=10 * tolerance)


# --- hand-computed values

RATIOS = [0.5, 2.0, 4.0]


def test_v_trace_matches_hand_computed_values():
    """Espeholt et al. 2018, eq. 1. gamma 1/2, V = 2, 4, 6 and finally 8; r = 1, 2, 3: each TD error is
    1 + 4/2 - 2 = 2 + 6/2 - 4 = 3 + 8/2 - 6 = 1. With both clips at 1: rho = c = 1/2, 1, 1.

        v_2 = 6 + 1 = 7,  v_1 = 4 + 1 + 1/2 * 1 = 5.5,  v_0 = 2 + 1/2 + (1/2 * 1/2) * 1 + (1/4 * 1/2 * 1) * 1 = 2.875
        A_2 = 3 + 8/2 - 6 = 1,  A_1 = 2 + 7/2 - 4 = 1.5,  A_0 = 1/2 * (1 + 5.5/2 - 2) = 0.875
    """
    numbers = {"values": [2.0, 4, 6], "bootstrap_value": 8.0, "gamma": 0.5, "ratios": RATIOS}
    got = v_trace([1.0, 2, 3], [1.0, 1, 1], **numbers)
    assert got.targets.tolist() == [2.875, 5.5, 7]
    assert got.advantages.tolist() == [0.875, 1.5, 1]
    # clip_rho 3: rho = 1/2, 2, 3. v_2 = 6 + 3, v_1 = 4 + 2 + 1/2 * 3, v_0 = 2 + 1/2 + 1/4 * (2 + 3/2)
    # A_2 = 3 * 1, A_1 = 2 * (2 + 9/2 - 4), A_0 = 1/2 * (1 + 7.5/2 - 2)
    got = v_trace([1.0, 2, 3], [1.0, 1, 1], **numbers, clip_rho=3.0)
    assert got.targets.tolist() == [3.375, 7.5, 9]
    assert got.advantages.tolist() == [1.375, 5, 3]


def test_retrace_matches_hand_computed_values():
    """Munos et al. 2016, eq. 3. gamma 1/2, Q = 2, 4, 6; the next means are 4, 6, 8; r = 1, 2, 3: each error is 1.
    lambda 1/2: c = (unused), 1/2, 1/2, and with ratios 1/4 at step 2: 1/8.

        Q_2 = 6 + 1,  Q_1 = 4 + 1 + 1/2 * 1/8,  Q_0 = 2 + 1 + 1/2 * 1/2 + 1/4 * (1/2 * 1/8)
    """
    numbers = {"values": [2.0, 4, 6], "next_values": [4.0, 6, 8], "gamma": 0.5, "lambda_": 0.5}
    got = retrace([1.0, 2, 3], [1.0, 1, 1], **numbers, ratios=[0.0, 2, 0.25])
    assert got.tolist() == [3.265625, 5.0625, 7]


def test_truncation_keeps_the_value_and_separates_episodes():
    """Two episodes of two steps: truncated after step 1, where V is 10; terminal after step 3. All ratios are 1.

    TD errors 1 + 4/2 - 2 = 1, 2 + 10/2 - 4 = 3, 3 + 6/2 - 8 = -2, 4 - 6 = -2: v = 2 + 1 + 3/2, 7, 8 - 2 - 1, 4
    """
    numbers = {"values": [2.0, 4, 8, 6], "next_values": [4.0, 10, 6, 99], "ratios": np.ones(4, np.float32)}
    numbers |= {"is_last": [False, True, False, True], "gamma": 0.5, "lambda_": 1.0}
    got = v_trace([1.0, 2, 3, 4], [1.0, 1, 1, 0], **numbers)
    assert got.targets.tolist() == [4.5, 7, 5, 4]
    assert got.advantages.tolist() == [2.5, 3, -3, -2]
    assert retrace([1.0, 2, 3, 4], [1.0, 1, 1, 0], **numbers).tolist() == [4.5, 7, 5, 4]


# --- slow loops and shapes


@each_function
@given(chunks(min_length=1))
@few_examples
def test_functions_match_the_slow_loop_over_each_episode(name, case):
    case = connect_values(case)
    got = FUNCTIONS[name](case)
    assert got.dtype == case.rewards.dtype and got.shape == case.rewards.shape
    assert_close(got, apply_per_episode(REFERENCES[name], case), got.dtype)


@pytest.mark.parametrize("name", ["targets", "advantages"])
@given(chunks(min_length=1), st.sampled_from([(1.0, 0.0), (2.0, 1.5), (float("inf"), 1.0)]))
@few_examples
def test_clipping_matches_the_slow_loop(name, case, clips):
    case = connect_values(case)
    options = {"clip_rho": clips[0], "clip_c": clips[1]}
    assert_close(
        FUNCTIONS[name](case, **options), apply_per_episode(REFERENCES[name], case, **options), case.rewards.dtype
    )


@each_function
@pytest.mark.parametrize("length", [0, 1, 7])
def test_batched_matches_looped_for_either_time_axis(name, length):
    case = random_chunk((length, 3), length, np.float64)
    columns = [case.map_columns(lambda column, b=b: column[:, b])._replace(final=case.final[b]) for b in range(3)]
    looped = np.stack([FUNCTIONS[name](column) for column in columns], 1)
    assert_close(FUNCTIONS[name](case), looped)
    assert_close(FUNCTIONS[name](case.map_columns(np.transpose), time_axis=1), looped.T)


@each_function
def test_tracing_with_unknown_length_matches_eager(name):
    floats, flags = tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.bool)

    @tf.function(input_signature=[*[floats] * 4, flags, floats])
    def traced(rewards, discounts, values, next_values, is_last, ratios):
        numbers = {"values": values, "next_values": next_values, "is_last": is_last, "ratios": ratios}
        if name == "retrace":
            return retrace(rewards, discounts, **numbers, gamma=0.9, lambda_=0.7)
        return getattr(v_trace(rewards, discounts, **numbers, gamma=0.9, lambda_=0.7), name)

    for length in (0, 1, 7):
        case = random_chunk((length,), length)
        assert_close(traced(*case[:5], case.ratios.astype(np.float32)), FUNCTIONS[name](case), np.float32)


# --- properties


@given(chunks(min_length=1))
@few_examples
def test_on_policy_targets_match_the_return_and_the_lambda_return(case):
    case, dtype = connect_values(case), case.rewards.dtype
    arguments = {"next_values": case.next_values, "is_last": case.is_last, "gamma": case.gamma}
    numbers = {"values": case.values, "ratios": np.ones_like(case.rewards), **arguments}
    returns = discounted_returns(case.rewards, case.discounts, **arguments)
    assert_close(v_trace(case.rewards, case.discounts, **numbers).targets, returns, dtype)
    targets = v_trace(case.rewards, case.discounts, **numbers, lambda_=case.lambda_).targets
    mixed = lambda_returns(case.rewards, case.discounts, **arguments, lambda_=case.lambda_)
    assert_close(targets, mixed, dtype)
    on_policy = retrace(case.rewards, case.discounts, **numbers, lambda_=case.lambda_)
    assert_close(on_policy, mixed, dtype)


@given(chunks(min_length=1))
@few_examples
def test_retrace_with_lambda_0_matches_the_one_step_target(case):
    errors = td_errors(case.rewards, case.discounts, values=case.values, next_values=case.next_values, gamma=case.gamma)
    assert_close(run(retrace, case._replace(lambda_=0.0)), case.values + errors, case.rewards.dtype)


@pytest.mark.parametrize("number", [pytest.param(5, marks=pytest.mark.slow), np.nan])
@each_function
@given(chunks(min_length=1), st.integers(0, 39))
@few_examples
def test_steps_after_is_last_are_ignored(name, number, case, position):
    position %= len(case.rewards)
    case.discounts[position], case.is_last[position] = 1, True
    columns = [column.copy() for column in case[:4]]
    for column in (columns[0], columns[2], columns[3]):
        column[position + 1 :] = number
    changed = FUNCTIONS[name](Chunk(*columns, case.is_last, *case[5:]))
    np.testing.assert_array_equal(FUNCTIONS[name](case)[: position + 1], changed[: position + 1])


# --- invalid arguments

VALID = random_chunk((3,))


@pytest.mark.parametrize(
    ("name", "change", "options", "message"),
    [
        ("targets", {"gamma": 1.1}, {}, "gamma must be a number in [0, 1], got 1.1"),
        ("targets", {"lambda_": -0.1}, {}, "lambda_ must be a number in [0, 1], got -0.1"),
        ("targets", {}, {"clip_c": -1}, "clip_c must be a number in [0, inf], got -1"),
        ("targets", {}, {"clip_rho": 0.5}, "clip_rho must be a number in [1, inf], got 0.5"),
        (
            "targets",
            {"values": np.ones(4, np.float32)},
            {},
            "values must have the dtype and shape of rewards, float32 (3,), got float32 (4,)",
        ),
        (
            "targets",
            {"next_values": np.ones(4, np.float32)},
            {},
            "ratios must have the dtype and shape of rewards, float32 (3,), got float32 (4,)",
        ),
        ("targets", {"is_last": np.zeros(4, bool)}, {}, "is_last must be bool (3,), got bool (4,)"),
        (
            "targets",
            {},
            {"bootstrap_value": 0.0},
            "pass exactly one of bootstrap_value, the value after the last step, and",
        ),
        ("retrace", {"gamma": 1.1}, {}, "gamma must be a number in [0, 1], got 1.1"),
        ("retrace", {"lambda_": -0.1}, {}, "lambda_ must be a number in [0, 1], got -0.1"),
        (
            "retrace",
            {"values": np.ones(4, np.float32)},
            {},
            "values must have the dtype and shape of rewards, float32 (3,), got float32 (4,)",
        ),
        ("retrace", {"is_last": np.zeros(4, bool)}, {}, "is_last must be bool (3,), got bool (4,)"),
    ],
)
def test_invalid_arguments_raise(name, change, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        FUNCTIONS[name](VALID._replace(**change), **options)


def test_is_last_requires_next_values():
    numbers = {"values": VALID.values, "ratios": np.ones(3, np.float32), "bootstrap_value": 0.0, "gamma": 0.9}
    with pytest.raises(ValueError, match="^is_last requires next_values instead of bootstrap_value"):
        v_trace(VALID.rewards, VALID.discounts, **numbers, is_last=VALID.is_last)
