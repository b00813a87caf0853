"""Tests of `StepContextWindows`: hand-computed windows, a slow loop, and invalid arguments."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from hypothesis import given, strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode, rlds_dataset

from rlds2reverb.adders import NStep, ReturnToGo, StepContextWindows, check_adder, compose
from rlds2reverb.types.episodes import Episode


def make_items(adder, steps):
    items = adder(Episode(steps, 0))
    return [
        tree.map_structure(lambda column, a=begin, n=length: column[a : a + n], items.columns)
        for begin, length in zip(items.starts, items.lengths, strict=True)
    ]


def slow_windows(num_actions, length):
    """Returns the steps of each window, None for padding."""
    out = []
    for begin in range(num_actions):
        steps = list(range(begin, min(begin + length, num_actions)))
        out.append([None] * (length - len(steps)) + steps)
    return out


def assert_windows(items, steps, expected):
    assert len(items) == len(expected)
    for item, rows in zip(items, expected, strict=True):
        is_real = np.array([row is not None for row in rows])
        real_rows = [row for row in rows if row is not None]
        assert item["mask"].tolist() == is_real.tolist()
        assert item["timestep"].tolist() == [row or 0 for row in rows] and item["timestep"].dtype == np.int32
        kept = tree.map_structure(lambda column, mask=is_real: column[mask], {name: item[name] for name in steps})
        assert_equal_nests(kept, tree.map_structure(lambda column, rows=real_rows: column[rows], steps))
        padding = tree.map_structure(lambda column, mask=is_real: column[~mask], item)
        assert not any(np.any(column) for column in tree.flatten(padding))


@pytest.mark.parametrize("terminal", [True, False])
def test_windows_match_hand_computed_ones(terminal):
    """Five actions have five windows; no window contains the final observation."""
    steps = episode(6, terminal=terminal, nested=True)
    expected = [[0, 1, 2], [1, 2, 3], [2, 3, 4], [None, 3, 4], [None, None, 4]]
    assert_windows(make_items(StepContextWindows(3), steps), steps, expected)
    assert slow_windows(5, 3) == expected


def test_returns_to_go_cover_the_whole_episode():
    items = make_items(compose(ReturnToGo(), StepContextWindows(2)), episode(4, terminal=True))  # rewards 100, 101, 102
    assert [item["return_to_go"].tolist() for item in items] == [[303, 203], [203, 102], [0, 102]]
    assert [item["timestep"].tolist() for item in items] == [[0, 1], [1, 2], [0, 2]]


def test_every_n_step_row_counts_as_an_action():
    items = make_items(compose(NStep(2, 1.0), StepContextWindows(2)), episode(4, terminal=True))
    assert [item["reward"].tolist() for item in items] == [[201, 203], [203, 102], [0, 102]]


@given(st.integers(1, 14), st.integers(1, 6))
@examples(25)
def test_windows_match_the_slow_loop(num_rows, length):
    steps = episode(num_rows, terminal=True)
    assert_windows(make_items(StepContextWindows(length), steps), steps, slow_windows(num_rows - 1, length))


def test_check_adder_passes_and_spec_matches():
    all_steps = [episode(length, terminal=True, start=10 * length) for length in (5, 1, 2, 3, 9)]
    adder = StepContextWindows(3)
    assert check_adder(adder, all_steps) == 4 + 0 + 1 + 2 + 8
    assert rlds_dataset(all_steps).apply(adder).element_spec["timestep"] == tf.TensorSpec((3,), tf.int32)


def test_invalid_arguments_and_steps_raise():
    with pytest.raises(ValueError, match="length must be an integer >= 1, got 0"):
        StepContextWindows(0)
    for name in ("timestep", "mask"):
        steps = {**episode(3, terminal=True), name: np.ones(3)}
        with pytest.raises(ValueError, match=f"steps must not have the field '{name}', which StepContextWindows adds"):
            StepContextWindows(2)(Episode(steps, 0))
    with pytest.raises(ValueError, match="StepContextWindows must be the last adder"):
        compose(StepContextWindows(2), ReturnToGo())
