"""The number of workers of `load`: chosen by the duration of a step and by the cores that are free."""

import subprocess
import sys
import time

import internals
import numpy as np
import pytest
from worker_environments import Counting

from rlds2reverb.envs import GymnasiumEnvironment, create_environment, suite_gym, worker_count
from rlds2reverb.envs.worker_count import choose_num_workers


class Waiting(Counting):
    """An environment whose step takes a while."""

    def __init__(self, secs):
        super().__init__(5)
        self.secs = secs

    def step(self, action):
        time.sleep(self.secs)
        return super().step(action)


@pytest.mark.parametrize(
    ("secs", "num_envs", "free_cores", "expected"),
    [
        (5e-6, 4, 4.0, 0),  # The exchange would take longer than the steps.
        (0.001, 4, 3.8, 3),
        (0.001, 4, 2.5, 1),
        (0.001, 4, 1.4, 0),  # Another process uses a core.
        (0.001, 2, 2.0, 1),
        (0.001, 1, 1.0, 0),
    ],
)
def test_workers_are_used_where_a_step_is_slow_and_cores_are_free(monkeypatch, secs, num_envs, free_cores, expected):
    monkeypatch.setattr(worker_count, "measure_step", lambda env: secs)
    monkeypatch.setattr(worker_count, "available_cores", lambda: 4)
    monkeypatch.setattr(worker_count, "count_free_cores", lambda num_threads: min(free_cores, num_threads))
    assert choose_num_workers(GymnasiumEnvironment(Counting()), num_envs) == expected


def test_environment_that_cannot_be_tried_is_not_an_error(monkeypatch):
    env = GymnasiumEnvironment(Counting())
    monkeypatch.setattr(env, "step", lambda action: 1 / 0)
    assert choose_num_workers(env, 4) is None


def test_duration_of_a_step_is_measured_over_episodes():
    assert worker_count.measure_step(GymnasiumEnvironment(Waiting(0.002))) > 0.002


@pytest.mark.slow
def test_cores_of_busy_processes_are_not_free():
    num_cores = worker_count.available_cores()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * num_cores)]
    try:
        time.sleep(0.5)
        assert 0 < worker_count.count_free_cores(num_cores) < 0.75 * num_cores
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_time_steps_do_not_depend_on_the_choice(monkeypatch):
    observations = []
    for num_workers in (0, 1):
        monkeypatch.setattr("rlds2reverb.envs.creation.choose_num_workers", lambda env, num_envs: num_workers)  # noqa: B023
        with create_environment("Pendulum-v1", 2, seed=3, suite=suite_gym.load) as env:
            assert len(internals.get_workers(env)) == num_workers
            steps = [env.reset(), *(env.step(np.full((2, 1), 0.5, np.float32)) for _ in range(5))]
        observations.append([step.observation for step in steps])
    np.testing.assert_array_equal(*observations)
