"""Tests of sampling from servers that die, stop, restart or never start, and of slow consumers."""

import os
import signal
import threading
from types import SimpleNamespace

import grpc
import numpy as np
import portpicker
import pytest
from faults import HANG_SECS, find_server, process, receive
from numbers_served import exit_with_open_iterator, serve_in_process, serve_numbers
from process_signals import suspend_process
from properties import mark_slow_except

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.sampling import sample_dataset, streams
from rlds2reverb.reverb.sampling.sample_iterator import warn_server_lost
from rlds2reverb.reverb.sampling.streams import BlockStreams

UNREACHABLE = "localhost:1"
#: Reachable servers answer sooner than this, even on a busy machine.
TIMEOUT_SECS = 3.0


def kill(running):
    running.kill()
    running.join()


def iterate_batches(addresses, reports, **options):
    """Returns an iterator over batches that appends the lost servers to `reports`."""
    return iter(
        sample_dataset(
            addresses,
            "items",
            8,
            timeout_secs=TIMEOUT_SECS,
            on_server_lost=lambda *report: reports.append(report),
            beta=1.0,
            **options,
        )
    )


def read_until_reported(batches, reports, count=1):
    while len(reports) < count:
        threading.Event().wait(0.02)  # Reading without pauses would keep a core busy.
        next(batches)


def read_until_only_from(server, batches, *, num_batches=50):
    """Reads until `num_batches` consecutive batches come from one server only, and checks the last one's weights."""
    num_seen = 0
    while num_seen < num_batches:
        info = next(batches).info
        num_seen = num_seen + 1 if set(info.server.numpy()) == {server} else 0
    inverse = 1 / info.probability.numpy()
    np.testing.assert_allclose(info.weight, inverse / inverse.max(), rtol=1e-6)


def read_until_from(server, batches):
    while server not in next(batches).info.server.numpy():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["killed", "stopped"])
@pytest.mark.drill("F15")
def test_dead_server_is_reported_and_sampling_continues(failure):
    reports = []
    with serve_in_process({1: 1.0, 2: 3.0}) as (first, lost_address), serve_in_process({3: 1.0, 4: 3.0}) as (_, other):
        batches = iterate_batches([lost_address, other], reports)
        read_until_from(0, batches)
        read_until_from(1, batches)
        assert not reports
        if failure == "killed":
            kill(first)
        else:
            stopped = find_server(lost_address)
            suspend_process(stopped)
        read_until_reported(batches, reports)
        ((address, reason),) = reports
        assert address == lost_address and "gone" in reason
        assert f"waited {TIMEOUT_SECS:g} s for a sample of table 'items' at" in reason
        read_until_only_from(1, batches)
        if failure == "stopped":
            os.kill(stopped, signal.SIGCONT)
            read_until_from(0, batches)
        assert len(reports) == 1


@pytest.mark.slow
@pytest.mark.drill("F14")
def test_server_that_starts_later_joins():
    reports = []
    port = portpicker.pick_unused_port()
    with serve_numbers({1: 1.0}) as (server,):
        batches = iterate_batches([server.address, f"localhost:{port}"], reports)
        next(batches)
        with serve_in_process({2: 1.0}, port):
            read_until_from(1, batches)
    assert len(reports) == 1


@pytest.mark.slow
def test_server_that_dies_before_the_first_batch_is_reported():
    reports = []
    with serve_in_process({1: 1.0}) as (first, lost_address), serve_numbers({2: 1.0}) as (server,):
        dataset = sample_dataset(
            [lost_address, server.address],
            "items",
            8,
            timeout_secs=TIMEOUT_SECS,
            on_server_lost=lambda *report: reports.append(report),
        )
        kill(first)
        read_until_reported(iter(dataset), reports)
    assert reports[0][0] == lost_address


@pytest.mark.slow
@pytest.mark.drill("moved")
def test_restarted_server_rejoins_and_its_next_death_is_reported():
    reports = []
    with serve_in_process({3: 1.0}) as (_, other):
        with serve_in_process({1: 1.0}) as (first, lost_address):
            batches = iterate_batches([lost_address, other], reports)
            read_until_from(0, batches)
            kill(first)
            read_until_reported(batches, reports)
        with serve_in_process({1: 1.0}, int(lost_address.rpartition(":")[2])) as (again, _):
            read_until_from(0, batches)
            kill(again)
            read_until_reported(batches, reports, 2)
    assert [address for address, _ in reports] == [lost_address, lost_address]


@pytest.mark.slow
def test_iterating_raises_when_all_servers_are_dead():
    reports = []
    with serve_in_process({1: 1.0}) as (first, lost_address), serve_in_process({2: 1.0}) as (second, other):
        batches = iterate_batches([lost_address, other], reports)
        next(batches)
        kill(first)
        kill(second)
        with pytest.raises(
            ServerUnavailableError, match=f"sample of table 'items' at {lost_address}, and it is gone.*{other}, and"
        ):
            while True:
                next(batches)


