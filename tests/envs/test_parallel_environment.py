"""Parallel environments: equal to a batch in one process, and not disturbed by environments that fail."""

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import tree
from counting import Counting
from process_resources import find_children, list_resources
from process_signals import suspend_process
from properties import mark_slow_except
from worker_environments import make_nested

from rlds2reverb import SpecMismatchError
from rlds2reverb.envs import (
    BatchedEnvironment,
    EnvironmentFailedError,
    GymnasiumEnvironment,
    ParallelEnvironment,
    create_environment,
    parallel_environment,
    suite_gym,
)
from rlds2reverb.types.ownership import copy_arrays

PENDULUM = functools.partial(suite_gym.load, "Pendulum-v1")


def sample_actions(env, rng):
    if isinstance(env.action_spec(), tuple):
        return rng.uniform(-1, 1, (env.batch_size, 2)).astype(np.float32), rng.integers(0, 3, env.batch_size)
    return rng.uniform(-2, 2, (env.batch_size, 1)).astype(np.float32)


@pytest.mark.parametrize(
    ("caller_steps", "constructor"),
    mark_slow_except(
        [(True, make_nested), (False, PENDULUM)], itertools.product([True, False], [make_nested, PENDULUM])
    ),
)
def test_parallel_environments_equal_a_batch_in_one_process(constructor, caller_steps):
    rng = np.random.default_rng(0)
    with (
        ParallelEnvironment([constructor] * 3, seed=5, caller_steps=caller_steps) as parallel,
        BatchedEnvironment([constructor() for _ in range(3)]) as batched,
    ):
        batched.seed(5)
        steps = [(parallel.reset(), batched.reset())]
        for _ in range(30):
            actions = sample_actions(parallel, rng)
            steps.append((parallel.step(actions), batched.step(actions)))
    for got, expected in steps:  # After the end: time steps are not views of the shared arrays.
        assert tree.map_structure(np.shape, got) == tree.map_structure(np.shape, expected)
        for value, other in zip(tree.flatten(got), tree.flatten(expected), strict=True):
            np.testing.assert_array_equal(value, other)
            assert value.dtype == other.dtype
    ended = sum(int((step.step_type == 2).sum()) for step, _ in steps)
    assert constructor is not make_nested or ended > 3


def make_failing(failure, failing):
    """Returns constructors of four environments, one of which fails at its fifth step."""
    return [
        functools.partial(
            lambda index: GymnasiumEnvironment(Counting(failure=failure if index == failing else None)), index
        )
        for index in range(4)
    ]


@pytest.mark.parametrize(
    ("failure", "failing", "reason"),
    [
        pytest.param("raise", 0, "RuntimeError: the simulator exploded", marks=pytest.mark.slow),
        ("raise", 3, "RuntimeError: the simulator exploded"),
        ("kill", 3, "the process of environments 2 to 3 was killed by SIGKILL"),
        pytest.param("hang", 3, "environment 3 did not answer in time\n.*in fail", marks=pytest.mark.slow),
    ],
)
@pytest.mark.drill("F19")
def test_failed_environments_are_truncated_and_the_others_continue(failure, failing, reason):
    lost = [failing] if failure == "raise" else [2, 3]
    timeout_secs = 2 if failure == "hang" else 60
    with ParallelEnvironment(make_failing(failure, failing), num_workers=1, timeout_secs=timeout_secs) as env:
        env.reset()
        before = [copy_arrays(env.step(np.zeros(4, int))) for _ in range(4)]
        for array in (env.current_time_step().observation, env.current_time_step().discount):
            array[...] = 77  # The caller may modify what it was handed.
        with pytest.warns(RuntimeWarning, match=rf"(?s)environments? {', '.join(map(str, lost))} failed .*{reason}"):
            failed = env.step(np.zeros(4, int))
        after = [env.step(np.zeros(4, int)) for _ in range(4)]
    others = [index for index in range(4) if index not in lost]
    np.testing.assert_array_equal(failed.step_type[lost], 2)
    np.testing.assert_array_equal(failed.discount[lost], 1)
    np.testing.assert_array_equal(failed.reward[lost], 0)
    np.testing.assert_array_equal(failed.observation[lost], before[-1].observation[lost])
    np.testing.assert_array_equal([step.step_type[lost] for step in after], [[0] * len(lost), *[[1] * len(lost)] * 3])
    np.testing.assert_array_equal([step.observation[lost, 0] for step in after], [[n] * len(lost) for n in range(4)])
    counts = [step.observation[others, 0].tolist() for step in [*before, failed, *after]]
    assert counts == [[count] * len(others) for count in range(1, 10)]


