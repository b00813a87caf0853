"""Tests of file locks: there is one holder at a time, and no file is left behind."""

import os
import signal

import pytest
from faults import process, receive

from rlds2reverb.errors import ResourceInUseError
from rlds2reverb.system.file_lock import FileLock


def hold(channel, path):
    with FileLock(path, "this"):
        channel.send("held")
        channel.recv()


def take_turns(channel, path, count):
    """Takes the lock `count` times, and each time creates a file that must not exist while the lock is held."""
    inside = path.with_suffix(".inside")
    while count:
        try:
            with FileLock(path, "this"):
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                inside.unlink()
            count -= 1
        except ResourceInUseError:
            continue
    channel.send("done")


def test_lock_raises_while_held_and_removes_its_file(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "this"):
        with pytest.raises(ResourceInUseError, match=rf"^this is in use by process {os.getpid()} on .*; wait until"):
            FileLock(path, "this").__enter__()
        assert path.exists()
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.drill("F27")
def test_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "lock"
    with process(hold, path) as (running, channel):
        assert receive(channel) == "held"
        with pytest.raises(ResourceInUseError, match=f"in use by process {running.pid} on .*; do this"):
            FileLock(path, "this", "do this").__enter__()
        os.kill(running.pid, signal.SIGKILL)
        running.join()
    assert path.exists()
    with FileLock(path, "this"):
        pass
    assert not path.exists()


def test_lock_leaves_a_file_that_replaced_its_own(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "this"):
        path.unlink()  # For example, its folder was deleted.
        with FileLock(path, "this"):
            pass
        path.touch()
    assert path.exists()


@pytest.mark.slow
@pytest.mark.drill("F27")
def test_lock_has_one_holder_although_its_file_is_deleted_each_time(tmp_path):
    path = tmp_path / "lock"
    with process(take_turns, path, 2000) as (_, one), process(take_turns, path, 2000) as (_, other):
        assert receive(one) == receive(other) == "done"
    assert list(tmp_path.iterdir()) == []
