"""Tests of `PriorityWriter`: each priority reaches the server that holds the item, and invalid ones are not sent."""

import os
import signal

import numpy as np
import pytest
from faults import find_server
from numbers_served import addresses, serve_in_process, serve_numbers, write_numbers
from process_signals import kill_process, suspend_process

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.sampling import SampleInfo, sample_dataset
from rlds2reverb.reverb.sampling.priority_writer import PriorityWriter


def read_priorities(server):
    """Returns the priority of each number in the table, read from samples."""
    batches = sample_dataset(server.address, "items", 200, max_in_flight=200).take(2)
    priorities = {}
    for sample in batches.as_numpy_iterator():
        priorities.update(zip(sample.data.tolist(), sample.info.priority.tolist(), strict=True))
    return priorities


def make_info(key, server):
    return SampleInfo(np.array(key, np.uint64), 0, 0, 0, 0, 0, np.array(server, np.int32))


def test_each_priority_is_written_to_the_server_of_its_item():
    with serve_numbers({1: 1.0, 2: 1.0}, {3: 1.0, 4: 1.0}) as servers:
        writer = PriorityWriter(addresses(servers), "items")
        seen = set()
        for sample in sample_dataset(addresses(servers), "items", 8):
            writer.write(sample.info, sample.data.numpy() + 10)
            seen |= set(sample.data.numpy().tolist())
            if len(seen) == 4:
                break
        assert read_priorities(servers[0]) == {1: 11, 2: 12} and read_priorities(servers[1]) == {3: 13, 4: 14}


def test_priority_zero_ends_sampling_and_unknown_keys_are_ignored():
    with serve_numbers({1: 1.0, 2: 1.0}) as (server,):
        for sample in sample_dataset(server.address, "items", 8):
            values = sample.data.numpy()
            if 1 in values:
                break
        key = int(sample.info.key.numpy()[values == 1][0])
        PriorityWriter(server.address, "items").write(make_info([key, 77], [0, 0]), [0.0, 5.0])
        assert read_priorities(server) == {2: 1.0}
        write_numbers(server.client, {3: 1.0})
        assert set(read_priorities(server)) == {2, 3}


@pytest.mark.drill("F13")
def test_invalid_priorities_raise_and_none_is_written():
    with serve_numbers({1: 1.0}) as (server,):
        sample = next(iter(sample_dataset(server.address, "items", 2)))
        for invalid in (-1.0, float("nan"), float("inf"), 1e308):
            with pytest.raises(ValueError, match="the priority of item 1 of the batch must be a finite number in"):
                PriorityWriter(server.address, "items").write(sample.info, [7.0, invalid])
        assert read_priorities(server) == {1: 1.0}


def test_batch_with_other_servers_or_lengths_raises():
    writer = PriorityWriter("localhost:1", "items")
    with pytest.raises(ValueError, match=r"must have the same length, got shapes \(1,\), \(2,\) and \(2,\)"):
        writer.write(make_info([1, 2], [0, 0]), [1.0])
    with pytest.raises(
        ValueError, match="the batch has items of server 1, but this writer has 1; pass the servers that"
    ):
        writer.write(make_info([1, 2], [0, 1]), [1.0, 1.0])
    with pytest.raises(ValueError, match="timeout_secs must be above 0 .*, got 0"):
        PriorityWriter("localhost:1", "items", timeout_secs=0)


@pytest.mark.slow
@pytest.mark.drill("F15")
def test_stopped_server_is_reported_and_the_other_is_updated():
    reports = []
    with serve_numbers({1: 1.0}) as (server,), serve_in_process({2: 1.0}) as (_, other):
        key = next(iter(sample_dataset(server.address, "items", 1))).info.key.numpy()[0]
        info = make_info([7, key], [0, 1])
        suspend_process(find_server(other))
        PriorityWriter(
            [other, server.address], "items", timeout_secs=0.5, on_server_lost=lambda *report: reports.append(report)
        ).write(info, [3.0, 4.0])
        assert reports == [(other, f"waited 0.5 s for {other} to update priorities; if it has ended, start it again")]
        assert read_priorities(server) == {1: 4}
        with pytest.raises(ServerUnavailableError, match="to update priorities"):
            PriorityWriter([other, server.address], "items", timeout_secs=0.5).write(info, [5.0, 6.0])
        assert read_priorities(server) == {1: 6}
        os.kill(find_server(other), signal.SIGCONT)


