"""Writing to a server, while processes are killed or stopped: in the end every item is there once, bit for bit."""

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
    convert,
    damage_file,
    run_ingest,
    kill_after,
    kill_at,
    make_episodes,
    random_times,
    process,
    receive,
    server,
    skip_unless_mounted,
    read_checkpoint,
)
from reference_impls import episode

from rlds2reverb._server.clients import connect, table_infos
from rlds2reverb._server.replay_server import ReplayServer
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
from rlds2reverb.sources import load
from rlds2reverb.tables import TableConfig, item_signature
from rlds2reverb.trajectories import trajectory_spec

NUM_ITEMS = 100 * 149


def slow(*held_at):
    """A stage and an episode at which a run is held, for the slow tests only."""
    return pytest.param(held_at, marks=pytest.mark.slow)


def running(tmp_path, name="root"):
    return ReplayServer([TableConfig()], checkpoint_root=tmp_path / name)


def size(address):
    return table_infos(connect(address))["replay"].current_size


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """Items and chunks that a run stores which nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with running(folder) as undisturbed:
        assert run_ingest(undisturbed.address, state_home=folder)["items"] == NUM_ITEMS
        items, chunks = read_checkpoint(undisturbed.checkpoint())
    assert len(items) == NUM_ITEMS
    return items, chunks


@pytest.fixture(scope="module")
def duration_secs(tmp_path_factory):
    """How long a run takes, at best."""
    folder, taken = tmp_path_factory.mktemp("measured"), []
    for name in "abc":
        with running(folder, name) as measured, process(convert, measured.address, {}) as (_, channel):
            assert receive(channel) == "begun"
            began = time.monotonic()
            receive(channel)
            taken.append(time.monotonic() - began)
    return min(taken)


# --- the ingester is killed


@pytest.mark.parametrize("held_at", [("check", 50), ("try", 0), ("write", 0), ("write", 55), ("write", 99)])
def test_a_killed_ingester_is_run_again_and_every_item_is_there_once(tmp_path, wanted, held_at):
    with running(tmp_path) as alive:
        kill_at(*held_at, alive.address, state_home=tmp_path)
        run_ingest(alive.address, state_home=tmp_path)
        assert read_checkpoint(alive.checkpoint()) == wanted
    assert not list(tmp_path.glob("rlds2reverb/*.json"))


@pytest.mark.slow
def test_an_ingester_killed_at_any_of_20_moments_is_run_again_and_every_item_is_there_once(
    tmp_path, wanted, duration_secs
):
    num_killed = num_continued = 0
    for number, moment in enumerate(random_times(20, duration_secs, seed=1)):
        with running(tmp_path, f"root{number}") as alive:
            num_killed += kill_after(moment, alive.address, state_home=tmp_path)
            report = run_ingest(alive.address, state_home=tmp_path)
            num_continued += report["resumed_episodes"] > 0
            assert read_checkpoint(alive.checkpoint()) == wanted, f"killed after {moment} s"
    assert num_killed >= 5 and num_continued >= 1


def interrupted(address, tmp_path):
    """Kills an ingester when the server has confirmed half of the items, and the journal says so."""
    held_at = [("write", 50), ("write", 80)]
    with process(convert, address, {"state_home": tmp_path}, held_at) as (_, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]
        while size(address) < 40 * 149:
            time.sleep(0.01)
        channel.send("on")
        assert receive(channel) == "held"
    (journal,) = tmp_path.glob("rlds2reverb/*.json")
    return journal


def test_what_the_journal_says_is_not_written_again(tmp_path, wanted):
    with running(tmp_path) as alive:
        interrupted(alive.address, tmp_path)
        report = run_ingest(alive.address, state_home=tmp_path)
        assert 0 < report["resumed_episodes"] < 100 and report["items"] == NUM_ITEMS
        assert read_checkpoint(alive.checkpoint()) == wanted


def test_without_resuming_everything_is_written_again_and_stored_once(tmp_path, wanted):
    with running(tmp_path) as alive:
        interrupted(alive.address, tmp_path)
        assert run_ingest(alive.address, state_home=tmp_path, resume=False)["resumed_episodes"] == 0
        assert read_checkpoint(alive.checkpoint()) == wanted


def test_other_data_under_the_same_name_are_not_resumed(tmp_path):
    other = make_episodes()
    other[3] = episode(150, terminal=False, start=7)
    with running(tmp_path) as alive:
        interrupted(alive.address, tmp_path)
        before = size(alive.address)
        with pytest.raises(
            ResumeError, match=r"its first \d+ episodes are others; write to an empty table or a new directory"
        ):
            run_ingest(alive.address, state_home=tmp_path, source=other)
        assert size(alive.address) == before


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_a_damaged_journal_is_named(tmp_path, damage):
    with running(tmp_path) as alive:
        journal = interrupted(alive.address, tmp_path)
        damage_file(journal, damage)
        with pytest.raises(CorruptFileError, match=f"{journal} is damaged; delete it, or convert without resuming"):
            run_ingest(alive.address, state_home=tmp_path)
        assert run_ingest(alive.address, state_home=tmp_path, resume=False)["items"] == NUM_ITEMS
        assert size(alive.address) == NUM_ITEMS


def test_two_processes_do_not_write_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with running(tmp_path) as alive:
        with process(convert, alive.address, {"state_home": tmp_path}, [("write", 50)]) as (_, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            with pytest.raises(ResourceInUseError, match=f"this transfer to {alive.address} is in use by process"):
                ingest(make_episodes(), alive.address)
            channel.send("on")
            assert receive(channel)["items"] == NUM_ITEMS


@pytest.mark.parametrize("at", [0, 20])
def test_a_changed_data_set_is_not_mixed_with_what_an_earlier_run_wrote(tmp_path, at):
    changed = make_episodes()
    changed[at] = {**changed[at], "reward": changed[at]["reward"] + np.float32(0.5)}
    with running(tmp_path) as alive:
        interrupted(alive.address, tmp_path)
        before = size(alive.address)
        with pytest.raises(ResumeError, match="the data set is not the one that the earlier run wrote"):
            run_ingest(alive.address, state_home=tmp_path, source=changed)
        assert size(alive.address) == before
        assert run_ingest(alive.address, state_home=tmp_path)["items"] == NUM_ITEMS == size(alive.address)


def test_a_table_that_was_emptied_and_filled_by_others_gets_everything_again(tmp_path):
    with running(tmp_path) as alive:
        interrupted(alive.address, tmp_path)
        alive.client.reset("replay")
        others = [episode(150, terminal=False, start=-1000 * n - 1) for n in range(60)]
        with process(convert, alive.address, {"source": others}) as (_, channel):
            assert receive(channel) == "begun"
            num_others = receive(channel)["items"]
        report = run_ingest(alive.address, state_home=tmp_path)
        assert (report["resumed_episodes"], report["items"]) == (0, NUM_ITEMS)
        assert size(alive.address) == NUM_ITEMS + num_others


def test_a_journal_that_cannot_be_written_costs_a_warning_and_not_the_run(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file, where a folder would be made")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    with running(tmp_path) as alive, pytest.warns(RuntimeWarning, match="no journal can be kept at .*XDG_STATE_HOME"):
        report = ingest(make_episodes(), alive.address)
        assert (report.items, len(report.warnings)) == (NUM_ITEMS, 1)


def test_an_ingester_that_is_stopped_for_longer_than_its_time_out_continues(tmp_path, wanted, stoppable):
    server_pid, to_server, port = stoppable
    options = {"state_home": tmp_path, "timeout_secs": 2.0}
    with process(convert, port, options, [("write", 50)]) as (ingester, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]
        os.kill(server_pid, signal.SIGSTOP)  # so that the ingester waits for it
        channel.send("on")
        assert not channel.poll(0.5)
        os.kill(ingester.pid, signal.SIGSTOP)
        assert not channel.poll(3)
        os.kill(server_pid, signal.SIGCONT)
        os.kill(ingester.pid, signal.SIGCONT)
        assert receive(channel)["restarts"] == 0
    to_server.send("checkpoint")
    assert read_checkpoint(receive(to_server)) == wanted


# --- the server is killed


@pytest.mark.parametrize(("held_at", "num_restarts"), [(("check", 50), 0), (("write", 0), 1), (("write", 99), 1)])
def test_an_ingester_writes_everything_again_to_a_server_that_was_killed_and_restarted(
    tmp_path, wanted, held_at, num_restarts
):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        ingest(make_episodes()[:20], port)
        to_first.send("checkpoint")
        receive(to_first)
        with process(convert, port, {"state_home": tmp_path}, [held_at]) as (_, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            first.kill()
            first.join()
            with process(serve_table, tmp_path / "root", port) as (_, to_second):
                assert receive(to_second) == port
                assert size(port) == 20 * 149
                channel.send("on")
                assert receive(channel)["restarts"] == num_restarts
                to_second.send("checkpoint")
                assert read_checkpoint(receive(to_second)) == wanted


def test_a_server_that_stays_away_is_an_error_and_the_run_is_continued_later(tmp_path, wanted):
    options = {"state_home": tmp_path, "timeout_secs": 1.0}
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        with process(convert, port, options, [("write", 50)]) as (_, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            first.kill()
            first.join()
            channel.send("on")
            with pytest.raises(ServerUnavailableError, match=f"lost the server at localhost:{port} for 1 s"):
                receive(channel)
    with process(serve_table, tmp_path / "root", port) as (_, to_second):
        assert receive(to_second) == port
        run_ingest(port, **options)
        to_second.send("checkpoint")
        assert read_checkpoint(receive(to_second)) == wanted


@pytest.mark.parametrize("held_at", [pytest.param(("check", 99), marks=pytest.mark.slow), ("try", 0)])
def test_a_server_that_is_restarted_before_the_first_item_is_not_one_that_does_not_understand(
    tmp_path, wanted, held_at
):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        with process(convert, port, {"state_home": tmp_path}, [held_at]) as (_, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            first.kill()
            first.join()
            channel.send("on")
            channel.poll(0.5)
            with process(serve_table, tmp_path / "root", port) as (_, to_second):
                assert receive(to_second) == port
                report = receive(channel)
                assert (report["writer"], report["warnings"]) == ("bulk", ())
                to_second.send("checkpoint")
                assert read_checkpoint(receive(to_second)) == wanted


def test_the_item_that_is_tried_does_not_come_back_with_a_checkpoint(tmp_path, wanted):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        held_at = [("try", 0), ("write", 0)]
        with process(convert, port, {"state_home": tmp_path}, held_at) as (_, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            to_first.send("checkpoint")
            assert len(read_checkpoint(receive(to_first))[0]) == 1
            channel.send("on")
            assert receive(channel) == "held"
            first.kill()
            first.join()
            with process(serve_table, tmp_path / "root", port) as (_, to_second):
                assert receive(to_second) == port
                channel.send("on")
                assert receive(channel)["restarts"] == 1
                to_second.send("checkpoint")
                assert read_checkpoint(receive(to_second)) == wanted


def test_a_server_killed_while_it_writes_a_checkpoint_starts_from_the_one_before(tmp_path):
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        ingest(make_episodes()[:20], port)
        to_first.send("checkpoint")
        before = receive(to_first)
        ingest(make_episodes(), port)
        to_first.send("checkpoint")
        while set(before.parent.iterdir()) == {before}:
            pass
        first.kill()
        first.join()
        (cut_off,) = set(before.parent.iterdir()) - {before}
        assert not (cut_off / "DONE").exists()
    with pytest.warns(RuntimeWarning, match="was cut off while it was written; started from"):
        second = running(tmp_path)
    with second:
        assert size(second.address) == 20 * 149
        assert len(read_checkpoint(second.checkpoint())[0]) == 20 * 149
    with running(tmp_path) as third:
        assert size(third.address) == 20 * 149


@pytest.mark.slow
def test_a_server_killed_at_any_of_20_moments_and_restarted_has_every_item_once(tmp_path, wanted, duration_secs):
    num_recovered = 0
    for number, moment in enumerate(random_times(20, duration_secs, seed=2)):
        num_recovered += recovers(tmp_path / f"root{number}", tmp_path, moment, wanted)
    assert num_recovered >= 3


def recovers(root, journals, moment, wanted):
    """Kills the server at a moment and restarts it from a checkpoint; whether the ingester went on by itself."""
    with process(serve_table, root) as (first, to_first):
        port = receive(to_first)
        with process(convert, port, {"state_home": journals}) as (_, channel):
            assert receive(channel) == "begun"
            channel.poll(moment / 2)
            to_first.send("checkpoint")
            receive(to_first)
            channel.poll(moment / 2)
            first.kill()
            first.join()
            with process(serve_table, root, port) as (_, to_second):
                assert receive(to_second) == port
                recovered = finishes_after_a_restart(channel)
                if not recovered:  # it had finished, or gave up
                    run_ingest(port, state_home=journals)
                to_second.send("checkpoint")
                assert read_checkpoint(receive(to_second)) == wanted, f"killed after {moment} s"
                return recovered


def finishes_after_a_restart(channel):
    try:
        return receive(channel)["restarts"] > 0
    except ServerUnavailableError:
        return False


# --- the server is killed, and what comes back is not what was there


@contextmanager
def replaced(tmp_path, held_at, another, **options):
    """Kills the server at an episode of a stage, and starts another on its port: the ingester and both channels."""
    with process(serve_table, tmp_path / "root") as (first, to_first):
        port = receive(to_first)
        with process(convert, port, {"state_home": tmp_path, **options}, [held_at]) as (ingester, channel):
            assert [receive(channel), receive(channel)] == ["begun", "held"]
            first.kill()
            first.join()
            with process(another, tmp_path / "another", port) as (_, to_second):
                assert receive(to_second) == port
                channel.send("on")
                yield ingester, channel, to_second


def signature_of_the_items():
    return item_signature(trajectory_spec(load(make_episodes(1)).step_spec), 2)


OTHERS = {
    "action": (
        tf.TensorSpec((2, 1), tf.float64),
        r"item\['action'\] is float32 \[2, 1\], but .* expects float64 \[2, 1\]",
    ),
    "observation": (
        tf.TensorSpec((2, 3), tf.float32),
        r"item\['observation'\] is float32 \[2, 2\], but .* expects float32 \[2, 3\]",
    ),
}


@pytest.mark.parametrize(
    "held_at", [slow("check", 50), slow("try", 0), slow("write", 0), ("write", 55), slow("write", 99)]
)
@pytest.mark.parametrize("field", OTHERS)
def test_a_server_that_comes_back_with_another_signature_is_refused_and_gets_nothing(tmp_path, held_at, field):
    spec, message = OTHERS[field]
    another = partial(serve_table, signature=signature_of_the_items()._replace(**{field: spec}))
    with replaced(tmp_path, held_at, another) as (ingester, channel, to_second):
        with pytest.raises(SpecMismatchError, match=message):
            receive(channel)
        ingester.join(15)
        assert ingester.exitcode == 0
        to_second.send("checkpoint")
        assert read_checkpoint(receive(to_second)) == ({}, {})


@pytest.mark.parametrize("held_at", [("check", 50), ("write", 55)])
def test_a_server_that_comes_back_with_the_signature_of_the_items_gets_them(tmp_path, wanted, held_at):
    another = partial(serve_table, signature=signature_of_the_items())
    with replaced(tmp_path, held_at, another) as (_, channel, to_second):
        assert receive(channel)["items"] == NUM_ITEMS
        to_second.send("checkpoint")
        assert read_checkpoint(receive(to_second)) == wanted


@pytest.mark.parametrize("held_at", [("check", 50), ("write", 55)])
def test_a_server_that_comes_back_without_the_table_is_refused(tmp_path, held_at):
    with replaced(tmp_path, held_at, partial(serve_table, table="other")) as (_, channel, to_second):
        with pytest.raises(ValueError, match="the server has no table 'replay'; it has other"):
            receive(channel)
        to_second.send("checkpoint")
        assert read_checkpoint(receive(to_second)) == ({}, {})


@pytest.mark.parametrize(
    ("held_at", "timeout_secs"),
    [
        (("write", 11), 1.0),  # over before gRPC has found the server again
        pytest.param(("write", 11), 30.0, marks=pytest.mark.slow),
        *(pytest.param(("write", at), secs, marks=pytest.mark.slow) for at in (0, 19) for secs in (30.0, 2.0)),
    ],
)
def test_the_public_writer_says_that_a_server_that_was_killed_may_have_lost_items(tmp_path, held_at, timeout_secs):
    message = (
        r"at localhost:\d+ was restarted in the middle, and may have lost items; with writer='reverb', "
        "convert again into empty tables"
    )
    options = {"writer": "reverb", "source": make_episodes(20), "timeout_secs": timeout_secs}
    with replaced(tmp_path, held_at, serve_table, **options) as (ingester, channel, _):
        with pytest.raises(ServerUnavailableError, match=message):
            receive(channel)
        ingester.join(15)
        assert ingester.exitcode == 0


def test_the_public_writer_writes_everything_to_a_server_that_came_back_before_the_first_item(tmp_path):
    options = {"writer": "reverb", "source": make_episodes(20)}
    with replaced(tmp_path, ("check", 11), serve_table, **options) as (_, channel, to_second):
        report = receive(channel)
        assert (report["items"], report["restarts"], report["writer"]) == (20 * 149, 0, "reverb")
        to_second.send("checkpoint")
        assert len(read_checkpoint(receive(to_second))[0]) == 20 * 149


# --- the server is stopped


@pytest.fixture
def stoppable(tmp_path):
    with process(serve_table, tmp_path / "root") as (held, to_server):
        yield held.pid, to_server, receive(to_server)


@pytest.mark.parametrize("stage", [pytest.param("check", marks=pytest.mark.slow), "write"])
def test_a_server_that_is_stopped_is_an_error_in_time_and_the_run_is_continued_later(
    tmp_path, wanted, stoppable, stage
):
    pid, to_server, port = stoppable
    options = {"state_home": tmp_path, "timeout_secs": 2.0}
    with process(convert, port, options, [(stage, 50)]) as (ingester, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]
        os.kill(pid, signal.SIGSTOP)
        channel.send("on")
        with pytest.raises(ServerUnavailableError, match="localhost:"):
            receive(channel)
        ingester.join(15)
        assert ingester.exitcode == 0
    os.kill(pid, signal.SIGCONT)
    run_ingest(port, **options)
    to_server.send("checkpoint")
    assert read_checkpoint(receive(to_server)) == wanted


@pytest.mark.parametrize("secs", [1, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stage", ["check", "write"])
def test_an_ingester_outlasts_a_stop_that_is_shorter_than_its_time_out(tmp_path, wanted, stoppable, stage, secs):
    pid, to_server, port = stoppable
    options = {"state_home": tmp_path, "timeout_secs": 2.0 * secs + 10}
    with process(convert, port, options, [(stage, 50)]) as (_, channel):
        assert [receive(channel), receive(channel)] == ["begun", "held"]
        os.kill(pid, signal.SIGSTOP)
        channel.send("on")
        assert not channel.poll(secs)
        os.kill(pid, signal.SIGCONT)
        report = receive(channel)
        assert (report["restarts"], report["writer"]) == (0, "bulk")
    to_server.send("checkpoint")
    assert read_checkpoint(receive(to_server)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["bulk", "reverb"])
def test_a_program_ends_by_itself_when_its_server_is_stopped(tmp_path, stoppable, writer):
    pid, _, port = stoppable
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
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=home)
    assert ended.returncode == 1 and "ServerUnavailableError: waited 1 s for" in ended.stderr


# --- the disk is full


@pytest.mark.parametrize("num_bytes", [5 << 12, 10 << 12, 100 << 12])
def test_a_checkpoint_without_space_is_a_typed_error_and_the_one_before_stays(tmp_path, num_bytes):
    with process(checkpoint_on_full_disk, tmp_path, num_bytes) as (_, channel):
        skip_unless_mounted(channel)
        error = channel.recv()
        assert isinstance(error, (StorageFullError, CheckpointError)) and "no space left" in str(error)
        assert receive(channel) == [0, 20, 20]


# --- the server is not there


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_not_there_is_an_error_within_the_time_out(stoppable, end):
    pid, _, port = stoppable
    os.kill(pid, end)
    with pytest.raises(
        ServerUnavailableError, match=f"no Reverb server answered at localhost:{port} within 1 s; start it"
    ):
        run_ingest(port, timeout_secs=1.0)
