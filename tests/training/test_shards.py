"""Tests of training from several servers: one of them is killed, and returns."""

import contextlib
import json
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import portpicker
import pytest

from rlds2reverb import ingest
from rlds2reverb.adders import NStep
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.training import train
from rlds2reverb.training.table_data import describe_table, identify_table
from rlds2reverb.types.locations import find_tables

PENDULUM = "d4rl/pendulum_mixed-v2.hdf5"


@pytest.mark.parametrize(
    ("source", "expected", "table"),
    [
        ("a:1", True, None),
        ("a:1,b:2", True, None),
        (["a:1", "b:2"], True, None),
        (("a:1", "b:2"), True, None),
        (("a:1,b:2", "replay"), True, "replay"),
        ((["a:1", "b:2"], "replay"), True, "replay"),
        (["a.hdf5", "b.hdf5"], False, None),
    ],
)
def test_addresses_are_told_from_files(source, expected, table):
    location = find_tables(source)
    assert (location is not None) is expected
    if location is not None:
        assert location.table == table and location.directory is None
        assert identify_table(location, "replay") in ("a:1", "a:1,b:2")


@contextlib.contextmanager
def serve(directory, port, checkpoint_root):
    """Runs `rlds2reverb serve` until the end of the context, or until it is killed."""
    command = [sys.executable, "-m", "rlds2reverb.cli", "serve", str(directory), "--port", str(port)]
    command += ["--checkpoint-root", str(checkpoint_root), "--checkpoint-every", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while "serving on" not in process.stderr.readline():
            assert process.poll() is None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def count_samples(port):
    try:
        return table_infos(port, timeout_secs=2)["replay"].rate_limiter_info.sample_stats.completed
    except ServerUnavailableError:
        return None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.drill("moved")
def test_training_continues_when_a_shard_is_killed_and_returns(data, tmp_path):
    shards = [tmp_path / f"data/shard_{shard}" for shard in range(3)]
    ingest(data / PENDULUM, shards, adder=NStep(1, 0.99))
    ports = [portpicker.pick_unused_port() for _ in shards]
    addresses = ",".join(f"localhost:{port}" for port in ports)
    result, seen = {}, []

    def run():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result["run"] = train(
                addresses, "td3_bc", tmp_path / "run", steps=6000, sampler="prioritized", batch_size=64, env="Pendulum-v1",
                eval_every=2000, log_every=100, progress=False,
            )  # fmt: skip
        result["warnings"] = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]

    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(serve(*pair, tmp_path / f"root_{pair[1]}")) for pair in zip(shards, ports, strict=True)
        ]
        table = describe_table(addresses)
        assert table.size == 16000
        training = threading.Thread(target=run)
        training.start()
        while not (count_samples(ports[1]) or 0) > 5000:
            assert training.is_alive()
            time.sleep(0.1)
        processes[1].kill()
        processes[1].wait()
        before = count_samples(ports[0])
        while count_samples(ports[0]) < before + 20_000:  # The others continue.
            assert training.is_alive()
            time.sleep(0.1)
        stack.enter_context(serve(shards[1], ports[1], tmp_path / f"root_{ports[1]}"))
        assert table_infos(ports[1])["replay"].current_size > 4000
        while not (count_samples(ports[1]) or 0) > 100:
            assert training.is_alive()
            time.sleep(0.1)
            seen.append(count_samples(ports[1]))
        training.join(400)
        assert not training.is_alive()
    lost = [message for message in result["warnings"] if f"localhost:{ports[1]}" in message]
    assert lost and "continuing with the other servers" in lost[0]
    assert result["run"].progress["step"][-1] == 6000
    assert np.isfinite(result["run"].progress["loss"]).all()


@pytest.mark.slow
@pytest.mark.drill("F4")
def test_several_servers_of_one_command_are_inspected_and_saved_together(data, tmp_path):
    def call(*arguments):
        command = [sys.executable, "-m", "rlds2reverb.cli", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    call("convert", data / PENDULUM, "--out", tmp_path / "data", "--shards", 2)
    port = portpicker.pick_unused_port()
    with serve(tmp_path / "data", port, tmp_path / "root") as process:
        while not (tmp_path / "root/commit.json").exists():
            time.sleep(0.1)
        printed = call("inspect", f"localhost:{port},localhost:{port + 1}", "--json")
        (table,) = json.loads(printed)["tables"]
        assert table["items"] == sum(table["servers"].values()) == 16000 and len(table["servers"]) == 2
        process.terminate()
        assert process.wait(60) == 75
