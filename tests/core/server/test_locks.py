"""Lock files: one at a time, also while they come and go, and nothing is left of them."""

import os
import signal

import pytest
from faults import hear, process

from rlds2reverb._server.locks import FileLock
from rlds2reverb.errors import ResourceInUseError


def hold(channel, path):
    with FileLock(path, "taken"):
        channel.send("held")
        channel.recv()


def take_turns(channel, path, count):
    """Takes the lock `count` times, and each time makes a file that nobody else may have made."""
    inside = path.with_suffix(".inside")
    while count:
        try:
            with FileLock(path, "taken"):
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                inside.unlink()
            count -= 1
        except ResourceInUseError:
            continue
    channel.send("done")


def test_a_lock_is_refused_while_another_has_it_and_its_file_goes_with_it(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "taken"):
        with pytest.raises(ResourceInUseError, match=r"^taken \(lock .*lock\)$"):
            FileLock(path, "taken").__enter__()
        assert path.exists()
    assert not path.exists()


def test_a_lock_of_a_process_that_was_killed_is_free(tmp_path):
    path = tmp_path / "lock"
    with process(hold, path) as (running, channel):
        assert hear(channel) == "held"
        with pytest.raises(ResourceInUseError):
            FileLock(path, "taken").__enter__()
        os.kill(running.pid, signal.SIGKILL)
        running.join()
    assert path.exists()
    with FileLock(path, "taken"):
        pass
    assert not path.exists()


def test_a_file_that_another_made_at_its_place_is_left_to_it(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "taken"):
        path.unlink()  # with the folder it was in
        with FileLock(path, "taken"):
            pass
        path.touch()
    assert path.exists()


def test_no_two_have_it_while_its_file_comes_and_goes(tmp_path):
    path = tmp_path / "lock"
    with process(take_turns, path, 2000) as (_, one), process(take_turns, path, 2000) as (_, other):
        assert hear(one) == hear(other) == "done"
    assert list(tmp_path.iterdir()) == []
