"""What the figures of reports show, read from their axes."""

import numpy as np
import pytest

from rlds2reverb.learners.figure_style import COLOURS
from rlds2reverb.training.reports.dataset_figures import count_values, draw_histogram, draw_marginals, draw_states
from rlds2reverb.training.reports.run_report import draw_lines


def get_texts(texts):
    return [text.get_text() for text in texts]


def test_few_values_have_a_bin_each_and_many_share_equal_ones():
    centres, counts = count_values(np.array([1.0, 2, 2, 1, np.nan, np.inf, 7, 7, 7, 7]))
    assert (centres.tolist(), counts.tolist()) == ([1, 2, 7], [2, 2, 4])
    assert count_values(np.array([5.0, 6, 7]))[0].tolist() == [5, 6, 7]
    assert count_values(np.repeat(np.arange(24.0), 4))[1].tolist() == [4] * 24
    for values, num_bins in (
        (np.arange(4.0), 10),
        (np.repeat(np.arange(25.0), 4), 10),
        (np.arange(1e3), 20),
        (np.arange(1e5), 60),
    ):
        centres, counts = count_values(values)
        assert len(centres) == len(counts) == num_bins - (num_bins == 20) and counts.sum() == len(values)
        width = np.ptp(values) / len(centres)
        np.testing.assert_allclose(np.diff(centres), width)
        assert centres[0] - width / 2 == pytest.approx(values[0]) and centres[-1] + width / 2 == pytest.approx(
            values[-1]
        )
    assert len(count_values(np.array([np.nan]))[0]) == 0


def test_histogram_has_a_bar_for_each_bin_and_marks_labelled_values():
    figure = draw_histogram(
        np.array([1.0, 2, 2, 4, 4, 4, 4]), "return", "episodes", lines={"mean": 2.5, "best": 1234.5}
    )
    (axes,) = figure.axes
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height(), bar.get_width()) for bar in axes.patches]
    np.testing.assert_allclose(bars, [(1, 1, 0.94), (2, 2, 0.94), (4, 4, 0.94)])
    assert [line.get_xdata()[0] for line in axes.lines] == [2.5, 1234.5]
    assert get_texts(axes.get_legend().get_texts()) == ["mean 2.5", "best 1,234"]
    assert len({line.get_linestyle() for line in axes.lines}) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("return", "episodes")
    assert draw_histogram(np.array([1.0, 2, 4]), "", "").axes[0].get_xticks().tolist() == [1, 2, 4]
    (axes,) = draw_histogram(np.full(9, 3.0), "", "").axes
    assert axes.get_xlim() == (2, 4) and axes.patches[0].get_width() == pytest.approx(0.2) and axes.get_legend() is None
    assert not draw_histogram(np.array([]), "", "").axes[0].patches


def test_marginals_are_shares_as_lines_or_as_a_heat_map():
    columns = np.array([[0.0, 1], [0, np.nan], [1, 1], [1, 0]])
    (axes,) = draw_marginals(columns, ["a", "b"], "action").axes
    first, second = (patch.get_data() for patch in axes.patches)
    assert (first.values[0], first.values[-1], len(first.values)) == (50, 50, 60)
    np.testing.assert_allclose([second.values[0], second.values[-1]], [100 / 3, 200 / 3])
    assert first.edges[0] == 0 and first.edges[-1] == 1 and axes.get_ylabel() == "% of the steps"
    assert get_texts(axes.get_legend().get_texts()) == ["a", "b"]
    assert draw_marginals(columns[:, :1], ["a"], "").axes[0].get_legend() is None
    assert len(draw_marginals(np.zeros((3, 4)), "abcd", "").axes) == 1
    names = [f"joint {number}" for number in range(20)]
    axes, colour_bar = draw_marginals(np.tile(np.arange(20.0), (6, 1)), names, "action").axes
    shares = axes.collections[0].get_array().reshape(20, 60)
    assert (shares.sum(axis=1) == 100).all() and [int(row.argmax()) // 3 for row in shares] == list(range(20))
    assert axes.get_yticks().tolist() == list(range(0, 20, 2)) and get_texts(axes.get_yticklabels()) == names[::2]
    assert axes.get_ylim() == (19.5, -0.5) and colour_bar.get_ylabel() == "% of the steps"


def test_points_are_coloured_by_their_value_apart_from_extremes_and_unknown_ones():
    x = np.arange(201.0)
    values = np.arange(201.0)
    values[[0, 1]], values[200] = np.nan, 1e9
    axes, colour_bar = draw_states(np.stack([x, -x], 1), np.array([0.6, 0.25]), values).axes
    assert axes.get_xlabel() == "component 1 (60 % of variance)"
    assert axes.get_ylabel() == "component 2 (25 % of variance)"
    unknown, known = axes.collections
    assert unknown.get_offsets().tolist() == [[0, 0], [1, -1]]
    assert known.get_offsets().tolist() == [[place, -place] for place in range(2, 201)]
    low, high = np.quantile(values[2:], [0.01, 0.99])
    assert known.get_clim() == (low, high) and high < 200 and colour_bar.get_ylabel() == "return"
    assert len(draw_states(np.stack([x, x], 1), np.array([0.6, 0.25]), np.full(201, np.nan)).axes) == 1


def test_lines_of_equal_labels_have_one_colour_and_one_name():
    steps = np.array([0.0, 100])
    (axes,) = draw_lines([("iql", steps, steps), ("bc", steps, -steps), ("iql", steps, steps + 1)], "loss").axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0, 100], [0, -100], [1, 101]]
    assert [line.get_color() for line in axes.lines] == [COLOURS[0], COLOURS[1], COLOURS[0]]
    assert get_texts(axes.get_legend().get_texts()) == ["iql", "bc"] and axes.get_xlabel() == "updates"
    (axes,) = draw_lines([("iql", steps, steps), ("iql", steps, -steps)], "loss").axes
    assert axes.get_legend() is None
