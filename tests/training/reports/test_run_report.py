"""Reports on training runs: curves, Q-values against achieved returns, throughput, and histograms."""

from dataclasses import replace

import numpy as np
import pytest
from report_pages import paint, read_figures, read_findings
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.runs import load_run
from rlds2reverb.training.reports import report_runs
from rlds2reverb.training.reports.run_report import _Scale, compare_q_values
from written_runs import STEPS, write_run

from rlds2reverb import Evaluation


def test_report_shows_curves_over_seeds_with_last_and_best(tmp_path):
    paths = [write_run(tmp_path / "a", seed=0), write_run(tmp_path / "b", seed=1, returns=(20.0, 40.0, 35.0))]
    page = report_runs([*paths, paths[0]], tmp_path / "report.html").html
    band, line, marks, behaviour = read_figures(page)["Evaluations in Pendulum-v1"]["data"]
    assert line["name"] == "iql (2 runs)" and line["x"] == list(STEPS) and line["y"] == [15, 30, 25]
    assert band["y"] == [20, 40, 35, 15, 20, 10]  # Mean + standard deviation, and back along mean - deviation.
    assert marks["x"] == [2000, 3000] and marks["y"] == [30, 25]
    assert behaviour["y"] == [12, 12]
    assert "<td>25.0 ± " not in page and "<td>30.0</td>" in page  # The best of each run, averaged.


def test_report_shows_q_values_beside_achieved_returns(tmp_path):
    figure = read_figures(report_runs(write_run(tmp_path / "a")).html)["iql"]
    q_values, achieved = figure["data"]
    assert q_values["y"] == [5, 8, 9] and achieved["y"] == [5, 10, 7.5]
    assert (q_values["name"], achieved["name"]) == ("mean Q-value", "achieved discounted return")
    assert "tickvals" not in figure["layout"]["yaxis"]


def test_diverged_q_values_are_a_finding_and_change_the_axis(tmp_path):
    path = write_run(tmp_path / "a", "td3", q_values=(10.0, 1e4, -1e7))
    page = report_runs(path).html
    ((kind, sentence),) = read_findings(page)
    assert kind == "problem" and sentence.startswith("td3: the Q-values have diverged: -1e+07 after 3,000 updates")
    figure = read_figures(page)["td3"]
    assert figure["data"][0]["customdata"] == [10, 10_000, -10_000_000]
    assert figure["layout"]["yaxis"]["ticktext"][0] == "-1e7" and "0" in figure["layout"]["yaxis"]["ticktext"]


@pytest.mark.parametrize(
    ("q_value", "achieved", "expected"),
    [
        (-450.0, -450.0, "good"),
        (-160.0, -450.0, "good"),
        (-1300.0, -450.0, "good"),
        (-5.0, -450.0, "note"),
        (5.0, -450.0, "note"),
        (400.0, -450.0, "warning"),
        (-5.0, 1.5, "warning"),
        (30.0, 1.5, "warning"),
        (-1500.0, -450.0, "problem"),
        (0.0, 0.0, "good"),
    ],
)
def test_q_values_are_compared_by_ratio_and_sign(tmp_path, q_value, achieved, expected):
    data = {"behaviour_return": 12.0}
    path = write_run(tmp_path, q_values=(1, 1, q_value), returns=(achieved,) * 3, discounted=1.0, data=data)
    kind, sentence = compare_q_values(load_run(path))
    assert kind == expected
    if kind in ("note", "warning"):
        assert f"{q_value:,.4g} after 3,000 updates, but the policy achieves {achieved:,.4g}" in sentence
    assert ("of the magnitude of the achieved" in report_runs(path).html) == (kind == "good")


@pytest.mark.parametrize(
    ("q_value", "returns", "expected"),
    [(30.0, (50, -40, 0), "good"), (30.0, (50, -40, -1), "good"), (-120.0, (-1200, -600, -150), "good")],
)
def test_returns_that_change_are_compared_with_the_last_and_the_largest_ones(tmp_path, q_value, returns, expected):
    path = write_run(tmp_path, q_values=(1, 1, q_value), returns=returns, discounted=1.0)
    assert compare_q_values(load_run(path))[0] == expected


def test_report_says_nothing_on_q_values_of_runs_without_them(tmp_path):
    with RunDirectory(tmp_path / "bc") as directory:
        directory.log(10, {"loss": 2.0})
        directory.log_evaluation(10, Evaluation(np.array([1.0]), np.array([7]), (0,), discounted_return=1.0))
    assert compare_q_values(load_run(tmp_path / "bc")) is None
    page = report_runs(load_run(tmp_path / "bc")).html
    assert "No run stopped with an error." in page and "Q-values" not in page
    page = report_runs([tmp_path / "bc", write_run(tmp_path / "iql")]).html
    assert "of the achieved discounted returns in 1 of 2 runs, which logged both." in page


