"""Drill: consumers that are slow, rate limiters that block, and ports that are in use."""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from itertools import islice

import numpy as np
import portpicker
import pytest
from faults import HANG_SECS, make_episodes, process, receive, serve_table, within

from rlds2reverb import (
    RateLimiter,
    ReplayServer,
    ResourceInUseError,
    Selector,
    ServerUnavailableError,
    ShardedReplayServer,
    SourceError,
    TableConfig,
    ingest,
    sample_dataset,
)
from rlds2reverb.adders import NStep
from rlds2reverb.datasets import load
from rlds2reverb.datasets.source import Source
from rlds2reverb.reverb.client import Connection, table_infos
from rlds2reverb.training import table_data as training_tables
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.training import Training

pytestmark = pytest.mark.slow

TIMEOUT_SECS = 5.0
#: What a call may take in addition to its timeout.
MARGIN_SECS = 5.0


def make_table(limiter, name="replay", **options):
    rate_limiter = RateLimiter.parse(limiter)
    if rate_limiter.kind == "queue":
        options = {"sampler": Selector("fifo"), "max_times_sampled": 1, "max_size": rate_limiter.size}
    return TableConfig(name, rate_limiter=rate_limiter, **{"sampler": Selector("uniform"), **options})


# --- F16: slow consumers

_BIG = 1 << 17
#: How long a consumer is slow; `make drill` makes it five minutes.
CONSUMER_SECS = int(os.environ.get("DRILL_CONSUMER_SECS", "60"))


def write_big_episodes(channel, address, num_episodes, timeout_secs):
    """Writes 1 MB of incompressible numbers per item; sends 'begun' and, at the end, the report."""

    def generate():
        random = np.random.default_rng(0)
        for _ in range(num_episodes):
            yield {
                "observation": random.random((2, _BIG), np.float64),
                "action": np.zeros((2, 1), np.float32),
                "reward": np.zeros(2, np.float32),
                "discount": np.ones(2, np.float32),
                "is_first": np.array([True, False]),
                "is_last": np.array([False, True]),
                "is_terminal": np.array([False, False]),
            }

    channel.send("begun")
    # Invalid episodes are skipped, so that the dataset is not read before it is written.
    report = ingest(generate, address, on_invalid="skip_episode", timeout_secs=timeout_secs, resume=False)
    channel.send(report.as_dict())


