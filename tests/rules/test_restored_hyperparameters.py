"""The rule: a continued run uses the hyperparameters that it asks for, whatever those of its checkpoint are.

Its next update is that of an agent that was created with them and received the weights and the optimisers' slots.
"""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import (
    ACTION_SPEC,
    OBSERVATION,
    TIME_STEP_SPEC,
    change_hyperparameters,
    make_columns,
    observe,
    small_networks,
    to_experience,
)
from properties import mark_slow_except
from small_agents import MeanAgent, batches
from tf_agents.agents import tf_agent
from tf_agents.specs import tensor_spec
from tf_agents.trajectories.time_step import time_step_spec

from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.learners.train_loop import TrainLoop

DISCRETE_SPEC = tensor_spec.BoundedTensorSpec([], tf.int32, 0, 3)
STATISTICS = ({"observation_mean": np.zeros(OBSERVATION), "observation_std": np.ones(OBSERVATION)},
              {"observation_mean": np.full(OBSERVATION, 0.5), "observation_std": np.full(OBSERVATION, 2.0)})  # fmt: skip


def make(algo, **hyperparameters):
    actions = DISCRETE_SPEC if ALGORITHMS[algo].actions == "discrete" else ACTION_SPEC
    statistics = {
        name: observe(algo, value) for name, value in hyperparameters.items() if name.startswith("observation_")
    }
    spec = time_step_spec(observe(algo, TIME_STEP_SPEC.observation))
    return make_agent(algo, spec, actions, **small_networks(algo), **{**hyperparameters, **statistics})


def make_experience(algo, seed):
    columns = make_columns(6, seed)
    if ALGORITHMS[algo].actions == "discrete":
        columns["action"] = (np.arange(6, dtype=np.int32) + seed) % 4
    return to_experience(algo, columns)


@pytest.mark.parametrize("algo", mark_slow_except(["iql", "dqn"], ALGORITHMS))
def test_continued_agent_uses_the_hyperparameters_that_are_asked_for(algo, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainLoop, "prepare", lambda loop: None)  # These agents have all variables before tracing.
    changed = change_hyperparameters(algo)
    old, new, expected = make(algo, **STATISTICS[0]), *(make(algo, **changed, **STATISTICS[1]) for _ in range(2))
    data = tf.data.Dataset.from_tensors(make_experience(algo, 0)).repeat()
    with Learner(tmp_path, old, data) as learner:
        for seed in range(2):
            old.train(make_experience(algo, seed))
        learner.save_checkpoint()
    with Learner(tmp_path, new, data) as learner:
        assert learner.load_checkpoint(allow_config_mismatch=True)
    for target, source in zip(expected.variables, old.variables, strict=True):
        if not target.name.startswith("observation_"):
            target.assign(source)
    assert len(changed) >= 2
    for agent in (new, expected):
        agent.train(make_experience(algo, 2))
    for variable, other in zip(new.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(variable, other, variable.name)


class OwnAgent(MeanAgent):
    """A custom agent: loss = scale / 2 * (estimate - mean reward)^2, with the scale in a variable."""

    def __init__(self, make_optimizer, rate, momentum, scale):
        self.optimizer = make_optimizer(rate, momentum=momentum)
        self.scale, self.num_updates = tf.Variable(scale, trainable=False), tf.Variable(0.0, trainable=False)
        super().__init__()

    def _train(self, experience, weights):
        with tf.GradientTape() as tape:
            error = self.estimate - tf.reduce_mean(experience.next_time_step.reward)
            loss = 0.5 * self.scale * error**2
        self.optimizer.apply_gradients([(tape.gradient(loss, self.estimate), self.estimate)])
        self.num_updates.assign_add(1.0)
        return tf_agent.LossInfo(loss, ())


OPTIMIZERS = {
    "keras": tf.keras.optimizers.SGD,
    "legacy": tf.keras.optimizers.legacy.SGD,
    "v1": tf.compat.v1.train.MomentumOptimizer,
}


def train_own(folder, steps, *hyperparameters, assign=None):
    """Continues the run in a folder, with a mean reward of 1 in every batch, and returns its agent."""
    agent = OwnAgent(*hyperparameters)
    with Learner(folder, agent, batches(1, 1, first=1.0)) as learner:
        learner.load_checkpoint(allow_config_mismatch=True)
        if steps > learner.step:
            learner.start(steps)
        if assign is not None:
            agent.optimizer.learning_rate.assign(assign)
        learner.save_checkpoint()
    return agent


@pytest.mark.parametrize(("name", "last_step"), [
    ("keras", 0.75 * 0.5 + 0.25 * 2 * (1 - 0.5)),  # Velocities contain the learning rate.
    pytest.param("legacy", 0.75 * 0.5 + 0.25 * 2 * (1 - 0.5), marks=pytest.mark.slow),
    pytest.param("v1", 0.25 * (0.75 * 1 + 2 * (1 - 0.5)), marks=pytest.mark.slow),
])  # fmt: skip
def test_hyperparameters_in_variables_of_custom_agents_are_set_again(name, last_step, tmp_path):
    agent = train_own(tmp_path, 1, OPTIMIZERS[name], 0.5, 0.5, 1.0)
    assert agent.estimate.numpy() == 0.5 * (1 - 0)
    agent = train_own(tmp_path, 2, OPTIMIZERS[name], 0.25, 0.75, 2.0)
    assert agent.estimate.numpy() == 0.5 + last_step
    assert (agent.num_updates.numpy(), agent.scale.numpy()) == (2, 2)


def test_values_that_a_run_has_changed_itself_continue(tmp_path):
    """A hook may change the learning rate, which is not a hyperparameter that the continued run has changed."""
    options = OPTIMIZERS["keras"], 0.5, 0.5, 1.0
    train_own(tmp_path, 1, *options, assign=0.125)
    agent = train_own(tmp_path, 1, *options)
    assert agent.optimizer.learning_rate.numpy() == 0.125
    assert train_own(tmp_path, 1, options[0], 0.25, 0.5, 1.0).optimizer.learning_rate.numpy() == 0.25


def test_new_run_from_other_weights_has_its_own_optimizers(tmp_path):
    train_own(tmp_path / "own", 1, OPTIMIZERS["keras"], 0.5, 0.5, 1.0)
    agent = OwnAgent(OPTIMIZERS["keras"], 0.25, 0.5, 1.0)
    with Learner(tmp_path / "new", agent, batches()) as learner:
        learner.initialize_from(tmp_path / "own")
    assert (agent.estimate.numpy(), agent.optimizer.learning_rate.numpy()) == (0.5, 0.25)
