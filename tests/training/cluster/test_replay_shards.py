"""Checkpoints of the replay servers of a cluster: they are committed together, or not at all. Without Ray."""

import threading
import time

import internals
import pytest
from reference_impls import episode

from rlds2reverb import ReplayServer, TableConfig, ingest, load
from rlds2reverb.adders.trajectory_windows import TrajectoryWindows
from rlds2reverb.errors import CheckpointError, ResourceInUseError
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.reverb.server.commits import CommitLog, write_shard
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.cluster import Coordinator, actors
from rlds2reverb.training.cluster.replay_shards import ReplayShards, ShardCheckpoint, ShardReport
from rlds2reverb.types.locations import shard_path

EPISODES = [episode(5, terminal=True, start=100.0 * number) for number in range(20)]
SIGNATURE = TrajectoryWindows().item_spec(load(EPISODES).step_spec)
NEW = ShardCheckpoint("", None, 0)


@pytest.fixture
def shards(tmp_path):
    return ReplayShards(tmp_path, 2, 60.0)


def read_commit(tmp_path):
    return CommitLog(tmp_path, 2).newest


def report(shards, shard, checkpoint=NEW, *, num_inserted=0, is_ending=False):
    state = ShardReport(f"host{shard}:1", {"replay": num_inserted}, num_inserted, checkpoint)
    return shards.report(shard, state, is_ending=is_ending)


# --- The protocol


def test_checkpoints_are_committed_when_all_servers_have_written_one(shards, tmp_path):
    for shard in (0, 1):
        assert report(shards, shard).request == ""
    assert not shards.commit("first") and not shards.commit("second")  # The next one has to wait.
    assert report(shards, 0).request == report(shards, 1).request == "first"
    assert report(shards, 0, ShardCheckpoint("first", "a", 0)).committed is None
    assert not shards.commit("first") and read_commit(tmp_path) == [None, None]
    order = report(shards, 1, ShardCheckpoint("first", "b", 0))
    assert (order.request, order.committed) == ("", "b")
    assert shards.commit("first") and read_commit(tmp_path) == ["a", "b"]
    assert ReplayShards(tmp_path, 2, 60.0).report(0, ShardReport("a:1", {}, 0, NEW), is_ending=False).committed == "a"


def test_server_that_is_restarted_answers_again(shards, tmp_path):
    for shard in (0, 1):
        report(shards, shard)
    shards.commit("first")
    report(shards, 0, ShardCheckpoint("first", "a", 0))
    order = report(shards, 0, ShardCheckpoint("", "a", 0))  # Restarted from the uncommitted checkpoint 'a'.
    assert order.request == "first" and order.committed is None  # It replaces 'a', which must not be committed now.
    report(shards, 1, ShardCheckpoint("first", "b", 0))
    assert read_commit(tmp_path) == [None, None]
    report(shards, 0, ShardCheckpoint("first", "later", 0))
    assert read_commit(tmp_path) == ["later", "b"]


def test_checkpoints_are_due_at_intervals_if_items_were_inserted(shards, monkeypatch):
    for shard in (0, 1):
        report(shards, shard)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert report(shards, 0).request == ""
    request = report(shards, 0, num_inserted=1).request
    assert request and report(shards, 1).request == request
    report(shards, 0, ShardCheckpoint(request, "a", 1), num_inserted=2)  # The second one is not in the checkpoint.
    assert report(shards, 1, ShardCheckpoint(request, "b", 0)).request == ""
    monkeypatch.setattr(time, "monotonic", lambda: now + 123)
    assert report(shards, 1, ShardCheckpoint(request, "b", 0)).request not in ("", request)


def test_servers_end_after_a_last_commit(shards, tmp_path):
    for shard in (0, 1):
        report(shards, shard, num_inserted=1)
    order = report(shards, 0, num_inserted=1, is_ending=True)
    assert order.request and not order.is_stopped
    assert not report(shards, 0, ShardCheckpoint(order.request, "a", 1), num_inserted=1, is_ending=True).is_stopped
    assert report(shards, 1, ShardCheckpoint(order.request, "b", 1), num_inserted=1, is_ending=True).is_stopped
    assert report(shards, 0, ShardCheckpoint(order.request, "a", 1), num_inserted=1, is_ending=True).is_stopped
    assert read_commit(tmp_path) == ["a", "b"]


def test_servers_without_new_items_end_at_once(shards):
    report(shards, 0, is_ending=True)
    assert report(shards, 1, is_ending=True).is_stopped


# --- With servers


class CrashError(Exception):
    """Ends a thread as a crash ends a process."""


class OneCallAtATime:
    """An object whose methods are called by one thread at a time, as those of a Ray actor."""

    def __init__(self, actor):
        self._actor, self._lock = actor, threading.RLock()

    def __getattr__(self, name):
        def call(*arguments):
            with self._lock:
                return getattr(self._actor, name)(*arguments)

        return call


