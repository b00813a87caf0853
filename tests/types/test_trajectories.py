"""Tests of the conversion of steps to trajectories: golden numbers, a naive loop, and NumPy against TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, strategies as st
from reference_impls import assert_equal_nests, episode, episodes, naive_trajectories

from rlds2reverb.types.specs import make_step_spec
from rlds2reverb.types.trajectories import DISCOUNT_SOURCES, step_types, trajectory_columns, trajectory_spec

FIRST, MID, LAST = 0, 1, 2


def test_terminal_episode_ends_in_a_boundary_with_discount_zero():
    columns = trajectory_columns(episode(3, terminal=True), discount_source="step")
    assert columns.step_type.tolist() == [FIRST, MID, LAST]
    assert columns.next_step_type.tolist() == [MID, LAST, FIRST]
    assert columns.discount.tolist() == [1, 1, 0]
    assert columns.reward.tolist() == [100, 101, 102]
    assert columns.observation[:, 0].tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    ("source", "terminal", "truncated"),
    [
        ("step", [0.9, 0.9, 0.0], [0.9, 0.9, 0.9]),
        ("next_terminal", [1, 0, 0], [1, 1, 1]),
        ("product", [0.9, 0, 0], [0.9] * 3),
    ],
)
def test_discount_is_zero_only_at_a_terminal(source, terminal, truncated):
    for expected, ends_in_terminal in ((terminal, True), (truncated, False)):
        steps = episode(3, terminal=ends_in_terminal, discount=0.9)
        discount = trajectory_columns(steps, discount_source=source).discount
        assert discount.dtype == np.float32
        np.testing.assert_array_equal(discount, np.array(expected, np.float32))


@pytest.mark.parametrize("width", [2, 3])
def test_vector_discounts_become_zero_in_whole_rows(width):
    """The width 2 also detects a broadcast along the wrong axis, which a width equal to the number of steps hides."""
    steps = {**episode(3, terminal=True), "discount": np.full((3, width), 0.5, np.float32)}
    assert trajectory_columns(steps).discount.tolist() == [[0.5] * width, [0] * width, [0] * width]


def test_single_step_has_step_type_last_and_next_step_type_last():
    columns = trajectory_columns(episode(1, terminal=False))
    assert (columns.step_type.tolist(), columns.next_step_type.tolist()) == ([LAST], [LAST])


def test_episode_without_steps_has_no_trajectories():
    steps = {name: column[:0] for name, column in episode(2, terminal=False).items()}
    assert len(trajectory_columns(steps).step_type) == 0


def test_unknown_discount_source_raises():
    with pytest.raises(
        ValueError, match="discount_source must be one of 'step', 'next_terminal', 'product', got 'both'"
    ):
        trajectory_columns(episode(2, terminal=True), discount_source="both")


@given(episodes(), st.sampled_from(DISCOUNT_SOURCES))
def test_columns_match_the_naive_loop(all_steps, source):
    expected = naive_trajectories(all_steps, source)
    got = [trajectory_columns(steps, discount_source=source) for steps in all_steps]
    for name in ("step_type", "next_step_type", "discount", "reward"):
        values = np.concatenate([getattr(columns, name) for columns in got])
        np.testing.assert_array_equal(values, [row[name] for row in expected])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9))
def test_step_types_match_in_numpy_and_tensorflow(flags):
    is_first, is_last = np.array(flags).T
    expected = step_types(is_first, is_last, np.where)
    assert_equal_nests(step_types(tf.constant(is_first), tf.constant(is_last), tf.where).numpy(), expected)
    assert expected.dtype == np.int32


def test_spec_bounds_the_discount_and_keeps_other_fields():
    spec = trajectory_spec(make_step_spec(episode(2, terminal=True, nested=True)))
    assert (spec.step_type.dtype, spec.step_type.shape) == (tf.int32, ())
    assert (spec.discount.name, float(spec.discount.minimum), float(spec.discount.maximum)) == ("discount", 0.0, 1.0)
    assert spec.observation["image"] == tf.TensorSpec((3, 2), tf.uint8)
    assert spec.action["move"] == tf.TensorSpec((), tf.int32)
    assert spec.policy_info == ()
