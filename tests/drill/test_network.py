"""Drill: the network between a server and its clients is cut for some seconds, while all processes run on."""

import time
from contextlib import suppress

import numpy as np
import pytest
from faults import convert, make_episodes, process, read_checkpoint, receive, serve_table, within
from machines import machine, network_cut, run_on
from trained_runs import DATA, NUM_UPDATES, make_arguments, read_rows, serve_directory, train_by_command

from rlds2reverb import ReplayServer, TableConfig, ingest
from rlds2reverb.adders import NStep
from rlds2reverb.errors import ServerUnavailableError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.drill("network")]


@pytest.fixture(scope="module")
def prefix():
    with machine() as prefix:
        yield prefix


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the items and chunks of an undisturbed conversion, and its duration."""
    folder = tmp_path_factory.mktemp("whole")
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as server:
        with process(convert, server.address, {"source": make_episodes(), "state_home": folder}) as (_, channel):
            receive(channel)
            began = time.monotonic()
            receive(channel)
            secs = time.monotonic() - began
        return read_checkpoint(server.checkpoint()), secs


@pytest.mark.parametrize(("timeout_secs", "cut_secs"), [(60, 3), (5, 12)])
def test_conversion_through_a_cut_network_loses_and_repeats_nothing(
    tmp_path, prefix, whole, timeout_secs, cut_secs, drill_seed, recovery
):
    (items, secs), may_stop = whole, timeout_secs < cut_secs
    random = np.random.default_rng([99, drill_seed])
    with process(run_on, prefix, serve_table, tmp_path / "root") as (_, to_server):
        port = receive(to_server)
        arguments = prefix, convert, port, {"state_home": tmp_path, "timeout_secs": timeout_secs}
        with process(run_on, *arguments) as (_, channel):
            assert receive(channel) == "begun"
            channel.poll(random.uniform(0, secs))
            with network_cut(prefix, [port]):
                is_over = channel.poll(0.5)
                time.sleep(cut_secs)
                assert channel.poll(0) == is_over or may_stop
            with recovery(), within(60), suppress(*([ServerUnavailableError] if may_stop else [])):
                receive(channel)
        with process(run_on, *arguments) as (_, channel):  # Continues, or finds that all is done.
            assert receive(channel) == "begun" and receive(channel)["items"] == len(items[0])
        to_server.send("checkpoint")
        assert read_checkpoint(receive(to_server)) == items


@pytest.mark.parametrize("cut_secs", [5, 20])
def test_training_continues_after_its_network_was_cut(tmp_path, prefix, cut_secs, recovery):
    ingest(DATA, tmp_path / "table", adder=NStep(1, 0.99))
    with process(run_on, prefix, serve_directory, tmp_path / "table", None) as (_, to_server):
        port = receive(to_server)
        arguments = make_arguments(tmp_path / "run", "--env", "Pendulum-v1", "--sampler", "prioritized")
        arguments[arguments.index("--data") + 1] = f"localhost:{port}"
        with process(run_on, prefix, train_by_command, arguments, tmp_path / "log") as (_, channel):
            assert receive(channel) == "updates"
            with network_cut(prefix, [port]):
                channel.send("continue")
                time.sleep(cut_secs)
            with recovery(), within(60):
                code = receive(channel)
    assert code == 0, (tmp_path / "log").read_text()
    steps = [int(row[0]) for row in read_rows(tmp_path / "run")[0]]
    assert steps == list(range(50, NUM_UPDATES + 1, 50))
