"""The table of algorithms against the agents."""

import subprocess
import sys

import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, observe, small_networks, to_experience
from properties import mark_slow_except
from tf_agents.specs import tensor_spec
from tf_agents.trajectories.time_step import time_step_spec

from rlds2reverb.learners.agents import get_hyperparameters, make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS, RUN_HYPERPARAMETERS, get_algorithm


def test_table_matches_the_figures_of_the_papers():
    sizes = {name: algorithm.batch_size for name, algorithm in ALGORITHMS.items() if algorithm.batch_size != 256}
    atari = dict.fromkeys(["dqn", "double_dqn", "discrete_bcq", "discrete_cql"], 32)
    goals = ["crl", "gcbc", "gciql", "gcivl", "hiql"]
    others = {"awac": 1024, "rebrac": 1024, "decision_transformer": 64}
    assert sizes == {**others, **atari, **dict.fromkeys(goals, 1024)}
    normalized = [name for name, algorithm in ALGORITHMS.items() if algorithm.normalizes_observations]
    assert normalized == sorted(["decision_transformer", "spot", "td3_bc", "bc", "discrete_bc", "fql", *goals])
    assert [name for name, algorithm in ALGORITHMS.items() if algorithm.items == "trajectories"] == ["rebrac"]
    assert [name for name, algorithm in ALGORITHMS.items() if algorithm.items == "goals"] == goals
    assert sorted(ALGORITHMS) == list(ALGORITHMS)


@pytest.mark.parametrize("name", mark_slow_except(["bc", "iql", "dqn", "decision_transformer", "hiql"], ALGORITHMS))
def test_table_describes_the_agent(name):
    algorithm = get_algorithm(name)
    is_discrete = algorithm.actions == "discrete"
    spec = tensor_spec.BoundedTensorSpec([], "int32", -1, 1) if is_discrete else ACTION_SPEC
    agent = make_agent(name, time_step_spec(observe(name, TIME_STEP_SPEC.observation)), spec, **small_networks(name))
    assert type(agent).__name__ == algorithm.class_name
    data = make_columns(4)
    if is_discrete:
        data |= {key: data[key][:, 1].round().astype("int32") for key in ("action", "next_action")}
    info = agent.train(to_experience(name, data))
    assert ("td_error" in info.extra) == algorithm.has_td_errors


def test_hyperparameters_that_a_run_determines_exist():
    names = {name for algo in ALGORITHMS for name in get_hyperparameters(algo)}
    assert names | {"gamma"} >= set(RUN_HYPERPARAMETERS)  # The name in TF-Agents' agents.


def test_unknown_algorithm_raises_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"algo must be one of awac, .*, got 'iqll'; did you mean 'iql'\?"):
        get_algorithm("iqll")
    with pytest.raises(ValueError, match=r"got None$"):
        get_algorithm(None)


def test_table_needs_no_tensorflow():
    code = "import sys, rlds2reverb.learners.algorithms; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
