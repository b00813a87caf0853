"""Tests of `GAE` and `ReturnToGo`: hand-computed values at both ends, a double loop, and invalid arguments."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from hypothesis import given, strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode, rlds_dataset

from rlds2reverb.adders import GAE, ReturnToGo
from rlds2reverb.types.episodes import Episode, from_transitions


def slow_gae(steps, values, gamma, lambda_):
    """Returns the advantages of all steps, each summed over all later TD errors; 0 for the last step."""
    num = len(steps["is_first"]) - 1
    factors = [0 if steps["is_terminal"][t + 1] else gamma * float(steps["discount"][t]) for t in range(num)]
    errors = [float(steps["reward"][t]) + factors[t] * float(values[t + 1]) - float(values[t]) for t in range(num)]
    out = []
    for first in range(num):
        total, weight = 0.0, 1.0
        for t in range(first, num):
            total += weight * errors[t]
            weight *= lambda_ * factors[t]
        out.append(total)
    return [*out, 0.0]


def make_steps(terminated, value=(10, 20, 30, 40), reward=(1, 2, 3, 0)):
    """Returns steps with observations 10, 11, 12 and the final 13, and rewards 1, 2, 3."""
    steps = from_transitions(
        np.arange(10, 14, dtype=np.float32), np.arange(3), rewards=np.ones(3, np.float32), terminated=terminated
    )
    steps["reward"] = np.array(reward, np.float32)
    return steps if value is None else {**steps, "value": np.array(value, np.float32)}


def compute_columns(adder, steps):
    items = adder(Episode(steps, 0))
    assert items.starts.tolist() == [0] and items.lengths.tolist() == [len(steps["is_first"])] and not items.squeeze
    return items.columns


# --- GAE


@pytest.mark.parametrize(
    ("terminated", "advantage", "returns"),
    [
        # The errors 1 + 10 - 10, 2 + 15 - 20, 3 - 30 (or 3 + 20 - 30) have the weight 0.25 to the power of the distance.
        (True, [1 - 0.75 - 27 / 16, -3 - 27 / 4, -27, 0], [10 + 1 - 0.75 - 27 / 16, 20 - 3 - 27 / 4, 3, 0]),
        (False, [1 - 0.75 - 7 / 16, -3 - 7 / 4, -7, 0], [10 + 1 - 0.75 - 7 / 16, 20 - 3 - 7 / 4, 23, 0]),
    ],
)
def test_advantages_match_hand_computed_values_at_both_ends(terminated, advantage, returns):
    steps = make_steps(terminated)
    columns = compute_columns(GAE(gamma=0.5, lambda_=0.5), steps)
    assert columns["advantage"].tolist() == advantage and columns["return_"].tolist() == returns
    assert columns["advantage"].dtype == columns["return_"].dtype == np.float32
    assert_equal_nests({name: columns[name] for name in steps}, steps)


@given(st.integers(1, 13), st.booleans(), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
@examples(25)
def test_advantages_match_the_double_loop(length, terminal, seed, dtype):
    generator = np.random.default_rng(seed)
    steps = episode(length, terminal=terminal)
    steps["reward"] = generator.normal(size=length).astype(dtype)
    steps["discount"] = generator.choice([0, 0.5, 1, 1], length).astype(np.float32)
    values = np.sin(steps["observation"][:, 0])
    for gamma, lambda_ in ((0.9, 0.7), (1, 1), (0.99, 0)):
        columns = compute_columns(GAE(gamma, lambda_, lambda observations: tf.sin(observations[:, 0])), steps)
        expected = np.array(slow_gae(steps, values, gamma, lambda_))
        np.testing.assert_allclose(columns["advantage"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(columns["return_"][:-1], expected[:-1] + values[:-1], rtol=1e-4, atol=1e-5)
        assert columns["return_"][-1] == columns["advantage"][-1] == 0 and columns["return_"].dtype == dtype


def make_model():
    """Returns a Keras model that computes V(s) = 10 (s - 9)."""
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    model.set_weights([np.array([[10.0]], np.float32), np.array([-90.0], np.float32)])
    return model


@pytest.mark.parametrize("terminated", [True, False])
def test_column_function_and_keras_model_give_equal_advantages(terminated):
    """All three compute V(s) = 10 (s - 9)."""
    steps = make_steps(terminated)
    expected = compute_columns(GAE(0.5, 0.5), steps)["advantage"]
    as_rows = {**steps, "value": steps["value"][:, None]}
    np.testing.assert_array_equal(compute_columns(GAE(0.5, 0.5), as_rows)["advantage"], expected)
    by_function = GAE(0.5, 0.5, value_fn=lambda observations: (observations - 9) * 10)
    np.testing.assert_array_equal(compute_columns(by_function, make_steps(terminated, None))["advantage"], expected)
    steps = {**make_steps(terminated, None), "observation": steps["observation"][:, None]}
    by_model = GAE(0.5, 0.5, value_fn=make_model())
    np.testing.assert_allclose(compute_columns(by_model, steps)["advantage"], expected, rtol=1e-6)


def test_keras_model_computes_the_values_of_a_dataset():
    steps, plain = make_steps(True, None), make_steps(True)
    rows = {**steps, "observation": steps["observation"][:, None]}
    (item,) = rlds_dataset([rows]).apply(GAE(0.5, 0.5, value_fn=make_model())).as_numpy_iterator()
    np.testing.assert_allclose(item["advantage"], compute_columns(GAE(0.5, 0.5), plain)["advantage"], rtol=1e-6)


def test_value_fn_is_called_once_per_episode():
    seen = []

    def values(observations):
        tf.py_function(lambda batch: seen.append(batch.numpy().tolist()), [observations], [])
        return observations

    compute_columns(GAE(0.9, 0.9, values), make_steps(True, None))
    assert seen == [[10, 11, 12, 13]]


def test_value_fn_takes_precedence_over_the_column():
    columns = compute_columns(GAE(1, 0, value_fn=lambda observations: observations * 0), make_steps(True))
    assert columns["advantage"].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize(("dtype", "expected"), [(np.int64, np.float32), (np.float64, np.float64)])
def test_both_fields_have_the_dtype_of_the_rewards(dtype, expected):
    steps = make_steps(True)
    steps["reward"] = steps["reward"].astype(dtype)
    columns = compute_columns(GAE(0.5, 0.5), steps)
    assert columns["advantage"].dtype == columns["return_"].dtype == expected
    assert columns["advantage"].tolist() == [1 - 0.75 - 27 / 16, -3 - 27 / 4, -27, 0]


def test_last_reward_and_terminal_value_are_ignored():
    plain = compute_columns(GAE(0.9, 0.9), make_steps(True))["advantage"]
    for steps in (
        make_steps(True, reward=(1, 2, 3, 1e6)),
        make_steps(True, (10, 20, 30, 1e6)),
        make_steps(True, (10, 20, 30, np.nan)),
    ):
        np.testing.assert_array_equal(compute_columns(GAE(0.9, 0.9), steps)["advantage"], plain)


def test_single_step_has_no_advantage():
    steps = tree.map_structure(lambda column: column[-1:], make_steps(False))
    steps["is_first"] = np.array([True])
    columns = compute_columns(GAE(0.9, 0.9), steps)
    assert columns["advantage"].tolist() == columns["return_"].tolist() == [0]


def test_advantages_do_not_depend_on_neighbouring_episodes():
    all_steps = [
        make_steps(True),
        make_steps(False),
        make_steps(True, (0, 0, 0, 1e6), (1e6, 1e6, 1e6, 0)),
        make_steps(False),
    ]
    adder = GAE(0.5, 0.5)
    got = list(rlds_dataset(all_steps).apply(adder).as_numpy_iterator())
    for item, steps in zip(got, all_steps, strict=True):
        assert_equal_nests(item, compute_columns(adder, steps))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.5}, r"gamma must be a number in \[0, 1\], got 1.5"),
        ({"gamma": "0.9"}, r"gamma must be a number in \[0, 1\], got '0.9'"),
        ({"lambda_": -1}, r"lambda_ must be a number in \[0, 1\], got -1"),
    ],
)
def test_out_of_range_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        GAE(**{"gamma": 0.9, "lambda_": 0.9, **options})


@pytest.mark.parametrize(
    ("value_fn", "change", "message"),
    [
        (None, {"value": None}, "GAE without a value_fn requires the field 'value' in every step, got"),
        (None, {"value": np.ones((4, 2))}, r"GAE requires one float per step, but step\['value'\] is"),
        (None, {"value": np.ones(4, int)}, r"GAE requires one float per step, but step\['value'\] is"),
        (3, {}, "value_fn must be a function or a Keras model, got 3"),
        ("fail", {"reward": {"a": np.ones(4)}}, r"GAE requires one number per step, but step\['reward'\] is"),
        ("fail", {"observation": None}, "GAE requires the field 'observation' in every step, got"),
        ("fail", {"return_": np.ones(4)}, "steps must not have the field 'return_', which GAE adds; drop or rename"),
    ],
)
def test_unsuitable_steps_raise_before_tracing(value_fn, change, message, monkeypatch):
    monkeypatch.setattr(GAE, "make_batch_rows", lambda *_: pytest.fail("traced"))
    steps = {name: column for name, column in {**make_steps(True), **change}.items() if column is not None}
    adder = GAE(0.9, 0.9, value_fn=(lambda _: pytest.fail("called")) if value_fn == "fail" else value_fn)
    for episodes in (Episode(steps, 0), tf.data.Dataset.from_tensors(steps)):
        with pytest.raises(ValueError, match=message):
            adder(episodes)


@pytest.mark.parametrize(
    ("value_fn", "message"),
    [
        (
            lambda observations: tf.stack([observations] * 2, axis=1),
            "value_fn must return one value per observation, got",
        ),
        pytest.param(
            *(lambda observations: tf.constant(1.0), "value_fn must return one value per observation, got"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(lambda observations: observations[1:], "value_fn must return one value per observation, got"),
            marks=pytest.mark.slow,
        ),
        (lambda observations: observations[observations > 10], "value_fn must return one value per observation, got"),
    ],
)
def test_value_fn_without_one_value_per_step_raises(value_fn, message):
    with pytest.raises(ValueError, match=message):
        GAE(0.9, 0.9, value_fn)(Episode(make_steps(True, None), 0))


def test_value_fn_in_numpy_suits_episodes_but_no_datasets():
    adder, steps = GAE(0.9, 0.9, lambda observations: observations.numpy()), make_steps(True, None)
    assert len(adder(Episode(steps, 0))) == 1
    with pytest.raises(ValueError, match=r"value_fn failed on tensors .*wrap numpy code in tf.numpy_function"):
        adder(tf.data.Dataset.from_tensors(steps))


# --- ReturnToGo


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize(("gamma", "expected"), [(1, [6, 5, 3, 0]), (0.5, [2.75, 3.5, 3, 0]), (0, [1, 2, 3, 0])])
def test_returns_to_go_match_hand_computed_values_at_both_ends(terminated, gamma, expected):
    steps = make_steps(terminated, None, reward=(1, 2, 3, 1e6))
    columns = compute_columns(ReturnToGo(gamma), steps)
    assert columns["return_to_go"].tolist() == expected and columns["return_to_go"].dtype == np.float32
    assert_equal_nests({name: columns[name] for name in steps}, steps)


def test_returns_to_go_ignore_discounts():
    """Chen et al. (2021), sec. 3, define them as the sum of the future rewards."""
    steps = {**make_steps(True, None), "discount": np.array([1, 0, 0.5, 1], np.float32)}
    assert compute_columns(ReturnToGo(), steps)["return_to_go"].tolist() == [6, 5, 3, 0]


def test_returns_to_go_are_float32_for_integers_and_0_for_one_step():
    steps = make_steps(True, None)
    steps["reward"] = steps["reward"].astype(np.int32)
    column = compute_columns(ReturnToGo(), steps)["return_to_go"]
    assert (column.dtype, column.tolist()) == (np.float32, [6, 5, 3, 0])
    assert compute_columns(ReturnToGo(), episode(1, terminal=False))["return_to_go"].tolist() == [0]


def test_returns_to_go_raise_for_unsuitable_steps(monkeypatch):
    monkeypatch.setattr(ReturnToGo, "make_batch_rows", lambda *_: pytest.fail("traced"))
    with pytest.raises(ValueError, match=r"gamma must be a number in \[0, 1\], got 2"):
        ReturnToGo(2)
    for change, message in (
        ({"reward": {"a": np.ones(4)}}, r"ReturnToGo requires one number per step, but step\['reward'\] is"),
        ({"return_to_go": np.ones(4)}, "steps must not have the field 'return_to_go', which ReturnToGo adds"),
    ):
        with pytest.raises(ValueError, match=message):
            ReturnToGo()(Episode({**make_steps(True), **change}, 0))
