"""Findings on the page of a dataset: the table, and the figures of the steps concerned."""

from dataclasses import replace

import numpy as np
import pytest

from rlds2reverb import SourceError, load, report_source
from rlds2reverb.datasets.dataset_statistics import DatasetStatistics
from rlds2reverb.training.reports import dataset_report
from rlds2reverb.training.reports.dataset_report import draw_place, report_statistics
from rlds2reverb.types.episodes import Episode


def make_steps(num_steps=40):
    random = np.random.default_rng(num_steps)
    steps = np.arange(num_steps)
    return {
        "observation": {
            "image": random.integers(50, 200, (num_steps, 16, 16, 3)).astype(np.uint8),
            "state": np.sin(steps[:, None] / [[3.0, 4, 5]]).astype(np.float32),
        },
        "action": random.normal(0, 0.2, (num_steps, 2)).astype(np.float32) * (steps < num_steps - 1)[:, None],
        "reward": random.normal(1, 0.1, num_steps).astype(np.float32) * (steps < num_steps - 1),
        "discount": np.ones(num_steps, np.float32),
        "is_first": steps == 0,
        "is_last": steps == num_steps - 1,
        "is_terminal": np.zeros(num_steps, bool),
        "timestamp": steps / 10,
        "task": np.full(num_steps, b"push", object),
    }


def make_source(*, black_at=slice(0), late_from=40):
    data = [make_steps(40 + number) for number in range(3)]
    data[1]["observation"]["image"][black_at] = 0
    data[1]["timestamp"][late_from:] += 3
    return load(data)


@pytest.mark.slow
def test_report_lists_findings_with_figures_of_their_first_place(tmp_path, monkeypatch):
    places = []
    monkeypatch.setattr(
        dataset_report,
        "draw_place",
        lambda episode, step, names: places.append((episode.index, step, names)) or draw_place(episode, step, names),
    )
    source = make_source(black_at=20, late_from=30)
    report = report_source(source, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == report.html
    assert sorted(places) == [(1, 20, ["observation"]), (1, 30, ["timestamp"])]
    for text in (
        "<td>black-images</td>",
        "<td>dropped-frames</td>",
        "First in episode 1, step 20. task: push.",
    ):
        assert text in report.html
    assert report.html.count('alt="black-images"') == report.html.count('alt="dropped-frames"') == 1


def test_report_without_findings_says_so():
    source = make_source()
    html = report_source(source).html
    assert "No errors, warnings or notes: flags" in html and "No findings: no check found a mistake." in html


def test_figure_shows_ten_images_around_the_step_and_marks_it():
    steps = make_steps()
    figure = draw_place(Episode(steps, 3), 20, ["timestamp", "is_last", "steps"])
    camera, state, action, reward, times = figure.axes
    assert [label.get_text() for label in camera.get_xticklabels()] == [f"step {step}" for step in range(15, 25)]
    assert [axes.get_ylabel() for axes in (state, action, reward, times)] == [
        "observation",
        "action",
        "reward",
        "timestamp",
    ]
    for axes in (state, action, reward, times):
        assert axes.lines[-1].get_xdata() == [20, 20]
        assert axes.get_xlim() == (15, 24)
    np.testing.assert_array_equal(state.lines[0].get_xdata(), np.arange(15, 25))
    np.testing.assert_allclose(state.lines[0].get_ydata(), steps["observation"]["state"][15:25, 0])


@pytest.mark.parametrize(("num_steps", "step"), [(40, None), (12, 5)])
def test_figure_shows_the_whole_episode_without_a_step_or_if_it_is_short(num_steps, step):
    _, state, *_ = draw_place(Episode(make_steps(num_steps), 0), step).axes
    np.testing.assert_array_equal(state.lines[0].get_xdata(), np.arange(num_steps))


def test_report_shows_a_limited_number_of_figures(monkeypatch):
    source = make_source(black_at=20)
    monkeypatch.setattr(dataset_report, "MAX_FIGURES", 0)
    html = report_source(source).html
    assert "<td>black-images</td>" in html and 'alt="black-images"' not in html


def test_report_ends_where_the_source_cannot_be_read_again():
    statistics = DatasetStatistics(make_source(black_at=20))
    statistics.read(lambda stage, episode: None, "read")

    def read(*bounds):
        raise SourceError("the file is gone")

    statistics.source = replace(statistics.source, read=read)
    html = report_statistics(statistics).html
    assert "<td>black-images</td>" in html and 'alt="black-images"' not in html and "Episode 0" not in html
