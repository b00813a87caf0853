"""Reports on datasets: the numbers in their figures, the findings, and the choice of episodes for the viewer."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
from report_pages import paint, read_figures, read_findings, read_viewer
from rlds2reverb.training.reports import report_source, source_statistics
from rlds2reverb.training.reports.episode_viewer import make_viewer_episode, select_episodes
from rlds2reverb.training.reports.source_report import find_principal_components
from rlds2reverb.training.reports.source_statistics import SourceStatistics

from rlds2reverb import SourceError, load


def make_log(*rewards, terminated=False, size=3, **columns):
    """Returns an episode whose observations count from 10 in each column."""
    steps = np.arange(len(rewards) + 1, dtype=np.float32)[:, None]
    defaults = {
        "observations": 10 + steps * np.arange(1, size + 1, dtype=np.float32),
        "actions": steps[:-1] / 10,
        "rewards": np.array(rewards, np.float32),
        "terminated": terminated,
    }
    return {**defaults, **columns}


def collect(logs):
    statistics = SourceStatistics()
    for episode in load(logs):
        statistics.add(episode)
    statistics.finish()
    return statistics


def test_report_shows_returns_lengths_and_ends():
    logs = [make_log(1, 2, terminated=True), make_log(3), make_log(1, 1, 1)]
    figures = read_figures(report_source(logs, reference_returns=(0, 10)).html)
    bars, random, expert = figures["Returns"]["data"]
    assert bars["x"] == [3] and bars["y"] == [3]
    assert (random["name"], random["x"]) == ("random policy 0", [0, 0])
    assert (expert["name"], expert["x"]) == ("expert 10", [10, 10])
    assert figures["Lengths"]["data"][0]["x"] == [1, 2, 3] and figures["Lengths"]["data"][0]["y"] == [1, 1, 1]
    terminal, _, timeout, _ = figures["Ends of episodes across the dataset"]["data"]
    assert (terminal["x"], terminal["y"], terminal["name"]) == ([0], [2], "terminal")
    assert (timeout["x"], timeout["y"]) == ([1, 2], [1, 3])


def test_report_shows_marginals_without_the_last_steps():
    figures = read_figures(report_source([make_log(5, 5, 7), make_log(7)]).html)
    assert figures["Rewards"]["data"][0]["x"] == [5, 7] and figures["Rewards"]["data"][0]["y"] == [2, 2]
    shares = np.array(figures["Actions"]["data"][0]["y"])
    assert shares[0] == 50 and shares.sum() == 100  # The actions are 0, 0.1, 0.2 and 0.
    assert len(figures["Coverage of the states"]["data"][0]["x"]) == 4


def test_viewer_shows_the_best_the_median_and_the_lowest_return_first():
    logs = [make_log(reward, 0) for reward in range(9)]
    best, median, lowest, *others = read_viewer(report_source(logs).html)
    assert [each["label"] for each in (best, median, lowest)] == [
        "8: best return, timeout",
        "4: median return, timeout",
        "0: lowest return, timeout",
    ]
    assert best["facts"] == "return 8, 2 transitions." and best["steps"] == [0, 1, 2] and len(others) == 4
    observations, actions, rewards = best["groups"]
    assert [trace["name"] for trace in observations["traces"]] == [f"observation[{index}]" for index in range(3)]
    assert observations["traces"][1]["y"] == [10, 12, 14] and actions["traces"][0]["y"] == [0, 0.1, None]
    assert rewards["traces"][0]["y"] == [8, 0, None] and rewards["readout"][1]["y"] == [0, 8, 8]


def test_report_lists_problems_and_shows_the_invalid_episode_first():
    logs = [make_log(1, 2), make_log(np.nan, 2)]
    page = report_source(logs).html
    assert read_findings(page) == [("problem", "step['reward'] holds NaN. (episode 1, step 0, field reward)")]
    assert read_viewer(page)[0]["label"] == "1: has problems, timeout"


def test_report_shows_the_readable_part_of_a_damaged_dataset():
    def make_logs():
        yield make_log(1, 2)
        yield {"observations": 1}

    page = report_source(make_logs).html
    ((kind, sentence),) = read_findings(page)
    assert kind == "problem" and sentence.startswith("the dataset could not be read any further: ")
    assert read_figures(page)["Lengths"]["data"][0]["x"] == [2]


def test_report_raises_if_no_episode_can_be_read(tmp_path):
    def make_logs():
        yield {"observations": 1}

    with pytest.raises(SourceError):
        report_source(make_logs)
    with pytest.raises(FileNotFoundError, match="no file"):
        report_source(tmp_path / "missing.hdf5")


def test_sample_of_steps_is_bounded_and_uniform(monkeypatch):
    monkeypatch.setattr(source_statistics, "_SAMPLE_SIZE", 500)
    monkeypatch.setattr(source_statistics, "_MAX_BUFFERED_BYTES", 1000)
    statistics = collect([make_log(*[1.0] * 50) for _ in range(200)])
    sample = statistics.sample
    assert statistics.num_steps == 10_000 and len(sample.rewards) == 500
    assert abs(sample.episodes.mean() - 99.5) < 12  # Four standard errors: 200 / sqrt(12 * 500) = 2.6.
    assert (np.diff(sample.episodes) >= 0).all()
    assert abs(sample.observations[:, 0].mean() - (10 + 24.5)) < 2.7


def test_principal_components_of_scaled_columns():
    """Two columns that are equal up to their units vary together, the third one is independent of them."""
    one, other = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1])
    observations = np.stack([one, 100 * one, 7 + other, np.full(4, 3.0)], 1)
    projections, shares = find_principal_components(np.concatenate([observations, [[np.nan] * 4]]))
    np.testing.assert_allclose(shares, [2 / 3, 1 / 3])
    np.testing.assert_allclose(projections[:4], np.stack([np.sqrt(2) * one, other], 1), atol=1e-9)
    assert np.isnan(projections[4]).all()
    assert find_principal_components(np.ones((5, 3)))[0].shape == (5, 0)


def test_all_cameras_and_texts_are_shown_and_long_episodes_are_thinned_out():
    images = np.arange(5 * 6 * 8 * 3, dtype=np.uint8).reshape(5, 6, 8, 3)
    observations = {"image": images, "wrist": images[:, :4, :4, 0], "phase": np.array(list("aabbc"), object)}
    texts = np.array([b"pick\x1b up"] * 5, object)
    (episode,) = load([make_log(1, 2, 3, 4, observations=observations)])
    episode = replace(episode, steps={**episode.steps, "language_instruction": texts})
    shown = make_viewer_episode(episode, "first")
    assert [group["title"] for group in shown["groups"]] == ["actions", "reward"]
    names = [camera["name"] for camera in shown["frames"]]
    assert names == ["observation['image']", "observation['wrist']"]
    for camera in shown["frames"]:
        assert camera["steps"].tolist() == [0, 1, 2, 3, 4] and camera["width"] == 160
        assert len(camera["images"]) == 5
        assert all(image.startswith("data:image/jpeg;base64,") for image in camera["images"])
    assert shown["frames"][0]["images"][0] != shown["frames"][1]["images"][0]
    assert shown["texts"] == [
        {"name": "language_instruction", "values": ["pick\\x1b up"]},
        {"name": "observation['phase']", "values": ["a", "a", "b", "b", "c"]},
    ]
    (episode,) = load([make_log(*[1.0] * 5000)])
    shown = make_viewer_episode(episode, "first")
    assert len(shown["steps"]) == 1667 and "every third step is shown" in shown["facts"]


def test_select_episodes_skips_empty_ones():
    statistics = SourceStatistics([np.nan, 1.0], [0, 1], ["empty", "timeout"], [0, 1])
    assert select_episodes(statistics) == {1: "best return"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d4rl/pendulum_mixed-v2.hdf5", "rlds/physics_rlds/pendulum_pixels"])
def test_figures_are_valid_plotly_figures(data, name):
    import plotly.graph_objects as go

    for figure in read_figures(report_source(data / name, reference_returns=(-1500, -150)).html).values():
        go.Figure(paint({"data": figure["data"], "layout": figure["layout"]}))


@pytest.mark.slow
def test_million_step_file_gives_a_small_page(tmp_path):
    """The time is printed but not asserted: machines differ."""
    import time

    random, num_rows = np.random.default_rng(0), 1_000_000
    observations = np.cumsum(random.normal(size=(num_rows + 1, 17)).astype(np.float32), 0)
    is_end = np.arange(num_rows) % 1000 == 999
    with h5py.File(tmp_path / "million.hdf5", "w") as file:
        file["observations"], file["next_observations"] = observations[:-1], observations[1:]
        file["actions"] = np.tanh(random.normal(size=(num_rows, 6))).astype(np.float32)
        file["rewards"] = random.normal(size=num_rows).astype(np.float32)
        file["terminals"], file["timeouts"] = is_end & (random.random(num_rows) < 0.3), is_end
    begin = time.perf_counter()
    report = report_source(tmp_path / "million.hdf5", tmp_path / "report.html")
    print(f"{(tmp_path / 'report.html').stat().st_size / 1e6:.1f} MB in {time.perf_counter() - begin:.1f} s")
    assert len(report.html.encode()) < 5_000_000
