"""Servers that die, stop, come back or were never there, with real processes; and consumers that are slow."""

import os
import signal
import threading

import numpy as np
import portpicker
import pytest
import tensorflow as tf
from faults import PATIENCE_SECS, hear, process
from numbers_served import exit_with_an_iterator, numbers, served_elsewhere

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.sampling.dataset import sample_dataset, warn_of_dead
from rlds2reverb.sampling.interleaving import _listener, interleaved

NOBODY = "localhost:1"
#: Servers that are there answer sooner, also on a busy machine.
TIMEOUT_SECS = 3.0


def kill(running):
    running.kill()
    running.join()


def batches_of(addresses, told, **options):
    return iter(
        sample_dataset(
            addresses,
            "items",
            8,
            timeout_secs=TIMEOUT_SECS,
            on_server_lost=lambda *said: told.append(said),
            beta=1.0,
            **options,
        )
    )


def until_told(batches, told, count=1):
    while len(told) < count:
        next(batches)


def until_only_from(server, batches, *, in_a_row=50):
    """Reads on until so many batches in a row came from one server; checks their weights."""
    seen = 0
    while seen < in_a_row:
        info = next(batches).info
        seen = seen + 1 if set(info.server.numpy()) == {server} else 0
    chances = 1 / info.probability.numpy()
    np.testing.assert_allclose(info.weight, chances / chances.max(), rtol=1e-6)


def until_from(server, batches):
    while server not in next(batches).info.server.numpy():
        pass


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.slow)])
def test_a_server_that_dies_is_told_and_the_other_goes_on(how):
    told = []
    with served_elsewhere({1: 1.0, 2: 3.0}) as (first, there), served_elsewhere({3: 1.0, 4: 3.0}) as (_, other):
        batches = batches_of([there, other], told)
        until_from(0, batches)
        until_from(1, batches)
        assert not told
        if how == "killed":
            kill(first)
        else:
            os.kill(first.pid, signal.SIGSTOP)
        until_told(batches, told)
        ((address, reason),) = told
        assert (
            address == there
            and f"waited {TIMEOUT_SECS:g} s for a sample of table 'items' at" in reason
            and "gone" in reason
        )
        until_only_from(1, batches)
        if how == "stopped":
            os.kill(first.pid, signal.SIGCONT)
            until_from(0, batches)
        assert len(told) == 1


def test_a_server_that_was_dead_at_the_start_takes_part_when_it_is_there():
    told = []
    port = portpicker.pick_unused_port()
    with numbers({1: 1.0}) as (server,):
        batches = batches_of([server.address, f"localhost:{port}"], told)
        next(batches)
        with served_elsewhere({2: 1.0}, port):
            until_from(1, batches)
    assert len(told) == 1


@pytest.mark.slow
def test_a_server_that_died_before_the_first_batch_is_told_too():
    told = []
    with served_elsewhere({1: 1.0}) as (first, there), numbers({2: 1.0}) as (server,):
        dataset = sample_dataset(
            [there, server.address],
            "items",
            8,
            timeout_secs=TIMEOUT_SECS,
            on_server_lost=lambda *said: told.append(said),
        )
        kill(first)
        until_told(iter(dataset), told)
    assert told[0][0] == there


@pytest.mark.slow
def test_a_server_that_is_started_anew_takes_part_again_and_its_next_death_is_told():
    told = []
    with served_elsewhere({3: 1.0}) as (_, other):
        with served_elsewhere({1: 1.0}) as (first, there):
            batches = batches_of([there, other], told)
            until_from(0, batches)
            kill(first)
            until_told(batches, told)
        with served_elsewhere({1: 1.0}, int(there.rpartition(":")[2])) as (again, _):
            until_from(0, batches)
            kill(again)
            until_told(batches, told, 2)
    assert [address for address, _ in told] == [there, there]


