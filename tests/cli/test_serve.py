"""`rlds2reverb serve`: checkpoints at intervals and at the end, full disks, and damaged checkpoints."""

import errno
import os
import re
import signal
import subprocess
import sys
from itertools import chain

import click
import pytest
from faults import damage_file, make_episodes, process, receive, serve_on_full_disk, skip_unless_mounted

import rlds2reverb
from rlds2reverb.cli import checks, run, serve as command
from rlds2reverb.errors import CheckpointError, StorageFullError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.tables import TableConfig

FULL = StorageFullError(errno.ENOSPC, "no space left for a checkpoint in root")


@pytest.fixture(autouse=True)
def handlers():
    """Restores the signal handlers after each test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def served(tmp_path):
    """Provides a server with a checkpoint root."""
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        yield server


def set_outcomes(monkeypatch, server, *outcomes):
    """Makes `checkpoint` raise or return the outcomes in order; an outcome that is a signal is sent first."""
    remaining = iter(outcomes)

    def checkpoint(*_):
        outcome = next(remaining)
        while isinstance(outcome, signal.Signals):
            signal.raise_signal(outcome)
            outcome = next(remaining)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(server, "checkpoint", checkpoint)
    monkeypatch.setattr(command, "RETRY_SECS", 0.001)
    return remaining


# --- at intervals


@pytest.mark.parametrize(
    ("duration", "secs"), [("600", 600), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 ", 2), ("0.1", 0.1)]
)
def test_duration_is_a_number_with_a_unit(duration, secs):
    assert checks.duration.convert(duration, None, None) == secs


@pytest.mark.parametrize("duration", ["", "0", "0m", "-5", "ten", "5d", "1e3", "nan", "m"])
def test_invalid_durations_raise(duration):
    with pytest.raises(click.BadParameter, match="must be greater than 0, such as 600, 90s, 10m or 2h, got"):
        checks.duration.convert(duration, None, None)


@pytest.mark.parametrize("arguments", [["serve"], ["serve", "no.hdf5"]])
def test_checkpoint_every_requires_a_root(arguments, capsys):
    assert run([*arguments, "--checkpoint-every", "10m"]) == 1
    assert "--checkpoint-every requires --checkpoint-root" in capsys.readouterr().err


@pytest.mark.drill("F4")
def test_checkpoints_are_written_at_intervals_and_at_the_end(served, monkeypatch, capsys):
    remaining = set_outcomes(monkeypatch, served, "one", "two", signal.SIGTERM, "three", "last", "never")
    assert command.serve_until_end(served, checkpoint_secs=0.001) == 75
    names = re.findall("checkpoint (.*)", capsys.readouterr().err)
    assert (names, next(remaining)) == (["one", "two", "three", "last"], "never")


def test_serving_a_dataset_writes_checkpoints_at_intervals_and_at_the_end(data, tmp_path, monkeypatch, capsys):
    remaining = set_outcomes(monkeypatch, ReplayServer, "filled", "one", signal.SIGTERM, "two", "last", "never")
    source = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"
    options = ["--checkpoint-root", str(tmp_path / "root"), "--checkpoint-every", "0.001s"]
    assert run(["serve", str(source), *options]) == 75
    err = capsys.readouterr().err
    words = re.findall("(?:^checkpoint|^serving) (\\S+)", err, re.M)
    assert (words, next(remaining)) == (["filled", "on", "one", "two", "last"], "never") and "error" not in err


def test_a_failed_checkpoint_is_reported_and_tried_at_the_next_interval(served, monkeypatch, capsys):
    set_outcomes(monkeypatch, served, "one", FULL, CheckpointError("odd"), signal.SIGINT, "two", "last")
    command.serve_until_end(served, checkpoint_secs=0.001)
    lines = capsys.readouterr().err.splitlines()[2:]
    assert lines == [
        "checkpoint one",
        "warning: no checkpoint: no space left for a checkpoint in root",
        "warning: no checkpoint: odd",
        "checkpoint two",
        "checkpoint last",
    ]


@pytest.mark.slow
def test_a_killed_server_restores_its_last_checkpoint(tmp_path):
    arguments = ["serve", "--checkpoint-root", str(tmp_path / "root"), "--checkpoint-every", "0.1"]
    program = [sys.executable, "-m", "rlds2reverb.cli", *arguments]
    running = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        words = chain.from_iterable(re.findall(r"(?:serving on|checkpoint) (\S+)\s", line) for line in running.stderr)
        ingest(make_episodes(2), next(words))
        # The first checkpoint may date from before `ingest`, and the second may have begun before its end.
        assert next(words) and next(words)
        newest = next(words)
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        running.stderr.close()
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == 2 * 149
        assert server.checkpoint().name > newest.rpartition("/")[2]


# --- at the end, on a full disk


@pytest.mark.parametrize("error", [FULL, CheckpointError("no checkpoint")])
def test_the_last_checkpoint_is_retried_until_there_is_space(served, monkeypatch, capsys, error):
    set_outcomes(monkeypatch, served, error, error, error, "last")
    send_sigterm_once_serving(monkeypatch)
    assert command.serve_until_end(served) == 75
    warning, done = capsys.readouterr().err.splitlines()
    assert (
        "All items are still in memory, and rlds2reverb tries again every 0.001 s; Ctrl-C or SIGTERM stops" in warning
    )
    assert done == "checkpoint last"


def send_sigterm_once_serving(monkeypatch):
    real = command.output.say

    def say(sentence):
        if sentence.startswith("serving on"):
            signal.raise_signal(signal.SIGTERM)
        elif not sentence.startswith("table"):
            real(sentence)

    monkeypatch.setattr(command.output, "say", say)


def test_a_second_signal_stops_the_retries(served, monkeypatch, capsys):
    set_outcomes(monkeypatch, served, FULL, FULL, signal.SIGINT, FULL, "never")
    send_sigterm_once_serving(monkeypatch)
    with pytest.raises(StorageFullError, match="no space left"):
        command.serve_until_end(served)
    assert "checkpoint never" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.drill("F9")
def test_a_server_on_a_full_disk_keeps_its_items_until_there_is_space(tmp_path):
    with process(serve_on_full_disk, list(rlds2reverb.__path__), tmp_path, 64 << 10) as (running, channel):
        skip_unless_mounted(channel)
        assert "2,980 items" in receive(channel)
        assert receive(channel).startswith("serving on")
        os.kill(running.pid, signal.SIGTERM)
        assert receive(channel).startswith(f"no space left for a checkpoint in {tmp_path}/root")
        assert receive(channel).startswith(f"checkpoint {tmp_path}/root/checkpoints/")
        assert receive(channel) == 20 * 149


def test_a_dataset_is_served_although_a_checkpoint_failed(data, tmp_path, monkeypatch, capsys):
    """The checkpoint after writing fails; the one at the end succeeds."""
    real, called = ReplayServer.checkpoint, []

    def checkpoint(server):
        called.append(server)
        if len(called) == 1:
            raise FULL
        return real(server)

    monkeypatch.setattr(ReplayServer, "checkpoint", checkpoint)
    send_sigterm_once_serving(monkeypatch)
    source = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"
    assert run(["serve", str(source), "--checkpoint-root", str(tmp_path / "root")]) == 75
    captured = capsys.readouterr()
    assert "warning: no checkpoint: no space left for a checkpoint in root" in captured.err
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == 911


# --- damaged checkpoints, and tables without a signature


@pytest.mark.drill("F8")
def test_serve_names_a_damaged_checkpoint(tmp_path, capsys, monkeypatch):
    root = tmp_path / "other"
    with ReplayServer([TableConfig()], checkpoint_root=root) as server:
        server.checkpoint()
        newest = server.checkpoint()
    damage_file(newest / "items.tfrecord", "empty")
    send_sigterm_once_serving(monkeypatch)
    assert run(["serve", "--checkpoint-root", str(root)]) == 75
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith("warning: ") and "items.tfrecord is damaged: it is empty" in warning
    assert "started from" in warning


def test_serve_names_tables_without_a_signature(served, capsys, monkeypatch):
    set_outcomes(monkeypatch, served, signal.SIGINT, "one", "last")
    command.serve_until_end(served, checkpoint_secs=0.001)
    assert "table 'replay': 0 items, of any shape (pass SRC --empty" in capsys.readouterr().err
