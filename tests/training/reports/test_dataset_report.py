"""Reports on datasets: the numbers in their figures, the findings, and the choice of episodes."""

import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
from figures_shown import read_bars, read_findings, read_legend, read_lines

from rlds2reverb import SourceError, load
from rlds2reverb.datasets import step_sample
from rlds2reverb.datasets.dataset_statistics import DatasetStatistics
from rlds2reverb.datasets.summary import EpisodeSummary
from rlds2reverb.training.reports import report_source
from rlds2reverb.training.reports.dataset_figures import describe_texts, draw_episode, find_principal_components
from rlds2reverb.training.reports.dataset_report import select_episodes
from rlds2reverb.types import episode_batches


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
    statistics = DatasetStatistics(load(logs), has_sample=True)
    statistics.read(lambda stage, episode: None, "read")
    return statistics


def test_sample_of_a_dataset_without_steps_is_empty():
    assert [len(column) for column in step_sample.StepSampler().finish()] == [0] * 5


@pytest.mark.slow
def test_report_shows_returns_lengths_and_ends(figures, drawn):
    logs = [make_log(1, 2, terminated=True), make_log(3), make_log(1, 1, 1)]
    report_source(logs, reference_returns=(0, 10))
    (returns,) = figures["Returns"].axes
    assert read_bars(returns) == ([3], [3])
    assert read_legend(returns) == ["random policy 0", "expert 10"]
    assert [list(x) for x, _ in read_lines(returns)] == [[0, 0], [10, 10]]
    centres, heights = read_bars(figures["Lengths"].axes[0])
    np.testing.assert_allclose(centres, [1, 2, 3])
    assert heights == [1, 1, 1]
    upper, lower = figures["Ends of episodes across the dataset"].axes
    assert [(list(x), list(y)) for x, y in read_lines(upper)] == [([0], [2]), ([1, 2], [1, 3])]
    assert read_legend(upper) == ["terminal", "truncated"] and read_bars(lower)[1] == [1, 2]


def test_report_shows_marginals_without_the_last_steps(figures):
    report_source([make_log(5, 5, 7), make_log(7)])
    assert read_bars(figures["Rewards"].axes[0]) == ([5, 7], [2, 2])
    shares = figures["Actions"].axes[0].patches[0].get_data().values
    assert shares[0] == 50 and shares.sum() == 100  # The actions are 0, 0.1, 0.2 and 0.
    points, _ = figures["Coverage of the states"].axes
    assert sum(len(collection.get_offsets()) for collection in points.collections) == 4


def test_episodes_with_the_best_the_median_and_the_lowest_return_come_first(figures):
    page = report_source([make_log(reward, 0) for reward in range(9)]).html
    headings = [heading for heading in figures if heading.startswith("Episode ")]
    assert headings == [
        "Episode 8: best return, truncated",
        "Episode 4: median return, truncated",
        "Episode 0: lowest return, truncated",
    ]
    assert "Return 8, 2 transitions." in page
    observations, actions, rewards = figures[headings[0]].axes
    assert read_legend(observations) == [f"observation[{index}]" for index in range(3)]
    assert list(read_lines(observations)[1][1]) == [10, 12, 14]
    np.testing.assert_allclose(read_lines(actions)[0][1], [0, 0.1])
    assert list(read_lines(rewards)[0][1]) == [8, 0]


def test_report_lists_errors_and_shows_the_invalid_episode_first(figures):
    page = report_source([make_log(1, 2), make_log(np.nan, 2)]).html
    assert read_findings(page) == [("error", "step['reward'] holds NaN. (episode 1, step 0, field reward)")]
    headings = [heading for heading in figures if heading.startswith("Episode ")]
    assert headings[0] == "Episode 1: invalid, truncated" and "Return nan, 2 transitions." in page


def test_report_shows_the_readable_part_of_a_damaged_dataset(figures):
    def make_logs():
        yield make_log(1, 2)
        yield {"observations": 1}

    page = report_source(make_logs).html
    ((kind, sentence),) = read_findings(page)
    assert kind == "error" and sentence.startswith("the dataset could not be read any further: ")
    assert read_bars(figures["Lengths"].axes[0])[0] == [2]


def test_report_raises_if_no_episode_can_be_read(tmp_path):
    def make_logs():
        yield {"observations": 1}

    with pytest.raises(SourceError):
        report_source(make_logs)
    with pytest.raises(FileNotFoundError, match="no file"):
        report_source(tmp_path / "missing.hdf5")


