"""Training of agents with goals: learning, resumption, stores, and what is refused."""

import numpy as np
import pytest
from goal_reaching import Ring, make_ring_episodes
from properties import mark_slow_except
from reference_impls import assert_equal_nests

from rlds2reverb import SourceError, load
from rlds2reverb.cli import run
from rlds2reverb.envs import evaluate
from rlds2reverb.sources.store import build_store
from rlds2reverb.training import TrainingConfig, train
from rlds2reverb.training.environment import resolve_environment
from rlds2reverb.training.sources import open_data

ALGORITHMS = ("gcbc", "gcivl", "gciql", "hiql", "crl")
OPTIONS = {"progress": False, "eval_episodes": 5, "batch_size": 256, "log_every": 10_000}
NETWORKS = {"hidden_sizes": (32, 32), "learning_rate": 3e-3}
#: Settings for a small task and few updates.
LEARNING = {
    "gcbc": {},
    "gcivl": {"target_update_rate": 0.05},
    "gciql": {"target_update_rate": 0.05, "alpha": 0.01},
    "hiql": {"target_update_rate": 0.05, "subgoal_steps": 3, "representation_size": 4},
    "crl": {"latent_size": 16, "alpha": 0.01},
}


def train_ring(algo, run_dir, **options):
    hyperparameters = {**NETWORKS, **options.pop("hyperparameters", {})}
    return train(make_ring_episodes(), algo, run_dir, env=Ring, hyperparameters=hyperparameters, **OPTIONS, **options)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_agents_find_the_short_way_that_cloning_misses(algo, tmp_path):
    """90 % of the episodes take three times as many steps to the goal as there is time for."""
    trained = train_ring(algo, tmp_path, steps=1500, eval_every=1500, gamma=0.95, hyperparameters=LEARNING[algo])
    rate = trained.evaluations["success_rate"][-1]
    assert rate == 0 if algo == "gcbc" else rate >= 0.8
    again = evaluate(Ring, trained.policy, 5, with_goals=True)
    assert again.success_rate == rate and list(again.success_rates) == [1, 2, 3, 4, 5]
