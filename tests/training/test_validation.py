"""Held-out episodes: which ones they are, that nothing learns from them, and the losses on them."""

import numpy as np
import pytest
import tensorflow as tf
from skipped_exports import skip_exports
from trained_runs import read_weights

from rlds2reverb import TrainingConfig, train
from rlds2reverb.datasets.selection import find_held_out
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.training.sources import open_data
from rlds2reverb.training.training import Training
from rlds2reverb.training.validation import ValidationHook

SMALL = {"hyperparameters": {"hidden_sizes": (4,)}, "env": None}


def make_episodes(count=10):
    """Returns episodes of three transitions, whose rewards are the number of the episode."""
    rng = np.random.default_rng(0)
    return [
        {
            "observations": rng.normal(size=(4, 2)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (3, 1)).astype(np.float32),
            "rewards": np.full(3, number, np.float32),
            "terminated": True,
        }
        for number in range(count)
    ]


def read_rewards(items):
    return {int(reward) for reward in items.read_items(np.arange(items.num_items))["reward"]}


def test_held_out_episodes_depend_on_the_seed_and_the_share_only():
    first = find_held_out(100, 0.1, 3)
    assert first.sum() == 10 and np.array_equal(first, find_held_out(100, 0.1, 3))
    assert not np.array_equal(first, find_held_out(100, 0.1, 4))
    assert not find_held_out(5, 0.0, 0).any()
    assert find_held_out(3, 0.01, 0).sum() == 1 and find_held_out(3, 0.99, 0).sum() == 2
    with pytest.raises(ValueError, match="at least 2 episodes"):
        find_held_out(1, 0.5, 0)


@pytest.mark.parametrize("in_store", [False, True])
def test_batches_and_held_out_items_share_no_episode(tmp_path, in_store):
    config = TrainingConfig("iql", validation=0.3, store_dir=str(tmp_path) if in_store else None, **SMALL)
    data = open_data(make_episodes(), config)
    held_out, used = read_rewards(data.validation), read_rewards(data.items)
    assert held_out == set(data.held_out) and len(held_out) == 3 and used == {*range(10)} - held_out
    assert data.num_episodes == 7 and data.num_transitions == 21
    assert "3 of 10 episodes are held out" in data.notes
    assert {int(episode.steps["reward"][0]) for episode in data.episodes.read()} == used


def test_best_episodes_are_chosen_among_those_that_are_not_held_out():
    data = open_data(make_episodes(), TrainingConfig("bc", validation=0.3, top_percent=50, **SMALL))
    rest = sorted({*range(10)} - set(data.held_out))
    assert read_rewards(data.items) == set(rest[-4:]) and len(data.held_out) == 3


def test_losses_on_held_out_items_are_those_of_a_train_step_that_changes_nothing():
    config = TrainingConfig("td3_bc", batch_size=5, validation=0.3, **SMALL)
    data = open_data(make_episodes(), config)
    make = {"time_step_spec": data.time_step_spec, "action_spec": data.action_spec, "hidden_sizes": (4,)}
    agent = make_agent("td3_bc", **make)
    hook = ValidationHook(agent, data.validation, every=1)
    before = [variable.numpy() for variable in agent.variables]
    measured = hook.measure()
    for variable, value in zip(agent.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    assert measured == hook.measure()
    losses = []
    for number in range(8):
        twin = make_agent("td3_bc", **make)
        batch = tf.constant(data.validation.read(number, 1)[0][0])
        losses.append(float(twin.train(data.validation.to_experience(batch)).extra["critic_loss"]))
    assert measured["validation/critic_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert {"validation/td_error", "validation/actor_loss", "validation/q_mean"} <= measured.keys()


def test_run_logs_losses_and_is_the_same_as_without_logging_them(tmp_path):
    options = {"validation": 0.2, "steps": 4, "deterministic": True, "batch_size": 4, **SMALL}
    with skip_exports():
        run = train(make_episodes(), "bc", tmp_path / "a", progress=False, log_every=2, **options)
        other = train(make_episodes(), "bc", tmp_path / "b", progress=False, log_every=4, **options)
    assert np.isfinite(run.progress["validation/actor_loss"]).all() and len(run.progress["step"]) == 2
    assert run.config["data"]["held_out"] == other.config["data"]["held_out"]
    assert run.identity["validation"] == 0.2
    weights, others = read_weights(run.path), read_weights(other.path)
    assert weights.keys() == others.keys() and weights
    for name, value in weights.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def test_options_without_episodes_raise(tmp_path):
    with pytest.raises(ValueError, match="validation requires a dataset; the items of a table"):
        open_data("localhost:8000", TrainingConfig("iql", validation=0.1))
    config = TrainingConfig("sac", validation=0.1, env="Pendulum-v1", online_steps=2000)
    with pytest.raises(ValueError, match="validation requires a dataset, which it changes or selects from"):
        Training(None, config, tmp_path)
    with pytest.raises(ValueError, match=r"validation must be a number in \[0, 1\), got 1"):
        TrainingConfig("iql", validation=1)
