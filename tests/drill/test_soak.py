"""Drill: ingestion, training and evaluation for a long time, while random processes are killed."""

import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faults import convert, process, read_checkpoint, receive, serve_table
from reverb.cc import schema_pb2
from trained_runs import read_rows

from rlds2reverb import ReplayServer, TableConfig, load, sample_dataset
from rlds2reverb.adders import NStep
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.training import train

pytestmark = pytest.mark.slow

#: Seconds, and the time between two faults; `DRILL_SOAK_SECS=3600` soaks for an hour with a fault per minute.
DURATION = float(os.environ.get("DRILL_SOAK_SECS", "60"))
PERIOD = min(60.0, DURATION / 12)
ADDER = NStep(1, 0.99)
LOG_EVERY, EVAL_EVERY = 100, 500


def make_round(number):
    """Returns the episodes of a round, with Pendulum's spaces; no two items of all rounds are equal."""
    random = np.random.default_rng(number)
    return [
        {
            "observations": random.normal(size=(100, 3)).astype(np.float32),
            "actions": random.uniform(-2, 2, (100, 1)).astype(np.float32),
            "rewards": -random.random(100).astype(np.float32),
            "terminated": True,
        }
        for _ in range(40)
    ]


def options_of_round(number, journals):
    return {"source": make_round(number), "adder": ADDER, "state_home": journals}


def write_round(port, number, journals):
    """Writes a round in a process that is not disturbed."""
    with process(convert, port, options_of_round(number, journals)) as (_, channel):
        assert receive(channel) == "begun"
        receive(channel)


class Pause(LearnerHook):
    """Leaves time for the other processes."""

    def __init__(self):
        super().__init__("pause", position="after_iter", every=10)

    def __call__(self, learner):
        time.sleep(0.2)


def train_until_stopped(channel, port, run_dir):
    """Trains on a table until a signal, and sends 'stopped'."""
    train(
        f"localhost:{port}", "td3_bc", run_dir, steps=10**8, env="Pendulum-v1", eval_every=EVAL_EVERY, eval_episodes=1,
        log_every=LOG_EVERY, checkpoint_every=EVAL_EVERY, batch_size=32, sampler="prioritized", progress=False,
        hyperparameters={"hidden_sizes": (8, 8)}, hooks=[Pause()],
    )  # fmt: skip
    channel.send("stopped")


class Part:
    """A process that is started again after it was killed."""

    def __init__(self, stack, program, *arguments):
        self.program, self.arguments, self._stack = program, arguments, stack.enter_context(ExitStack())
        self.start()

    def start(self):
        self._stack.close()
        self.process, self.channel = self._stack.enter_context(process(self.program, *self.arguments))
        self.started_secs = time.monotonic()

    def kill(self):
        self.process.kill()
        self.process.join()


def count_descriptors(pid="self"):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def read_memory_mb(pid="self"):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Growth:
    """The memory and the descriptors of a process when it has started everything, and now."""

    def __init__(self, pid):
        self._pid, self._begin = pid, None

    def measure(self):
        """Returns megabytes per minute and the number of new descriptors since the first call, or None at first."""
        now = time.monotonic(), read_memory_mb(self._pid), count_descriptors(self._pid)
        if self._begin is None:
            self._begin = now
            return None
        minutes = (now[0] - self._begin[0]) / 60
        return (now[1] - self._begin[1]) / max(minutes, 1), now[2] - self._begin[2]


