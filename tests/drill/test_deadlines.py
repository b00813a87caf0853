"""Drill: every call that talks to a server that is down or stopped, and stops of 30 s that everything outlasts."""

import os
import signal
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import reverb
from faults import convert, find_server, process, read_checkpoint, receive, run_ingest, serve_table, within
from numbers_served import serve_in_process
from process_signals import kill_process, suspend_process
from reference_impls import episode, rlds_dataset
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb import (
    CheckpointError,
    IngestOptions,
    PriorityWriter,
    ReplayServer,
    ServerUnavailableError,
    TableConfig,
    ingest,
    mixed_dataset,
    sample_dataset,
)
from rlds2reverb.adders import NStep
from rlds2reverb.cli import run
from rlds2reverb.datasets import load
from rlds2reverb.learners.priority_updates import PriorityUpdates
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.rlds_to_reverb import push_rlds_to_reverb
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.training.table_data import describe_table
from rlds2reverb.training.training import Training
from rlds2reverb.types.tables import item_signature
from rlds2reverb.types.trajectories import trajectory_spec

pytestmark = pytest.mark.slow

TIMEOUT_SECS = 2.0
MARGIN_SECS = 5.0
#: The timeout of calls without the argument `timeout_secs`.
FIXED_TIMEOUT_SECS = 10.0
STOP_SECS = 30
EPISODES = [episode(5, terminal=True)]
SIGNATURE = item_signature(trajectory_spec(load(EPISODES).step_spec), 2)
marked = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(signal.SIGKILL, id="down", marks=pytest.mark.drill("F14")),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.drill("F15")),
    ],
)


def serve_with_signature(channel, root):
    serve_table(channel, root, signature=SIGNATURE)


def inflict(address, fault):
    """Kills or stops the process of a server, and waits until it has ended or all its threads have stopped."""
    (suspend_process if fault == signal.SIGSTOP else kill_process)(find_server(address))


# --- F14, F15: calls with a timeout


def update(address, *, flush=False):
    info = SimpleNamespace(key=np.array([1], np.uint64), server=np.array([0], np.int32), dataset_index=())
    with PriorityWriter(address, "replay", timeout_secs=TIMEOUT_SECS) as writer:
        if not flush:
            writer.update(info, [1.0])
            return
        updates = PriorityUpdates(writer)
        updates.submit(info, np.ones(1, np.float32))
        updates.flush()


def sample_mixed(address):
    part = partial(sample_dataset, table="replay", timeout_secs=TIMEOUT_SECS)
    datasets = {
        "a": lambda size: part(address, batch_size=size),
        "b": lambda size: part("localhost:1", batch_size=size),
    }
    next(iter(mixed_dataset(datasets, 4, weights={"a": 0.5, "b": 0.5})))


CALLS = {
    "ingest": lambda address: ingest(EPISODES, address, timeout_secs=TIMEOUT_SECS),
    "ingest shards": lambda address: ingest(EPISODES, [address, "localhost:1"], timeout_secs=TIMEOUT_SECS),
    "ingest with the reverb writer": lambda address: ingest(
        EPISODES, address, timeout_secs=TIMEOUT_SECS, options=IngestOptions(writer="reverb")
    ),
    "sample_dataset": lambda address: next(iter(sample_dataset(address, "replay", 4, timeout_secs=TIMEOUT_SECS))),
    "mixed_dataset": sample_mixed,
    "PriorityWriter.update": update,
    "PriorityUpdates.flush": partial(update, flush=True),
    "table_infos": lambda address: table_infos(address, timeout_secs=TIMEOUT_SECS),
}


@marked
@pytest.mark.parametrize("name", CALLS)
def test_calls_raise_within_their_timeout(tmp_path, fault, name):
    with process(serve_with_signature, tmp_path / "root") as (_, channel):
        address = f"localhost:{receive(channel)}"
        inflict(address, fault)
        with within(TIMEOUT_SECS + MARGIN_SECS), pytest.raises(ServerUnavailableError, match=address):
            CALLS[name](address)


