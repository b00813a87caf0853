"""Runs of other programs: logs of a custom loop, and policies in ONNX files."""

import json

import numpy as np
import pytest

from rlds2reverb import describe_policy, evaluate_offline, load_policy, load_run
from rlds2reverb.cli import run as run_command
from rlds2reverb.envs import evaluate
from rlds2reverb.learners import RunDirectory
from rlds2reverb.training.evaluated_policies import EvaluatedPolicy

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
WEIGHTS = np.float32([[0.5], [-1], [0.25]])


def write_onnx(path, *, inputs=(("observation", 3),), output="action", batch="batch", dtype=onnx.TensorProto.FLOAT):
    """Writes a policy whose action is the tanh of a product of the inputs, joined."""
    make = onnx.helper
    values = [make.make_tensor_value_info(name, dtype, [batch, size]) for name, size in inputs]
    result = make.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [batch, 1])
    nodes = [
        make.make_node("Concat", [name for name, _ in inputs], ["joined"], axis=1),
        make.make_node("Cast", ["joined"], ["cast"], to=onnx.TensorProto.FLOAT),
        make.make_node("MatMul", ["cast", "weights"], ["product"]),
        make.make_node("Tanh", ["product"], [output]),
    ]
    graph = make.make_graph(nodes, "policy", values, [result], [onnx.numpy_helper.from_array(WEIGHTS, "weights")])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture
def run_dir(tmp_path):
    """Provides the directory of a run that a custom loop has written and continued."""
    folder = tmp_path / "other"
    for step in (0, 10):
        with RunDirectory(folder) as run:
            run.writes_events = False
            options = {"algo": "other", "gamma": 0.9, "seed": 3}
            run.write_config({"configuration": options, "environment": "Pendulum-v1"})
            run.cut_after(step)
            for logged in (step + 5, step + 10, step + 15):
                run.log(logged, {"loss": 1 / logged})
            write_onnx(folder / "policy.onnx")
            describe_policy(folder / "policy.onnx", action_bounds=(-2, 2), train_step=step + 10, algorithm="other")
            run.log_evaluation(step + 10, evaluate("Pendulum-v1", load_policy(folder / "policy.onnx"), seeds=[0, 1]))
    return folder


def test_commands_read_runs_of_other_programs(run_dir, tmp_path, capsys):
    run = load_run(run_dir)
    assert str(run).startswith(f"other in {run_dir}: 25 updates") and run.identity["algo"] == "other"
    assert run.progress["step"].tolist() == [5, 10, 15, 20, 25]
    observations = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(run.predict(observations), np.tanh(WEIGHTS), rtol=1e-6)
    np.testing.assert_array_equal(load_policy(run_dir).predict(observations), run.predict(observations))
    assert run_command(["eval", str(run_dir), "--episodes", "1", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["environment"] == "Pendulum-v1" and evaluated["policies"][0]["updates"] == 20
    assert run_command(["inspect", str(run_dir), "--report", str(tmp_path / "report.html")]) == 0
    assert run_command(["inspect", str(run_dir)]) == 0
    assert f"other in {run_dir}: 25 updates" in capsys.readouterr().out
    assert run_command(["plot", str(run_dir), "--out", str(tmp_path / "curve.png")]) == 0
    assert run.export_policy(tmp_path / "copy.onnx").read_bytes() == (run_dir / "policy.onnx").read_bytes()
    with pytest.raises(ValueError, match="must be 'onnx' for .*policy.onnx, which is an ONNX file already"):
        run.export_policy(tmp_path / "policy.tflite")
    with pytest.raises(ValueError, match="the policy is an ONNX file, which contains no critics"):
        run.values(observations, np.zeros((3, 1)))
    with pytest.raises(ValueError, match="has no best_policy/"):
        run.best_policy  # noqa: B018 - Raises.


def test_off_policy_evaluation_calls_the_file(run_dir, data):
    policy = EvaluatedPolicy(run_dir)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    chosen = policy.choose(observations, 0)
    np.testing.assert_allclose(chosen[:, 0], np.tanh(observations @ WEIGHTS) / 2, atol=1e-6)  # In units of the bounds.
    assert policy.fingerprint() == EvaluatedPolicy(run_dir / "policy.onnx").fingerprint()
    assert policy.run is not None and not policy.has_goals and not policy.has_state


@pytest.mark.slow
def test_value_is_estimated_from_data(run_dir, data):
    estimate = evaluate_offline(run_dir, data / "d4rl/pendulum_mixed-v2.hdf5", method="fqe", progress=False)
    assert estimate.gamma == 0.9 and -200 < estimate.estimate < 0


def test_inputs_have_the_paths_of_nested_observations(tmp_path):
    names = "observation['joints']['arm']", "observation['speed']"
    path = write_onnx(tmp_path / "policy.onnx", inputs=[(names[0], 2), (names[1], 1)])
    describe_policy(path)
    policy = load_policy(path)
    observation = {"joints": {"arm": np.float32([1, 2])}, "speed": np.float32([3])}
    np.testing.assert_allclose(policy.predict(observation), np.tanh(np.float32([1, 2, 3]) @ WEIGHTS), rtol=1e-6)
    assert policy.get_train_step() == -1 and policy.action_spec.minimum is None
    with pytest.raises(ValueError, match="must state the bounds of actions; add them by describe_policy"):
        EvaluatedPolicy(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": [("input", 3)]}, "must have inputs 'observation' .* and the output 'action', got input and action"),
        ({"output": "output"}, "got observation and output"),
        ({"batch": 1}, "'observation' must have a batch axis of any size first"),
        ({"inputs": [("observation", "n")]}, "'observation' must be numbers of a fixed shape"),
    ],
)
def test_files_that_are_no_policies_raise(tmp_path, options, message):
    path = write_onnx(tmp_path / "policy.onnx", **options)
    with pytest.raises(ValueError, match="call describe_policy for files of other programs"):
        load_policy(path)
    with pytest.raises(ValueError, match=message):
        describe_policy(path)