@pytest.mark.slow
@pytest.mark.drill("F14")
def test_unreachable_server_is_reported_immediately():
    reports = []
    with serve_numbers({1: 1.0}) as (server,):
        batches = iterate_batches([UNREACHABLE, server.address], reports)
        assert reports == [(UNREACHABLE, "it does not answer")]
        assert next(batches).info.server.numpy().tolist() == [1] * 8
        with pytest.warns(
            RuntimeWarning, match=f"no samples from {UNREACHABLE}; continuing with the other servers: it does"
        ):
            sample_dataset([UNREACHABLE, server.address], "items", 8, timeout_secs=TIMEOUT_SECS)
    assert len(reports) == 1


@pytest.mark.drill("F14")
def test_no_reachable_server_at_the_start_raises():
    for servers in (UNREACHABLE, [UNREACHABLE, "localhost:2"]):
        with pytest.raises(ServerUnavailableError, match="no Reverb server answered at localhost:1 within 0.2 s"):
            sample_dataset(servers, "items", 8, timeout_secs=0.2)


@pytest.mark.slow
@pytest.mark.drill("F15")
def test_program_exits_while_its_iterator_waits_for_a_dead_server():
    with (
        serve_in_process({1: 1.0}) as (server, address),
        process(exit_with_open_iterator, address, server.pid) as child,
    ):
        running, channel = child
        assert receive(channel) == "ends"
        running.join(HANG_SECS)
        assert running.exitcode == 0


def test_warning_names_the_server_and_the_reason():
    with pytest.warns(RuntimeWarning, match="no samples from host:1; continuing with the other servers: it is gone"):
        warn_server_lost("host:1", "it is gone")


# --- stalled streams, without servers


class Streams(BlockStreams):
    """Streams without readers, whose clock advances by ticks."""

    def __init__(self, num_servers=2, timeout_secs=3.0):
        self.reports = []
        super().__init__(
            SimpleNamespace(table="items", addresses=["localhost:1"] * num_servers, unreachable=(), signature=()),
            block_size=1,
            max_blocks=100,
            max_in_flight=1,
            num_streams=0,
            timeout_secs=timeout_secs,
            on_stalled=lambda servers: None,
        )
        self.close()  # Ends its own clock.
        self.is_closed = threading.Event()

    def run(self, events):
        """Passes seconds (None), or blocks of a server that are consumed at once; returns the reports."""
        for event in events:
            if event is None:
                self.reports += filter(None, [self.tick(1.0)])
            else:
                self.put(event, ["block"])
                assert self.get() == (event, "block")
        return self.reports


def test_server_is_stalled_after_the_timeout_without_blocks():
    assert Streams().run([0, None, 0, None, 0, None, 0]) == [[1]]
    assert Streams().run([None, None, 0, 1, None, None]) == []
    assert Streams().run([None, None, 0, None, None, None]) == [[1]]


def test_stall_is_reported_once_until_the_server_recovers():
    assert Streams().run([0, None] * 10) == [[1]]
    assert Streams().run([*[0, None] * 5, 1, *[0, None] * 5]) == [[1], [1]]


def test_consumer_gets_nothing_when_all_servers_are_stalled_and_waits_again():
    streams = Streams()
    streams.run([0, 1, None, None, None])
    assert streams.get() is None and streams.reports == []
    streams.run([None, None, 0])
    assert streams.reports == []


def test_blocks_of_servers_alternate():
    streams = Streams()
    for server in (0, 0, 0, 1, 1):
        streams.put(server, ["block"])
    assert [streams.get()[0] for _ in range(5)] == [0, 1, 0, 1, 0]


def test_slow_consumer_does_not_make_servers_look_stalled():
    streams = Streams()
    streams.put(0, ["block"])
    streams.put(1, ["block"])
    assert streams.run([None] * 8) == []
    for _ in range(2):
        streams.get()
    assert streams.run([0, None, 0, None]) == [] and streams.run([0, None]) == [[1]]


@pytest.mark.parametrize(
    "code", mark_slow_except({grpc.StatusCode.UNAVAILABLE}, [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE])
)
def test_refused_calls_are_repeated_with_pauses(monkeypatch, code):
    calls = []

    class Refused(grpc.RpcError):
        def code(self):
            return code

    class Refusing:
        def __init__(self, address):
            calls.append(address)

        def __enter__(self):
            raise Refused

        def __exit__(self, *raised):
            pass

    monkeypatch.setattr(streams, "Connection", Refusing)
    closing = Streams()
    threading.Timer(1.2, closing.is_closed.set).start()
    streams.Reader(closing, 0, "localhost:1").run()
    assert 1 <= calls.count("localhost:1") <= 4  # Others come from iterators of earlier tests.
