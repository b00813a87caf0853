"""Tests of trajectory windows and episodes against hand-computed examples and a double loop."""

from typing import get_args, get_type_hints

import numpy as np
import pytest
import tree
from hypothesis import given, strategies as st
from reference_impls import episode, episodes

from rlds2reverb.adders.trajectory_windows import PADDINGS, TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import ArgumentError
from rlds2reverb.rlds_to_reverb import VALIDATE_MODES, push_rlds_to_reverb
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import Items
from rlds2reverb.types.tables import RateLimiter, Selector
from rlds2reverb.types.trajectories import DISCOUNT_SOURCES, trajectory_columns


def observations(items):
    """Returns the first number of each observation of each item."""
    first = items.columns.observation[:, 0]
    return [first[a : a + n].tolist() for a, n in zip(items.starts, items.lengths, strict=True)]


@pytest.mark.parametrize(
    ("length", "adder", "expected"),
    [
        (3, TrajectoryWindows(2), [[10, 11], [11, 12]]),
        (5, TrajectoryWindows(3, stride=2), [[10, 11, 12], [12, 13, 14]]),
        (4, TrajectoryWindows(3, stride=2), [[10, 11, 12]]),
        (2, TrajectoryWindows(3), []),
        (2, TrajectoryWindows(4, padding="short"), [[10, 11, 0, 0]]),
        (3, TrajectoryWindows(2, padding="short"), [[10, 11], [11, 12]]),
        (3, TrajectoryWindows(3, padding="tile"), [[10, 11, 12], [11, 12, 0], [12, 0, 0]]),
        (3, TrajectoryWindows(2, stride=2, padding="tile"), [[10, 11], [12, 0]]),
        (1, TrajectoryWindows(2), []),
        (1, TrajectoryWindows(2, padding="tile"), [[10, 0]]),
        (3, TrajectoryEpisodes(), [[10, 11, 12]]),
        (1, TrajectoryEpisodes(), [[10]]),
    ],
)
def test_items_match_hand_computed_examples(length, adder, expected):
    assert observations(adder(Episode(episode(length, terminal=True), 0))) == expected


def test_padding_consists_of_boundary_rows_of_zeros():
    rows = TrajectoryWindows(3, padding="short")(Episode(episode(1, terminal=True), 0)).columns
    assert rows.step_type.tolist() == [2, 2, 2] and rows.next_step_type.tolist() == [2, 0, 0]
    padding = rows._replace(step_type=(), next_step_type=())
    assert not any(np.any(column[1:]) for column in tree.flatten(padding))


@given(episodes(max_episodes=1, max_length=9), st.integers(1, 4), st.integers(1, 4))
def test_windows_match_a_double_loop(all_steps, length, stride):
    items = TrajectoryWindows(length, stride)(Episode(all_steps[0], 0))
    num_rows = len(all_steps[0]["is_first"])
    expected = [begin for begin in range(0, num_rows, stride) if begin + length <= num_rows]
    assert items.starts.tolist() == expected and set(items.lengths.tolist()) <= {length}
    if expected:
        tree.map_structure(np.testing.assert_array_equal, items.columns, trajectory_columns(all_steps[0]))


@pytest.mark.parametrize("adder", [TrajectoryWindows(3), TrajectoryWindows(3, padding="tile"), TrajectoryEpisodes()])
def test_item_spec_matches_the_items(adder):
    source = load([episode(5, terminal=True, nested=True)])
    items = adder(source.first_episode)
    for spec, column in zip(tree.flatten(adder.item_spec(source.step_spec)), tree.flatten(items.columns), strict=True):
        assert spec.dtype.as_numpy_dtype == column.dtype and tuple(spec.shape[1:]) == column.shape[1:]
        assert spec.shape[0] in (None, items.lengths[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be an integer from 1 to 1,000,000, got 0"),
        ({"length": 2.0}, "length must be an integer .*, got 2.0"),
        ({"stride": 0}, "stride must be an integer from 1 to 1,000,000, got 0"),
        ({"padding": "zeros"}, f"padding must be one of {', '.join(map(repr, PADDINGS))}, got 'zeros'"),
        ({"discount_source": "x"}, "discount_source must be one of .*, got 'x'"),
    ],
)
def test_invalid_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        TrajectoryWindows(**options)


@pytest.mark.parametrize("adder", [TrajectoryWindows, TrajectoryEpisodes])
def test_truncated_episodes_do_not_bootstrap_from_an_unknown_final_observation(adder):
    unknown = Episode(episode(3, terminal=False), 7, unknown_final_observation=True)
    with pytest.raises(
        ArgumentError, match="discount_source='next_terminal' must be 'product' or 'step', .* episode 7 is"
    ):
        adder(discount_source="next_terminal")(unknown)
    terminal = Episode(episode(3, terminal=True), 7, unknown_final_observation=True)
    assert adder(discount_source="next_terminal")(terminal).columns.discount.tolist() == [1, 0, 0]


def test_options_with_few_values_are_typed_as_literals():
    assert get_args(get_type_hints(TrajectoryWindows)["padding"]) == PADDINGS == ("none", "short", "tile")
    assert get_args(get_type_hints(TrajectoryWindows)["discount_source"]) == DISCOUNT_SOURCES
    assert get_args(get_type_hints(push_rlds_to_reverb)["validate"]) == VALIDATE_MODES
    assert set(get_args(get_type_hints(Selector)["kind"])) > {"uniform", "prioritized"}
    assert set(get_args(get_type_hints(RateLimiter)["kind"])) > {"min_size", "queue"}


@pytest.mark.parametrize(
    ("starts", "lengths", "squeeze", "message"),
    [
        ([0, 1], [2], False, "as many starts as lengths"),
        ([2, 1], [1, 1], False, "be in ascending order"),
        ([0], [0], False, "have at least one row"),
        ([2], [2], False, "must lie within their columns"),
        ([-1], [1], False, "must lie within their columns"),
        ([0], [2], True, "squeezed items must have one row each, got 2"),
    ],
)
def test_items_raise_unless_they_fit_their_columns(starts, lengths, squeeze, message):
    with pytest.raises(ValueError, match=message):
        Items({"a": np.zeros(3)}, np.array(starts), np.array(lengths), squeeze)
    with pytest.raises(ValueError, match="columns of equal length"):
        Items({"a": np.zeros(3), "b": np.zeros(2)}, np.array([0]), np.array([1]))
