"""The first updates of all agents equal those recorded in `tests/data/updates.json`, with two sets of hyperparameters.

Where the references of other tests compare parts of a few agents with the papers, these numbers show that no loss, metric,
weight, target or action changes unnoticed. `python tests/learners/agents/test_recorded_updates.py` writes the file again.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from agent_data import (
    ACTION_SPEC,
    DISCRETE_SPEC,
    OBSERVATION,
    TIME_STEP_SPEC,
    change_hyperparameters,
    make_columns,
    make_discrete,
    observe,
    small_networks,
    to_experience,
)
from tf_agents.trajectories.time_step import restart, time_step_spec

from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS

FILE = Path(__file__).parents[2] / "data/updates.json"
#: Weights of the items, of which the first one ends in a terminal state.
WEIGHTS = np.float32([1, 0.5, 2, 0, 1.5, 1])


def summarize(value):
    """Returns a number that depends on each element and its place."""
    value = np.asarray(value, np.float64).ravel()
    return float(value @ np.linspace(1, 2, len(value)))


def compute_updates(name, *, is_changed):
    """Returns the metrics of the third update, and the sums of the variables and of actions after it."""
    is_discrete = ALGORITHMS[name].actions == "discrete"
    statistics = {"observation_mean": np.full(OBSERVATION, 0.5), "observation_std": np.full(OBSERVATION, 2.0)}
    options = {key: observe(name, value) for key, value in statistics.items()}
    options |= change_hyperparameters(name) if is_changed else {"seed": 1}
    spec = time_step_spec(observe(name, TIME_STEP_SPEC.observation))
    actions = DISCRETE_SPEC if is_discrete else ACTION_SPEC
    agent = make_agent(name, spec, actions, **small_networks(name), **options)
    assert type(agent).__name__ == ALGORITHMS[name].class_name
    for step in range(3):
        data = make_columns(len(WEIGHTS), step)
        if is_discrete:
            data = make_discrete(data, step)
        info = agent.train(to_experience(name, data), tf.constant(WEIGHTS))
        assert ("td_error" in info.extra) == ALGORITHMS[name].has_td_errors
    results = {key: summarize(value) for key, value in {**info.extra, "loss": info.loss}.items()}
    observation = tf.nest.map_structure(tf.convert_to_tensor, observe(name, data["observation"]))
    for kind in ("policy", "collect_policy"):
        policy = getattr(agent, kind)
        state = policy.get_initial_state(len(WEIGHTS))
        step = policy.action(restart(observation, len(WEIGHTS)), state, seed=tf.constant([1, 2]))
        results[kind] = summarize(step.action)
    return results | {"variables": sum(summarize(variable) for variable in agent.variables)}


@pytest.mark.parametrize("is_changed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_updates_equal_the_recorded_ones(name, is_changed):
    expected = json.loads(FILE.read_text())[f"{name} {is_changed}"]
    results = compute_updates(name, is_changed=is_changed)
    assert results.keys() == expected.keys()
    for key, value in results.items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-5, err_msg=key)


if __name__ == "__main__":
    recorded = {
        f"{name} {is_changed}": compute_updates(name, is_changed=is_changed)
        for name in ALGORITHMS
        for is_changed in (False, True)
    }
    text = json.dumps(
        {key: {name: float(f"{value:.6g}") for name, value in row.items()} for key, row in recorded.items()}
    )
    FILE.write_text(text.replace("}, ", "},\n").replace(", ", ",").replace(": ", ":") + "\n")
