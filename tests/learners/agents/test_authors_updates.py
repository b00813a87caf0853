"""The updates of agents equal those of their authors' code, from the same weights, batches and noise.

`tests/data/authors.json` contains numbers that the authors' code computed, its repository, commit and file, and its default
settings, for each agent. Weights are those of `prepare`, batches those of `make_experience`, and noise that of
`OfflineAgent.noise_seed`; the authors' samplers were replaced by functions that return it. A change is null if it contains
that of a transformer's keys' biases, whose gradient consists of rounding errors.
"""

import json
import operator
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from agent_data import (
    ACTION_SPEC,
    DISCRETE_SPEC,
    TIME_STEP_SPEC,
    make_columns,
    make_discrete,
    observe,
    to_experience,
)
from tf_agents.trajectories.time_step import time_step_spec

from rlds2reverb.learners.agents import get_hyperparameters, make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS

AUTHORS = json.loads((Path(__file__).parents[2] / "data/authors.json").read_text())
BATCH_SIZE = 16


def get_algo(name):
    """Returns the algorithm of an entry, whose name may say what is added to it, such as "fql with chunks"."""
    return name.partition(" ")[0]


def is_discrete(name):
    """Returns whether an algorithm has discrete actions."""
    return ALGORITHMS[name].actions == "discrete"


def prepare(name, options, paths):
    """Returns an agent in which the variables at some paths are random numbers, whatever its initial weights are."""
    spec = time_step_spec(observe(name, TIME_STEP_SPEC.observation))
    agent = make_agent(name, spec, DISCRETE_SPEC if is_discrete(name) else ACTION_SPEC, seed=3, **options)
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        for variable in find_variables(agent, path):
            variable.assign(rng.normal(0, 0.4, variable.shape))
    return agent


def find_variables(agent, path):
    """Returns the variables of a network of an agent, or a variable."""
    found = operator.attrgetter(path)(agent)
    return [found] if isinstance(found, tf.Variable) else found.variables


def make_experience(name, step, *, has_chunks=False):
    """Returns the experience of an update; with chunks, an action is one of two numbers, of which some are padding."""
    data = make_columns(BATCH_SIZE, step)
    if has_chunks:
        is_complete = np.arange(BATCH_SIZE) % 4 != step % 4
        data["mask"] = np.stack([np.ones(BATCH_SIZE, bool), is_complete], axis=1)
    return to_experience(name, make_discrete(data, step) if is_discrete(name) else data)


def summarize(variables):
    """Returns a number that depends on each element and its place."""
    values = [variable.numpy().astype(float).ravel() for variable in variables]
    return sum(value @ np.linspace(1, 2, len(value)) for value in values)


@pytest.mark.parametrize("name", AUTHORS)
def test_updates_match_the_authors_code(name):
    authors, algo = AUTHORS[name], get_algo(name)
    agent = prepare(algo, authors["options"], authors["changes"])
    variables = {path: find_variables(agent, path) for path in authors["changes"]}
    before = {path: summarize(found) for path, found in variables.items()}
    for step in range(1 + max(map(int, authors["losses"]))):
        info = agent.train(make_experience(algo, step, has_chunks=algo != name))
        for loss, value in authors["losses"].get(str(step), {}).items():
            np.testing.assert_allclose(
                info.extra[loss], value, rtol=7e-5, atol=1.2e-4, err_msg=f"{loss} of update {step}"
            )
    for path, change in authors["changes"].items():
        if change is not None:
            found = summarize(variables[path]) - before[path]
            np.testing.assert_allclose(found, change, rtol=1e-3, atol=1e-3, err_msg=path)


@pytest.mark.parametrize("name", AUTHORS)
def test_defaults_match_the_authors_code(name):
    options = get_hyperparameters(get_algo(name))
    declared = {option: hyperparameter.default for option, hyperparameter in options.items()}
    for option, value in AUTHORS[name]["defaults"].items():
        assert declared[option] == (tuple(value) if isinstance(value, list) else value), option


def test_all_algorithms_are_compared_and_the_docs_list_their_sources():
    page = (Path(__file__).parents[3] / "docs/agents.md").read_text()
    table = page.partition("| source | agents |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {*map(get_algo, AUTHORS)} == ALGORITHMS.keys()
