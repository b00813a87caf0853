"""Policies as ONNX and TFLite files: the same actions as the agents', without TensorFlow, and refusals."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC
from policies import PENDULUM, CountingPolicy, FunctionPolicy, LinearPolicy, save_policy
from properties import mark_slow_except
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import restart, time_step_spec

from rlds2reverb import SpecMismatchError, load_policy
from rlds2reverb._system.sealed_files import save_json
from rlds2reverb.cli import run as run_command
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.learners import load_run
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.learners.policy_export import export_policy
from rlds2reverb.learners.policy_formats import write_policy

DISCRETE_SPEC = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 6, "action")


def make_spec(pixels):
    """Returns the spec of an observation with an image, a tuple, an integer, booleans and float64."""
    image = tf.TensorSpec([pixels, pixels, 3], tf.uint8, "image")
    parts = (tf.TensorSpec([], tf.int32, "number"), tf.TensorSpec([3], tf.float64, "vector"))
    return {"image": image, "parts": parts, "flags": tf.TensorSpec([2], tf.bool, "flags")}


def make_observations(pixels, num=60):
    random = np.random.default_rng(0)
    parts = (random.integers(0, 9, num, np.int32), random.normal(scale=60, size=(num, 3)))
    image = random.integers(0, 256, (num, pixels, pixels, 3), np.uint8)
    return {"image": image, "parts": parts, "flags": random.integers(0, 2, (num, 2)).astype(bool)}


def make_policy(name, folder, *, pixels=12, **options):
    """Saves the untrained policy of an algorithm, with normalisation, and returns it."""
    spec = make_spec(pixels)
    mean = tf.nest.map_structure(lambda leaf: np.full(leaf.shape, 0.5, np.float32), spec)
    std = tf.nest.map_structure(lambda leaf: np.full(leaf.shape, 2, np.float32), spec)
    action_spec = DISCRETE_SPEC if ALGORITHMS[name].actions == "discrete" else ACTION_SPEC
    options |= {"hidden_sizes": (8, 8), "seed": 3, "observation_mean": mean, "observation_std": std}
    policy = make_agent(name, time_step_spec(spec), action_spec, **options).policy
    export_policy(policy, folder)
    return policy


def run_tflite(path, observations):
    """Returns the actions of a TFLite file, whose inputs have the names of the fields with underscores."""
    runner = tf.lite.Interpreter(str(path)).get_signature_runner()
    number, vector = observations["parts"]
    return runner(
        observation_image=observations["image"],
        observation_parts_0=number,
        observation_parts_1=vector,
        observation_flags=observations["flags"],
    )["action"]


def require_same_actions(policy, folder, *, pixels=12):
    """Converts a policy, and compares its actions with those of both files."""
    observations = make_observations(pixels)
    expected = policy.action(restart(tf.nest.map_structure(tf.constant, observations), 60)).action.numpy()
    assert (expected != expected[0]).any()
    loaded = load_policy(write_policy(folder, folder.with_suffix(".onnx")))
    lite = run_tflite(write_policy(folder, folder.with_suffix(".tflite")), observations)
    for actions in (loaded.predict(observations), lite):
        assert actions.dtype == expected.dtype
        np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5)
    single = {"image": observations["image"][0], "parts": (3, [0.5, 0, 0]), "flags": [True, False]}
    assert loaded.action(single).shape == expected.shape[1:]


@pytest.mark.parametrize("name", mark_slow_except(["dqn"], ALGORITHMS))
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_actions_match_the_agent(name, tmp_path):
    require_same_actions(make_policy(name, tmp_path / "policy"), tmp_path / "policy")


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["nature", "impala", "resnet"])
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_actions_of_image_encoders_match_the_agent(encoder, tmp_path):
    policy = make_policy("bc", tmp_path / "policy", pixels=40, image_encoder=encoder)
    require_same_actions(policy, tmp_path / "policy", pixels=40)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run with two policies for Pendulum-v1, and the last one as pendulum.onnx."""
    folder = tmp_path_factory.mktemp("runs") / "iql"
    folder.mkdir()
    save_json(folder / "config.json", {"configuration": {"algo": "iql"}, "environment": "Pendulum-v1"})
    save_policy(PENDULUM, folder / "policy", step=20)
    save_policy(LinearPolicy(np.zeros((3, 1)), bias=1), folder / "best_policy", step=15)
    load_run(folder).export_policy(folder / "pendulum.onnx")
    return folder


def test_metadata_describe_the_policy(exported):
    import onnx

    model = onnx.load(exported / "pendulum.onnx")
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["observation", "action"]
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["algorithm"] == "iql" and metadata["train_step"] == "20"
    bounds = {"minimum": -1e6, "maximum": 1e6}
    assert json.loads(metadata["action_spec"]) == {"dtype": "float32", "shape": [1], **bounds}
    described = {"name": "observation", "path": [], "dtype": "float32", "shape": [3]}
    assert json.loads(metadata["observation_spec"]) == [described]


