"""Training of agents with goals: learning, resumption, stores, and what is refused."""

import dataclasses
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from goal_reaching import Ring, make_ring_episodes
from gymnasium.envs.registration import registry
from reference_impls import assert_equal_nests

from rlds2reverb import SpecMismatchError, TrajectoryEpisodes, ingest, load
from rlds2reverb.adders import NStep
from rlds2reverb.cli import run
from rlds2reverb.datasets.steps.stores import build_store
from rlds2reverb.envs import evaluate
from rlds2reverb.learners.runs import load_run
from rlds2reverb.training import TrainingConfig, train
from rlds2reverb.training.evaluation_environment import find_environment, resolve_environment
from rlds2reverb.training.sources import open_data
from rlds2reverb.types.episodes import from_transitions

ALGORITHMS = ("gcbc", "gcivl", "gciql", "hiql", "crl")
OPTIONS = {"progress": False, "eval_episodes": 5, "eval_max_episode_steps": 8, "log_every": 10_000}
NETWORKS = {"hidden_sizes": (32, 32), "learning_rate": 3e-3}
#: Settings for a small task and few updates.
LEARNING = {
    "gcbc": {},
    "gcivl": {"target_update_rate": 0.05, "expectile": 0.97},
    "gciql": {"target_update_rate": 0.05, "expectile": 0.97, "alpha": 0.03},
    "hiql": {
        **{"target_update_rate": 0.05, "expectile": 0.97, "subgoal_steps": 4, "representation_size": 4},
        **{"low_alpha": 10.0, "high_alpha": 10.0},
    },
    "crl": {"latent_size": 32, "alpha": 0.02, "hidden_sizes": (64, 64)},
}


def train_ring(algo, run_dir, **options):
    hyperparameters = {**NETWORKS, **options.pop("hyperparameters", {})}
    return train(make_ring_episodes(), algo, run_dir, env=Ring, hyperparameters=hyperparameters, **OPTIONS, **options)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_agents_find_the_short_way_that_cloning_misses(algo, tmp_path):
    """85 % of the episodes take three times as many steps to the goal as there is time for."""
    steps, batch_size = (1500, 256) if algo == "crl" else (1000, 128)
    options = {"steps": steps, "eval_every": steps, "batch_size": batch_size, "gamma": 0.95}
    trained = train_ring(algo, tmp_path, hyperparameters=LEARNING[algo], **options)
    rate = trained.evaluations["success_rate"][-1]
    assert rate <= 0.4 if algo == "gcbc" else rate >= 0.8
    again = evaluate(Ring, trained.policy, 5, with_goals=True)
    assert again.success_rate == rate and list(again.success_rates) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_continued_run_draws_the_same_goals(tmp_path):
    for name, numbers in (("whole", [6]), ("continued", [2, 6])):
        for steps in numbers:
            train_ring("gcivl", tmp_path / name, steps=steps, eval_every=100)
    one, other = (load_run(tmp_path / name).policy for name in ("whole", "continued"))
    assert one.get_train_step() == other.get_train_step() == 6
    states = Ring.observe(np.arange(20)).astype(np.float32)
    observations = {"observation": states, "goal": states[::-1]}
    np.testing.assert_array_equal(one.predict(observations), other.predict(observations))


def test_goals_of_a_store_are_those_of_memory(tmp_path):
    source, config = load(make_ring_episodes(20)), TrainingConfig("hiql", hyperparameters={"hidden_sizes": (4,)})
    build_store(source, tmp_path / "store", num_workers=0)
    one, other = (open_data(place, config) for place in (source, str(tmp_path / "store")))
    assert one.fingerprint == other.fingerprint
    assert_equal_nests(one.items.resize(32).read(3, 2), other.items.resize(32).read(3, 2))


@pytest.mark.parametrize("algo", ["gcbc", "crl"])
def test_observations_and_statistics_have_a_goal(algo):
    config = TrainingConfig(algo, normalize_observations=True, hyperparameters={"hidden_sizes": (4,)})
    data = open_data(make_ring_episodes(20), config)
    items = data.items.read_items(np.arange(10))
    assert set(data.time_step_spec.observation) == set(data.moments.mean) == {"observation", "goal"}
    np.testing.assert_array_equal(data.moments.std["goal"], data.moments.std["observation"])
    is_different = (items["observation"]["observation"] != items["next_observation"]["observation"]).any()
    assert is_different == (algo != "gcbc")  # Cloning reads no next observations.
    assert ("policy_info" in items) == (algo != "gcbc")


