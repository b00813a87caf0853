"""Environments of the Control Suite, with the arguments of Gymnasium's."""

import sys
import warnings

import gymnasium
import numpy as np
import pytest

from rlds2reverb.envs import check_wrapper, create_environment, suite_dm_control


def test_missing_package_raises_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(
        ImportError, match=r"suite_dm_control requires dm_control .*; run .*pip install .* dm_control=="
    ):
        suite_dm_control.load("cartpole:swingup")


@pytest.fixture(scope="module")
def suite():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The renderers that are not available warn.
        return pytest.importorskip("dm_control.suite", reason="dm_control is not installed")


def test_environments_keep_the_contract(suite):
    check_wrapper(lambda: suite_dm_control.load("cartpole:swingup", max_episode_steps=30), num_steps=80)


@pytest.mark.slow
def test_all_tasks_can_be_stepped(suite):
    for pair in sorted({*suite.ALL_TASKS} - {("quadruped", "escape")}):  # It requires a renderer.
        with suite_dm_control.load(":".join(pair), max_episode_steps=3) as env:
            steps = [env.step(np.zeros(env.action_spec().shape, np.float32)) for _ in range(5)]
            assert [int(step.step_type) for step in steps] == [0, 1, 1, 2, 0]


def test_limit_of_the_task_truncates_and_wrappers_are_applied(suite):
    with suite_dm_control.load(
        "cartpole:balance",
        discount=0.5,
        gym_wrappers=[gymnasium.wrappers.FlattenObservation],
        task_kwargs={"time_limit": 0.05},
    ) as env:
        assert env.observation_spec().shape == (5,)
        steps = [env.step(np.zeros(1, np.float32)) for _ in range(7)]
    assert [int(step.step_type) for step in steps] == [0, 1, 1, 1, 1, 2, 0]
    assert float(steps[5].discount) == 0.5
    with suite_dm_control.load("cartpole:balance", max_episode_steps=0, task_kwargs={"time_limit": 0.05}) as env:
        assert 2 not in [int(env.step(np.zeros(1, np.float32)).step_type) for _ in range(20)]


def test_equal_seeds_give_equal_episodes_in_parallel(suite):
    def play(seed):
        with create_environment("cartpole:swingup", 2, seed, suite=suite_dm_control.load) as env:
            return env.reset().observation["position"]

    first = play(3)
    np.testing.assert_array_equal(first, play(3))
    np.testing.assert_array_equal(first[1], play(4)[0])


def test_unknown_names_raise_with_the_nearest_one(suite):
    with pytest.raises(ValueError, match="dm_control has no environment 'cheetah-run'; did you mean 'cheetah:run'"):
        suite_dm_control.load("cheetah-run")
