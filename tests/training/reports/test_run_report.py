"""Reports on training runs: curves, Q-values against achieved returns, throughput, and histograms."""

import re
from dataclasses import replace

import numpy as np
import pytest
from figures_shown import read_findings, read_legend, read_lines
from written_runs import STEPS, write_run

from rlds2reverb import Evaluation
from rlds2reverb.learners.curves import SPREAD
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.runs import load_run
from rlds2reverb.training.reports import report_runs
from rlds2reverb.training.reports.run_report import compare_q_values


@pytest.mark.slow
def test_report_shows_curves_over_seeds(tmp_path, figures, drawn):
    paths = [write_run(tmp_path / "a", seed=0), write_run(tmp_path / "b", seed=1, returns=(20.0, 40.0, 35.0))]
    page = report_runs([*paths, paths[0]], tmp_path / "report.html").html
    (axes,) = figures["Evaluations in Pendulum-v1"].axes
    (steps, mean), (_, behaviour) = read_lines(axes)
    assert list(steps) == list(STEPS) and list(mean) == [15, 30, 25] and list(behaviour) == [12, 12]
    assert read_legend(axes) == ["iql (2 runs)", "mean of the whole data"]
    assert axes.dataLim.y1 == 40  # Mean + standard deviation.
    assert "<td>23.3 ± 8.3</td>" in page and "<td>30.0 ± 10.0</td>" in page  # Means of runs, and the best of each.
    assert SPREAD in page


def test_report_shows_q_values_beside_achieved_returns(tmp_path, figures):
    page = report_runs(write_run(tmp_path / "a")).html
    assert "of the magnitude of the achieved" in page
    (axes,) = figures["iql"].axes
    (_, q_values), (_, achieved) = read_lines(axes)
    assert list(q_values) == [5, 8, 9] and list(achieved) == [5, 10, 7.5]
    assert read_legend(axes) == ["mean Q-value", "achieved discounted return"]
    assert axes.get_yscale() == "linear"


def test_diverged_q_values_are_a_finding_and_change_the_axis(tmp_path, figures):
    path = write_run(tmp_path / "a", "td3", q_values=(10.0, 1e4, -1e7))
    page = report_runs(path).html
    ((kind, sentence),) = read_findings(page)
    assert "of the magnitude of the achieved" not in page
    assert kind == "error" and sentence.startswith("td3: the Q-values have diverged: -1e+07 after 3,000 updates")
    (axes,) = figures["td3"].axes
    assert list(read_lines(axes)[0][1]) == [10, 10_000, -10_000_000] and axes.get_yscale() == "symlog"


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
        (-1500.0, -450.0, "error"),
        (0.0, 0.0, "good"),
    ],
)
def test_q_values_are_compared_by_ratio_and_sign(tmp_path, q_value, achieved, expected):
    data = {"data_return": 12.0}
    path = write_run(tmp_path, q_values=(1, 1, q_value), returns=(achieved,) * 3, discounted=1.0, data=data)
    kind, sentence = compare_q_values(load_run(path))
    assert kind == expected
    if kind in ("note", "warning"):
        assert f"{q_value:,.4g} after 3,000 updates, but the policy achieves {achieved:,.4g}" in sentence


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
    sections = ["Runs", "Findings", "Learning curves", "Q-values and achieved returns", "Throughput"]
    assert re.findall("<h2[^>]*>(.*?)</h2>", page) == [*sections, "Priorities and importance weights"]


def test_report_shows_losses_on_held_out_episodes(tmp_path):
    with RunDirectory(tmp_path / "a") as directory:
        for step in (10, 20):
            directory.log(step, {"loss": 2.0, "critic_loss": 1.0 / step, "validation/critic_loss": 0.1 * step})
        directory.write_config({"identity": {"algo": "iql", "seed": 0}})
    page = report_runs(tmp_path / "a").html
    assert "critic_loss: iql" in page and ">Held-out episodes<" in page
    assert "Held-out episodes" not in report_runs(write_run(tmp_path / "b")).html


def test_single_log_entries_are_visible(tmp_path, figures):
    with RunDirectory(tmp_path / "a") as directory:
        directory.log(10, {"loss": 2.0, "q_mean": 1.0, "updates_per_sec": 5.0})
        directory.write_config({"data": {"data_return": 12.0}, "identity": {"algo": "iql", "seed": 0}})
        directory.log_evaluation(10, Evaluation(np.array([1.0]), np.array([7]), (0,), discounted_return=1.0))
    run = load_run(tmp_path / "a")
    report_runs(run)
    for figure in figures.values():
        for axes in figure.axes:
            for line in axes.get_lines():
                assert len(line.get_xdata()) > 1 or line.get_marker() != "None"
    for plotted in (run, replace(run, evaluations={})):
        (axes,) = plotted.plot().axes
        assert axes.lines[0].get_marker() == "o"


@pytest.mark.parametrize(
    ("transform", "q_value", "expected"),
    [
        ({"scale": 100.0, "shift": 0.0}, 700.0, "good"),
        ({"scale": 100.0, "shift": 0.0}, 7e5, "error"),
        ({"scale": 0.01, "shift": 0.0}, 7.0, "error"),
        ({"scale": 1.0, "shift": 1.0}, 7e5, None),
        (None, 7e5, None),
    ],
)
def test_q_values_of_scaled_rewards_are_compared_in_units_of_returns(tmp_path, transform, q_value, expected):
    data = {"data_return": 12.0, "reward_transform": transform}
    run = load_run(write_run(tmp_path, q_values=(1, 1, q_value), data=data, configuration={"reward": "scale:100"}))
    found = compare_q_values(run)
    assert (found and found[0]) == expected


def test_report_shows_throughput_and_histograms(tmp_path, figures):
    report_runs(write_run(tmp_path / "a"))
    assert list(read_lines(figures["Speed"].axes[0])[0][1]) == [1100, 2100, 3100]
    assert list(read_lines(figures["Waiting for data"].axes[0])[0][1]) == [25, 25, 25]
    weights = figures["Importance weights: iql"].axes[0]
    assert read_legend(weights) == ["step 1,000", "step 2,000", "step 3,000"]
    assert max(weights.patches[0].get_data().values) == pytest.approx(200 / 3)
    for patch in figures["Priorities: iql"].axes[0].patches:
        assert patch.get_data().values.sum() == pytest.approx(100)


def test_report_accepts_runs_experiments_and_runs_without_evaluations(tmp_path, figures):
    with RunDirectory(tmp_path / "a") as directory:
        directory.log(10, {"loss": 2.0})
    page = report_runs(load_run(tmp_path / "a")).html
    assert read_findings(page) == [("note", f"no evaluations were logged in {tmp_path / 'a'}")]
    assert list(read_lines(figures["Loss"].axes[0])[0][1]) == [2]


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
def test_report_on_an_experiment_contains_films_of_its_policies(data, tmp_path, figures):
    from rlds2reverb import load_experiment, train_seeds

    options = {"steps": 40, "eval_every": 20, "eval_episodes": 1, "hyperparameters": {"hidden_sizes": (8,)}}
    train_seeds(data / "d4rl/pendulum_mixed-v2.hdf5", "td3_bc", tmp_path, seeds=2, progress=False, **options)
    page = report_runs(load_experiment(tmp_path), tmp_path / "a.html", has_films=True).html
    assert page.count("data:video/mp4;base64,") == 1  # The two seeds share a curve.
    assert read_legend(figures["td3_bc"].axes[0])[-1] == "achieved discounted return"