REFUSED = {
    ("--n-step", "2"): "--n-step must be 1 for gciql, which learns to reach goals",
    ("--random-shift", "2"): "--random-shift must be 0 for gciql, which learns to reach goals",
    ("--sampler", "prioritized"): "--sampler must be 'uniform' for gciql",
    ("--online", "20000", "--env", "Pendulum-v1"): "requires an algorithm that learns from rewards, unlike gciql",
    ("--set", "value_goals=(1,1,1)"): "the probabilities of current, future and random goals must add up to 1",
}


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_exclude_goals_are_refused(data, tmp_path, capsys, options):
    path = data / "formats/ogbench/pointmaze-medium-navigate-v0.npz"
    command = ["train", "--algo", "gciql", "--data", str(path), "--run-dir", str(tmp_path / "run"), *options]
    assert run(command) == 1 and REFUSED[options] in capsys.readouterr().err


def make_numbered_episodes():
    """Returns 6 episodes of 11 steps, in which step t of episode e is 100 e + t."""
    episodes = []
    for number in range(6):
        states = np.float32(100 * number + np.arange(11))[:, None]
        episodes.append(
            from_transitions(states, states[:-1] / 1000, rewards=np.zeros(10, np.float32), terminated=False)
        )
    return load(episodes)


@pytest.fixture(scope="module")
def episode_table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes") / "table"
    ingest(make_numbered_episodes(), folder, adder=TrajectoryEpisodes())
    return str(folder)


@pytest.mark.slow
def test_goals_of_a_table_are_states_of_its_episodes(episode_table):
    shares = {"value_goals": (0.2, 0.5, 0.3), "value_geometric": False, "hidden_sizes": (4,)}
    config = TrainingConfig("gciql", batch_size=64, gamma=0.9, hyperparameters=shares)
    with open_data(episode_table, config) as data, data.open_batches(config) as batches:
        feed = batches.feed
        parts = [feed.to_experience(tf.constant(feed.read(step, 1)[0][0])) for step in range(40)]
        small = batches.resize(3).read(0, 2)[0]
    assert all(len(column[0]) == 3 for column in tf.nest.flatten(small))
    states, goals, actor_goals, rewards = (
        np.concatenate([np.ravel(read(part)) for part in parts])
        for read in (
            lambda part: part.time_step.observation["observation"],
            lambda part: part.time_step.observation["goal"],
            lambda part: part.action_step.info["actor_goal"],
            lambda part: part.next_time_step.reward,
        )
    )
    counts = np.bincount((states % 100).astype(int), minlength=10)
    chi_square = ((counts - 256) ** 2 / 256).sum()
    assert counts.sum() == 2560 and chi_square < 33.7  # 9 degrees of freedom: one in 10,000
    np.testing.assert_array_equal(rewards, np.where(states == goals, 0, -1))
    assert (goals % 100 < 10).all() and (actor_goals // 100 == states // 100).all() and (actor_goals >= states).all()
    is_random = goals // 100 != states // 100
    assert abs(is_random.mean() - 0.3 * 5 / 6) < 0.04  # A random goal is in the same episode with probability 1 / 6.


@pytest.mark.slow
def test_run_learns_from_a_table_of_episodes(episode_table, tmp_path):
    options = {"progress": False, "hyperparameters": {"hidden_sizes": (4,)}, "steps": 2, "env": None}
    run = train(episode_table, "gcbc", tmp_path, **options)
    assert np.isfinite(run.progress["loss"]).all()


def test_other_tables_are_refused(tmp_path):
    ingest(make_numbered_episodes(), tmp_path / "table", adder=NStep(1, 0.99))
    with pytest.raises(SpecMismatchError, match="must be whole episodes, in which goals are drawn .*--whole-episodes"):
        open_data(str(tmp_path / "table"), TrainingConfig("gcbc"))


def test_environment_of_ogbench_is_for_agents_with_goals(data, monkeypatch):
    source = load(data / "formats/ogbench/pointmaze-medium-navigate-v0-val.npz")
    assert "pointmaze-medium-v0" in source.env_spec
    name, make_env, note = dataclasses.astuple(resolve_environment("auto", source))
    assert (name, make_env) == ("", None)
    assert note.startswith("no evaluation, because the tasks of the dataset's environment are goals")
    monkeypatch.setitem(registry, "pointmaze-medium-v0", registry["Pendulum-v1"])
    monkeypatch.setitem(sys.modules, "ogbench", types.ModuleType("ogbench"))
    found = find_environment(TrainingConfig("gciql"), source)
    assert found.name == "pointmaze-medium-v0" and found.make_env is not None
