"""Reports on tables: priorities, sample counts, sampling frequencies and ages, of stored and served items."""

from datetime import datetime, timezone
from types import SimpleNamespace

import numpy as np
import pytest
import reverb
from figures_shown import read_bars, read_findings, read_legend
from properties import mark_slow_except

from rlds2reverb import CheckpointError, ReplayServer, Selector, ServerUnavailableError, TableConfig, ingest
from rlds2reverb.server.item_statistics import read_item_statistics, sample_item_statistics
from rlds2reverb.training.reports import report_tables
from rlds2reverb.training.reports.table_report import _expect_counts

TABLES = [
    TableConfig("first", Selector("prioritized", 1.0)),
    TableConfig("second", Selector("fifo"), max_times_sampled=1),
]


def make_log(num_steps=8):
    numbers = np.arange(num_steps + 1, dtype=np.float32)
    return {"observations": numbers[:, None], "actions": numbers[:-1, None], "rewards": numbers[:-1]}


def prioritize(episode, items):
    """Returns the priorities 1 for the first half of the items and 3 for the second one."""
    number = len(items) if hasattr(items, "__len__") else items.num_items
    return np.where(np.arange(number) < number // 2, 1.0, 3.0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Eight items, four with priority 1 and four with priority 3."""
    path = tmp_path_factory.mktemp("tables") / "items"
    ingest([{**make_log(), "terminated": False}], path, tables=TABLES, priority=prioritize)
    return path


@pytest.fixture(scope="module")
def server(directory):
    with ReplayServer.from_directory(directory) as server:
        yield server


def heights_by_priority(patch):
    """Returns the heights of a histogram's outline at the priorities 1 and 3."""
    heights, edges, _ = patch.get_data()
    return [
        float(heights[min(np.searchsorted(edges, priority, side="right") - 1, len(heights) - 1)])
        for priority in (1.0, 3.0)
    ]


def test_stored_items_have_priorities_probabilities_and_an_order(directory):
    first, second = read_item_statistics(directory)
    assert sorted(first.priorities) == [1, 1, 1, 1, 3, 3, 3, 3] and first.size == 8 and not first.is_sample
    np.testing.assert_allclose(np.sort(first.probabilities), [1 / 16] * 4 + [3 / 16] * 4)
    assert second.probabilities is None and second.sampler == "fifo"
    assert sorted(first.order - first.order.min()) == list(range(8)) and np.isnan(first.inserted_at).all()


@pytest.mark.parametrize("has_images", mark_slow_except([False], [False, True]))  # All figures of slow tests are drawn.
def test_report_on_a_directory_shows_all_items(directory, tmp_path, figures, has_images):
    page = report_tables(directory, tmp_path / "a.html").html
    assert heights_by_priority(figures["Priorities"].axes[0].patches[0]) == [50, 50]
    assert read_bars(figures["Sample counts"].axes[0])[1] == [100] and "No item has been sampled yet." in page
    assert "Expected and empirical sampling frequency" not in figures
    assert figures["Item age"].axes[0].patches[0].get_data().values.sum() == pytest.approx(100)
    assert ('src="data:image/png;base64,i' in page) == has_images
    assert "Table &#x27;first&#x27;" in page and "Table &#x27;second&#x27;" in page


def test_report_on_a_server_estimates_from_samples(server, figures):
    heading, shares = "Expected and empirical sampling frequency", []
    for _ in range(3):
        figures.clear()
        page = report_tables(server).html
        expected, empirical = figures[heading].axes[0].patches
        shares.append(heights_by_priority(empirical))
    # All eight items are in the 4,000 samples, so that shares of the items are exact.
    np.testing.assert_allclose(heights_by_priority(figures["Priorities"].axes[0].patches[0]), [50, 50], rtol=1e-6)
    np.testing.assert_allclose(heights_by_priority(expected), [25, 75], rtol=1e-6)
    # The standard deviation of the share in 4,000 samples is 0.7 %, that of the mean of three 0.4 %.
    np.testing.assert_allclose(np.mean(shares, 0), [25, 75], atol=3)
    assert "4,000 samples were drawn for this report, of 8 different items." in page
    assert read_findings(page) == [("note", "No items were sampled, because samples use up its items.")]


def test_shares_of_a_table_are_estimated_from_samples_of_some_of_its_items(tmp_path):
    ingest([{**make_log(20_000), "terminated": False}], tmp_path / "many", tables=TABLES, priority=prioritize)
    with ReplayServer.from_directory(tmp_path / "many") as server:
        infos = reverb.Client(server.address).server_info()
        several = [sample_item_statistics(server.address, infos["first"]) for _ in range(3)]
    assert all(items.num_samples == 4000 and 3_000 < len(items.priorities) < 4_000 for items in several)
    # The standard deviation of one estimate is 0.9 %, that of their mean 0.5 %.
    shares = [items.weights[items.priorities == 1].sum() for items in several]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.04)


def test_counts_of_samples_are_shown_by_a_checkpoint_of_the_server(directory, tmp_path, figures):
    with ReplayServer.from_directory(directory, checkpoint_root=tmp_path / "root") as server:
        list(reverb.Client(server.address).sample("first", num_samples=40))
        server.checkpoint()
    first, second = read_item_statistics(tmp_path / "root")
    assert first.times_sampled.sum() == 40 and second.times_sampled.sum() == 0
    page = report_tables(tmp_path / "root").html
    assert "5 times per item" in page
    assert read_legend(figures["Sample counts"].axes[0]) == ["expected"]


def test_items_written_to_a_server_have_times(figures):
    before = datetime.now(timezone.utc).timestamp()
    with ReplayServer([TableConfig("replay", Selector("uniform"))]) as server:
        client = reverb.Client(server.address)
        for number in range(3):
            client.insert([np.float32(number)], {"replay": 1.0})
        (info,) = [info for name, info in client.server_info().items() if name == "replay"]
        items = sample_item_statistics(server.address, info)
        report_tables(server)
    assert (items.inserted_at > before - 60).all() and (items.order == -1).all()
    np.testing.assert_allclose(items.probabilities, [1 / 3] * 3, rtol=1e-6)
    assert figures["Item age"].axes[1].get_xlabel() == "age (seconds)"


def test_expected_counts_follow_a_poisson_distribution():
    np.testing.assert_allclose(
        _expect_counts(np.full(5, 2.0), np.arange(5)), np.exp(-2) * np.array([1, 2, 2, 4 / 3]), rtol=1e-6
    )
    np.testing.assert_allclose(_expect_counts(np.array([0.0, 0.0]), np.arange(3)), [1, 0], atol=1e-9)


def test_report_raises_for_missing_servers_and_empty_directories(tmp_path):
    with pytest.raises(ServerUnavailableError, match="no Reverb server answered at localhost:1"):
        report_tables("localhost:1", timeout_secs=0.1)
    with pytest.raises(ValueError, match="HOST:PORT"):
        report_tables("nowhere")
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root"):
        pass
    with pytest.raises(CheckpointError, match="contains no items yet"):
        report_tables(tmp_path / "root")


def test_empty_table_is_not_sampled():
    info = SimpleNamespace(name="a", current_size=0, sampler_options=TABLES[0], max_times_sampled=0)
    info.sampler_options = SimpleNamespace(is_deterministic=False, WhichOneof=lambda _: "uniform")
    items = sample_item_statistics("localhost:1", info)
    assert items.note == "No items were sampled, because the table is empty." and not len(items.priorities)
