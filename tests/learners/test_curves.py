"""Curves: hand-computed means and bands, the grouping of runs into curves, and the figures."""

from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.learners.curves import data_wait_shares, draw_curves, learning_curves
from rlds2reverb.learners.figure_style import save_figure
from rlds2reverb.learners.run_directory import PRIORITY_BINS
from rlds2reverb.learners.runs import Run


def make_run(
    algo="iql", seed=0, *, steps=(0, 10), means=(1, 3), stds=(0, 0), path=None, references=(0, 10), data=2.0, **settings
):
    """Returns a run whose scores are ten times its returns."""
    columns = {"step": steps, "mean": means, "std": stds, "score": 10 * np.asarray(means, float)}
    identity = {"algo": algo, "seed": seed, **settings} if algo else {}
    config = {"identity": identity, "environment": "Hopper-v5", "reference_returns": references}
    return Run(
        Path(path or f"runs/{algo}_{seed}"),
        {**config, "data": {"data_return": data}},
        {},
        {name: np.asarray(column, np.float64) for name, column in columns.items()},
        np.zeros((0, len(PRIORITY_BINS)), np.int64),
        np.zeros(0, np.int64),
    )


def add_logs(run, *, waits=(), priorities=False):
    """Returns the run with rows of (step, waiting seconds, training seconds), and with two histograms of priorities."""
    progress = dict(zip(("step", "data_wait_secs", "train_secs"), np.array(waits, float).T, strict=False))
    histograms = np.zeros((2, len(PRIORITY_BINS)), np.int64)
    histograms[:, 40:42] = 1, 3
    logged = (histograms, np.array([10, 20])) if priorities else (run.priorities, run.priority_steps)
    return Run(run.path, run.config, progress, run.evaluations, *logged)


def test_runs_with_different_seeds_form_one_curve_with_a_band_over_runs():
    (curve,) = learning_curves([make_run(seed=0), make_run(seed=1, means=(3, 7))], metric="return")
    assert curve.label == "iql" and len(curve.runs) == 2 and curve.data_return == 2.0
    assert curve.steps.tolist() == [0, 10] and curve.mean.tolist() == [2, 5] and curve.std.tolist() == [1, 2]
    assert curve.summarize() == {"last": (5, 2), "last_five": (5, 2), "best": (5, 2)}


def test_band_of_a_single_run_is_over_its_episodes():
    (curve,) = learning_curves([make_run(stds=(0.5, 1))])
    assert curve.metric == "score" and curve.mean.tolist() == [10, 30] and curve.std.tolist() == [5, 10]
    assert curve.data_return == 20
    (curve,) = learning_curves([make_run(stds=(0.5, 1))], metric="return")
    assert curve.std.tolist() == [0.5, 1] and curve.data_return == 2


def test_last_averages_the_last_five_evaluations():
    (curve,) = learning_curves([make_run(steps=range(7), means=[99, 50, 1, 2, 3, 4, 5], stds=[0] * 7)], metric="return")
    assert curve.summarize() == {"last": (5, 0), "last_five": (3, 0), "best": (50, 0)}  # The first precedes training.


def test_runs_evaluated_at_different_steps_are_interpolated():
    """At steps 10 and 20 the first run has 1 and 2; the second one, with 0 at 5 and 4 at 25, has 1 and 3."""
    runs = [make_run(steps=(0, 10, 20), means=(0, 1, 2), stds=(0,) * 3), make_run(seed=1, steps=(5, 25), means=(0, 4))]
    (curve,) = learning_curves(runs, metric="return")
    assert curve.steps.tolist() == [5, 10, 20] and curve.mean.tolist() == [0.25, 1, 2.5]
    separate = learning_curves([make_run(), make_run(seed=1, steps=(20, 30)), make_run("bc")])
    assert [(curve.label, curve.steps.tolist()) for curve in separate] == [
        ("iql, seed 0", [0, 10]),
        ("iql, seed 1", [20, 30]),
        ("bc", [0, 10]),
    ]


def test_labels_contain_the_settings_that_differ():
    runs = [make_run(n_step=1), make_run(n_step=3), make_run("bc", n_step=1, seed=4)]
    assert [curve.label for curve in learning_curves(runs)] == ["iql, n_step 1", "iql, n_step 3", "bc"]
    cloned = [make_run("bc", top_percent=None), make_run("bc", top_percent=10.0)]
    assert [curve.label for curve in learning_curves(cloned)] == ["bc", "bc, top_percent 10"]
    by_path = [make_run(None, path="runs/a"), make_run(None, path="runs/b")]
    assert [curve.label for curve in learning_curves(by_path)] == ["a", "b"]
    curves = learning_curves([make_run(layers=[256] * 20), make_run(layers=[])])
    assert curves[0].label == f"iql, layers {[256] * 20}"
    (axes,) = draw_curves(curves).axes
    shown = axes.get_legend().get_texts()[0].get_text()
    assert shown.replace("\n", " ") == curves[0].label and max(map(len, shown.splitlines())) <= 34


