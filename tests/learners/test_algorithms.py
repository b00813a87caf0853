"""The table of algorithms against the agents."""

import subprocess
import sys

import pytest

from rlds2reverb.learners.agents import get_hyperparameters
from rlds2reverb.learners.algorithms import ALGORITHMS, RUN_HYPERPARAMETERS, get_algorithm


def test_table_matches_the_figures_of_the_papers():
    sizes = {name: algorithm.batch_size for name, algorithm in ALGORITHMS.items() if algorithm.batch_size != 256}
    atari = dict.fromkeys(["dqn", "double_dqn", "discrete_bcq", "discrete_cql"], 32)
    goals = ["crl", "gcbc", "gciql", "gcivl", "hiql"]
    others = {"awac": 1024, "rebrac": 1024, "decision_transformer": 64}
    assert sizes == {**others, **atari, **dict.fromkeys(goals, 1024)}
    normalized = {name for name, algorithm in ALGORITHMS.items() if algorithm.normalizes_observations}
    assert normalized == {name for name, algorithm in ALGORITHMS.items() if not algorithm.has_td_errors} | {
        *("spot", "td3_bc", "fql", *goals)
    }
    assert [name for name, algorithm in ALGORITHMS.items() if algorithm.items == "trajectories"] == ["rebrac"]
    assert [name for name, algorithm in ALGORITHMS.items() if algorithm.items == "goals"] == goals
    assert sorted(ALGORITHMS) == list(ALGORITHMS)


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
