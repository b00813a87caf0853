"""Policies as ONNX and TFLite files: the same actions and states as the agents', without TensorFlow, and refusals."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, small_networks
from policies import PENDULUM, FunctionPolicy, LinearPolicy, TargetPolicy, save_policy
from properties import mark_slow_except
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import TimeStep, restart, time_step_spec

from rlds2reverb import SpecMismatchError, load_policy
from rlds2reverb.cli import run as run_command
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.learners import load_run
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.chunk_policy import execute_chunks, make_chunk_spec
from rlds2reverb.learners.algorithms import ALGORITHMS
from rlds2reverb.learners.policy_export import export_policy
from rlds2reverb.learners.policy_formats import write_policy
from rlds2reverb.system.sealed_files import save_json

DISCRETE_SPEC = tensor_spec.BoundedTensorSpec([], tf.int64, 3, 6, "action")
PENDULUM_SPECS = time_step_spec(tf.TensorSpec([3])), tensor_spec.BoundedTensorSpec([1], tf.float32, -2, 2)


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


#: Agents with goals, which have an observation of their own, and without a state.
GOAL_AGENTS = [name for name, algorithm in ALGORITHMS.items() if algorithm.items == "goals"]


@pytest.mark.parametrize(
    "name", mark_slow_except(["dqn"], sorted(ALGORITHMS.keys() - {"decision_transformer", *GOAL_AGENTS}))
)
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_actions_match_the_agent(name, tmp_path):
    require_same_actions(make_policy(name, tmp_path / "policy"), tmp_path / "policy")


@pytest.mark.slow
@pytest.mark.parametrize("name", GOAL_AGENTS)
def test_actions_of_agents_with_goals_match(name, tmp_path):
    spec = {field: tf.TensorSpec([3], tf.float32, field) for field in ("observation", "goal")}
    statistics = {
        "observation_mean": {field: [0.5] * 3 for field in spec},
        "observation_std": {field: [2.0] * 3 for field in spec},
    }
    policy = make_agent(name, time_step_spec(spec), ACTION_SPEC, hidden_sizes=(8, 8), **statistics).policy
    export_policy(policy, tmp_path / "policy")
    loaded = load_policy(write_policy(tmp_path / "policy", tmp_path / "p.onnx"))
    random = np.random.default_rng(0)
    observations = {field: random.normal(size=(60, 3)).astype(np.float32) for field in spec}
    expected = policy.action(restart(tf.nest.map_structure(tf.constant, observations), 60)).action
    np.testing.assert_allclose(loaded.predict(observations), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["nature", "impala", "resnet"])
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_actions_of_image_encoders_match_the_agent(encoder, tmp_path):
    policy = make_policy("bc", tmp_path / "policy", pixels=40, image_encoder=encoder)
    require_same_actions(policy, tmp_path / "policy", pixels=40)


def make_transformer():
    options = {"return_scale": 0.1, "observation_mean": [0.5, 0, 1], "observation_std": [1, 1, 2]}
    options |= small_networks("decision_transformer")
    return make_agent("decision_transformer", *PENDULUM_SPECS, **options).policy


def make_chunks():
    agent = make_agent("bc", PENDULUM_SPECS[0], make_chunk_spec(PENDULUM_SPECS[1], 3), hidden_sizes=(4,))
    execute_chunks(agent, PENDULUM_SPECS[1], 2)
    return agent.policy


#: Policies with a state for Pendulum-v1. Those of the agents take longer to convert.
STATEFUL = {"target": TargetPolicy, "chunks": make_chunks, "transformer": make_transformer}


def with_state(*names):
    """Returns a decorator that runs a test with the files of policies with a state."""
    values = mark_slow_except(["target"], names)
    return pytest.mark.parametrize("stateful", values, indirect=True, scope="module")


@pytest.fixture(scope="module")
def stateful(request, tmp_path_factory):
    """Provides the SavedModel 'saved' and the file 'p.onnx' of a policy with a state."""
    folder = tmp_path_factory.mktemp(request.param)
    save_policy(STATEFUL[request.param](), folder / "saved", step=7)
    write_policy(folder / "saved", folder / "p.onnx")
    return folder


def make_time_steps():
    """Yields the time steps of two environments, whose episodes of five steps begin at different times."""
    random = np.random.default_rng(0)
    for step in range(12):
        step_type = ((step > 0) & ((step + np.arange(2) * 3) % 5 > 0)).astype(np.int32)
        reward, observation = (random.normal(scale=3, size=shape).astype(np.float32) for shape in ([2], [2, 3]))
        yield TimeStep(step_type, reward, np.ones(2, np.float32), observation)


def run_policy(policy):
    """Returns the actions in several episodes, [T, 2, 1]."""
    actions, state = [], policy.get_initial_state(2)
    for time_step in make_time_steps():
        action, state, _ = policy.action(time_step, state)
        actions.append(np.asarray(action))
    return np.array(actions)


@with_state("target", "chunks", "transformer")
def test_actions_of_policies_with_a_state_match_over_episodes(stateful):
    loaded, expected = load_policy(stateful / "p.onnx"), run_policy(load_policy(stateful / "saved"))
    assert (np.ptp(expected, axis=0) > 1e-3).all()
    np.testing.assert_allclose(run_policy(loaded), expected, rtol=0, atol=1e-5)
    one = TimeStep(0, 0.0, 1.0, [0.5, 0.1, 2.0])
    action, state, _ = loaded.action(one, loaded.get_initial_state())
    assert action.shape == (1,) and all(leaf.shape == loaded.state_spec[name].shape for name, leaf in state.items())
    with pytest.raises(ValueError, match=r"requires a policy without a state; call action\(time_step, state\)"):
        loaded.action(one.observation)
    with pytest.raises(SpecMismatchError, match=r"input\['state'\]\['\w+'\] must be .*, but is missing in a tuple"):
        loaded.action(one)


@pytest.mark.slow
@with_state("target", "transformer")
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tflite_files_of_policies_with_a_state_return_the_initial_state(stateful, tmp_path):
    path = write_policy(stateful / "saved", tmp_path / "p.tflite")
    act, start = map(tf.lite.Interpreter(str(path)).get_signature_runner, ("action", "get_initial_state"))
    actions, state = [], start(batch_size=np.int32(2))
    for time_step in make_time_steps():
        outputs = act(**time_step._asdict(), **state)
        actions.append(outputs.pop("action"))
        state = {name.removeprefix("next_"): leaf for name, leaf in outputs.items()}
    np.testing.assert_allclose(actions, run_policy(load_policy(stateful / "saved")), rtol=0, atol=1e-5)


@with_state("target", "transformer")
def test_target_return_is_chosen_when_acting(stateful, capsys):
    actions = {}
    for name in ("saved", "p.onnx"):
        policy = load_policy(stateful / name)
        actions[name] = [run_policy(policy) for policy.target_return in (None, -8.0)]
    np.testing.assert_allclose(actions["p.onnx"], actions["saved"], rtol=0, atol=1e-5)
    assert not np.allclose(*actions["saved"], atol=1e-3)
    options = ["--env", "Pendulum-v1", "--episodes", "2", "--max-episode-steps", "9", "--target-return", "-50"]
    assert run_command(["eval", str(stateful / "p.onnx"), *options, "--target-return", "400", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["target_return"], row["updates"]) for row in document["policies"]] == [(-50, 7), (400, 7)]
    evaluator = Evaluator("Pendulum-v1", seeds=[1000, 1001], max_episode_steps=9)
    expected = [evaluator.evaluate(policy).returns for policy.target_return in (-50, 400)]
    np.testing.assert_array_equal([row["returns"] for row in document["policies"]], expected)
    assert (expected[0] != expected[1]).all()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Provides a run with two policies for Pendulum-v1, and the last one as pendulum.onnx."""
    folder = tmp_path_factory.mktemp("runs") / "iql"
    folder.mkdir()
    save_json(folder / "config.json", {"configuration": {"algo": "iql"}, "environment": "Pendulum-v1"})
    save_policy(PENDULUM, folder / "policy", step=20)
    unclipped = FunctionPolicy(
        PENDULUM_SPECS[0].observation, PENDULUM_SPECS[1], lambda seen: seen[:, :1] + 3, clip=False
    )
    save_policy(unclipped, folder / "best_policy", step=15)
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