@marked
@pytest.mark.parametrize("name", ["describe_table", "Training"])
def test_training_raises_within_its_timeout(tmp_path, fault, name):
    with process(serve_with_signature, tmp_path / "root") as (_, channel):
        address = f"localhost:{receive(channel)}"
        inflict(address, fault)
        with within(FIXED_TIMEOUT_SECS + MARGIN_SECS), pytest.raises(ServerUnavailableError, match=address):
            if name == "Training":
                Training(address, TrainingConfig("td3_bc", steps=10), tmp_path / "run")
            else:
                describe_table(address)


@marked
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "observer"])
def test_push_raises_within_its_timeout(tmp_path, fault, fast):
    with process(serve_with_signature, tmp_path / "root") as (_, channel):
        address = f"localhost:{receive(channel)}"
        observer = reverb_utils.ReverbAddTrajectoryObserver(reverb.Client(address), "replay", sequence_length=2)
        inflict(address, fault)
        dataset = rlds_dataset(EPISODES)
        with within(FIXED_TIMEOUT_SECS + MARGIN_SECS), pytest.raises(ServerUnavailableError, match=address):
            push_rlds_to_reverb(dataset, observer, fast=fast)


@marked
@pytest.mark.parametrize("command", ["inspect", "convert", "train"])
def test_commands_exit_within_their_timeout(tmp_path, data, fault, command, capsys):
    source = str(data / "d4rl/hopper_medium-v2.hdf5")
    with process(serve_with_signature, tmp_path / "root") as (_, channel):
        address = f"localhost:{receive(channel)}"
        timeout = ["--timeout", str(TIMEOUT_SECS)]
        arguments = {
            "inspect": ["inspect", address, *timeout],
            "convert": ["convert", source, "--out", address, *timeout],
            "train": ["train", "--data", address, "--algo", "td3_bc", "--run-dir", str(tmp_path / "run")],
        }[command]
        inflict(address, fault)
        with within((FIXED_TIMEOUT_SECS if command == "train" else TIMEOUT_SECS) + MARGIN_SECS):
            assert run(arguments) == 75
    stderr = capsys.readouterr().err
    assert f"no Reverb server answered at {address}" in stderr and "Traceback" not in stderr


@marked
@pytest.mark.parametrize("name", ["checkpoint", "save_data"])
def test_checkpoints_raise_within_their_timeout(tmp_path, fault, name, monkeypatch):
    """A server in this process cannot be stopped, so its request goes to one in a different process."""
    with process(serve_with_signature, tmp_path / "stopped") as (_, channel):
        port = receive(channel)
        with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=tmp_path / "root") as server:
            ingest(EPISODES, server)
            first = server.checkpoint()
            inflict(port, fault)
            monkeypatch.setattr(ReplayServer, "address", f"localhost:{port}")
            with within(TIMEOUT_SECS + MARGIN_SECS), pytest.raises((ServerUnavailableError, CheckpointError)) as raised:
                if name == "checkpoint":
                    server.checkpoint(timeout_secs=TIMEOUT_SECS)
                else:
                    server.save_data(tmp_path / "saved", timeout_secs=TIMEOUT_SECS)
            assert str(tmp_path / "root") in str(raised.value)
            monkeypatch.undo()
            assert first.exists() and server.checkpoint().exists()
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=tmp_path / "root") as server:
        assert table_infos(server.client)["replay"].current_size == 4


# --- F32: stops of 30 s