def test_onnx_files_run_without_tensorflow(exported, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow must not be imported')")
    program = """
        import sys
        from rlds2reverb import load_policy
        from rlds2reverb.cli import run

        assert abs(load_policy(sys.argv[1]).action([1.0, 2.0, 0.5]) - 2.8) < 1e-5
        assert load_policy(sys.argv[1]).predict([[1.0, 2.0, 0.5]] * 3).shape == (3, 1)
        assert run(["eval", sys.argv[1], "--env", "Pendulum-v1", "--episodes", "1", "--max-episode-steps", "5"]) == 0
        assert run(["record", "Pendulum-v1", "--policy", sys.argv[1], "--out", sys.argv[2], "--steps", "5"]) == 0
        assert "tensorflow" not in sys.modules
    """
    command = [sys.executable, "-c", textwrap.dedent(program), exported / "pendulum.onnx", tmp_path / "x.hdf5"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(command, env=environment, check=True, timeout=100, capture_output=True)


def test_evaluations_match_the_saved_model(exported):
    evaluator = Evaluator("Pendulum-v1", seeds=[3, 4])
    returns = [evaluator.evaluate(load_policy(exported / name)).returns for name in ("pendulum.onnx", "policy")]
    np.testing.assert_allclose(*returns, rtol=1e-3)


def test_command_exports_both_policies(exported, tmp_path, capsys):
    assert run_command(["export", str(exported), "--policy", "best", "--out", str(tmp_path / "a.onnx"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"out": str(tmp_path / "a.onnx"), "bytes": (tmp_path / "a.onnx").stat().st_size}
    assert load_policy(tmp_path / "a.onnx").predict([0, 0, 0]) == [1.0]
    assert load_policy(tmp_path / "a.onnx").get_train_step() == 15
    assert run_command(["export", str(exported / "policy"), "--out", str(tmp_path / "b")]) == 0
    assert f"wrote {tmp_path}/b (" in capsys.readouterr().out
    assert load_policy(tmp_path / "b").predict([1, 0, 0]) == [0.5]
    assert run_command(["export", str(exported / "policy"), "--out", str(tmp_path / "c"), "--policy", "best"]) == 1
    assert "--policy requires a training run" in capsys.readouterr().err


def test_existing_paths_are_kept(exported, tmp_path):
    (tmp_path / "kept.onnx").write_text("kept")
    with pytest.raises(FileExistsError, match=r"kept.onnx exists already; pass a new path"):
        load_run(exported).export_policy(tmp_path / "kept.onnx")
    assert (tmp_path / "kept.onnx").read_text() == "kept"


def test_invalid_arguments_raise(exported, tmp_path):
    run = load_run(exported)
    with pytest.raises(ValueError, match="format must be one of 'savedmodel', 'onnx', 'tflite', got 'onxx'"):
        run.export_policy(tmp_path / "a", format="onxx")
    with pytest.raises(ValueError, match="policy must be one of 'last', 'best', got 'first'"):
        run.export_policy(tmp_path / "a", policy="first")
    with pytest.raises(SpecMismatchError, match=r"observation must be float32 \[3\], .* got int64 \[2\]"):
        load_policy(exported / "pendulum.onnx").predict([1, 2])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "message"),
    [("p.onnx", "cannot be converted to ONNX .*BesselI0"), ("p.tflite", "cannot be converted to TFLite .*tf.BesselI0")],
)
def test_operations_that_a_format_does_not_have_raise(path, message, tmp_path):
    policy = FunctionPolicy(tf.TensorSpec([2], tf.float32), ACTION_SPEC, tf.math.bessel_i0)
    save_policy(policy, tmp_path / "policy")
    with pytest.raises(ValueError, match=message):
        write_policy(tmp_path / "policy", tmp_path / path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]


@pytest.mark.parametrize(
    ("policy", "batch_size", "message"),
    [(CountingPolicy(), None, "has a state"), (LinearPolicy([[2.0]]), 2, "was saved for batches of 2")],
    ids=["state", "batch"],
)
def test_policies_that_are_no_functions_of_observations_raise(policy, batch_size, message, tmp_path):
    save_policy(policy, tmp_path / "policy", batch_size=batch_size)
    with pytest.raises(ValueError, match=message):
        write_policy(tmp_path / "policy", tmp_path / "p.onnx")


def test_missing_packages_are_named(exported, tmp_path, monkeypatch):
    for package in ("onnxruntime", "tf2onnx"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=r'pip install "rlds2reverb\[onnx\]"'):
            load_run(exported).export_policy(tmp_path / "a.onnx")
    with pytest.raises(ImportError, match=r'pip install "rlds2reverb\[onnx\]"'):
        load_policy(exported / "pendulum.onnx")


def test_other_files_raise(tmp_path):
    from onnx import TensorProto, helper, save

    with pytest.raises(ValueError, match="there is no file .*a.onnx"):
        load_policy(tmp_path / "a.onnx")
    (tmp_path / "a.onnx").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="a.onnx is not a valid ONNX file"):
        load_policy(tmp_path / "a.onnx")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "b.onnx")
    with pytest.raises(ValueError, match="metadata do not contain action_spec, observation_spec, train_step"):
        load_policy(tmp_path / "b.onnx")
