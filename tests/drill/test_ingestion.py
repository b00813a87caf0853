"""100,000 items are written to a server while it, the writer or both are killed: none is lost, none is stored twice."""

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from faults import convert, find_server, make_episodes, process, read_checkpoint, receive, serve_table
from process_signals import suspend_process

from rlds2reverb.errors import ServerRestartedError, ServerUnavailableError
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.types.tables import TableConfig

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data/d4rl/hopper_medium-v2.hdf5"
NUM_EPISODES, LENGTH = 672, 150
NUM_ITEMS = NUM_EPISODES * (LENGTH - 1)
MAX_RECOVERY_SECS = 45


@pytest.fixture(scope="module")
def episodes():
    return make_episodes(NUM_EPISODES, LENGTH)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, episodes):
    """Returns the items and chunks of an undisturbed run, and its duration."""
    folder = tmp_path_factory.mktemp("whole")
    with ReplayServer([TableConfig()], checkpoint_root=folder / "root") as server:
        began = time.monotonic()
        with process(convert, server.address, {"source": episodes, "state_home": folder}) as (_, channel):
            assert receive(channel) == "begun" and receive(channel)["items"] == NUM_ITEMS
        secs = time.monotonic() - began
        items = read_checkpoint(server.checkpoint())
    assert len(items[0]) == NUM_ITEMS > 100_000
    return items, secs


def finish(channel):
    """Returns whether a run noticed the restart and ended by itself; it may also have ended before."""
    try:
        return receive(channel)["restarts"] > 0
    except (ServerUnavailableError, ServerRestartedError):
        return False


def run_to_the_end(port, episodes, journals):
    with process(convert, port, {"source": episodes, "state_home": journals}) as (_, channel):
        assert receive(channel) == "begun" and receive(channel)["items"] == NUM_ITEMS


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("server", marks=pytest.mark.drill("F1")),
        pytest.param("writer", marks=pytest.mark.drill("F2")),
        pytest.param("both", marks=pytest.mark.drill("F3")),
    ],
)
def test_killed_processes_lose_and_repeat_nothing(tmp_path, episodes, whole, victim, drill_seed, recovery):
    items, secs = whole
    random = np.random.default_rng([["server", "writer", "both"].index(victim), drill_seed])
    options = {"source": episodes, "state_home": tmp_path}
    with process(serve_table, tmp_path / "root") as (server, to_server):
        port = receive(to_server)
        with process(convert, port, options) as (writer, channel):
            assert receive(channel) == "begun"
            channel.poll(random.uniform(0.1, 0.5) * secs)
            to_server.send("checkpoint")
            receive(to_server)
            channel.poll(random.uniform(0, 0.5) * secs)
            began = time.monotonic()
            if victim != "server":
                writer.kill()
                writer.join()
            if victim != "writer":
                server.kill()
                server.join()
            with recovery():
                if victim == "writer":
                    run_to_the_end(port, episodes, tmp_path)
                    to_server.send("checkpoint")
                    newest = receive(to_server)
                else:
                    with process(serve_table, tmp_path / "root", port) as (_, to_second):
                        assert receive(to_second) == port
                        if victim == "both" or not finish(channel):
                            run_to_the_end(port, episodes, tmp_path)
                        to_second.send("checkpoint")
                        newest = receive(to_second)
            assert time.monotonic() - began < MAX_RECOVERY_SECS
    assert read_checkpoint(newest) == items


# --- SIGTERM


def convert_command(channel, arguments, state_home):
    """Runs `convert`; sends 'reading' when it reads, and finally its exit code."""
    from rlds2reverb.cli import run

    os.environ["XDG_STATE_HOME"] = str(state_home)
    channel.send("started")
    channel.send(run(arguments))


@pytest.mark.drill("F4")
def test_conversion_stopped_by_sigterm_exits_with_75_and_continues(tmp_path, drill_seed, recovery):
    random = np.random.default_rng([4, drill_seed])
    arguments = ["convert", str(DATA), "--out", str(tmp_path / "out"), "--json"]
    with process(convert_command, arguments, tmp_path) as (running, channel):
        assert receive(channel) == "started"
        channel.poll(random.uniform(0.05, 1.5))
        os.kill(running.pid, signal.SIGTERM)
        with recovery():
            running.join(10)
        assert running.exitcode is not None
        code = running.exitcode
        with contextlib.suppress(EOFError):  # Raised if it ended without an exit code of the command.
            code = channel.recv()
    assert code in (0, 75, -signal.SIGTERM)  # It may have ended before, or not have started to handle signals.
    assert code != 0 or (tmp_path / "out").exists()  # The signal may come after the directory is complete.
    with process(convert_command, arguments, tmp_path) as (_, channel):
        assert receive(channel) == "started" and receive(channel) == 0
    with ReplayServer(directory=tmp_path / "out") as server:
        assert table_infos(server.address)["replay"].current_size == 10_202


# --- SIGSTOP


@pytest.mark.drill("F32")
@pytest.mark.parametrize("victim", ["server", "writer"])
def test_processes_stopped_for_30_s_continue(tmp_path, episodes, whole, victim):
    items, _ = whole
    with process(serve_table, tmp_path / "root") as (_, to_server):
        port = receive(to_server)
        options = {"source": episodes, "state_home": tmp_path, "timeout_secs": 60}
        with process(convert, port, options) as (writer, channel):
            assert receive(channel) == "begun"
            while not table_infos(port)["replay"].current_size:
                time.sleep(0.001)
            stopped = find_server(port) if victim == "server" else writer.pid
            suspend_process(stopped)
            time.sleep(30)
            os.kill(stopped, signal.SIGCONT)
            assert receive(channel)["items"] == NUM_ITEMS
        to_server.send("checkpoint")
        assert read_checkpoint(receive(to_server)) == items
