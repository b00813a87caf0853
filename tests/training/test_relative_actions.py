"""Policies that were trained on actions relative to the state, which act in absolute ones."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tf_agents.trajectories import time_step

from rlds2reverb import load, load_policy, train
from rlds2reverb.errors import SourceError

MAPPING = {"delta": {"action": {"state": "observation.state", "except": [2]}}}
CHANGE = np.float32([1, 1, 0])
LIMIT = 6.0


class Arm(gymnasium.Env):
    """An environment whose actions have narrower bounds than those that the dataset states."""

    observation_space = spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (3,))})
    action_space = spaces.Box(-0.5, 0.5, (3,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"state": np.full(3, 4.0, np.float32)}, {}

    def step(self, action):
        assert self.action_space.contains(action)
        return {"state": np.full(3, -4.0, np.float32)}, float(action[0]), False, True, {}


def make_logs(*, relative):
    states = [np.random.default_rng(seed).normal(size=(21, 3)).astype(np.float32) for seed in range(4)]
    actions = [np.tanh(state[:20] * 0.3).astype(np.float32) for state in states]
    return [
        {
            "observations": {"state": state},
            "actions": action if relative else action + state[:20] * CHANGE,
            "rewards": np.zeros(20, np.float32),
            "terminated": False,
        }
        for state, action in zip(states, actions, strict=True)
    ]


@pytest.mark.parametrize("chunk_length", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_exported_policies_add_the_state_to_relative_actions_within_bounds(tmp_path, chunk_length):
    options = {"algo": "bc", "steps": 20, "batch_size": 32, "env": None, "chunk_length": chunk_length}
    relative = train(load(make_logs(relative=True)), run_dir=tmp_path / "relative", action_bounds=(-1, 1), **options)
    bounded = replace(load(make_logs(relative=False)), action_space=spaces.Box(-LIMIT, LIMIT, (3,)))
    mapped = load(bounded, mapping=MAPPING)
    absolute = train(mapped, run_dir=tmp_path / "absolute", action_bounds=(-1, 1), **options)
    for number, run in enumerate((relative, absolute)):
        run.export_policy(tmp_path / f"{number}.onnx")
    policies = [load_policy(tmp_path / f"{number}.onnx") for number in range(2)]
    states = [policy.get_initial_state() for policy in policies]
    for number, state in enumerate(np.float32([[0, 0, 0], [5, -7, 9], [1, 2, 3]])):
        first = time_step.StepType.MID if number else time_step.StepType.FIRST
        step = time_step.TimeStep(np.int32(first), np.float32(0), np.float32(1), {"state": state})
        actions = []
        for place, policy in enumerate(policies):
            action, states[place], _ = policy.action(step, states[place])
            actions.append(action)
        expected = np.clip(actions[0] + state * CHANGE, -LIMIT, LIMIT)
        assert np.any(np.abs(expected) == LIMIT) == (number == 1)
        np.testing.assert_allclose(actions[1], expected, atol=1e-4)
        if chunk_length == 1:
            np.testing.assert_allclose(absolute.predict({"state": state}), actions[1], atol=1e-4)


@pytest.mark.parametrize(
    ("mapping", "options", "message"),
    [
        ([{"copy": {"observation.state": "state"}}, {"delta": {"action": "state"}}], {}, "a state in the observation"),
        (
            MAPPING,
            {"online_steps": 2000, "env": "Pendulum-v1"},
            "online_steps cannot be combined with relative actions",
        ),
    ],
)
def test_relative_actions_that_policies_cannot_undo_raise(tmp_path, mapping, options, message):
    source = load(make_logs(relative=False), mapping=mapping)
    algo = "td3_bc" if options else "bc"
    with pytest.raises(ValueError, match=message):
        train(source, algo, tmp_path / "run", **{"steps": 1, "env": None, **options})


@pytest.mark.slow
def test_bounds_of_the_environment_come_first(tmp_path):
    bounded = replace(load(make_logs(relative=False)), action_space=spaces.Box(-LIMIT, LIMIT, (3,)))
    run = train(
        load(bounded, mapping=MAPPING), "bc", tmp_path / "run", steps=2, env=Arm, action_bounds=(-1, 1), eval_episodes=1
    )
    assert run.predict({"state": np.full(3, 4.0, np.float32)})[:2].tolist() == [0.5, 0.5]
    assert run.best_return == 0.5


def test_evaluation_off_policy_of_relative_actions_raises():
    from rlds2reverb.training.evaluation_data import EvaluationSource

    with pytest.raises(SourceError, match="off-policy evaluation requires absolute actions"):
        EvaluationSource(load(make_logs(relative=False), mapping=MAPPING))
