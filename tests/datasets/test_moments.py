"""Moments of observations: against numpy over all rows at once, and where naive formulas fail."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from properties import examples
from reference_impls import episode

from rlds2reverb.datasets.moments import LeafMoments, ObservationMoments, mark_transitions
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import make_step_spec


def make_moments(*columns, name="test"):
    """Returns the moments of episodes with the given observations."""
    episodes = [
        Episode({**episode(len(column), terminal=True), "observation": column}, index)
        for index, column in enumerate(columns)
    ]
    return ObservationMoments.from_episodes(episodes, make_step_spec(columns[0]), name)


@examples(50)
@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=6), min_size=1, max_size=5))
def test_moments_match_those_of_all_rows_at_once(all_values):
    columns = [np.array(values, np.float32) for values in all_values]
    rows = np.concatenate([column[:-1] for column in columns]).astype(np.float64)
    (leaf,) = make_moments(*columns).leaves
    np.testing.assert_allclose(leaf.mean, rows.mean(), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(leaf.std, rows.std(), rtol=1e-9, atol=1e-6)


def test_moments_do_not_cancel():
    """The standard deviation of 0, 1000, .., 99000 is 1000 * sqrt((100^2 - 1) / 12) = 28,866; E[x^2] - E[x]^2 loses it."""
    clock = 1_700_000_000_000 + np.arange(0, 100_001, 1000, dtype=np.float64)
    assert abs(np.sqrt(np.mean(clock[:-1] ** 2) - clock[:-1].mean() ** 2) - 28_866.07) > 100
    for parts in ([clock], [clock[start : start + 21] for start in range(0, 100, 20)]):
        (leaf,) = make_moments(*parts).leaves
        assert leaf.std == pytest.approx(1000 * np.sqrt(9999 / 12), rel=1e-9) and leaf.std == pytest.approx(28_866.07)
        assert leaf.mean == 1_700_000_049_500


def test_constants_and_integers_are_not_normalised():
    nest = {"image": np.arange(6, dtype=np.uint8).reshape(3, 2), "state": np.array([[0.1, 1], [0.1, 3], [7, 9]])}
    moments = make_moments(nest["state"])
    (leaf,) = moments.leaves
    assert leaf.mean.tolist() == [0.1, 2] and leaf.std.tolist() == [0, 1]
    assert leaf.divisor(0.5).tolist() == [np.inf, 1.5]
    steps = [Episode({**episode(3, terminal=True), "observation": nest}, 0)]
    moments = ObservationMoments.from_episodes(steps, make_step_spec(nest), "test")
    mean, divisor = moments.agent_statistics(0.5)
    assert mean["image"].tolist() == [0, 0] and divisor["image"].tolist() == [1, 1]
    assert mean["state"].dtype == divisor["state"].dtype == np.float64
    assert divisor["state"].tolist() == [np.inf, 1.5] and moments.num_transitions == 2
    note = "step['observation']['state'] is constant at [0] and was normalised to zeros there"
    assert moments.describe_constants() == [note]


def test_many_constants_are_abbreviated():
    (note,) = make_moments(np.zeros((3, 11))).describe_constants()
    assert "constant at [0], [1], [2], [3], [4], [5], [6], [7] and 3 more places" in note


def test_rows_before_the_last_step_have_a_transition():
    assert mark_transitions(np.array([3, 0, 1, 2])).tolist() == [True, True, False, False, True, False]


def test_leaf_without_rows_keeps_its_moments():
    leaf = LeafMoments(())
    leaf.add(np.array([1.0, 3.0]))
    leaf.add(np.zeros(0))
    assert leaf.mean == 2 and leaf.std == 1