@pytest.mark.slow
def test_failure_in_a_reset_starts_the_environment_again():
    with ParallelEnvironment(make_failing("kill", 3), num_workers=1) as env:
        env.reset()
        with pytest.warns(RuntimeWarning, match="environments 2, 3 failed"):
            for _ in range(5):
                env.step(np.zeros(4, int))
        first = env.reset()
        np.testing.assert_array_equal(first.step_type, 0)


def test_on_failure_raise_closes_the_batch_and_raises():
    env = ParallelEnvironment(make_failing("raise", 3), on_failure="raise")
    env.reset()
    with pytest.raises(EnvironmentFailedError, match=r"(?s)environment 3 failed:\nTraceback.*the simulator exploded"):
        for _ in range(5):
            env.step(np.zeros(4, int))
    with pytest.raises(RuntimeError, match="the environment is closed; create a new one"):
        env.step(np.zeros(4, int))


@pytest.mark.slow
@pytest.mark.drill("F19")
def test_environments_that_fail_again_and_again_raise():
    constructors = [functools.partial(lambda: GymnasiumEnvironment(Counting(failure="kill", fails_at=1)))] * 2
    env = ParallelEnvironment(constructors, num_workers=1, caller_steps=False)
    env.reset()

    def run():
        for _ in range(100):
            env.step(np.zeros(2, int))

    with warnings.catch_warnings(), pytest.raises(EnvironmentFailedError, match="failed .* times in a row"):
        warnings.simplefilter("ignore", RuntimeWarning)
        run()


def test_environments_that_cannot_be_created_raise_with_their_stack_trace():
    good, lock = functools.partial(suite_gym.load, "CartPole-v1"), threading.Lock()
    for bad, error, message in [
        (lambda: 1 / 0, EnvironmentFailedError, r"(?s)environment 1 cannot be created.*ZeroDivisionError"),
        (lambda: lock, TypeError, r"constructors\[1\] cannot be sent to another process"),
        (lambda: 5, EnvironmentFailedError, r"(?s)\(constructors\[1\]\) requires an Environment, got a int"),
        (
            make_nested,
            SpecMismatchError,
            r"observation is float32 \[4\].* in environment 0, but nothing in environment 1",
        ),
    ]:
        with pytest.raises(error, match=message):
            ParallelEnvironment([good, bad], num_workers=1)
    with pytest.raises(ValueError, match="constructors must contain at least one function"):
        ParallelEnvironment([])
    with pytest.raises(ValueError, match="on_failure must be one of 'restart', 'raise'"):
        ParallelEnvironment([good], on_failure="ignore")


def test_invalid_actions_name_the_row():
    with create_environment("Pendulum-v1", 2) as env:
        env.reset()
        with pytest.raises(ValueError, match=r"action\[0\] must be in \[-2, 2\], got 3.* \(row 1\)"):
            env.step(np.array([[0.0], [3.0]], np.float32))
        with pytest.raises(SpecMismatchError, match=r"action must be float32 \[2, 1\], got float32 \[3, 1\]"):
            env.step(np.zeros((3, 1), np.float32))


def is_running(pid):
    path = Path(f"/proc/{pid}/stat")
    try:
        return path.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


