"""Tests that `ingest` does not mix items with different columns in a table without a signature."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from reference_impls import episode

from rlds2reverb import ReplayServer, TableConfig, TrajectoryEpisodes, TrajectoryWindows, ingest, load
from rlds2reverb.errors import ServerUnavailableError, SpecMismatchError
from rlds2reverb.reverb.client import Connection, table_infos
from rlds2reverb.reverb.server import table_items as stored_items
from rlds2reverb.types.items import Items
from rlds2reverb.types.tables import RateLimiter, Selector
from rlds2reverb.types.trajectories import trajectory_columns

SOURCE = load([episode(4, terminal=True), episode(6, terminal=False, start=50)])
MORE = load([episode(9, terminal=True, start=90)])
LONG = load([episode(6000, terminal=True)])
FIFO = Selector("fifo")
TABLES = [
    *(TableConfig(name) for name in ("windows", "legacy", "long", "empty", "failing")),
    TableConfig("rows", Selector("max_heap")),
    TableConfig("episodes", Selector("uniform")),
    TableConfig("packed", Selector("lifo")),
    TableConfig("queue", FIFO, FIFO, 100, 1, RateLimiter("queue", 100)),
    TableConfig("used up", max_times_sampled=2),
    TableConfig("ratio", rate_limiter=RateLimiter("sample_to_insert_ratio", 1, 1.0, 100.0)),
    TableConfig("waiting", rate_limiter=RateLimiter("min_size", 100)),
]


class Float64Rewards:
    """An adder of windows whose rewards are float64."""

    def __call__(self, episode):
        items = TrajectoryWindows()(episode)
        reward = items.columns.reward.astype(np.float64)
        return Items(items.columns._replace(reward=reward), items.starts, items.lengths)

    def item_spec(self, step_spec):
        spec = TrajectoryWindows().item_spec(step_spec)
        return spec._replace(reward=tf.TensorSpec(spec.reward.shape, tf.float64))


class Rewards:
    """An adder of rewards without a time axis, one item per step."""

    def __call__(self, episode):
        reward = trajectory_columns(episode.steps).reward
        return Items(reward, np.arange(len(reward)), np.ones(len(reward), np.int64), squeeze=True)

    def item_spec(self, step_spec):
        return tf.TensorSpec((), tf.float32)


@pytest.fixture(scope="module")
def server():
    with ReplayServer(TABLES) as server:
        for table in ("windows", "queue", "used up", "ratio", "waiting", "failing"):
            ingest(SOURCE, server, table)
        ingest(SOURCE, server, "rows", adder=Rewards())
        ingest(SOURCE, server, "episodes", adder=TrajectoryEpisodes())
        ingest(SOURCE, server, "packed", layout="packed")
        ingest(LONG, server, "long", adder=TrajectoryWindows(5900, 50))  # Each item has rows in several chunks.
        rows = trajectory_columns(SOURCE.first_episode.steps)
        server.client.insert([column[0] for column in tree.flatten(rows)], {"legacy": 1.0})
        yield server


def count_inserts_and_samples(server, table):
    limiter = table_infos(server.client)[table].rate_limiter_info
    return limiter.insert_stats.completed, limiter.sample_stats.completed


@pytest.mark.parametrize(
    "table, arguments",
    [
        ("windows", {}),
        ("rows", {"adder": Rewards()}),
        ("episodes", {"adder": TrajectoryEpisodes()}),  # Their lengths differ from the length of the sampled item.
        ("packed", {"layout": "packed"}),
        ("legacy", {"adder": TrajectoryWindows(1)}),
    ],
)
def test_items_with_the_same_columns_are_added(server, table, arguments):
    before = count_inserts_and_samples(server, table)[0]
    assert ingest(MORE, server, table, **arguments).warnings == ()
    assert count_inserts_and_samples(server, table)[0] > before


@pytest.mark.parametrize(
    "table, arguments, message",
    [
        (
            "windows",
            {"adder": Float64Rewards()},
            r"item\['reward'\] is float64 \[2\], but table 'windows' \(judging by .* expects float32 \[2\]",
        ),
        ("windows", {"adder": TrajectoryWindows(3)}, r"item\['step_type'\] is int32 \[3\], but .* expects int32 \[2\]"),
        (
            "windows",
            {"adder": Rewards()},
            r"the items have 1 column \(float32 \[\]\), .* has 6 columns \(int32 \[2\], ",
        ),
        (
            "windows",
            {"layout": "packed"},
            r"have 1 column \(int32 \[2, 7\]\), .*; if only one .* use the other layout",
        ),
        ("packed", {}, r"have 6 columns \(.*\), .* has 1 column \(int32 \[2, 7\]\); .* use the other layout"),
        (
            "packed",
            {"layout": "packed", "adder": TrajectoryWindows(3)},
            r"item is int32 \[3, 7\], but .* expects int32 \[2, 7\]",
        ),
        ("rows", {"layout": "packed"}, r"item is int32 \[2, 7\], but .* expects float32 \[\]"),
        ("episodes", {}, r"is int32 \[2\], but .* expects int32 \[\d\]"),
        ("long", {"adder": TrajectoryWindows(5)}, r"is int32 \[5\], but .* expects int32 \[5900\]"),
        ("legacy", {}, r"is int32 \[2\], but .* expects int32 \[1\]"),
    ],
)
def test_items_with_different_columns_raise_and_are_not_written(server, table, arguments, message):
    before = count_inserts_and_samples(server, table)[0]
    with pytest.raises(SpecMismatchError, match=message) as raised:
        ingest(MORE, server, table, **arguments)
    assert "write to an empty table, or cast or reshape the data" in str(raised.value)
    assert count_inserts_and_samples(server, table)[0] == before


@pytest.mark.parametrize(
    "table, reason",
    [
        ("queue", "samples use up its items"),
        ("used up", "samples use up its items"),
        ("ratio", "its rate limiter counts samples"),
        ("waiting", "it waits for 100 items"),
    ],
)
def test_table_is_not_sampled_if_that_affects_other_clients(server, table, reason):
    inserted, _ = count_inserts_and_samples(server, table)
    warning = rf"table '{table}' has no signature, and its 8 items could not be checked \({reason}\)"
    with pytest.warns(RuntimeWarning, match=warning):
        report = ingest(MORE, server, table, adder=TrajectoryWindows(3))
    assert len(report.warnings) == 1
    assert count_inserts_and_samples(server, table) == (inserted + 7, 0)


def test_table_that_returns_no_sample_causes_a_warning(server, monkeypatch):
    def fail(self, table, *, timeout_secs):
        raise ServerUnavailableError("fails")
        yield

    monkeypatch.setattr(Connection, "sample", fail)
    monkeypatch.setattr(stored_items, "MAX_WAIT_SECS", 0.2)
    with pytest.warns(RuntimeWarning, match=r"its 8 items could not be checked \(it returned no sample in time\)"):
        assert ingest(MORE, server, "failing").items == 8


def test_sample_blocked_by_the_rate_limiter_fails_after_its_timeout(server):
    with Connection(server.address) as connection, pytest.raises(ServerUnavailableError, match="DEADLINE_EXCEEDED"):
        list(connection.sample("waiting", timeout_secs=0.2))
    assert count_inserts_and_samples(server, "waiting")[1] == 0


def test_items_inserted_during_the_check_are_checked(server):
    def insert(stage, episode):
        if stage == "check":
            server.client.insert([np.zeros(3)], {"empty": 1.0})

    with pytest.raises(SpecMismatchError, match=r"have 6 columns .* has 1 column \(float64 \[1, 3\]\)"):
        ingest(MORE, server, "empty", progress=insert)
    assert count_inserts_and_samples(server, "empty")[0] == 1
