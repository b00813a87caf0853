"""Policies that were trained on actions relative to the state, which act in absolute ones."""

import numpy as np
import pytest
from tf_agents.trajectories import time_step

from rlds2reverb import load, load_policy, train
from rlds2reverb.errors import SourceError

MAPPING = {"delta": {"action": {"state": "observation.state", "except": [2]}}}
CHANGE = np.float32([1, 1, 0])


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
def test_exported_policies_add_the_state_to_relative_actions(tmp_path, chunk_length):
    options = {"algo": "bc", "steps": 20, "batch_size": 32, "env": None, "chunk_length": chunk_length}
    relative = train(load(make_logs(relative=True)), run_dir=tmp_path / "relative", action_bounds=(-1, 1), **options)
    mapped = load(make_logs(relative=False), mapping=MAPPING)
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
        np.testing.assert_allclose(actions[1], actions[0] + state * CHANGE, atol=1e-4)
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


def test_evaluation_off_policy_of_relative_actions_raises():
    from rlds2reverb.training.evaluation_data import EvaluationSource

    with pytest.raises(SourceError, match="off-policy evaluation requires absolute actions"):
        EvaluationSource(load(make_logs(relative=False), mapping=MAPPING))