@pytest.mark.slow
@with_state("target")
def test_onnx_files_run_without_tensorflow(exported, stateful, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('TensorFlow must not be imported')")
    program = """
        import sys
        from rlds2reverb import load_policy
        from rlds2reverb.cli import run

        assert abs(load_policy(sys.argv[1]).action([1.0, 2.0, 0.5]) - 2.8) < 1e-5
        assert load_policy(sys.argv[1]).predict([[1.0, 2.0, 0.5]] * 3).shape == (3, 1)
        assert run(["eval", sys.argv[1], "--env", "Pendulum-v1", "--episodes", "1", "--max-episode-steps", "5"]) == 0
        assert run(["record", "Pendulum-v1", "--policy", sys.argv[1], "--out", sys.argv[2], "--steps", "5"]) == 0
        assert run(["record", "Pendulum-v1", "--policy", sys.argv[3], "--out", sys.argv[4], "--steps", "5"]) == 0
        assert "tensorflow" not in sys.modules
    """
    paths = exported / "pendulum.onnx", tmp_path / "x.hdf5", stateful / "p.onnx", tmp_path / "y.hdf5"
    command = [sys.executable, "-c", textwrap.dedent(program), *paths]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(command, env=environment, check=True, timeout=100, capture_output=True)


def test_evaluations_match_the_saved_model(exported):
    evaluator = Evaluator("Pendulum-v1", seeds=[3, 4], max_episode_steps=40)
    returns = [evaluator.evaluate(load_policy(exported / name)).returns for name in ("pendulum.onnx", "policy")]
    np.testing.assert_allclose(*returns, rtol=1e-3)


def test_command_exports_both_policies(exported, tmp_path, capsys):
    assert run_command(["export", str(exported), "--policy", "best", "--out", str(tmp_path / "a.onnx"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"out": str(tmp_path / "a.onnx"), "size_bytes": (tmp_path / "a.onnx").stat().st_size}
    assert load_policy(tmp_path / "a.onnx").predict([0, 0, 0]) == [2.0]
    assert load_policy(tmp_path / "a.onnx").get_train_step() == 15
    assert run_command(["export", str(exported / "policy"), "--out", str(tmp_path / "b")]) == 0
    assert f"wrote {tmp_path}/b (" in capsys.readouterr().out
    assert load_policy(tmp_path / "b").predict([1, 0, 0]) == [0.5]
    assert run_command(["export", str(exported / "policy"), "--out", str(tmp_path / "c"), "--policy", "best"]) == 1
    assert "--policy requires a training run" in capsys.readouterr().err


def test_saved_model_may_have_a_version_or_any_suffix_with_its_format(exported, tmp_path):
    run = load_run(exported)
    assert run.export_policy(tmp_path / "a-v1.2") == tmp_path / "a-v1.2"
    assert run.export_policy(tmp_path / "a.foo", format="savedmodel").is_dir()


@pytest.mark.slow
def test_existing_paths_are_kept(exported, tmp_path):
    (tmp_path / "kept.onnx").write_text("kept")
    with pytest.raises(FileExistsError, match=r"kept.onnx exists already; pass a new path"):
        load_run(exported).export_policy(tmp_path / "kept.onnx")
    assert (tmp_path / "kept.onnx").read_text() == "kept"


def test_invalid_arguments_raise(exported, tmp_path, capsys):
    run = load_run(exported)
    with pytest.raises(ValueError, match="format must be one of 'savedmodel', 'onnx', 'tflite', got 'onxx'"):
        run.export_policy(tmp_path / "a", format="onxx")
    with pytest.raises(ValueError, match="policy must be one of 'last', 'best', got 'first'"):
        run.export_policy(tmp_path / "a", policy="first")
    for name in ("a.onxn", "a.ONNX", "a.foo"):
        with pytest.raises(
            ValueError, match=rf"path must end with .onnx or .tflite, .* got '.*{name}'; or set its format"
        ):
            run.export_policy(tmp_path / name)
    assert run_command(["export", str(exported), "--out", str(tmp_path / "a.onxn")]) == 1
    assert "--out must end with .onnx or .tflite" in capsys.readouterr().err and not list(tmp_path.iterdir())
    arguments = ["eval", str(exported / "pendulum.onnx"), "--env", "Pendulum-v1", "--target-return", "5"]
    assert run_command(arguments) == 1
    assert "--target-return requires a policy whose state contains it" in capsys.readouterr().err
    with pytest.raises(SpecMismatchError, match=r"observation must be float32 \[3\], .* got int64 \[2\]"):
        load_policy(exported / "pendulum.onnx").predict([1, 2])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "message"),
    mark_slow_except(
        [("p.onnx", "cannot be converted to ONNX .*BesselI0")],
        [
            ("p.onnx", "cannot be converted to ONNX .*BesselI0"),
            ("p.tflite", "cannot be converted to TFLite .*tf.BesselI0"),
        ],
    ),
)
def test_operations_that_a_format_does_not_have_raise(path, message, tmp_path):
    policy = FunctionPolicy(tf.TensorSpec([2], tf.float32), ACTION_SPEC, tf.math.bessel_i0)
    save_policy(policy, tmp_path / "policy")
    with pytest.raises(ValueError, match=message):
        write_policy(tmp_path / "policy", tmp_path / path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]


def test_policies_for_a_single_batch_size_raise(tmp_path):
    save_policy(LinearPolicy([[2.0]]), tmp_path / "policy", batch_size=2)
    with pytest.raises(ValueError, match="was saved for batches of 2"):
        write_policy(tmp_path / "policy", tmp_path / "p.onnx")


def test_policies_with_several_arrays_per_action_raise(tmp_path):
    arm = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    policy = FunctionPolicy(
        tf.TensorSpec([1], tf.float32), {"left": arm, "right": arm}, lambda x: {"left": x, "right": x}
    )
    save_policy(policy, tmp_path / "policy")
    with pytest.raises(ValueError, match="returns several arrays per action; only the format savedmodel supports this"):
        write_policy(tmp_path / "policy", tmp_path / "p.onnx")


def test_missing_packages_are_named(exported, tmp_path, monkeypatch):
    for package in ("onnxruntime", "tf2onnx"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=r"pip install .*onnxruntime"):
            load_run(exported).export_policy(tmp_path / "a.onnx")
    with pytest.raises(ImportError, match=r"pip install .*onnxruntime"):
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
    with pytest.raises(
        ValueError, match="metadata do not contain action_spec, observation_spec, state_spec, train_step"
    ):
        load_policy(tmp_path / "b.onnx")
