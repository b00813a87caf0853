"""Environments by name: single, parallel, batched suites, and environments for evaluation."""

import functools
import threading

import numpy as np
import pytest
from counting import Counting

from rlds2reverb.envs import (
    BatchedEnvironment,
    GymnasiumEnvironment,
    ParallelEnvironment,
    ThreadEnvironment,
    create_environment,
)


def load_single(name, env_id=0, *, length=3):
    return GymnasiumEnvironment(Counting(length), env_id=env_id)


def load_without_threads(name, env_id=0):
    assert threading.current_thread() is threading.main_thread()
    return load_single(name, env_id)


load_without_threads.no_thread_env = True


def load_batch(name, batch_size, *, wrong=0):
    return BatchedEnvironment([load_single(name) for _ in range(batch_size + wrong)])


load_batch.batched = True


@pytest.mark.parametrize(
    ("suite", "options", "kind", "batch_size"),
    [
        (load_single, {}, GymnasiumEnvironment, None),
        (load_single, {"num_parallel": 2}, ParallelEnvironment, 2),
        (load_single, {"num_parallel": 2, "nonparallel": True}, ThreadEnvironment, 1),
        (load_single, {"num_parallel": 2, "for_evaluation": True}, ThreadEnvironment, 1),
        (load_without_threads, {"num_parallel": 2, "nonparallel": True}, BatchedEnvironment, 1),
        (load_without_threads, {"num_parallel": 2, "for_evaluation": True}, ParallelEnvironment, 1),
        (load_batch, {"num_parallel": 2}, BatchedEnvironment, 2),
        (load_batch, {"num_parallel": 2, "for_evaluation": True}, BatchedEnvironment, 1),
    ],
)
def test_kind_of_environment_depends_on_its_use(suite, options, kind, batch_size):
    with create_environment("any", suite=suite, **options) as env:
        assert type(env) is kind and env.batch_size == batch_size
        step = env.step(None)
        assert step.observation.shape == ((2,) if batch_size is None else (batch_size, 2))


def test_evaluation_does_not_disturb_training():
    def play(with_evaluation):
        with create_environment("CartPole-v1", 2, 7) as env:
            steps = []
            for index in range(40):
                steps.append(env.step(np.full(2, index % 2)).observation)
                if with_evaluation and index % 20 == 0:
                    with create_environment("CartPole-v1", 2, 9, for_evaluation=True) as evaluation:
                        for _ in range(30):
                            evaluation.step(np.ones(1, int))
            return np.stack(steps)

    np.testing.assert_array_equal(play(True), play(False))


def test_invalid_arguments_raise():
    for options, error, message in [
        ({"num_parallel": 0}, ValueError, "num_parallel must be an integer >= 1"),
        ({"suite": load_batch}, ValueError, "creates batches of environments; set num_parallel"),
        (
            {"suite": load_batch, "num_parallel": 2, "parallel_options": {"num_workers": 1}},
            ValueError,
            "parallel_options cannot be used with a suite that creates batches",
        ),
        (
            {"suite": functools.wraps(load_batch)(functools.partial(load_batch, wrong=1)), "num_parallel": 2},
            TypeError,
            "must return a batch of 2 environments, got batch_size=3",
        ),
    ]:
        with pytest.raises(error, match=message):
            create_environment("CartPole-v1", **options)