def resident_mb(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def wait_for_steady_memory(pid, steady_secs=2.0):
    """Waits until a process has not grown for some time, and returns its memory."""
    size, until = resident_mb(pid), time.monotonic() + steady_secs
    while time.monotonic() < until:
        time.sleep(0.1)
        if (now := resident_mb(pid)) > size + 1:
            size, until = now, time.monotonic() + steady_secs
    return size


def sample_one(address):
    with Connection(address) as connection:
        for _ in connection.sample("replay", timeout_secs=10.0):
            pass


@pytest.mark.drill("F16")
@pytest.mark.timeout(90 + CONSUMER_SECS)
@pytest.mark.parametrize("limiter", ["queue:4", "sample_to_insert_ratio:1:1:2"])
def test_writer_for_a_slow_consumer_keeps_its_memory_and_says_what_it_waits_for(limiter):
    consumed_secs = CONSUMER_SECS if limiter.startswith("queue") else 20
    table = make_table(limiter, sampler=Selector("fifo"), max_times_sampled=1)
    with ReplayServer([table]) as server:
        with process(write_big_episodes, server.address, 1000, TIMEOUT_SECS) as (writer, channel):
            assert receive(channel) == "begun"
            before = wait_for_steady_memory(writer.pid)  # It has sent as much as it may without confirmation.
            inserted_before = count_inserted(server)
            sizes = []
            for _ in range(consumed_secs):
                assert not channel.poll(0), channel.recv()
                sample_one(server.address)
                sizes.append(resident_mb(writer.pid))
                time.sleep(1)
            before = max(before, *sizes[:10])  # On a busy machine, it may not have sent everything when it was steady.
            assert max(sizes) - before <= 64, f"{before:.0f} MB grew to {max(sizes):.0f} MB"
            # 1000 MB were to be written; a writer that ignored the confirmations would hold most of that.
            assert max(sizes) < 600, f"{max(sizes):.0f} MB"
            assert consumed_secs - 5 <= count_inserted(server) - inserted_before <= consumed_secs + 5
            with within(TIMEOUT_SECS + MARGIN_SECS):
                with pytest.raises(ServerUnavailableError) as raised:
                    receive(channel)
    assert re.search(
        rf"waited 5 s for {server.address} to accept items; .*rate limiter blocks: table 'replay' has \d+ inserted, "
        r"\d+ sampled\. Sample from the table",
        str(raised.value),
    )


def count_inserted(server):
    return table_infos(server.client)["replay"].rate_limiter_info.insert_stats.completed


# --- F17: misconfigured rate limiters


@pytest.fixture(scope="module")
def source(data):
    few = list(islice(load(data / "d4rl" / "hopper_medium-v2.hdf5"), 3))
    return Source("few", "memory", lambda: iter(few))


@contextmanager
def serve_items(source, limiter, *, num_items=10, **options):
    """Serves a table with a rate limiter and some transitions; yields the server."""
    table = make_table(limiter, **options)
    adder = NStep(1, 0.99)
    few = [{name: column[: num_items + 1] for name, column in next(iter(source)).steps.items()}]
    few[0]["is_last"] = np.arange(num_items + 1) == num_items
    few[0]["is_terminal"] = np.zeros(num_items + 1, bool)
    with ReplayServer([table], adder.item_spec(source.step_spec)) as server:
        report = ingest(few, server, adder=adder, timeout_secs=TIMEOUT_SECS)
        assert report.items == num_items
        yield server


@pytest.mark.drill("F17")
@pytest.mark.parametrize("limiter", ["queue:3", "sample_to_insert_ratio:0.5:1:2", "sample_to_insert_ratio:4:1:4"])
def test_ingest_names_a_rate_limiter_that_blocks_inserts(source, limiter):
    table = make_table(limiter, "narrow")
    with ReplayServer([table]) as server, within(TIMEOUT_SECS + MARGIN_SECS):
        with pytest.raises(
            ServerUnavailableError,
            match=rf"waited 5 s for {server.address} to accept items; .*its rate limiter blocks: table 'narrow' has "
            r"\d+ inserted, 0 sampled\. Sample from the table, or serve it with the rate limiter min_size:1",
        ):
            ingest(source, server, "narrow", timeout_secs=TIMEOUT_SECS, resume=False)


@pytest.mark.drill("F17")
@pytest.mark.parametrize(
    ("limiter", "options", "reason"),
    [
        ("min_size:1000", {}, "it has 10 items, .*its rate limiter waits for 1000 items"),
        ("sample_to_insert_ratio:0.1:1:10", {}, "10 were inserted and .* sampled; its rate limiter waits for more ins"),
        ("max_samples_per_insert:0.1:1", {}, "10 were inserted and 1 sampled; its rate limiter waits for more insert"),
        ("queue:10", {}, "it has 0 items, 10 were inserted and 10 sampled; its rate limiter waits for"),
        ("min_size:1", {"max_times_sampled": 1}, "it has 0 items, 10 were inserted and 10 sampled"),
    ],
)
def test_sampling_names_a_rate_limiter_that_blocks_samples(source, limiter, options, reason):
    with serve_items(source, limiter, **options) as server, within(TIMEOUT_SECS + MARGIN_SECS):
        with pytest.raises(
            ServerUnavailableError, match=f"waited 5 s for a sample of table 'replay' at {server.address}: .*{reason}"
        ):
            next(iter(sample_dataset(server.address, "replay", 32, timeout_secs=TIMEOUT_SECS)))


@pytest.mark.drill("F17")
def test_training_names_a_table_that_waits_for_items(source, tmp_path):
    with serve_items(source, "min_size:1000") as server, within(TIMEOUT_SECS + MARGIN_SECS):
        with pytest.raises(
            SourceError, match=f"table 'replay' at {server.address} has 10 items, but its rate limiter waits for 1,000"
        ):
            Training(server.address, TrainingConfig("td3_bc", steps=10), tmp_path / "run")


@pytest.mark.drill("F17")
@pytest.mark.parametrize(
    ("limiter", "options"),
    [("max_samples_per_insert:0.1:1", {}), ("queue:10", {}), ("min_size:1", {"max_times_sampled": 1})],
)
def test_training_names_a_table_that_cannot_return_samples(source, tmp_path, monkeypatch, limiter, options):
    monkeypatch.setattr(training_tables, "SAMPLE_SECS", TIMEOUT_SECS)
    with serve_items(source, limiter, **options) as server, within(TIMEOUT_SECS + 2 * MARGIN_SECS):
        with pytest.raises(
            ServerUnavailableError,
            match=f"waited 5 s for a sample of table 'replay' at {server.address}: .* its rate limiter waits for",
        ):
            Training(server.address, TrainingConfig("td3_bc", steps=10), tmp_path / "run")


# --- F18: ports in use


def serve_command(tmp_path, *arguments):
    """Runs `serve` until it ends; returns its exit code and what it prints on stderr."""
    program = [sys.executable, "-m", "rlds2reverb.cli", "serve", *map(str, arguments)]
    result = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECS)
    return result.returncode, result.stderr