@pytest.mark.slow
def test_dead_server_is_reported_and_the_other_is_updated():
    reports = []
    with serve_in_process({1: 1.0}) as (_, lost_address), serve_numbers({2: 1.0}) as (server,):
        servers = [lost_address, server.address]
        writer = PriorityWriter(servers, "items", on_server_lost=lambda *report: reports.append(report))
        keys = {}
        for sample in sample_dataset(servers, "items", 8):
            keys |= dict(zip(sample.info.server.numpy().tolist(), sample.info.key.numpy().tolist(), strict=True))
            if len(keys) == 2:
                break
        info = make_info([keys[0], keys[1]], [0, 1])
        writer.write(info, [3.0, 4.0])
        kill_process(find_server(lost_address))
        writer.write(info, [5.0, 6.0])
        assert read_priorities(server) == {2: 6.0}
    assert [address for address, _ in reports] == [lost_address]


def make_recording_writer(**options):
    """Returns a writer that sends nothing, and the list of the priorities that it would send."""
    writer, written = PriorityWriter("localhost:1", "items", **options), []
    writer.write = lambda info, priorities: written.append(np.asarray(priorities).tolist())
    return writer, written


def test_update_keeps_the_priority_of_new_items_the_highest():
    writer, written = make_recording_writer(eps=0.5, new_items_first=True)
    for td_errors, sampled in (
        ([0.25], 1),
        ([1.5, -3.5], [1, 0.75]),
        ([0.5], 1),
        ([7.5], 0.5),
        ([3.5], [32]),
        ([], []),
    ):
        writer.update(make_info([0], [0])._replace(priority=np.array(sampled)), td_errors)
    assert written == [[0.75], [0.5, 1.0], [0.25], [1.0], [4.0], []]  # The last table has new items with 32.
    with pytest.raises(ValueError, match="the priority of item 1 of the batch must be a finite number in"):
        writer.update(make_info([0, 0], [0, 0]), [1.0, np.inf])
    raw, written = make_recording_writer(eps=0.5)
    raw.update(make_info([0], [0]), [7.5])
    assert written == [[8.0]]


def test_new_items_are_sampled_although_td_errors_exceed_their_priority():
    """Of 400 items, uniform sampling leaves exp(-5) unseen in five passes; TD errors are near 1,000."""
    generator, unseen = np.random.default_rng(0), {}
    for new_items_first in (False, True):
        table, uses = np.ones(400), np.zeros(400)
        writer, _ = make_recording_writer(new_items_first=new_items_first)
        for _ in range(50):
            powers = table**0.6
            keys = generator.choice(400, 40, p=powers / powers.sum())
            uses[keys] += 1
            writer.write = lambda info, priorities: table.__setitem__(info.key.astype(int), priorities)  # noqa: B023
            info = make_info(keys, np.zeros(40))._replace(priority=table[keys])
            writer.update(info, generator.normal(1000, 200, 40))
        unseen[new_items_first] = int((uses == 0).sum())
    assert unseen[False] > 200 and unseen[True] == 0


def test_strings_and_other_objects_raise():
    writer = PriorityWriter("localhost:1", "items")
    for wrong in (["3"], [None], [[1], [2, 3]]):
        with pytest.raises(TypeError, match="expected numbers, got"):
            writer.write(make_info([1], [0]), wrong)
        with pytest.raises(TypeError, match="expected numbers, got"):
            writer.update(make_info([1], [0]), wrong)
    with pytest.raises(TypeError, match="info must be the info of a batch, got list"):
        writer.write([1], [3.0])
    with pytest.raises(ValueError, match=r"eps must be a number in \[1e-12, 1\], got 0"):
        PriorityWriter("localhost:1", "items", eps=0)
