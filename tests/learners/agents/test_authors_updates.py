"""The updates of agents equal those of their authors' code, from the same weights, batches and noise.

`tests/data/authors.json` contains numbers that the authors' code computed, its repository, commit and file, and its default
settings, for each agent. Weights are those of `prepare`, batches those of `make_experience`, and noise that of
`OfflineAgent.noise_seed`; the authors' samplers were replaced by functions that return it.
"""

import json
import operator
from pathlib import Path

import numpy as np
import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, observe, to_experience
from tf_agents.trajectories.time_step import time_step_spec

from rlds2reverb.learners.agents import get_hyperparameters, make_agent

AUTHORS = json.loads((Path(__file__).parents[2] / "data/authors.json").read_text())
BATCH_SIZE = 16


def prepare(name, options, paths):
    """Returns an agent in which the variables at some paths are random numbers, whatever its initial weights are."""
    spec = time_step_spec(observe(name, TIME_STEP_SPEC.observation))
    agent = make_agent(name, spec, ACTION_SPEC, seed=3, **options)
    for number, path in enumerate(paths):
        variable = find_variable(agent, path)
        variable.assign(np.random.default_rng(number).normal(0, 0.4, variable.shape))
    return agent


def find_variable(agent, path):
    """Returns a variable of an agent: that of a network, or another one."""
    found = operator.attrgetter(path)(agent)
    return getattr(found, "flat", found)


def make_experience(name, step):
    """Returns the experience of an update."""
    return to_experience(name, make_columns(BATCH_SIZE, step))


def summarize(variable):
    """Returns a number that depends on each element and its place."""
    value = variable.numpy().astype(float).ravel()
    return value @ np.linspace(1, 2, len(value))


@pytest.mark.parametrize("name", AUTHORS)
def test_updates_match_the_authors_code(name):
    authors = AUTHORS[name]
    agent = prepare(name, authors["options"], authors["changes"])
    variables = {path: find_variable(agent, path) for path in authors["changes"]}
    before = {path: summarize(variable) for path, variable in variables.items()}
    for step in range(1 + max(map(int, authors["losses"]))):
        info = agent.train(make_experience(name, step))
        for loss, value in authors["losses"].get(str(step), {}).items():
            np.testing.assert_allclose(
                info.extra[loss], value, rtol=7e-5, atol=1.2e-4, err_msg=f"{loss} of update {step}"
            )
    for path, change in authors["changes"].items():
        np.testing.assert_allclose(
            summarize(variables[path]) - before[path], change, rtol=1e-3, atol=1e-3, err_msg=path
        )


@pytest.mark.parametrize("name", AUTHORS)
def test_defaults_match_the_authors_code(name):
    declared = {option: hyperparameter.default for option, hyperparameter in get_hyperparameters(name).items()}
    for option, value in AUTHORS[name]["defaults"].items():
        assert declared[option] == (tuple(value) if isinstance(value, list) else value), option
