"""Ingestion and sampling for a long time, while random processes are killed."""

import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faults import convert, process, read_checkpoint, receive, serve_table
from reference_impls import episode

from rlds2reverb import load, sample_dataset
from rlds2reverb._server.replay_server import ReplayServer
from rlds2reverb.tables import TableConfig, item_signature
from rlds2reverb.trajectories import trajectory_spec

pytestmark = pytest.mark.slow

#: Seconds; `make drill` sets more.
DURATION = float(os.environ.get("DRILL_SOAK_SECS", "60"))


def make_round(number):
    """Returns the episodes of a round; no two items of all rounds are equal."""
    return [episode(100, terminal=at % 2 == 0, start=1000 * (40 * number + at)) for at in range(40)]


def write_round(port, number, journals):
    """Writes a round in a process that is not disturbed."""
    with process(convert, port, {"source": make_round(number), "state_home": journals}) as (_, channel):
        assert receive(channel) == "begun"
        receive(channel)


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def read_memory_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.drill("F33")
@pytest.mark.timeout(2 * DURATION + 300)
def test_random_faults_for_a_long_time_lose_and_repeat_nothing(tmp_path, recovery):
    signature = item_signature(trajectory_spec(load(make_round(0)).step_spec), 2)
    serve = partial(serve_table, signature=signature)
    random, number, port = np.random.default_rng(33), 0, None
    ends = time.monotonic() + DURATION
    descriptors = memory = None
    while time.monotonic() < ends:
        with process(serve, tmp_path / "root", port) as (server, to_server):
            port = receive(to_server)
            while server.is_alive() and time.monotonic() < ends:
                victim = random.choice(["server", "writer", "none"])
                options = {"source": make_round(number), "state_home": tmp_path}
                with process(convert, port, options) as (writer, channel):
                    assert receive(channel) == "begun"
                    channel.poll(random.uniform(0, 1.0))
                    if victim == "server":
                        server.kill()
                        server.join()
                        break
                    if victim == "writer":
                        writer.kill()
                    else:
                        receive(channel)
                if victim == "writer":
                    with recovery():
                        write_round(port, number, tmp_path)
                to_server.send("checkpoint")
                receive(to_server)
                samples = sample_dataset(port, "replay", 32).take(3)
                assert sum(len(sample.info.key) for sample in samples) == 96
                number += 1
                if descriptors is None and number >= 2:  # TensorFlow and gRPC have started everything by then.
                    descriptors, memory = count_descriptors(), read_memory_mb()
        if not server.is_alive() and time.monotonic() < ends:
            with recovery(), process(serve, tmp_path / "root", port) as (_, to_server):
                assert receive(to_server) == port
                write_round(port, number, tmp_path)
                to_server.send("checkpoint")
                receive(to_server)
            number += 1
    grown_mb, num_opened = read_memory_mb() - memory, count_descriptors() - descriptors
    with process(serve, tmp_path / "root", port) as (_, to_server):
        receive(to_server)
        to_server.send("checkpoint")
        found = read_checkpoint(receive(to_server))[0]
    assert number > 3
    with ReplayServer([TableConfig()], signature, checkpoint_root=tmp_path / "expected") as server:
        for each in range(number):
            write_round(server.address, each, tmp_path / "journals")
        expected = read_checkpoint(server.checkpoint())[0]
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    assert not missing and len(extra) <= 40 * 99  # The last round may have begun.
    assert all(found[key] == item for key, item in expected.items())
    assert num_opened <= 10 and grown_mb < 50 + DURATION / 60