@pytest.mark.drill("F32")
def test_sampling_continues_when_its_server_was_stopped(recovery):
    with serve_in_process({1: 1.0, 2: 3.0}) as (_, address):
        batches = iter(sample_dataset(address, "items", 8, timeout_secs=60.0, beta=1.0))
        for _ in range(20):
            next(batches)
        pid = find_server(address)
        suspend_process(pid)
        stopped = time.monotonic()
        with process(continue_later, pid, STOP_SECS), recovery():
            while time.monotonic() < stopped + STOP_SECS + 1:
                next(batches)  # Blocks until the server continues, once what was sampled ahead is used up.
        seen = {1.0: 0, 2.0: 0}
        for _ in range(500):
            batch = next(batches)
            for value in batch.data.numpy():
                seen[float(value)] += 1
            expected = np.where(batch.data.numpy() == 1, 1.0, 1 / 3)
            np.testing.assert_allclose(batch.info.weight, expected / expected.max(), rtol=1e-6)
        assert 0.2 < seen[1.0] / 4000 < 0.3


def continue_later(channel, pid, secs):
    time.sleep(secs)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.drill("F32")
@pytest.mark.timeout(200)
def test_writer_that_was_stopped_stores_every_item_once(tmp_path):
    with process(serve_table, tmp_path / "expected") as (_, to_server):
        run_ingest(receive(to_server), state_home=tmp_path / "a")
        to_server.send("checkpoint")
        expected = read_checkpoint(receive(to_server))
    options = {"state_home": tmp_path / "b", "timeout_secs": 10.0}
    with process(serve_table, tmp_path / "root") as (_, to_server):
        port = receive(to_server)
        with process(convert, port, options, [("write", 50)]) as (writer, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            channel.send("continue")
            time.sleep(0.02)
            assert not channel.poll(0)
            suspend_process(writer.pid)
            assert not channel.poll(STOP_SECS)
            os.kill(writer.pid, signal.SIGCONT)
            report = receive(channel)
        assert (report["items"], report["restarts"]) == (100 * 149, 0)
        to_server.send("checkpoint")
        assert read_checkpoint(receive(to_server)) == expected


TRAINING_STEPS = 12_000


def train_on_table(channel, address, run_dir):
    """Trains on a table; sends 'begun' before the first update, and at the end the logged steps."""
    small = {"batch_size": 8, "hyperparameters": {"hidden_sizes": (8, 8)}, "env": None}
    every = {"log_every": 1000, "checkpoint_every": TRAINING_STEPS}
    config = TrainingConfig("td3_bc", steps=TRAINING_STEPS, **small, **every)
    with Training(address, config, run_dir) as training:
        channel.send("begun")
        result = training.run()
        channel.send(([int(step) for step in result.progress["step"]], training.learner.last_iter))


def serve_transitions(channel, path):
    """Serves transitions of a D4RL file; sends the port."""
    source = load(path)
    adder = NStep(1, 0.99)
    with ReplayServer([TableConfig()], adder.item_spec(source.step_spec)) as server:
        ingest(source, server, adder=adder)
        channel.send(server.port)
        channel.recv()


@pytest.mark.drill("F32")
@pytest.mark.timeout(250)
@pytest.mark.parametrize("stopped", ["learner", "server"])
def test_training_is_complete_when_a_process_was_stopped(tmp_path, data, stopped):
    with process(serve_transitions, data / "d4rl/hopper_medium-v2.hdf5") as (_, to_server):
        address = f"localhost:{receive(to_server)}"
        with process(train_on_table, address, tmp_path / "run") as (learner, channel):
            assert receive(channel) == "begun"
            time.sleep(2)
            assert not channel.poll(0), "training ended before the stop; increase TRAINING_STEPS"
            # A learner ends after 30 s without a sample.
            secs = STOP_SECS if stopped == "learner" else STOP_SECS - 10
            pid = learner.pid if stopped == "learner" else find_server(address)
            suspend_process(pid)
            assert not channel.poll(secs)
            os.kill(pid, signal.SIGCONT)
            steps, last = receive(channel)
        assert last == TRAINING_STEPS and steps == list(range(1000, TRAINING_STEPS + 1, 1000))