class Replay:
    """A coordinator and two replay servers in threads, and what Ray would do with them."""

    def __init__(self, root):
        self.notes = CommitLog(root, 2).return_to_newest(verify=True)
        config = TrainingConfig("sac", env="Pendulum-v1")
        self.coordinator = OneCallAtATime(
            Coordinator(root / "state.json", config, replay_root=root, num_shards=2, checkpoint_secs=1e6)
        )
        self._root, self._is_crashed = root, threading.Event()
        self.actors, self._threads = {}, {}
        for shard in (0, 1):
            self.start(shard)
        wait_for(lambda: len(self.coordinator.shards()) == 2)

    def _call(self, method, *arguments):
        if self._is_crashed.is_set():
            raise CrashError
        return getattr(self.coordinator, method)(*arguments)

    def start(self, shard):
        self.actors[shard] = actors.ReplayActor(self._call, shard, [TableConfig()], SIGNATURE, self._root)
        self._threads[shard] = threading.Thread(target=self._run, args=(self.actors[shard],))
        self._threads[shard].start()

    def _run(self, actor):
        try:
            actor.run()
        except CrashError:
            internals.get_server(actor).stop()

    def write(self, episodes):
        ingest(episodes, list(self.coordinator.shards().values()), resume=False)

    def count_items(self):
        return [table_infos(internals.get_server(self.actors[shard]).client)["replay"].current_size for shard in (0, 1)]

    def commit(self, request):
        wait_for(lambda: self.coordinator.commit_replay(request))

    def join(self, shard):
        self._threads[shard].join(30)
        assert not self._threads[shard].is_alive()

    def crash(self):
        """Ends everything as the loss of all machines would."""
        self._is_crashed.set()
        for shard in (0, 1):
            self.join(shard)


def wait_for(is_true):
    until = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def report_often(monkeypatch):
    monkeypatch.setattr(actors, "REPORT_SECS", 0.02)


def crash_at_shard(monkeypatch, shard):
    """Makes the checkpoint of one shard crash its process."""

    def crash(server, committed, **options):
        if server.newest_checkpoint is not None and shard_path("", shard).name in str(server.newest_checkpoint):
            raise CrashError
        return write_shard(server, committed, **options)

    monkeypatch.setattr(actors, "write_shard", crash)


@pytest.mark.slow
@pytest.mark.drill("F7")
def test_crash_between_two_checkpoints_returns_all_servers_to_the_commit(tmp_path, monkeypatch):
    replay = Replay(tmp_path)
    assert not replay.notes
    replay.write(EPISODES[:10])
    replay.commit("first")
    sizes, names = replay.count_items(), read_commit(tmp_path)
    replay.write(EPISODES)
    crash_at_shard(monkeypatch, 1)
    replay.coordinator.commit_replay("second")
    replay.join(1)
    wait_for(lambda: internals.get_server(replay.actors[0]).newest_checkpoint.name != names[0])
    replay.crash()
    assert read_commit(tmp_path) == names
    monkeypatch.undo()

    replay = Replay(tmp_path)
    assert len(replay.notes) == 1 and "shard_0 is not part of the commit" in replay.notes[0]
    assert replay.count_items() == sizes
    replay.commit("third")
    replay.crash()
    replay = Replay(tmp_path)
    assert not replay.notes and replay.count_items() == sizes
    replay.crash()


@pytest.mark.drill("cluster")
def test_server_that_is_killed_alone_starts_from_its_own_newest_checkpoint(tmp_path, monkeypatch):
    replay = Replay(tmp_path)
    replay.write(EPISODES[:10])
    replay.commit("first")
    replay.write(EPISODES)
    sizes, names = replay.count_items(), read_commit(tmp_path)
    crash_at_shard(monkeypatch, 1)
    replay.coordinator.commit_replay("second")
    replay.join(1)
    wait_for(lambda: internals.get_server(replay.actors[0]).newest_checkpoint.name != names[0])
    monkeypatch.undo()
    monkeypatch.setattr(actors, "REPORT_SECS", 0.02)
    replay.start(1)  # Its items since the first commit are lost, and it completes the second one.
    replay.commit("second")
    assert replay.count_items()[0] == sizes[0] and replay.count_items()[1] < sizes[1]
    expected = replay.count_items()
    replay.crash()
    replay = Replay(tmp_path)
    assert not replay.notes and replay.count_items() == expected
    replay.crash()


@pytest.mark.slow
def test_stopped_run_ends_with_a_commit(tmp_path):
    replay = Replay(tmp_path)
    replay.write(EPISODES)
    sizes = replay.count_items()
    replay.coordinator.stop("complete")
    for shard in (0, 1):
        replay.join(shard)
    replay = Replay(tmp_path)
    assert not replay.notes and replay.count_items() == sizes
    replay.crash()


def test_running_server_is_reported_before_its_checkpoints_are_moved(tmp_path):
    with ReplayServer([TableConfig()], SIGNATURE, checkpoint_root=shard_path(tmp_path, 0)):
        shard_path(tmp_path, 1).mkdir()
        with pytest.raises(ResourceInUseError, match="shard_0 is in use by process"):
            CommitLog(tmp_path, 2).return_to_newest(verify=True)


def test_different_number_of_servers_raises(tmp_path):
    CommitLog(tmp_path, 2).add(["a", "b"])
    with pytest.raises(CheckpointError, match="contains the checkpoints of 2 shards, but 3 were requested"):
        ReplayShards(tmp_path, 3, 60.0)