def test_report_raises_the_reason_why_no_episode_can_be_read(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(SourceError, match="require PyAV"):
        report_source(data / "formats/lerobot/v3.0/c2")


def test_sample_of_steps_is_bounded_and_uniform(monkeypatch):
    monkeypatch.setattr(step_sample, "SAMPLE_SIZE", 500)
    monkeypatch.setattr(episode_batches, "MAX_BATCH_BYTES", 1000)
    sampler = collect([make_log(*[1.0] * 50) for _ in range(200)]).sampler
    sample = sampler.finish()
    assert sampler.num_steps == 10_000 and len(sample.rewards) == 500
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


def test_many_columns_are_drawn_one_below_the_other_with_their_ranges(drawn):
    (episode,) = load([make_log(1, 2, 3, size=8)])
    observations, actions, _ = draw_episode(episode).axes
    assert [label.get_text() for label in observations.get_yticklabels()] == [f"observation[{k}]" for k in range(8)]
    (ranges,) = observations.child_axes
    assert [label.get_text() for label in ranges.get_yticklabels()] == [f"10 to {10 + 3 * k}" for k in range(1, 9)]
    for place, (steps, values) in enumerate(read_lines(observations)):
        assert list(steps) == [0, 1, 2, 3]
        np.testing.assert_allclose(values, np.linspace(-0.4, 0.4, 4) - place)
    assert list(read_lines(actions)[0][1]) == pytest.approx([0, 0.1, 0.2])


@pytest.mark.parametrize("num_rewards", [4, 20])
def test_all_cameras_and_texts_are_shown(num_rewards):
    num_steps = num_rewards + 1
    images = np.arange(num_steps * 6 * 8 * 3, dtype=np.uint8).reshape(num_steps, 6, 8, 3)
    phases = np.array(["a"] * 3 + ["b"] * (num_steps - 3), object)
    observations = {
        "image": images,
        "first": np.moveaxis(images, -1, 1),
        "wrist": images[:, :4, :4, 0] if num_rewards == 4 else images[:, :4, :4, :1],
        "phase": phases,
    }
    (episode,) = load([make_log(*range(num_rewards), observations=observations)])
    texts = np.array([b"pick\x1b up"] * num_steps, object)
    episode = replace(episode, steps={**episode.steps, "language_instruction": texts})
    first, image, wrist, actions, rewards = draw_episode(episode).axes
    names = [axes.get_title(loc="left") for axes in (first, image, wrist)]
    assert names == ["observation['first']", "observation['image']", "observation['wrist']"]
    steps = [label.get_text() for label in image.get_xticklabels()]
    assert steps[:2] == ["step 0", "step 1" if num_steps == 5 else "step 2"] and steps[-1] == f"step {num_steps - 1}"
    shown = [np.asarray(axes.images[0].get_array()) for axes in (first, image, wrist)]
    assert (shown[0] == shown[1]).all() and shown[2].shape == (4, 60, 4)
    last = 10 * (len(steps) - 1)
    assert (shown[1][:, :8, :3] == images[0]).all() and (shown[1][:, last : last + 8, :3] == images[-1]).all()
    assert (shown[1][:, :8, 3] == 255).all() and (shown[1][:, 8:10, 3] == 0).all()
    assert (shown[1][:, 10 * len(steps) :, 3] == 0).all()
    assert [axes.get_ylabel() for axes in (actions, rewards)] == ["action", "reward"]
    assert list(describe_texts(episode)) == ["language_instruction: pick\\x1b up.", "observation['phase']: a, b."]


@pytest.mark.slow
def test_names_of_fields_are_no_formulas(figures, drawn):
    names = ("$x_{$", "\x1b", "手")
    observations = {name: np.arange(3, dtype=np.float32) for name in names}
    report_source([make_log(1, 2, observations=observations)])
    (heading,) = [title for title in figures if title.startswith("Episode ")]
    assert r"observation['\$x_{\$']" in read_legend(figures[heading].axes[0])


def test_select_episodes_skips_empty_ones():
    statistics = DatasetStatistics(load([make_log(1)]))
    statistics.parts.episodes += [EpisodeSummary(0, b"", None, 0, "empty"), EpisodeSummary(1, b"", 1.0, 1, "truncated")]
    assert select_episodes(statistics) == {1: "best return"}


def test_selected_episodes_are_the_extremes_and_the_first_invalid_ones():
    statistics = DatasetStatistics(load([make_log(1)]))
    pairs = [(5.0, 3), (1.0, 4), (2.0, 9), (9.0, 5), (None, 0), (3.0, 1), (float("nan"), 6), (4.0, 7)]
    statistics.parts.episodes += [
        EpisodeSummary(number, b"", total, length, "empty" if total is None else "truncated")
        for number, (total, length) in enumerate(pairs)
    ]
    extremes = {3: "best return", 5: "median return", 1: "lowest return", 2: "longest"}
    assert select_episodes(statistics) == extremes
    statistics.invalid += [4, 7, 6, 0]
    invalid = {7: "invalid", 6: "invalid"}
    assert [*select_episodes(statistics).items()] == [*{**invalid, **extremes}.items()]
    statistics.invalid.clear()
    statistics.parts.episodes.append(EpisodeSummary(8, b"", 4.5, 0, "truncated"))
    assert list(select_episodes(statistics).items())[3:] == [(2, "longest"), (8, "shortest")]


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