def listen(channel, host, port):
    """Listens on a port as any program may; sends 'listening', and the number of connections when it is asked."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()
        channel.send("listening")
        connection, _ = server.accept()
        connection.sendall(b"unharmed")
        channel.recv()


@pytest.mark.drill("F18")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_serve_exits_when_another_program_uses_the_port(tmp_path, host):
    port = portpicker.pick_unused_port()
    with process(listen, host, port) as (_, channel):
        assert receive(channel) == "listening"
        code, stderr = serve_command(tmp_path, "--port", port)
        assert code == 1 and f"port {port} is in use" in stderr and "choose another port" in stderr, stderr
        assert "Traceback" not in stderr and len(stderr.strip().splitlines()) == 1, stderr
        with socket.create_connection(("localhost", port), timeout=10) as client:
            assert client.recv(100) == b"unharmed"


@contextmanager
def running_serve_command(tmp_path, port):
    """Runs `serve` on a port; yields its process once it serves."""
    program = [sys.executable, "-m", "rlds2reverb.cli", "serve", "--port", str(port)]
    running = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert any(line.startswith("serving on") for line in running.stderr)
        yield running
    finally:
        running.kill()
        running.wait()
        running.stderr.close()


@pytest.mark.drill("F18")
@pytest.mark.timeout(200)
def test_serve_exits_when_another_server_uses_the_port(tmp_path):
    port = portpicker.pick_unused_port()
    with running_serve_command(tmp_path, port) as first:
        ingest(make_episodes(2), port)
        code, stderr = serve_command(tmp_path, "--port", port)
        assert code == 1 and f"port {port} is in use by process {first.pid} on" in stderr, stderr
        assert "choose another port, or stop that server" in stderr and "Traceback" not in stderr, stderr
        code, stderr = serve_command(tmp_path, "--shards", 2, "--port", port - 1)
        assert code == 1 and f"port {port} is in use by process {first.pid} on" in stderr, stderr
        with pytest.raises(ResourceInUseError, match=f"port {port} is in use by process {first.pid} on"):
            ReplayServer([TableConfig()], port=port)
        assert first.poll() is None and table_infos(port)["replay"].current_size == 2 * 149
        ingest(make_episodes(4), port)
        assert table_infos(port)["replay"].current_size == 4 * 149


@pytest.mark.drill("F18")
@pytest.mark.parametrize("holder", ["program", "server"])
def test_sharded_server_raises_and_releases_its_ports_when_the_second_is_in_use(tmp_path, holder):
    port = portpicker.pick_unused_port()
    while not portpicker.is_port_free(port + 1):
        port = portpicker.pick_unused_port()
    with ExitStack() as stack:
        if holder == "program":
            _, channel = stack.enter_context(process(listen, "0.0.0.0", port + 1))
        else:
            _, channel = stack.enter_context(process(serve_table, tmp_path / "root", port + 1))
        receive(channel)
        with pytest.raises(ResourceInUseError, match=f"port {port + 1} is in use"):
            ShardedReplayServer([TableConfig()], num_shards=2, port=port, checkpoint_root=tmp_path / "shards")
        assert portpicker.is_port_free(port)
        if holder == "server":
            assert table_infos(port + 1)["replay"].current_size == 0
    with ShardedReplayServer([TableConfig()], num_shards=2, port=port, checkpoint_root=tmp_path / "shards") as servers:
        assert [server.port for server in servers.servers] == [port, port + 1]
        assert ingest(make_episodes(2), servers).items == 2 * 149