def test_single_log_entries_are_visible(tmp_path):
    with RunDirectory(tmp_path / "a") as directory:
        directory.log(10, {"loss": 2.0, "q_mean": 1.0, "steps_per_sec": 5.0})
        directory.write_config({"data": {"behaviour_return": 12.0}, "identity": {"algo": "iql", "seed": 0}})
        directory.log_evaluation(10, Evaluation(np.array([1.0]), np.array([7]), (0,), discounted_return=1.0))
    run = load_run(tmp_path / "a")
    for heading, figure in read_figures(report_runs(run).html).items():
        for trace in figure["data"]:
            assert len(set(trace["x"])) > 1 or "markers" in trace["mode"] or "fill" in trace, heading
    for each in (run, replace(run, evaluations={})):
        (axes,) = each.plot().axes
        assert axes.lines[0].get_marker() == "o"


@pytest.mark.parametrize(
    ("transform", "q_value", "expected"),
    [
        ({"scale": 100.0, "shift": 0.0}, 700.0, "good"),
        ({"scale": 100.0, "shift": 0.0}, 7e5, "problem"),
        ({"scale": 0.01, "shift": 0.0}, 7.0, "problem"),
        ({"scale": 1.0, "shift": 1.0}, 7e5, None),
        (None, 7e5, None),
    ],
)
def test_q_values_of_scaled_rewards_are_compared_in_units_of_returns(tmp_path, transform, q_value, expected):
    data = {"behaviour_return": 12.0, "reward_transform": transform}
    run = load_run(write_run(tmp_path, q_values=(1, 1, q_value), data=data, configuration={"reward": "scale:100"}))
    found = compare_q_values(run)
    assert (found and found[0]) == expected


def test_scale_of_large_values_keeps_signs_and_order():
    values = np.array([-1e6, -10.0, 0.0, 10.0, 1e6])
    scale = _Scale(values, [np.array([5.0])])
    positions = scale.to_axis(values)
    assert (np.diff(positions) > 0).all() and positions[2] == 0
    np.testing.assert_allclose(positions, -positions[::-1])
    assert scale.ticks["ticktext"][0] == "-1e6" and scale.ticks["ticktext"][-1] == "1e6"


def test_report_shows_throughput_and_histograms(tmp_path):
    figures = read_figures(report_runs(write_run(tmp_path / "a")).html)
    assert figures["Speed"]["data"][0]["y"] == [1100, 2100, 3100]
    assert figures["Waiting for data"]["data"][0]["y"] == [25, 25, 25]
    weights = figures["Importance weights: iql"]["data"][0]
    assert weights["x"] == list(STEPS) and np.array(weights["z"]).max() == pytest.approx(66.667)
    np.testing.assert_allclose(np.sum(figures["Priorities: iql"]["data"][0]["z"], 0), 100)


def test_report_accepts_runs_experiments_and_runs_without_evaluations(tmp_path):
    with RunDirectory(tmp_path / "a") as directory:
        directory.log(10, {"loss": 2.0})
    page = report_runs(load_run(tmp_path / "a")).html
    assert read_findings(page) == [("note", f"no evaluations were logged in {tmp_path / 'a'}")]
    assert read_figures(page)["Loss"]["data"][0]["y"] == [2]


def test_report_raises_without_runs_or_logs(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        report_runs([])
    with pytest.raises(ValueError, match="must be the directory of a training run"):
        report_runs(tmp_path)
    with RunDirectory(tmp_path / "a") as directory:
        directory.write_config({})
    with pytest.raises(ValueError, match="must have logged something, got .*; train for a while first"):
        report_runs(tmp_path / "a")


def test_runs_without_policies_are_not_filmed(tmp_path):
    page = report_runs(write_run(tmp_path / "a"), has_films=True).html
    assert read_findings(page)[-1] == ("note", f"iql has not been filmed, because {tmp_path / 'a'} has no policy")


@pytest.mark.slow
def test_figures_are_valid_plotly_figures(tmp_path):
    import plotly.graph_objects as go

    paths = [write_run(tmp_path / algo, algo, q_values=(1.0, 1e5, 1e9)) for algo in ("td3", "iql")]
    for figure in read_figures(report_runs(paths).html).values():
        go.Figure(paint({"data": figure["data"], "layout": figure["layout"]}))


@pytest.mark.slow
def test_report_on_an_experiment_contains_films_of_its_policies(data, tmp_path):
    from rlds2reverb import load_experiment, train

    options = {"steps": 40, "eval_every": 20, "eval_episodes": 1, "hyperparameters": {"hidden_sizes": (8,)}}
    train(data / "d4rl/pendulum_mixed-v2.hdf5", "td3_bc", tmp_path, seeds=2, progress=False, **options)
    page = report_runs(load_experiment(tmp_path), tmp_path / "a.html", has_films=True).html
    assert page.count("data:video/mp4;base64,") == 1  # The two seeds share a curve.
    assert read_figures(page)["td3_bc"]["data"][-1]["name"] == "achieved discounted return"