SCRIPT = """
import functools, os, sys, time
sys.path.insert(0, {tests!r})
import numpy as np
from counting import Counting
from rlds2reverb.envs import GymnasiumEnvironment, ParallelEnvironment

make = lambda: GymnasiumEnvironment(Counting(failure="hang", fails_at=2))
env = ParallelEnvironment([make] * 2, num_workers=2, caller_steps=False)
env.reset()
env.step(np.zeros(2, int))
forked = os.fork()
if not forked:
    time.sleep(60)
    os._exit(0)
print(forked, flush=True)
{then}
env.step(np.zeros(2, int))
"""


@contextlib.contextmanager
def start_script(then=""):
    """Starts a process with two workers and a forked process; yields it and the workers' pids."""
    script = textwrap.dedent(SCRIPT.format(tests=str(Path(__file__).parents[1] / "support"), then=then))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    forked = int(process.stdout.readline())
    try:
        yield process, set(find_children(process.pid)) - {forked}
    finally:
        os.kill(forked, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.drill("F19")
def test_workers_end_with_a_killed_caller_even_if_an_environment_hangs():
    with start_script() as (process, workers):
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()  # The workers may still hold its output open.
        deadline = time.monotonic() + 10
        while any(map(is_running, workers)):
            assert time.monotonic() < deadline, "a worker survived its caller"


@pytest.mark.slow
def test_workers_are_asked_to_end_even_if_another_process_was_forked():
    with start_script("start = time.monotonic(); env.close(); print(time.monotonic() - start, flush=True)") as started:
        assert float(started[0].stdout.readline()) < 4  # After 5 s, they are killed.


def test_workers_that_do_not_end_are_killed_and_waited_for(monkeypatch):
    monkeypatch.setattr(parallel_environment, "EXIT_SECS", 0.1)
    others = set(find_children(os.getpid()))
    make = functools.partial(suite_gym.load, "CartPole-v1")
    with ParallelEnvironment([make] * 2, num_workers=2, caller_steps=False):
        workers = set(find_children(os.getpid())) - others
        for pid in workers:
            suspend_process(pid)
    assert len(workers) == 2 and not workers & set(find_children(os.getpid()))


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("num_steps", mark_slow_except({200}, [200, 10_000]))
def test_nothing_is_left_after_many_steps(num_steps):
    def measure():
        return [list_resources(pid) for pid in pids], sum(map(resident_bytes, pids))

    make, others = functools.partial(suite_gym.load, "CartPole-v1"), find_children(os.getpid())
    before = list_resources(os.getpid())
    with ParallelEnvironment([make] * 8, seed=0) as env:
        for step in range(num_steps):
            if step == num_steps // 10:
                pids = [os.getpid(), *(set(find_children(os.getpid())) - set(others))]
                resources, num_bytes = measure()
            env.step(np.full(8, step % 2))
        resources_at_end, num_bytes_at_end = measure()
        # Other tests may release theirs meanwhile.
        assert not [new for end, begin in zip(resources_at_end, resources, strict=True) if (new := end - begin)]
        assert num_bytes_at_end - num_bytes < 4 << 20
    assert not list_resources(os.getpid()) - before


@pytest.mark.slow
def test_idle_workers_use_no_cpu():
    others = find_children(os.getpid())
    with create_environment("CartPole-v1", 2, parallel_options={"num_workers": 1}) as env:
        env.reset()
        children = set(find_children(os.getpid())) - set(others)

        def cpu_ticks():
            stats = [Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split() for child in children]
            return max(int(fields[11]) + int(fields[12]) for fields in stats)

        time.sleep(0.1)  # They wait actively for a moment.
        before = cpu_ticks()
        time.sleep(1)
        assert cpu_ticks() - before <= 2  # Of 100 ticks.
        assert env.step(np.zeros(2, int)).step_type.tolist() == [1, 1]
