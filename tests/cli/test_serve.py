"""`serve`: checkpoints at intervals and at the end, full disks, and what it says of checkpoints that it passed over."""

import errno
import os
import re
import signal
import subprocess
import sys
from itertools import chain

import click
import pytest
from faults import damage_file, data_set, hear, mounted, process, serve_on_full_disk
from rlds2reverb.cli import checks, run
from rlds2reverb.cli import serve as command

import rlds2reverb
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.errors import CheckpointError, StorageFullError
from rlds2reverb.ingestion import ingest
from rlds2reverb.tables import TableConfig

FULL = StorageFullError(errno.ENOSPC, "no space left for a checkpoint in root")


@pytest.fixture(autouse=True)
def handlers():
    """Handlers of signals are put back in the end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def served(tmp_path):
    """A server with a checkpoint root."""
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        yield server


def answers(monkeypatch, server, *outcomes):
    """Has checkpoints end one way after the other; a signal number is raised, then the next outcome counts."""
    left = iter(outcomes)

    def checkpoint(*_):
        outcome = next(left)
        while isinstance(outcome, signal.Signals):
            signal.raise_signal(outcome)
            outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(server, "checkpoint", checkpoint)
    monkeypatch.setattr(command, "_RETRY_SECS", 0.001)
    return left


# --- at intervals


@pytest.mark.parametrize(
    ("text", "secs"), [("600", 600), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 ", 2), ("0.1", 0.1)]
)
def test_a_duration_is_a_number_and_a_unit(text, secs):
    assert checks.duration.convert(text, None, None) == secs


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "ten", "5d", "1e3", "nan", "m"])
def test_what_is_not_a_duration_is_refused(text):
    with pytest.raises(click.BadParameter, match=r"is not a duration above 0, expected such as 600, 90s, 10m or 2h"):
        checks.duration.convert(text, None, None)


@pytest.mark.parametrize("arguments", [["serve"], ["convert", "no.hdf5", "--serve"]])
def test_checkpoints_need_a_root(arguments, capsys):
    assert run([*arguments, "--checkpoint-every", "10m"]) == 1
    assert "--checkpoint-every is for --checkpoint-root" in capsys.readouterr().err


def test_checkpoints_are_written_at_intervals_and_at_the_end(served, monkeypatch, capsys):
    left = answers(monkeypatch, served, "one", "two", signal.SIGTERM, "three", "last", "never")
    command.serve_until_end(served, checkpoint_secs=0.001)
    said = re.findall("checkpoint (.*)", capsys.readouterr().err)
    assert (said, next(left)) == (["one", "two", "three", "last"], "never")


def test_convert_writes_checkpoints_when_the_data_are_in_at_intervals_and_at_the_end(
    data, tmp_path, monkeypatch, capsys
):
    left = answers(monkeypatch, ReplayServer, "filled", "one", signal.SIGTERM, "two", "last", "never")
    source = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"
    options = ["--checkpoint-root", str(tmp_path / "root"), "--checkpoint-every", "0.001s"]
    assert run(["convert", str(source), "--serve", *options]) == 0
    said = re.findall("(?:^checkpoint|^serving) (\\S+)", capsys.readouterr().err, re.M)
    assert (said, next(left)) == (["filled", "on", "one", "two", "last"], "never")


def test_a_checkpoint_that_fails_on_the_way_is_left_to_the_next_time(served, monkeypatch, capsys):
    answers(monkeypatch, served, "one", FULL, CheckpointError("odd"), signal.SIGINT, "two", "last")
    command.serve_until_end(served, checkpoint_secs=0.001)
    lines = capsys.readouterr().err.splitlines()[2:]
    assert lines == [
        "checkpoint one",
        "warning: no checkpoint: no space left for a checkpoint in root",
        "warning: no checkpoint: odd",
        "checkpoint two",
        "checkpoint last",
    ]


def test_a_killed_server_loses_what_came_after_its_last_checkpoint(tmp_path):
    arguments = ["serve", "--checkpoint-root", str(tmp_path / "root"), "--checkpoint-every", "0.1"]
    program = [sys.executable, "-m", "rlds2reverb.cli", *arguments]
    running = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = chain.from_iterable(re.findall(r"(?:serving on|checkpoint) (\S+?),?\s", line) for line in running.stderr)
        ingest(data_set(2), next(said))
        assert next(said) and next(said)  # what was written before the ingestion, and what was begun before its end
        newest = next(said)
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        running.stderr.close()
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == 2 * 149
        assert server.checkpoint().name > newest.rpartition("/")[2]


# --- at the end, without space


@pytest.mark.parametrize("error", [FULL, CheckpointError("no checkpoint")])
def test_the_last_checkpoint_is_tried_until_there_is_space(served, monkeypatch, capsys, error):
    answers(monkeypatch, served, error, error, error, "last")
    signal_once_serving(monkeypatch)
    command.serve_until_end(served)
    complaint, done = capsys.readouterr().err.splitlines()
    assert "All items are still in memory: this is tried again every 0.001 s; Ctrl-C or SIGTERM ends" in complaint
    assert done == "checkpoint last"


def signal_once_serving(monkeypatch):
    real = command.output.say

    def say(sentence):
        if sentence.startswith("serving on"):
            signal.raise_signal(signal.SIGTERM)
        elif not sentence.startswith("table"):
            real(sentence)

    monkeypatch.setattr(command.output, "say", say)


def test_a_second_signal_ends_the_waiting(served, monkeypatch, capsys):
    answers(monkeypatch, served, FULL, FULL, signal.SIGINT, FULL, "never")
    signal_once_serving(monkeypatch)
    with pytest.raises(StorageFullError, match="no space left"):
        command.serve_until_end(served)
    assert "checkpoint never" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_on_a_full_disk_keeps_its_items_until_there_is_space(tmp_path):
    with process(serve_on_full_disk, list(rlds2reverb.__path__), tmp_path, 64 << 10) as (running, channel):
        if isinstance(heard := mounted(channel), OSError):
            pytest.skip(f"this machine lets nobody mount a small disk ({heard})")
        assert "2,980 of at most" in hear(channel)
        assert hear(channel).startswith("serving on")
        os.kill(running.pid, signal.SIGTERM)
        assert hear(channel).startswith(f"no space left for a checkpoint in {tmp_path}/root")
        assert hear(channel).startswith(f"checkpoint {tmp_path}/root/checkpoints/")
        assert hear(channel) == 20 * 149


def test_convert_serves_on_a_full_disk(data, tmp_path, monkeypatch, capsys):
    """The checkpoint after the ingestion fails, the one at the end is written."""
    real, called = ReplayServer.checkpoint, []

    def checkpoint(server):
        called.append(server)
        if len(called) == 1:
            raise FULL
        return real(server)

    monkeypatch.setattr(ReplayServer, "checkpoint", checkpoint)
    signal_once_serving(monkeypatch)
    source = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"
    assert run(["convert", str(source), "--serve", "--checkpoint-root", str(tmp_path / "root")]) == 0
    captured = capsys.readouterr()
    assert "warning: no checkpoint: no space left for a checkpoint in root" in captured.err
    with ReplayServer([TableConfig()], checkpoint_root=tmp_path / "root") as server:
        assert server.client.server_info(timeout=10)["replay"].current_size == 911


# --- what was passed over


def test_the_command_names_a_checkpoint_that_it_passed_over(tmp_path, capsys, monkeypatch):
    root = tmp_path / "other"
    with ReplayServer([TableConfig()], checkpoint_root=root) as server:
        server.checkpoint()
        newest = server.checkpoint()
    damage_file(newest / "items.tfrecord", "empty")
    signal_once_serving(monkeypatch)
    assert run(["serve", "--checkpoint-root", str(root)]) == 0
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith("warning: ") and "items.tfrecord is damaged: it is empty" in warning
    assert "started from" in warning


def test_the_command_says_which_tables_take_anything(served, capsys, monkeypatch):
    answers(monkeypatch, served, signal.SIGTERM, "one", "last")
    command.serve_until_end(served, checkpoint_secs=0.001)
    assert "table 'replay': 0 of at most 2,147,483,647 items, of any shape: without a" in capsys.readouterr().err
