"""Tests of servers in their own processes: they start from one launcher, and never outlive their owner."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import internals
import pytest
from faults import HANG_SECS, find_server, make_episodes, process, receive, use_own_launcher
from process_signals import suspend_process

from rlds2reverb.cli import run
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb import process as process_package
from rlds2reverb.reverb.server import process as server_process
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.reverb.server.sharded_server import ShardedReplayServer
from rlds2reverb.types.tables import TableConfig


def wait_for_end(*pids):
    """Waits until processes have ended."""
    until = time.monotonic() + HANG_SECS
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < until, f"{pids} are still running"
        time.sleep(0.01)


def is_running(pid):
    """Returns whether any thread of a process is running; the first one may have ended before the others."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if read_fields(stat)[0] != "Z":
                return True
    return False


def read_fields(stat):
    return stat.read_text().rpartition(")")[2].split()


def read_parent(pid):
    return int(read_fields(Path(f"/proc/{pid}/stat"))[1])


def serve_twice(channel):
    """Starts two servers with a new launcher, sends their process IDs, and starts a process that survives it."""
    use_own_launcher()
    with ReplayServer([TableConfig()]) as one, ReplayServer([TableConfig()]) as two:
        survivor = os.fork()
        if not survivor:
            time.sleep(HANG_SECS)
            os._exit(0)
        channel.send((find_server(one.port), find_server(two.port), survivor))
        channel.recv()


@pytest.mark.slow
@pytest.mark.drill("F1")
def test_killed_process_leaves_no_servers():
    with process(serve_twice) as (running, channel):
        one, two, survivor = receive(channel)
        try:
            launcher = read_parent(one)
            assert read_parent(two) == launcher
            suspend_process(two)  # It cannot notice the end of its owner.
            running.kill()
            wait_for_end(one)
        finally:
            os.kill(survivor, signal.SIGKILL)
        wait_for_end(two, launcher)


def test_servers_ignore_the_signals_that_reach_all_processes():
    with ReplayServer([TableConfig()]) as server:
        pid = find_server(server.port)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
            os.kill(read_parent(pid), number)
        assert ingest(make_episodes(2, 5), server).items
        server.require_running()
    wait_for_end(pid)


@pytest.mark.drill("F14")
def test_killed_server_is_an_error(tmp_path):
    with ShardedReplayServer([TableConfig()], num_shards=2, checkpoint_root=tmp_path) as server:
        server.require_running()
        pid = find_server(server.servers[1].port)
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        for call in (server.require_running, server.checkpoint):
            with pytest.raises(ServerUnavailableError, match=f"server on port {server.servers[1].port} ended unexpec"):
                call()
        with pytest.raises(ServerUnavailableError, match=server.servers[1].address):
            ingest(make_episodes(2, 5), server.servers[1], timeout_secs=1.0)


@pytest.mark.drill("F14")
def test_serve_ends_if_its_server_is_killed(monkeypatch, capsys):
    started = []
    require_running = ReplayServer.require_running

    def kill_first(server):
        if not started:
            started.append(find_server(server.port))
            os.kill(started[0], signal.SIGKILL)
            wait_for_end(*started)
        require_running(server)

    monkeypatch.setattr(ReplayServer, "require_running", kill_first)
    assert run(["serve"]) == 75
    assert "ended unexpectedly; if there is no message of Reverb above, the system" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_launcher_is_replaced():
    with ReplayServer([TableConfig()]) as server:
        pid = find_server(server.port)
        launcher = read_parent(pid)
        os.kill(launcher, signal.SIGKILL)
        wait_for_end(pid)
        with pytest.raises(ServerUnavailableError, match="ended unexpectedly"):
            server.require_running()
    with ReplayServer([TableConfig()]) as server:
        assert read_parent(find_server(server.port)) != launcher


def test_server_that_ends_while_starting_raises(monkeypatch):
    def fork_server():
        control, other = socket.socketpair()
        other.close()
        return control

    monkeypatch.setattr(server_process, internals.FORK_SERVER, fork_server)
    with pytest.raises(ServerUnavailableError, match=r"the server on port \d+ ended while it was starting"):
        ReplayServer([TableConfig()])


def test_error_of_the_server_is_raised():
    with pytest.raises(ValueError, match="Multiple items in tables have the same name: replay"):
        ReplayServer([TableConfig(), TableConfig()])


@pytest.mark.slow
def test_launcher_runs_as_a_module_and_as_a_folder():
    for program in (["-m", "rlds2reverb.reverb.process"], ["-I", str(Path(process_package.__file__).parent)]):
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, other:
            running = subprocess.Popen([sys.executable, *program, str(other.fileno())], pass_fds=[other.fileno()])
            other.close()
            with server_process.fork_server(control) as server, server.makefile("rwb") as lines:
                pid = json.loads(lines.readline())["pid"]
                assert read_parent(pid) == running.pid
                lines.write(
                    b'{"tables": [], "signature": null, "port": 0, "batch_port": 0, "checkpoints": "/nowhere"}\n'
                )
                lines.flush()
                assert json.loads(lines.readline())["message"] == "At least one table must be provided"
            control.close()
            assert running.wait(HANG_SECS) == 0
