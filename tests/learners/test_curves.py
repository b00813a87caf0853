"""Curves: means and bands worked by hand, which runs become one curve, and that every figure is drawn."""

from pathlib import Path

import numpy as np
import pytest
from rlds2reverb.learners.curves import draw_curves, learning_curves, save_png, waiting_shares
from rlds2reverb.learners.run_directory import PRIORITY_BINS, Run


def run(
    algo="iql", seed=0, *, steps=(0, 10), means=(1, 3), stds=(0, 0), path=None, references=(0, 10), data=2.0, **settings
):
    """A run with scores of ten times its returns."""
    columns = {"step": steps, "mean": means, "std": stds, "score": 10 * np.asarray(means, float)}
    configuration = {"algo": algo, "seed": seed, "run_dir": f"runs/{algo}_{seed}", **settings} if algo else {}
    config = {"configuration": configuration, "environment": "Hopper-v5", "reference_returns": references}
    return Run(
        Path(path or f"runs/{algo}_{seed}"),
        {**config, "data": {"behaviour_return": data}},
        {},
        {name: np.asarray(column, np.float64) for name, column in columns.items()},
        np.zeros((0, len(PRIORITY_BINS)), np.int64),
        np.zeros(0, np.int64),
    )


def logged(of, *, waits=(), priorities=False):
    """The run with rows of seconds (step, waited, trained), and with two histograms of priorities."""
    progress = dict(zip(("step", "data_wait_secs", "train_secs"), np.array(waits, float).T, strict=False))
    histograms = np.zeros((2, len(PRIORITY_BINS)), np.int64)
    histograms[:, 40:42] = 1, 3
    shown = (histograms, np.array([10, 20])) if priorities else (of.priorities, of.priority_steps)
    return Run(of.path, of.config, progress, of.evaluations, *shown)


def test_runs_that_differ_in_their_seed_are_one_curve_with_a_band_over_runs():
    (curve,) = learning_curves([run(seed=0), run(seed=1, means=(3, 7))], metric="return")
    assert curve.label == "iql" and len(curve.runs) == 2 and curve.behaviour == 2.0
    assert curve.steps.tolist() == [0, 10] and curve.mean.tolist() == [2, 5] and curve.std.tolist() == [1, 2]
    assert curve.best == 5 and curve.last == (3.5, np.std([1, 3, 3, 7]))


def test_the_band_of_one_run_is_over_its_episodes_in_the_unit_of_the_metric():
    (curve,) = learning_curves([run(stds=(0.5, 1))])
    assert curve.metric == "score" and curve.mean.tolist() == [10, 30] and curve.std.tolist() == [5, 10]
    assert curve.behaviour == 20
    (curve,) = learning_curves([run(stds=(0.5, 1))], metric="return")
    assert curve.std.tolist() == [0.5, 1] and curve.behaviour == 2


def test_the_last_five_evaluations_are_counted():
    (curve,) = learning_curves([run(steps=range(7), means=[99, 50, 1, 2, 3, 4, 5], stds=[0] * 7)], metric="return")
    assert curve.last == (3, np.std([1, 2, 3, 4, 5])) and curve.best == 99


def test_runs_evaluated_at_other_steps_are_interpolated_where_they_overlap():
    """At 10 and 20 the first run has 1 and 2, the second, between 0 at 5 and 4 at 25, has 1 and 3."""
    runs = [run(steps=(0, 10, 20), means=(0, 1, 2), stds=(0,) * 3), run(seed=1, steps=(5, 25), means=(0, 4))]
    (curve,) = learning_curves(runs, metric="return")
    assert curve.steps.tolist() == [5, 10, 20] and curve.mean.tolist() == [0.25, 1, 2.5]
    with pytest.raises(ValueError, match="the runs of iql have no steps in common"):
        learning_curves([run(), run(seed=1, steps=(20, 30))])


def test_curves_are_named_by_what_differs():
    runs = [run(n_step=1), run(n_step=3), run("bc", n_step=1, seed=4)]
    assert [curve.label for curve in learning_curves(runs)] == ["iql, n_step 1", "iql, n_step 3", "bc, n_step 1"]
    by_path = [run(None, path="runs/a"), run(None, path="runs/b")]
    assert [curve.label for curve in learning_curves(by_path)] == ["a", "b"]
    (long, _) = learning_curves([run(layers=[256] * 20), run(layers=[])])
    assert len(long.label) == 34 and long.label.endswith("…")


def test_scores_are_drawn_where_all_runs_have_some():
    without = run("bc", references=None)
    without.evaluations["score"][:] = np.nan
    assert {curve.metric for curve in learning_curves([run(), without])} == {"return"}
    with pytest.raises(ValueError, match="runs/bc_0 has no scores, since no reference returns were given"):
        learning_curves([run(), without], metric="score")


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="there are no runs, expected at least one"):
        learning_curves([])
    with pytest.raises(ValueError, match="no evaluation has been logged in runs/iql_0; train with an environment"):
        learning_curves([run(steps=(), means=(), stds=())])
    with pytest.raises(ValueError, match="metric is 'loss', expected one of"):
        learning_curves([run()], metric="loss")


def test_the_share_of_waiting_is_of_the_time_in_each_stretch():
    """Of two runs: 1 + 0 of 4 + 4 seconds up to step 10, 2 + 1 of 4 + 2 up to step 20."""
    first = logged(run(), waits=[(10, 1, 3), (20, 2, 2)])
    second = logged(run(), waits=[(10, 0, 4), (20, 1, 1), (30, np.nan, 1), (40, 0, 0)])
    steps, shares = waiting_shares([first, second, run()])
    assert steps.tolist() == [10, 20] and shares.tolist() == [1 / 8, 3 / 6]
    assert [len(part) for part in waiting_shares([run()])] == [0, 0]
    many = logged(run(), waits=[(step, 1, 3) for step in range(1000)])
    assert len(waiting_shares([many])[0]) == 50 and set(waiting_shares([many])[1]) == {0.25}


def test_a_figure_shows_curves_behaviour_waiting_and_priorities(tmp_path):
    shown = logged(run(), waits=[(10, 1, 3), (20, 2, 2)], priorities=True)
    figure = draw_curves(learning_curves([shown, run("bc"), run("bc", seed=1)]))
    curves, waiting, priorities = figure.axes
    assert curves.get_title() == "Hopper-v5" and curves.get_ylabel() == "normalised score, ± std over runs"
    legend = [text.get_text() for text in curves.get_legend().get_texts()]
    assert legend == ["iql", "bc (2 runs)", "the data's behaviour"]
    dashed = curves.get_lines()[-1]
    assert dashed.get_linestyle() == "--" and list(dashed.get_ydata()) == [20, 20]
    assert waiting.get_lines()[0].get_ydata().tolist() == [25, 50]
    assert [text.get_text() for text in priorities.get_legend().get_texts()] == ["step 10", "step 20"]
    assert priorities.patches[0].get_data().values[[40, 41]].tolist() == [25, 75]
    save_png(figure, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and len(list(tmp_path.iterdir())) == 1


def test_figures_without_logs_and_with_many_curves_are_drawn(tmp_path):
    for number in (1, 9):
        runs = [run(n_step=n, steps=(10,), means=(n,), stds=(1,), data=None) for n in range(number)]
        figure = draw_curves(learning_curves(runs), title="all of them")
        assert len(figure.axes) == 1 and figure.axes[0].get_title() == "all of them"
        save_png(figure, tmp_path / f"{number}.png")