@pytest.mark.drill("F33")
@pytest.mark.timeout(2 * DURATION + 400)
def test_random_faults_for_a_long_time_lose_and_repeat_nothing(tmp_path, recovery):
    signature = ADDER.item_spec(load(make_round(0)).step_spec)
    random, number = np.random.default_rng(33), 1
    ends = time.monotonic() + DURATION
    growths, slopes = {}, []
    with ExitStack() as stack:
        server = Part(stack, partial(serve_table, signature=signature), tmp_path / "root")
        port = receive(server.channel)
        server.arguments = (tmp_path / "root", port)
        write_round(port, 0, tmp_path)
        batches = sample_dataset(port, "replay", 32).take(3)
        learner = Part(stack, train_until_stopped, port, tmp_path / "run")
        while time.monotonic() < ends:
            began = time.monotonic()
            victim = random.choice(["server", "writer", "learner", "none"])
            with process(convert, port, options_of_round(number, tmp_path)) as (writer, channel):
                assert receive(channel) == "begun"
                channel.poll(random.uniform(0, 1.0))
                if victim == "none":
                    receive(channel)
                else:
                    (writer if victim == "writer" else {"server": server, "learner": learner}[victim]).kill()
            with recovery():
                if victim == "server":
                    server.start()
                    assert receive(server.channel) == port
                if victim == "learner":
                    learner.start()
                write_round(port, number, tmp_path)
                server.channel.send("checkpoint")
                receive(server.channel)
            assert sum(len(batch.info.key) for batch in batches) == 96
            number += 1
            while time.monotonic() < min(began + PERIOD, ends):
                assert learner.process.is_alive(), receive(learner.channel)
                time.sleep(0.2)
            if number == 2:  # TensorFlow and gRPC have started everything by then.
                growths.clear()
                own_memory_mb = read_memory_mb()
            for pid in (os.getpid(), learner.process.pid):  # A learner that was killed has a new id.
                if pid not in growths and pid != os.getpid() and time.monotonic() < learner.started_secs + PERIOD:
                    continue
                slope = growths.setdefault(pid, Growth(pid)).measure()
                if slope is not None:
                    slopes.append((pid == os.getpid(), *slope))
        own_growth_mb = read_memory_mb() - own_memory_mb
        learner.process.terminate()
        assert receive(learner.channel) == "stopped"
        server.channel.send("checkpoint")
        found = read_checkpoint(receive(server.channel))[0]
    check_items(found, number, signature, tmp_path / "expected")
    check_logs(tmp_path / "run")
    # The allocator's arenas grow by up to 40 MB during the first 100 iterations of a dataset: each starts new threads.
    assert own_growth_mb < max(50, DURATION / 60), "the process that samples grows"
    print(f"{number} rounds; growth in MB per minute and descriptors: {slopes[-4:]}")
    assert {path.name for path in tmp_path.iterdir()} <= {"root", "run", "rlds2reverb", "expected"}
    if DURATION >= 3600:  # In less time, the start of a learner hides its growth.
        assert np.median([mb for is_own, mb, _ in slopes if not is_own]) < 1.0, slopes
    assert all(opened <= 10 for _, _, opened in slopes), slopes


def check_items(found, num_rounds, signature, root):
    """Compares the items of a server with those of one that nothing disturbed."""
    with ReplayServer([TableConfig()], signature, checkpoint_root=root) as server:
        for number in range(num_rounds):
            write_round(server.address, number, root.parent)
        expected = read_checkpoint(server.checkpoint())[0]
    assert num_rounds > 3 and len(expected) == num_rounds * 40 * 100
    assert found.keys() == expected.keys()
    assert all(clear_priority(found[key]) == clear_priority(item) for key, item in expected.items())


def clear_priority(item):
    """Returns a serialised item without its priority, which the learner changes."""
    message = schema_pb2.PrioritizedItem.FromString(item)
    message.ClearField("priority")
    return message.SerializeToString(deterministic=True)


def check_logs(run_dir):
    """Checks that both logs have a row for each interval: no gaps, and nothing twice."""
    rows, evaluations = read_rows(run_dir)
    steps = [int(row[0]) for row in rows]
    last = steps[-1] // LOG_EVERY * LOG_EVERY
    assert [step for step in steps if step % LOG_EVERY == 0] == list(range(LOG_EVERY, last + 1, LOG_EVERY))
    evaluated = [int(line.split(",")[0]) for line in evaluations.splitlines()[1:]]
    assert evaluated == list(range(0, evaluated[-1] + 1, EVAL_EVERY))
