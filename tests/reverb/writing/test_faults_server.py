"""Tests that every item is stored once, bit for bit, if processes are killed or stopped while writing to a server."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from faults import (
    checkpoint_on_full_disk,
    continue_until,
    convert,
    damage_file,
    find_server,
    kill_after,
    kill_at,
    make_episodes,
    process,
    random_moments,
    read_checkpoint,
    receive,
    run_ingest,
    serve_table,
    skip_unless_mounted,
)
from process_signals import suspend_process
from properties import mark_slow_except
from reference_impls import episode

from rlds2reverb.datasets import load
from rlds2reverb.errors import (
    CheckpointError,
    CorruptFileError,
    ResourceInUseError,
    ResumeError,
    ServerUnavailableError,
    SpecMismatchError,
    StorageFullError,
)
from rlds2reverb.ingestion import ingest
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.server.replay_server import ReplayServer
from rlds2reverb.system.sealed_files import load_json
from rlds2reverb.types.tables import TableConfig, item_signature
from rlds2reverb.types.trajectories import trajectory_spec

NUM_ITEMS = 100 * 149


def slow(*held_at):
    """Returns a parameter for slow tests: the stage and the episode at which a run is held."""
    return pytest.param(held_at, marks=pytest.mark.slow)


def start_server(tmp_path, name="root"):
    return ReplayServer([TableConfig()], checkpoint_root=tmp_path / name)


def wait_until_held(channel):
    assert [receive(channel), receive(channel)] == ["begun", "held"]


def kill(running):
    running.kill()
    running.join()


def checkpoint(to_server):
    """Returns the path of a new checkpoint of a server in a different process."""
    to_server.send("checkpoint")
    return receive(to_server)


def count_items(address):
    return table_infos(address)["replay"].current_size


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Provides the items and chunks that an uninterrupted run stores."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with start_server(folder) as server:
        assert run_ingest(server.address, state_home=folder)["items"] == NUM_ITEMS
        items, chunks = read_checkpoint(server.checkpoint())
    assert len(items) == NUM_ITEMS
    return items, chunks


# --- the run is killed


@pytest.mark.parametrize(
    "held_at",
    [
        ("write", 55),
        *(
            pytest.param(moment, marks=pytest.mark.slow)
            for moment in [("check", 50), ("try", 0), ("write", 0), ("write", 99)]
        ),
    ],
)
@pytest.mark.drill("F2")
def test_killed_run_resumes_and_stores_every_item_once(tmp_path, expected, held_at):
    with start_server(tmp_path) as server:
        kill_at(*held_at, server.address, state_home=tmp_path)
        run_ingest(server.address, state_home=tmp_path)
        assert read_checkpoint(server.checkpoint()) == expected
    assert not list(tmp_path.glob("rlds2reverb/*.json"))


@pytest.mark.slow
@pytest.mark.drill("F2")
def test_run_killed_at_20_random_times_resumes(tmp_path, expected):
    num_resumed = 0
    for number, moment in enumerate(random_moments(20, "check", "write", seed=1)):
        with start_server(tmp_path, f"root{number}") as server:
            kill_after(moment, server.address, state_home=tmp_path)
            report = run_ingest(server.address, state_home=tmp_path)
            num_resumed += report["resumed_episodes"] > 0
            assert read_checkpoint(server.checkpoint()) == expected, f"killed at {moment}"
    assert num_resumed >= 1


def read_num_episodes(journal):
    return load_json(journal)["seen"]


def wait_until_quiet(address, secs=1.0):
    """Waits until the number of items has not changed for some time."""
    size, since = count_items(address), time.monotonic()
    while time.monotonic() < since + secs:
        time.sleep(0.05)
        if (current := count_items(address)) != size:
            size, since = current, time.monotonic()


def interrupt_run(address, tmp_path, min_episodes=1):
    """Kills a run after the server has confirmed half of the items; returns the path of the journal.

    The journal then contains at least `min_episodes` episodes, and no items are on their way to the server.
    """
    held_at = [("write", index) for index in range(50, 99)]
    with process(convert, address, {"state_home": tmp_path}, held_at) as (_, channel):
        wait_until_held(channel)
        while count_items(address) < 40 * 149:
            time.sleep(0.01)
        for _ in held_at[1:]:  # The writer may receive the confirmations later than this process counts the items.
            time.sleep(0.05)
            channel.send("continue")
            assert receive(channel) == "held"
            if any(read_num_episodes(path) >= min_episodes for path in tmp_path.glob("rlds2reverb/*.json")):
                break
        else:
            pytest.fail(f"the journal never contained {min_episodes} episodes")
        wait_until_quiet(address)
    (journal,) = tmp_path.glob("rlds2reverb/*.json")
    return journal


@pytest.mark.slow
def test_items_in_the_journal_are_not_written_again(tmp_path, expected):
    with start_server(tmp_path) as server:
        interrupt_run(server.address, tmp_path)
        report = run_ingest(server.address, state_home=tmp_path)
        assert 0 < report["resumed_episodes"] < 100 and report["items"] == NUM_ITEMS
        assert read_checkpoint(server.checkpoint()) == expected


@pytest.mark.slow
def test_run_without_resuming_stores_every_item_once(tmp_path, expected):
    with start_server(tmp_path) as server:
        interrupt_run(server.address, tmp_path)
        assert run_ingest(server.address, state_home=tmp_path, resume=False)["resumed_episodes"] == 0
        assert read_checkpoint(server.checkpoint()) == expected


@pytest.mark.slow
@pytest.mark.drill("moved")
def test_resuming_with_different_data_raises(tmp_path):
    other = make_episodes()
    other[3] = episode(150, terminal=False, start=7)
    with start_server(tmp_path) as server:
        interrupt_run(server.address, tmp_path)
        before = count_items(server.address)
        with pytest.raises(
            ResumeError, match=r"its first \d+ episodes differ; write to an empty table or a new directory"
        ):
            run_ingest(server.address, state_home=tmp_path, source=other)
        assert count_items(server.address) == before


@pytest.mark.parametrize("damage", mark_slow_except({"flipped"}, ["flipped", "truncated", "empty"]))
def test_damaged_journal_raises(tmp_path, damage):
    with start_server(tmp_path) as server:
        journal = interrupt_run(server.address, tmp_path)
        damage_file(journal, damage)
        with pytest.raises(CorruptFileError, match=f"{journal} is damaged; delete it, or start again .resume=False"):
            run_ingest(server.address, state_home=tmp_path)
        assert run_ingest(server.address, state_home=tmp_path, resume=False)["items"] == NUM_ITEMS
        assert count_items(server.address) == NUM_ITEMS


def test_second_process_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with start_server(tmp_path) as server:
        with process(convert, server.address, {"state_home": tmp_path}, [("write", 50)]) as (_, channel):
            wait_until_held(channel)
            with pytest.raises(ResourceInUseError, match=f"this transfer to {server.address} is in use by process"):
                ingest(make_episodes(), server.address)
            channel.send("continue")
            assert receive(channel)["items"] == NUM_ITEMS


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 20])
@pytest.mark.drill("moved")
def test_changed_dataset_raises_and_is_not_written(tmp_path, index):
    changed = make_episodes()
    changed[index] = {**changed[index], "reward": changed[index]["reward"] + np.float32(0.5)}
    with start_server(tmp_path) as server:
        interrupt_run(server.address, tmp_path, min_episodes=index + 1)
        before = count_items(server.address)
        with pytest.raises(ResumeError, match="the dataset does not match the one that the earlier run wrote"):
            run_ingest(server.address, state_home=tmp_path, source=changed)
        assert count_items(server.address) == before
        assert run_ingest(server.address, state_home=tmp_path)["items"] == NUM_ITEMS == count_items(server.address)


@pytest.mark.slow
def test_reset_table_gets_all_items_again(tmp_path):
    with start_server(tmp_path) as server:
        interrupt_run(server.address, tmp_path)
        server.client.reset("replay")
        others = [episode(150, terminal=False, start=-1000 * n - 1) for n in range(60)]
        with process(convert, server.address, {"source": others}) as (_, channel):
            assert receive(channel) == "begun"
            num_others = receive(channel)["items"]
        report = run_ingest(server.address, state_home=tmp_path)
        assert (report["resumed_episodes"], report["items"]) == (0, NUM_ITEMS)
        assert count_items(server.address) == NUM_ITEMS + num_others


@pytest.mark.slow
def test_journal_that_cannot_be_written_causes_a_warning(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file in place of a folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    with (
        start_server(tmp_path) as server,
        pytest.warns(RuntimeWarning, match="cannot write a journal to .*XDG_STATE_HOME"),
    ):
        report = ingest(make_episodes(), server.address)
        assert (report.items, len(report.warnings)) == (NUM_ITEMS, 1)


@pytest.mark.slow
@pytest.mark.drill("F32")
def test_run_stopped_for_longer_than_its_timeout_continues(tmp_path, expected, stoppable_server):
    server_pid, to_server, port = stoppable_server
    options = {"state_home": tmp_path, "timeout_secs": 2.0}
    with process(convert, port, options, [("write", 50)]) as (run, channel):
        wait_until_held(channel)
        suspend_process(server_pid)  # This makes the run wait for the server.
        channel.send("continue")
        assert not channel.poll(0.5)
        suspend_process(run.pid)
        assert not channel.poll(3)
        os.kill(server_pid, signal.SIGCONT)
        os.kill(run.pid, signal.SIGCONT)
        assert receive(channel)["restarts"] == 0
    assert read_checkpoint(checkpoint(to_server)) == expected


# --- the server is killed


@pytest.mark.parametrize(
    ("held_at", "num_restarts"),
    [(("check", 50), 0), (("write", 0), 1), (("write", 99), 1)],
)
@pytest.mark.drill("F1")
@pytest.mark.slow
def test_restarted_server_gets_all_items_again(tmp_path, expected, held_at, num_restarts):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        ingest(make_episodes()[:20], port)
        checkpoint(to_first)
        with process(convert, port, {"state_home": tmp_path}, [held_at]) as (_, channel):
            wait_until_held(channel)
            kill(first)
            with process(serve_table, tmp_path / "root", port) as (_, to_second):
                assert receive(to_second) == port
                assert count_items(port) == 20 * 149
                channel.send("continue")
                assert receive(channel)["restarts"] == num_restarts
                assert read_checkpoint(checkpoint(to_second)) == expected


@pytest.mark.slow
@pytest.mark.drill("F1")
def test_server_that_stays_down_raises_and_the_run_resumes_later(tmp_path, expected):
    options = {"state_home": tmp_path, "timeout_secs": 3.0}
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        with process(convert, port, options, [("write", 50)]) as (_, channel):
            wait_until_held(channel)
            kill(first)
            channel.send("continue")
            with pytest.raises(ServerUnavailableError, match=f"lost the server at localhost:{port} for 3 s"):
                receive(channel)
    with process(serve_table, tmp_path / "root", port) as (_, to_second):
        assert receive(to_second) == port
        run_ingest(port, state_home=tmp_path)
        assert read_checkpoint(checkpoint(to_second)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("held_at", [("check", 99), ("try", 0)])
def test_server_restarted_before_the_first_item_uses_the_bulk_writer(tmp_path, expected, held_at):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        with process(convert, port, {"state_home": tmp_path}, [held_at]) as (_, channel):
            wait_until_held(channel)
            kill(first)
            channel.send("continue")
            channel.poll(0.5)
            with process(serve_table, tmp_path / "root", port) as (_, to_second):
                assert receive(to_second) == port
                report = receive(channel)
                assert (report["writer"], report["warnings"]) == ("bulk", ())
                assert read_checkpoint(checkpoint(to_second)) == expected


@pytest.mark.slow
@pytest.mark.drill("F1")
def test_trial_item_does_not_reappear_with_a_checkpoint(tmp_path, expected):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        held_at = [("try", 0), ("write", 0)]
        with process(convert, port, {"state_home": tmp_path}, held_at) as (_, channel):
            wait_until_held(channel)
            assert len(read_checkpoint(checkpoint(to_first))[0]) == 1
            channel.send("continue")
            assert receive(channel) == "held"
            kill(first)
            with process(serve_table, tmp_path / "root", port) as (_, to_second):
                assert receive(to_second) == port
                channel.send("continue")
                assert receive(channel)["restarts"] == 1
                assert read_checkpoint(checkpoint(to_second)) == expected


@pytest.mark.slow
@pytest.mark.drill("F7")
def test_server_killed_during_a_checkpoint_starts_from_the_previous_one(tmp_path):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        ingest(make_episodes()[:20], port)
        previous = checkpoint(to_first)
        ingest(make_episodes(), port)
        to_first.send("checkpoint")
        while set(previous.parent.iterdir()) == {previous}:
            pass
        kill(first)
        (interrupted,) = set(previous.parent.iterdir()) - {previous}
        assert not (interrupted / "DONE").exists()
    with pytest.warns(RuntimeWarning, match="was interrupted while it was written; started from"):
        second = start_server(tmp_path)
    with second:
        assert count_items(second.address) == 20 * 149
        assert len(read_checkpoint(second.checkpoint())[0]) == 20 * 149
    with start_server(tmp_path) as third:
        assert count_items(third.address) == 20 * 149


@pytest.mark.slow
@pytest.mark.drill("F1")
def test_server_killed_at_20_random_times_gets_every_item_once(tmp_path, expected):
    num_recovered = 0
    for number, moment in enumerate(random_moments(20, "check", "write", seed=2)):
        num_recovered += kill_and_restart(tmp_path / f"root{number}", tmp_path, moment, expected)
    assert num_recovered >= 3


def kill_and_restart(root, journals, moment, expected):
    """Kills and restarts the server during a run; returns whether the run continued by itself."""
    with process(serve_table, root) as (first, to_first):
        port = receive(to_first)
        with process(convert, port, {"state_home": journals}, [moment[:2]]) as (_, channel):
            continue_until((*moment[:2], 0.0), channel)
            checkpoint(to_first)
            time.sleep(moment[2])
            kill(first)
            with process(serve_table, root, port) as (_, to_second):
                assert receive(to_second) == port
                recovered = finishes_after_restart(channel)
                if not recovered:  # The run finished before the kill, or raised an error.
                    run_ingest(port, state_home=journals)
                assert read_checkpoint(checkpoint(to_second)) == expected, f"killed at {moment}"
                return recovered


def finishes_after_restart(channel):
    """Returns whether the run of a channel noticed a restart and finished."""
    try:
        return receive(channel)["restarts"] > 0
    except ServerUnavailableError:
        return False


# --- the server is killed and replaced by a different one


@contextmanager
def replace_server(tmp_path, held_at, new_server, **options):
    """Kills the server while a run is held, starts a new one on its port, and yields the run and both channels."""
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        with process(convert, port, {"state_home": tmp_path, **options}, [held_at]) as (run, channel):
            wait_until_held(channel)
            kill(first)
            with process(new_server, tmp_path / "new", port) as (_, to_second):
                assert receive(to_second) == port
                channel.send("continue")
                yield run, channel, to_second


def make_signature():
    return item_signature(trajectory_spec(load(make_episodes(1)).step_spec), 2)


OTHER_SPECS = {
    "action": (
        tf.TensorSpec((2, 1), tf.float64),
        r"item\['action'\] is float32 \[2, 1\], but .* expects float64 \[2, 1\]",
    ),
    "observation": (
        tf.TensorSpec((2, 3), tf.float32),
        r"item\['observation'\] is float32 \[2, 2\], but .* expects float32 \[2, 3\]",
    ),
}


@pytest.mark.parametrize("held_at", [("check", 50), ("try", 0), ("write", 0), ("write", 55), ("write", 99)])
@pytest.mark.parametrize("field", OTHER_SPECS)
@pytest.mark.drill("F28")
@pytest.mark.slow
def test_restarted_server_with_a_different_signature_raises(tmp_path, held_at, field):
    spec, message = OTHER_SPECS[field]
    new_server = partial(serve_table, signature=make_signature()._replace(**{field: spec}))
    with replace_server(tmp_path, held_at, new_server) as (run, channel, to_second):
        with pytest.raises(SpecMismatchError, match=message):
            receive(channel)
        run.join(15)
        assert run.exitcode == 0
        assert read_checkpoint(checkpoint(to_second)) == ({}, {})


@pytest.mark.slow
@pytest.mark.parametrize("held_at", [("check", 50), ("write", 55)])
@pytest.mark.drill("F28")
def test_restarted_server_with_a_matching_signature_gets_the_items(tmp_path, expected, held_at):
    new_server = partial(serve_table, signature=make_signature())
    with replace_server(tmp_path, held_at, new_server) as (_, channel, to_second):
        assert receive(channel)["items"] == NUM_ITEMS
        assert read_checkpoint(checkpoint(to_second)) == expected


@pytest.mark.parametrize("held_at", [slow("check", 50), ("write", 55)])
@pytest.mark.drill("F28")
def test_restarted_server_without_the_table_raises(tmp_path, held_at):
    with replace_server(tmp_path, held_at, partial(serve_table, table="other")) as (_, channel, to_second):
        with pytest.raises(ValueError, match="the server has no table 'replay'; it has other"):
            receive(channel)
        assert read_checkpoint(checkpoint(to_second)) == ({}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held_at", "timeout_secs"),
    [
        (("write", 11), 1.0),  # The timeout ends before gRPC has reconnected.
        (("write", 11), 30.0),
        *((("write", at), secs) for at in (0, 19) for secs in (30.0, 2.0)),
    ],
)
def test_reverb_writer_raises_if_the_server_was_restarted(tmp_path, held_at, timeout_secs):
    message = (
        r"at localhost:\d+ was restarted during the run and may have lost items; with the writer 'reverb', "
        "convert again into empty tables"
    )
    options = {"writer": "reverb", "source": make_episodes(20), "timeout_secs": timeout_secs}
    with replace_server(tmp_path, held_at, serve_table, **options) as (run, channel, _):
        with pytest.raises(ServerUnavailableError, match=message):
            receive(channel)
        run.join(15)
        assert run.exitcode == 0


@pytest.mark.slow
def test_reverb_writer_writes_to_a_server_restarted_before_the_first_item(tmp_path):
    options = {"writer": "reverb", "source": make_episodes(20)}
    with replace_server(tmp_path, ("check", 11), serve_table, **options) as (_, channel, to_second):
        report = receive(channel)
        assert (report["items"], report["restarts"], report["writer"]) == (20 * 149, 0, "reverb")
        assert len(read_checkpoint(checkpoint(to_second))[0]) == 20 * 149


# --- the server is stopped


@pytest.fixture
def stoppable_server(tmp_path):
    """Provides a server in a process: its process id, the channel to it, and its port."""
    with process(serve_table, tmp_path / "root") as (_, to_server):
        port = receive(to_server)
        yield find_server(port), to_server, port


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["check", "write"])
@pytest.mark.drill("F15")
def test_stopped_server_raises_in_time_and_the_run_resumes_later(tmp_path, expected, stoppable_server, stage):
    pid, to_server, port = stoppable_server
    options = {"state_home": tmp_path, "timeout_secs": 2.0}
    with process(convert, port, options, [(stage, 50)]) as (run, channel):
        wait_until_held(channel)
        suspend_process(pid)
        channel.send("continue")
        with pytest.raises(ServerUnavailableError, match="localhost:"):
            receive(channel)
        run.join(15)
        assert run.exitcode == 0
    os.kill(pid, signal.SIGCONT)
    run_ingest(port, **options)
    assert read_checkpoint(checkpoint(to_server)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("secs", [1, 30])
@pytest.mark.parametrize("stage", ["check", "write"])
@pytest.mark.drill("F32")
def test_run_continues_after_a_stop_shorter_than_its_timeout(tmp_path, expected, stoppable_server, stage, secs):
    pid, to_server, port = stoppable_server
    options = {"state_home": tmp_path, "timeout_secs": 2.0 * secs + 10}
    with process(convert, port, options, [(stage, 50)]) as (_, channel):
        wait_until_held(channel)
        suspend_process(pid)
        channel.send("continue")
        assert not channel.poll(secs)
        os.kill(pid, signal.SIGCONT)
        report = receive(channel)
        assert (report["restarts"], report["writer"]) == (0, "bulk")
    assert read_checkpoint(checkpoint(to_server)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["bulk", "reverb"])
@pytest.mark.drill("F15")
def test_program_exits_if_its_server_is_stopped(tmp_path, stoppable_server, writer):
    pid, _, port = stoppable_server
    program = textwrap.dedent(
        f"""
        import os, signal
        from rlds2reverb import IngestOptions, ingest
        log = dict(observations=[[1.0]] * 10, actions=[[0.0]] * 10, rewards=[1.0] * 10, terminated=True)
        stop = lambda stage, episode: os.kill({pid}, signal.SIGSTOP) if stage == "write" else None
        ingest([log] * 10, {port}, timeout_secs=1, options=IngestOptions(writer={writer!r}), progress=stop)
        """
    )
    home = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=home)
    assert result.returncode == 1 and "ServerUnavailableError: waited 1 s for" in result.stderr


# --- the disk is full


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [6 << 12, 10 << 12, 100 << 12])
@pytest.mark.drill("F9")
def test_checkpoint_on_a_full_disk_raises_and_keeps_the_previous_one(tmp_path, num_bytes):
    with process(checkpoint_on_full_disk, tmp_path, num_bytes) as (_, channel):
        skip_unless_mounted(channel)
        error = channel.recv()
        assert isinstance(error, (StorageFullError, CheckpointError)) and "no space left" in str(error)
        assert receive(channel) == [0, 20, 20]


# --- the server is not available


@pytest.mark.timeout(60, func_only=True)
@pytest.mark.parametrize("end", mark_slow_except({signal.SIGSTOP}, [signal.SIGKILL, signal.SIGSTOP]))
@pytest.mark.drill("F14")
def test_unavailable_server_raises_within_the_timeout(stoppable_server, end):
    pid, _, port = stoppable_server
    os.kill(pid, end)
    with pytest.raises(
        ServerUnavailableError, match=f"no Reverb server answered at localhost:{port} within 1 s; start one"
    ):
        run_ingest(port, timeout_secs=1.0)