@pytest.mark.slow
def test_when_all_are_dead_iterating_says_so_and_does_not_hang():
    told = []
    with served_elsewhere({1: 1.0}) as (first, there), served_elsewhere({2: 1.0}) as (second, other):
        batches = batches_of([there, other], told)
        next(batches)
        kill(first)
        kill(second)
        with pytest.raises(
            tf.errors.OpError, match=f"sample of table 'items' at {there}, and it is gone.*{other}, and"
        ):
            while True:
                next(batches)


@pytest.mark.slow
def test_who_is_dead_from_the_start_is_told_at_once():
    told = []
    with numbers({1: 1.0}) as (server,):
        batches = batches_of([NOBODY, server.address], told)
        assert told == [(NOBODY, "it does not answer")]
        assert next(batches).info.server.numpy().tolist() == [1] * 8
        with pytest.warns(RuntimeWarning, match=f"no samples from {NOBODY}, the other servers go on: it does not answ"):
            sample_dataset([NOBODY, server.address], "items", 8, timeout_secs=TIMEOUT_SECS)
    assert len(told) == 1


def test_when_nobody_answers_at_the_start_nothing_is_built():
    for servers in (NOBODY, [NOBODY, "localhost:2"]):
        with pytest.raises(ServerUnavailableError, match="no Reverb server answered at localhost:1 within 0.5 s"):
            sample_dataset(servers, "items", 8, timeout_secs=0.5)


def test_a_program_ends_while_its_iterator_waits_for_a_dead_server():
    with served_elsewhere({1: 1.0}) as (server, address), process(exit_with_an_iterator, address, server.pid) as child:
        running, channel = child
        assert hear(channel) == "ends"
        running.join(PATIENCE_SECS)
        assert running.exitcode == 0


def test_a_warning_names_the_server_and_the_reason():
    with pytest.warns(RuntimeWarning, match="no samples from host:1, the other servers go on: it is gone"):
        warn_of_dead("host:1", "it is gone")


# --- silence, without servers


def heard(numbers_in_order, num_streams=2, limit=3):
    """What a listener tells of elements of these streams; -1 is a tick."""
    told = []
    listen = _listener(num_streams, limit, lambda *said: told.append(said))
    elements = tf.data.Dataset.from_tensor_slices(tf.constant(numbers_in_order, tf.int32)).map(lambda n: (n, n))
    for _ in elements.scan(tf.zeros([num_streams], tf.int32), listen):
        pass
    return told


def test_a_stream_is_silent_after_so_many_ticks_in_which_it_gave_nothing():
    assert heard([0, -1, 0, -1, 0, -1, 0]) == [([1], False)]
    assert heard([-1, -1, 0, 1, -1, -1]) == []
    assert heard([0, 1, -1, -1, -1]) == [([0, 1], True)]
    assert heard([-1, -1, 0, -1, -1, -1]) == [([1], False), ([0], True)]


def test_silence_is_told_once_and_again_when_the_stream_spoke():
    assert heard([0, -1] * 10) == [([1], False)]
    assert heard([*[0, -1] * 5, 1, *[0, -1] * 5]) == [([1], False), ([1], False)]


def test_readers_of_streams_take_turns():
    streams = interleaved(
        lambda number: tf.data.Dataset.range(1000).batch(1).repeat(), 2, timeout_secs=5, on_silent=print, num_readers=8
    )
    got = [int(number) for number, _ in streams.take(400)]
    both = [len(set(got[begin : begin + 4])) == 2 for begin in range(40, 396)]
    assert np.mean(both) > 0.8


def test_a_slow_consumer_is_not_taken_for_silent_streams():
    told = []
    streams = interleaved(
        lambda number: tf.data.Dataset.range(1000).batch(1).repeat(),
        3,
        timeout_secs=0.1,
        on_silent=lambda *said: told.append(said),
    )
    elements = iter(streams)
    for _ in range(8):
        next(elements)
        threading.Event().wait(0.15)  # longer than the time-out
    assert not told