def test_each_environment_has_its_own_panel():
    runs = [make_run(), make_run("bc"), make_run()]
    runs[2].config["environment"] = "Pendulum-v1"
    runs[2].config["identity"]["environment"] = "Pendulum-v1"
    panels = draw_curves(learning_curves(runs)).axes
    assert [axes.get_title() for axes in panels] == ["Hopper-v5", "Pendulum-v1"]
    assert draw_curves(learning_curves(runs), title="returns").get_suptitle() == "returns"
    assert [len(axes.get_legend().get_texts()) for axes in panels] == [3, 2]


def test_scores_are_used_only_if_all_runs_have_them():
    without = make_run("bc", references=None)
    without.evaluations["score"][:] = np.nan
    assert {curve.metric for curve in learning_curves([make_run(), without])} == {"return"}
    with pytest.raises(ValueError, match="runs/bc_0 has no scores; plot returns, or train with reference returns"):
        learning_curves([make_run(), without], metric="score")


def test_runs_without_evaluations_raise():
    with pytest.raises(ValueError, match="runs must contain at least one run"):
        learning_curves([])
    with pytest.raises(ValueError, match="no evaluations were logged in runs/iql_0; train with an environment"):
        learning_curves([make_run(steps=(), means=(), stds=())])
    with pytest.raises(ValueError, match="metric must be one of .*, got 'loss'"):
        learning_curves([make_run()], metric="loss")


def test_data_wait_share_is_computed_for_each_interval():
    """The two runs wait 1 + 0 of 4 + 4 seconds up to step 10, and 2 + 1 of 4 + 2 seconds up to step 20."""
    first = add_logs(make_run(), waits=[(10, 1, 3), (20, 2, 2)])
    second = add_logs(make_run(), waits=[(10, 0, 4), (20, 1, 1), (30, np.nan, 1), (40, 0, 0)])
    steps, shares = data_wait_shares([first, second, make_run()])
    assert steps.tolist() == [10, 20] and shares.tolist() == [1 / 8, 3 / 6]
    assert [len(part) for part in data_wait_shares([make_run()])] == [0, 0]
    many = add_logs(make_run(), waits=[(step, 1, 3) for step in range(1000)])
    assert len(data_wait_shares([many])[0]) == 50 and set(data_wait_shares([many])[1]) == {0.25}


def test_figure_shows_curves_behaviour_data_waits_and_priorities(tmp_path, drawn):
    run = add_logs(make_run(), waits=[(10, 1, 3), (20, 2, 2)], priorities=True)
    figure = draw_curves(learning_curves([run, make_run("bc"), make_run("bc", seed=1)]))
    curves, waits, priorities = figure.axes
    assert curves.get_title() == "Hopper-v5" and curves.get_ylabel().endswith(
        "± std over seeds (over episodes for single runs)"
    )
    legend = [text.get_text() for text in curves.get_legend().get_texts()]
    assert legend == ["iql", "bc (2 runs)", "mean of the whole data"]
    dashed = curves.get_lines()[-1]
    assert dashed.get_linestyle() == "--" and list(dashed.get_ydata()) == [20, 20]
    assert waits.get_lines()[0].get_ydata().tolist() == [25, 50]
    assert [text.get_text() for text in priorities.get_legend().get_texts()] == ["step 10", "step 20"]
    assert priorities.patches[0].get_data().values[[40, 41]].tolist() == [25, 75]
    edges = np.log(priorities.patches[0].get_data().edges)
    np.testing.assert_allclose(np.diff(edges), edges[1] - edges[0])  # All bars are equally wide.
    (tmp_path / "curve.tmp").write_text("a user's file")
    save_figure(figure, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "curve.tmp"]


@pytest.mark.parametrize(("waited", "num_axes"), [(0.9, 1), (1.1, 2)])
def test_time_spent_waiting_for_data_is_drawn_above_ten_percent(waited, num_axes):
    run = add_logs(make_run(), waits=[(10, waited, 10 - waited), (20, waited, 10 - waited)])
    assert len(draw_curves(learning_curves([run])).axes) == num_axes


def test_points_of_a_curve_are_marked_from_the_evaluation_at_0():
    (axes,) = draw_curves(learning_curves([make_run(data=None)])).axes
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [0, 10] and line.get_marker() == "o"
    (axes,) = draw_curves(learning_curves([make_run(steps=(10, 20), data=None)])).axes
    assert axes.get_xlim()[0] < 0 and axes.get_xlabel() == "updates"
    many = make_run(steps=range(50), means=[1] * 50, stds=[0] * 50, data=None)
    assert draw_curves(learning_curves([many])).axes[0].get_lines()[0].get_marker() == "None"


def test_figure_shows_where_the_online_phase_begins():
    run = make_run(steps=(10, 20))
    run.config["configuration"] = {"steps": 10, "online_steps": 30}
    (axes,) = draw_curves(learning_curves([run, make_run("bc")])).axes
    assert [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"] == [10]
    assert "the online phase begins" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_figures_without_logs_or_with_many_curves_are_drawn(tmp_path, drawn):
    for number in (1, 9):
        runs = [make_run(n_step=n, steps=(10,), means=(n,), stds=(1,), data=None) for n in range(number)]
        figure = draw_curves(learning_curves(runs), title="all of them")
        assert len(figure.axes) == 1 and figure.axes[0].get_title() == "all of them"
        save_figure(figure, tmp_path / f"{number}.png")
