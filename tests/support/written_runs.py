"""Directories of training runs with few, simple numbers, for tests of what reads them."""

import numpy as np

from rlds2reverb.learners.run_directory import RunDirectory, count_priorities
from rlds2reverb.training.environment_spec import describe_env
from rlds2reverb.types.evaluations import Evaluation

STEPS = (1000, 2000, 3000)


def write_run(
    path, algo="iql", seed=0, *, q_values=(5.0, 8.0, 9.0), returns=(10.0, 20.0, 15.0), discounted=0.5, **config
):
    """Writes a run with three evaluations of two episodes; the discounted return is a multiple of the return.

    Entries of `config` replace those of `config.json`.
    """
    with RunDirectory(path) as directory:
        directory.writes_events = False
        document = {"identity": {"algo": algo, "seed": seed}, "environment": "Pendulum-v1"}
        document["environment_spec"] = describe_env("Pendulum-v1")
        directory.write_config({**document, "data": {"source": "a.hdf5", "data_return": 12.0}, **config})
        for step, q_value, value in zip(STEPS, q_values, returns, strict=True):
            numbers = {"loss": 1 / step, "q_mean": q_value, "updates_per_sec": 100.0 + step}
            directory.log(step, {**numbers, "data_wait_secs": 1.0, "train_secs": 3.0})
            episodes = np.array([value - 1, value + 1])
            directory.log_evaluation(
                step, Evaluation(episodes, np.array([7, 7]), (0, 1), discounted_return=discounted * value)
            )
            directory.log_priorities(step, count_priorities([0.1, 1.0]))
            directory.log_weights(step, count_priorities([1.0, 0.5, 0.5]))
    return path
