"""Priorities go back to the server that has the item, and bad ones nowhere."""

import os
import signal

import numpy as np
import pytest
from numbers_served import addresses, numbers, put, served_elsewhere

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.sampling.dataset import SampleInfo, sample_dataset
from rlds2reverb.sampling.priority_writer import PriorityWriter


def stored(server):
    """Number and priority of each item, by sampling it."""
    batches = sample_dataset(server.address, "items", 200, max_in_flight=200).take(2)
    found = {}
    for sample in batches.as_numpy_iterator():
        found.update(zip(sample.data.tolist(), sample.info.priority.tolist(), strict=True))
    return found


def info_of(key, server):
    return SampleInfo(np.array(key, np.uint64), 0, 0, 0, 0, 0, np.array(server, np.int32))


def test_each_priority_goes_to_the_server_that_has_the_item():
    with numbers({1: 1.0, 2: 1.0}, {3: 1.0, 4: 1.0}) as servers:
        writer = PriorityWriter(addresses(servers), "items")
        seen = set()
        for sample in sample_dataset(addresses(servers), "items", 8):
            writer.write(sample.info, sample.data.numpy() + 10)
            seen |= set(sample.data.numpy().tolist())
            if len(seen) == 4:
                break
        assert stored(servers[0]) == {1: 11, 2: 12} and stored(servers[1]) == {3: 13, 4: 14}


def test_an_item_of_priority_zero_is_not_drawn_again_and_unknown_keys_are_ignored():
    with numbers({1: 1.0, 2: 1.0}) as (server,):
        for sample in sample_dataset(server.address, "items", 8):
            values = sample.data.numpy()
            if 1 in values:
                break
        key = int(sample.info.key.numpy()[values == 1][0])
        PriorityWriter(server.address, "items").write(info_of([key, 77], [0, 0]), [0.0, 5.0])
        assert stored(server) == {2: 1.0}
        put(server.client, {3: 1.0})
        assert set(stored(server)) == {2, 3}


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 1e308])
def test_bad_priorities_are_refused_and_none_is_written(wrong):
    with numbers({1: 1.0}) as (server,):
        sample = next(iter(sample_dataset(server.address, "items", 2)))
        with pytest.raises(ValueError, match="the priority of item 1 of the batch is .*, expected a finite number in"):
            PriorityWriter(server.address, "items").write(sample.info, [7.0, wrong])
        assert stored(server) == {1: 1.0}


def test_what_does_not_fit_is_refused():
    writer = PriorityWriter("localhost:1", "items")
    with pytest.raises(
        ValueError, match=r"there are priorities \(1,\) for keys \(2,\) of servers \(2,\); expected one"
    ):
        writer.write(info_of([1, 2], [0, 0]), [1.0])
    with pytest.raises(ValueError, match="the batch has items of server 1, there are 1; give the servers that were"):
        writer.write(info_of([1, 2], [0, 1]), [1.0, 1.0])
    with pytest.raises(ValueError, match="timeout_secs is 0"):
        PriorityWriter("localhost:1", "items", timeout_secs=0)


def test_a_server_that_does_not_take_priorities_is_told_and_the_other_gets_its_own():
    told = []
    with numbers({1: 1.0}) as (server,), served_elsewhere({2: 1.0}) as (running, other):
        own = next(iter(sample_dataset(server.address, "items", 1))).info.key.numpy()[0]
        both = info_of([7, own], [0, 1])
        os.kill(running.pid, signal.SIGSTOP)
        PriorityWriter(
            [other, server.address], "items", timeout_secs=0.5, on_server_lost=lambda *said: told.append(said)
        ).write(both, [3.0, 4.0])
        assert told == [(other, f"waited 0.5 s for {other} to take priorities")] and stored(server) == {1: 4}
        with pytest.raises(ServerUnavailableError, match="to take priorities"):
            PriorityWriter([other, server.address], "items", timeout_secs=0.5).write(both, [5.0, 6.0])
        assert stored(server) == {1: 6}
        os.kill(running.pid, signal.SIGCONT)


def test_a_server_that_breaks_off_is_told_and_the_other_gets_its_own():
    told = []
    with served_elsewhere({1: 1.0}) as (first, there), numbers({2: 1.0}) as (server,):
        both = [there, server.address]
        writer = PriorityWriter(both, "items", on_server_lost=lambda *said: told.append(said))
        found = {}
        for sample in sample_dataset(both, "items", 8):
            found |= dict(zip(sample.info.server.numpy().tolist(), sample.info.key.numpy().tolist(), strict=True))
            if len(found) == 2:
                break
        info = info_of([found[0], found[1]], [0, 1])
        writer.write(info, [3.0, 4.0])
        first.kill()
        first.join()
        writer.write(info, [5.0, 6.0])
        assert stored(server) == {2: 6.0}
    assert [address for address, _ in told] == [there]
