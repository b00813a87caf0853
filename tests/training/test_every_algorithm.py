"""Runs of every algorithm: resumption after a kill, export, and off-policy ranking."""

import os
import signal

import numpy as np
import pytest
from faults import process
from goal_reaching import make_ring_episodes
from reference_impls import assert_equal_nests

from rlds2reverb import Training, TrainingConfig, load_policy, rank_policies
from rlds2reverb.learners.algorithms import get_algorithm, list_algorithms
from rlds2reverb.learners.ensemble_fit import FitOptions
from rlds2reverb.learners.hooks import LearnerHook

#: Hyperparameters that make updates cheap.
SMALL = {
    "decision_transformer": {"width": 8, "num_layers": 1, "context_length": 4},
    "spot": {"hidden_sizes": (8,), "density_hidden_sizes": (8,), "num_density_updates": 15},
    "hiql": {"hidden_sizes": (8,), "representation_size": 4, "subgoal_steps": 4},
}
TINY = FitOptions(num_updates=5, ensemble_size=2, hidden_sizes=(4,))
OPTIONS = {"env": None, "deterministic": True, "steps": 40, "checkpoint_every": 10, "batch_size": 16}


class Kill(LearnerHook):
    def __call__(self, learner):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def sources(data):
    """Returns a source for each kind of algorithm."""
    rng = np.random.default_rng(0)
    numbered = [
        {
            "observations": rng.normal(size=(21, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, 20),
            "rewards": rng.normal(size=20).astype(np.float32),
            "terminated": True,
        }
        for _ in range(20)
    ]
    return {
        "continuous": str(data / "d4rl/pendulum_mixed-v2.hdf5"),
        "discrete": numbered,
        "goals": make_ring_episodes(),
    }


def make_config(algo, **options):
    hyperparameters = SMALL.get(algo, {"hidden_sizes": (8,)})
    return TrainingConfig(algo, hyperparameters=hyperparameters, **OPTIONS, **options)


def train_until_killed(channel, source, algo, path):
    hooks = [Kill("kill", position="after_iter", every=27)]
    with Training(source, make_config(algo, hooks=hooks), path) as training:
        training.run()


@pytest.mark.slow
@pytest.mark.parametrize("algo", list_algorithms())
def test_run_continues_bit_for_bit_after_a_kill_and_is_exported_and_ranked(algo, sources, tmp_path):
    algorithm = get_algorithm(algo)
    source = sources["goals" if algorithm.items == "goals" else algorithm.actions]
    with process(train_until_killed, source, algo, str(tmp_path / "killed")) as (killed, _):
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
    weights, runs = [], {}
    for name in ("whole", "killed"):
        with Training(source, make_config(algo), tmp_path / name) as training:
            assert training.learner.step == (20 if name == "killed" else 0)
            runs[name] = training.run()
            weights.append([variable.numpy() for variable in training.agent.variables])
    assert_equal_nests(weights[0], weights[1])
    run = runs["killed"]
    run.export_policy(tmp_path / "policy.onnx")
    load_policy(tmp_path / "policy.onnx")
    assert np.isfinite(rank_policies([run], source, fit=TINY)[0].estimate)
