"""Estimates of policies as text, files and figures."""

import json
from dataclasses import replace

import numpy as np
from matplotlib.colors import to_hex

from rlds2reverb.learners.figure_style import GREY
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training.policy_estimates import (
    PolicyEstimate,
    draw_estimates,
    format_estimates,
    group_estimates,
    load_estimate,
    order_estimates,
    save_estimates,
)

LOW = PolicyEstimate("runs/low", "fqe", 10.0, (8.0, 12.5), 0.9, 0.99, "maze", 40, True, 11.0, 14.0, warnings=("odd",))
HIGH = replace(
    LOW, policy="runs/high", method="wdr", estimate=1234.5, behaviour="cloned", effective_sample_size=7.25,
    held_out_loss=0.0123, doubts=("few episodes",),
)  # fmt: skip


def test_estimates_are_ordered_by_lower_ends_and_marked_unless_they_are_comparable():
    assert order_estimates([LOW, HIGH]) == [HIGH, LOW]
    assert order_estimates([replace(HIGH, interval=(7.9, 2000.0)), LOW])[0] == LOW
    for change in ({"gamma": 0.9}, {"num_episodes": 39}, {"data_return": 10.5}):
        first, second = order_estimates([LOW, replace(HIGH, **change)])
        assert "not comparable, because the discounts or the held-out episodes" in first.warnings[0]
        assert first.warnings[1:] == ("odd",) and second == LOW


def test_estimates_are_described_in_text():
    assert str(HIGH).splitlines() == [
        "runs/high: weighted doubly robust 1,234, 90% interval 8 to 12.5: can't tell",
        "from 40 held-out episodes of maze, discount 0.99; their discounted returns are 11 on average and 14 at best",
        "loss of the fit on episodes outside the bootstrap samples: 0.0123",
        "effective sample size 7.2 episodes; behaviour probabilities: cloned",
        "can't tell: few episodes",
        "warning: odd",
    ]
    table = format_estimates([HIGH, LOW]).splitlines()
    header = ["policy", "method", "estimate", "90%", "interval", "verdict", "effective", "sample", "size"]
    assert table[0].split() == header and [row.split()[-1] for row in table[1:3]] == ["7.2", "-"]
    assert "can't tell" in table[1] and "supported by the data" in table[2]
    assert table[3:] == ["no order is certain, because the intervals overlap"]
    assert "from 40 episodes of maze" in str(replace(LOW, is_held_out=False))


def test_saved_estimates_are_one_document_or_a_list(tmp_path):
    path = tmp_path / "estimate.json"
    HIGH.save(path)
    assert json.loads(path.read_text()) == HIGH.as_dict()
    save_estimates([HIGH, LOW], path)
    assert [document["policy"] for document in json.loads(path.read_text())] == ["runs/high", "runs/low"]
    save_json(path, HIGH.as_dict())
    assert load_estimate(path) == HIGH
    path.write_text("{")
    assert load_estimate(path) is None and load_estimate(tmp_path / "missing.json") is None


def test_figure_has_an_interval_and_a_mark_for_each_policy_from_top_to_bottom():
    (axes,) = draw_estimates([HIGH, LOW]).axes
    *marks, data = axes.lines
    shown = [(list(line.get_xdata()), list(np.unique(line.get_ydata()))) for line in marks]
    assert shown == [([8, 12.5], [0]), ([1234.5], [0]), ([8, 12.5], [1]), ([10], [1])]
    assert [marks[1].get_fillstyle(), marks[3].get_fillstyle()] == ["none", "full"]
    assert list(data.get_xdata()) == [11, 11] and to_hex(data.get_color()) == to_hex(GREY)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["runs/high", "runs/low"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1] and axes.get_xlabel() == "discounted return (discount 0.99)"
    title, subtitle = axes.get_title().splitlines()
    assert title == "weighted doubly robust from maze, 90% intervals" and subtitle.startswith("no order is certain")
    assert read_labels(axes.figure) == ["mean return of the data"]
    assert len(draw_estimates([HIGH, replace(LOW, data_return=12.0)]).axes[0].lines) == 4


def read_labels(figure):
    """Returns the texts of the legend below a figure."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def make_ordered(*intervals):
    """Returns estimates a, b, ... with these intervals."""
    return [
        replace(LOW, policy=name, estimate=sum(interval) / 2, interval=interval)
        for name, interval in zip("abcd", intervals, strict=False)
    ]


def test_order_is_certain_between_groups_whose_intervals_do_not_overlap():
    estimates = make_ordered((20, 30), (19, 21), (12, 14), (1, 2))
    assert [[result.policy for result in group] for group in group_estimates(estimates)] == [["a", "b"], ["c"], ["d"]]
    sentence = "certain, because the intervals do not overlap: a or b > c > d"
    assert format_estimates(estimates).splitlines()[-1] == sentence
    figure = draw_estimates(estimates)
    lines = [list(line.get_ydata()) for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 1]]
    assert lines == [[1.5, 1.5], [2.5, 2.5]] and figure.axes[0].get_title().endswith("90% intervals")
    assert read_labels(figure) == ["mean return of the data", "the order across this line is certain"]
    # The wide interval of c reaches those of a and b, which do not overlap.
    assert len(group_estimates(make_ordered((20, 30), (12, 14), (5, 25)))) == 1
