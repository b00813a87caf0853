"""Tests that Reverb's own writer is used if a server does not support the bulk writer."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from reference_impls import assert_equal_nests, episode, read_items

from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.datasets import load
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.wire import message_encoding as messages
from rlds2reverb.reverb.writing import compatibility
from rlds2reverb.reverb.writing.bulk_writer import BulkWriter
from rlds2reverb.types.tables import RateLimiter, Selector, TableConfig

SOURCE = load([episode(4, terminal=True), episode(3, terminal=False, start=50)])
SIGNATURE = TrajectoryWindows().item_spec(SOURCE.step_spec)
ONCE = TableConfig("items", Selector("fifo"), Selector("fifo"), max_times_sampled=1)


@pytest.fixture
def unchecked_servers(monkeypatch):
    """Clears the set of servers that were checked."""
    monkeypatch.setattr(compatibility, "COMPATIBLE_SERVERS", set())


def test_first_check_leaves_nothing_behind(unchecked_servers):
    with ReplayServer([TableConfig()], SIGNATURE) as server:
        ingest(SOURCE, server.address)
        info = server.client.server_info(timeout=10)["replay"]
        assert (info.current_size, info.rate_limiter_info.insert_stats.completed) == (5, 6)
        ingest(load([episode(9, terminal=True, start=90)]), server.address)  # The server is not checked again.
        info = server.client.server_info(timeout=10)["replay"]
        assert (info.current_size, info.rate_limiter_info.insert_stats.completed) == (13, 14)


@pytest.mark.parametrize("limiter", [RateLimiter("min_size", 3), RateLimiter("min_size", 1)])
def test_no_trial_item_is_written_to_a_table_in_use(unchecked_servers, limiter):
    with ReplayServer([TableConfig(rate_limiter=limiter)], SIGNATURE) as server:
        if limiter.size == 1:
            server.client.insert(
                [c[:2] for c in TrajectoryWindows()(SOURCE.first_episode).columns if len(c)], {"replay": 1.0}
            )
        before = server.client.server_info(timeout=10)["replay"].current_size
        ingest(SOURCE, server.address)
        info = server.client.server_info(timeout=10)["replay"]
        assert info.rate_limiter_info.insert_stats.completed == info.current_size == before + 5


def test_reader_of_single_use_items_gets_each_of_them_once(unchecked_servers):
    with ReplayServer([ONCE], SIGNATURE) as server, ThreadPoolExecutor(1) as thread:
        samples = server.client.sample("items", 5, emit_timesteps=False)
        waiting = thread.submit(lambda: [next(samples).info.key for _ in range(5)])
        report = ingest(SOURCE, server.address, "items")
        assert (report.writer, report.items, len(set(waiting.result(60)))) == ("bulk", 5, 5)
        assert server.client.server_info(timeout=10)["items"].rate_limiter_info.insert_stats.completed == 5


def corrupt_chunks(original):
    """Returns an `encode_chunks` that damages its records."""

    def encode_chunks(*arguments, **options):
        records = original(*arguments, **options)
        records[:, -40:-20] ^= 255
        return records

    return encode_chunks


def test_reverb_writer_is_used_if_an_item_is_read_back_differently(unchecked_servers, monkeypatch):
    with ReplayServer([ONCE], SIGNATURE) as server:
        with monkeypatch.context() as patch:
            patch.setattr(compatibility, "TIMEOUT_SECS", 0.5)
            patch.setattr(messages, "encode_chunks", corrupt_chunks(messages.encode_chunks))
            with pytest.warns(RuntimeWarning, match="does not support the bulk writer .*; Reverb's own writer is used"):
                report = ingest(SOURCE, server.address, "items")
        items = read_items(server.address, "items")
    assert (report.writer, len(report.warnings), len(items)) == ("reverb", 1, 5)
    with ReplayServer([ONCE], SIGNATURE) as server:
        ingest(SOURCE, server.address, "items")
        for got, expected in zip(items, read_items(server.address, "items"), strict=True):
            assert_equal_nests(got, expected)


def test_reverb_writer_is_used_if_the_stream_is_refused(unchecked_servers, monkeypatch):
    def refuse(self, blocks):
        raise ServerUnavailableError("the server at localhost:1 refused items (UNIMPLEMENTED: no such method)")

    monkeypatch.setattr(BulkWriter, "write", refuse)
    with ReplayServer([ONCE], SIGNATURE) as server, pytest.warns(RuntimeWarning, match="UNIMPLEMENTED"):
        assert ingest(SOURCE, server.address, "items").writer == "reverb"


@pytest.fixture
def newer_reverb(tmp_path, monkeypatch):
    """Makes the installed dm-reverb appear as version 0.15.0."""
    (tmp_path / "dm_reverb-0.15.0.dist-info").mkdir()
    (tmp_path / "dm_reverb-0.15.0.dist-info/METADATA").write_text("Name: dm-reverb\nVersion: 0.15.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


INGEST = """
import numpy as np
from rlds2reverb import ReplayServer, TableConfig, ingest
episode = {"observations": np.zeros((4, 2)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3), "terminated": True}
with ReplayServer([TableConfig()]) as server:
    print(ingest([episode], server).writer)
"""


@pytest.mark.slow
def test_untested_version_is_used_with_the_bulk_writer_if_the_trial_succeeds(newer_reverb):
    environment = {**os.environ, "PYTHONPATH": str(newer_reverb)}
    process = subprocess.run([sys.executable, "-c", INGEST], capture_output=True, text=True, env=environment)
    assert process.stdout == "bulk\n", process.stderr


def test_untested_version_is_named_if_the_trial_fails(newer_reverb, unchecked_servers, monkeypatch):
    monkeypatch.setattr(messages, "encode_chunks", corrupt_chunks(messages.encode_chunks))
    with ReplayServer([TableConfig()], None) as server:
        with pytest.raises(ValueError, match=r"dm-reverb 0\.15\.0 is installed, but tested is ==0\.14\.\*"):
            ingest(SOURCE, server.address, layout="packed")


def test_packed_layout_raises_if_the_bulk_writer_fails(unchecked_servers, monkeypatch):
    monkeypatch.setattr(messages, "encode_chunks", corrupt_chunks(messages.encode_chunks))
    with ReplayServer([TableConfig()], None) as server:
        with pytest.raises(ValueError, match="does not support the bulk writer .*; store columns .layout='columns'"):
            ingest(SOURCE, server.address, layout="packed")
