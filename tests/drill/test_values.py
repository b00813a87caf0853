"""Drill: numbers that are not finite, priorities that are invalid, files with code in them, and Reverb's own server."""

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest
import reverb
import tensorflow as tf
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, make_columns, observe, small_networks, to_experience
from numbers_served import serve_numbers
from policies import FunctionPolicy
from saved_buffers import CONFIG, fill, get_content, item
from tf_agents.specs import tensor_spec
from tf_agents.trajectories.time_step import time_step_spec
from written_runs import write_run

from rlds2reverb import (
    PriorityWriter,
    ReplayServer,
    TableConfig,
    TrainingDivergedError,
    ingest,
    load_run,
    sample_dataset,
    write_dataset,
)
from rlds2reverb.cli import run as run_command
from rlds2reverb.datasets import load
from rlds2reverb.envs.evaluation import evaluate
from rlds2reverb.envs.parallel_environment import ParallelEnvironment
from rlds2reverb.envs.recording import record_episodes
from rlds2reverb.learners import Learner
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.algorithms import ALGORITHMS, get_algorithm
from rlds2reverb.learners.hooks import SaveCkptHook
from rlds2reverb.replay import AdvancedReplayBuffer
from rlds2reverb.reverb.client import table_infos
from rlds2reverb.training import train
from rlds2reverb.training.collector import Collector

pytestmark = pytest.mark.slow

INVALID_NUMBERS = [np.nan, np.inf, -np.inf]


# --- F12: policies that return numbers that are not finite


def make_policy(value):
    """Returns a policy for Pendulum-v1 whose first action in a batch is `value`."""

    def act(observation):
        is_first = tf.range(tf.shape(observation)[0]) == 0
        return tf.where(is_first[:, None], tf.constant(value, tf.float32), 0.5) + 0 * observation[:, :1]

    action_spec = tensor_spec.BoundedTensorSpec([1], tf.float32, -2, 2)
    # TF-Agents would replace infinite actions by the bounds.
    return FunctionPolicy(tf.TensorSpec([3], tf.float32), action_spec, act, clip=False)


@pytest.mark.drill("F12")
@pytest.mark.parametrize("value", INVALID_NUMBERS)
def test_evaluation_names_the_step_of_an_action_that_is_not_finite(value):
    with pytest.raises(ValueError, match=rf"action must be finite, got \[{value}\] \(episode 0, step 0\)"):
        evaluate("Pendulum-v1", make_policy(value), 2)


@pytest.mark.drill("F12")
@pytest.mark.parametrize("value", INVALID_NUMBERS)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_recording_names_the_step_of_an_action_that_is_not_finite(tmp_path, value, num_envs):
    out = tmp_path / "out.hdf5"
    with pytest.raises(ValueError, match=rf"action must be finite, got \[{value}\] \(.*environment 0.*step 0"):
        write_dataset(
            record_episodes("Pendulum-v1", make_policy(value), num_episodes=2, num_envs=num_envs), out, format="d4rl"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.drill("F12")
@pytest.mark.parametrize("value", INVALID_NUMBERS)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_collector_names_the_step_of_an_action_that_is_not_finite(value, num_envs):
    collector = Collector("Pendulum-v1", make_policy(value), num_envs=num_envs)
    try:
        collector.collect(10, is_random=True)
        before = collector.num_collected
        with pytest.raises(
            ValueError, match=rf"action must be finite, got \[{value}\] \(environment 0, after {before} collected"
        ):
            collector.collect(10)
        assert collector.num_collected == before
    finally:
        collector.close()


@pytest.mark.drill("F12")
@pytest.mark.parametrize("value", INVALID_NUMBERS)
def test_parallel_environment_rejects_an_action_that_is_not_finite(value):
    from rlds2reverb.envs.creation import make_environment

    with ParallelEnvironment([lambda: make_environment("Pendulum-v1")] * 2) as env:
        env.reset()
        with pytest.raises(ValueError, match=r"action\[1\]|row 1|environment 1"):
            env.step(np.array([[0.5], [value]], np.float32))
        assert np.isfinite(env.step(np.zeros((2, 1), np.float32)).reward).all()


# --- F13: invalid priorities

INVALID_PRIORITIES = [-1.0, np.nan, np.inf, -np.inf, 1e308]
LOG = {"observations": np.zeros((4, 3)), "actions": np.zeros((4, 1)), "rewards": np.ones(4), "terminated": True}


@pytest.mark.drill("F13")
@pytest.mark.parametrize("priority", INVALID_PRIORITIES)
def test_ingest_rejects_invalid_priorities_and_writes_nothing(tmp_path, priority):
    with ReplayServer([TableConfig()]) as server:
        for destination in (server, tmp_path / "data"):
            for priorities in (priority, lambda episode, items: [1.0] * (len(items) - 1) + [priority]):
                with pytest.raises(
                    ValueError, match=r"the priority of item \d of episode 0 must be a finite number in"
                ):
                    ingest([LOG], destination, priority=priorities)
        assert table_infos(server.client)["replay"].current_size == 0
    assert not (tmp_path / "data").exists()


@pytest.mark.drill("F13")
@pytest.mark.parametrize("priority", INVALID_PRIORITIES)
def test_priority_writer_rejects_invalid_priorities_and_sends_nothing(priority):
    with serve_numbers({1: 1.0, 2: 1.0}) as (server,):
        info = next(iter(sample_dataset(server, "items", 4))).info
        with PriorityWriter(server, "items") as writer:
            with pytest.raises(ValueError, match="the priority of item 3 of the batch must be a finite number in"):
                writer.write(info, [9.0, 9.0, 9.0, priority])
            if priority != -1:  # The absolute value of an error is valid.
                with pytest.raises(ValueError, match="the priority of item 0 of the batch must be a finite number in"):
                    writer.update(info, [priority, 9.0, 9.0, 9.0])
        samples = server.client.sample("items", 20, emit_timesteps=False)
        assert {sample.info.priority for sample in samples} == {1.0}


@pytest.mark.drill("F13")
@pytest.mark.parametrize("priority", INVALID_PRIORITIES)
def test_replay_buffer_rejects_invalid_priorities_and_keeps_its_contents(priority):
    with fill(AdvancedReplayBuffer("demo", CONFIG, seed=0)) as buffer:
        before = get_content(buffer)
        with pytest.raises(ValueError, match="must be a finite number"):
            buffer.extend([item(20, priority=1.0), item(21, priority=priority)])
        with pytest.raises(ValueError, match="must be a finite number"):
            buffer.update({"replay_unique_id": ["demo_6", "demo_7"], "priority": [1.0, priority]})
        assert get_content(buffer) == before


@pytest.mark.drill("F13")
def test_replay_buffer_without_any_priority_says_so():
    with AdvancedReplayBuffer("demo", CONFIG, seed=0) as buffer:
        buffer.extend([item(n, priority=0.0) for n in range(4)])
        assert buffer.sample(2, 50) is None or pytest.fail("sampled elements of priority 0")


@pytest.mark.drill("F13")
def test_table_whose_priorities_are_all_zero_is_sampled_uniformly():
    """Reverb then ignores the priorities, so nothing blocks, and the weights must not be NaN."""
    with serve_numbers({1: 0.0, 2: 0.0}) as (server,):
        batches = sample_dataset(server.address, "items", 64, timeout_secs=10.0, beta=1.0).take(5)
        for batch in batches:
            assert set(batch.data.numpy().tolist()) == {1.0, 2.0}
            np.testing.assert_array_equal(batch.info.weight, 1)
            np.testing.assert_array_equal(batch.info.probability, 0.5)


# --- F20: losses that are not finite


def make_experience(name, columns):
    if get_algorithm(name).actions == "discrete":
        columns |= {key: columns[key][:, 1].round().astype("int32") for key in ("action", "next_action")}
    return to_experience(name, columns)


@pytest.mark.drill("F20")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_agents_stop_at_losses_that_are_not_finite_and_keep_their_last_checkpoint(tmp_path, name, value):
    algorithm = get_algorithm(name)
    spec = tensor_spec.BoundedTensorSpec([], "int32", -1, 1) if algorithm.actions == "discrete" else ACTION_SPEC
    time_steps = time_step_spec(observe(name, TIME_STEP_SPEC.observation))
    bad = make_columns(8)
    # Behavioural cloning does not look at rewards.
    bad["reward" if algorithm.has_td_errors else "observation"][3] = value
    good, bad = make_experience(name, make_columns(8)), make_experience(name, bad)

    def choose(n):
        return tf.nest.map_structure(lambda one, other: tf.where(n < 3, one, other), good, bad)

    agent = make_agent(name, time_steps, spec, **small_networks(name))
    with Learner(tmp_path, agent, tf.data.Dataset.range(100).map(choose), hooks=[SaveCkptHook(every=1)]) as learner:
        with pytest.raises(TrainingDivergedError, match="training diverged at iteration 3: "):
            learner.start(10)
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit())
    assert saved and saved[-1] == f"{3:010d}"
    again = make_agent(name, time_steps, spec, **small_networks(name))
    with Learner(tmp_path, again, tf.data.Dataset.range(100).map(lambda n: good)) as learner:
        assert learner.load_checkpoint() and learner.last_iter == 3
        weights = [variable.numpy() for variable in again.policy.variables()]
        assert weights and all(np.isfinite(weight).all() for weight in weights if weight.dtype.kind == "f")


# --- F23: pickled data

#: The modules that unpickle, and why nobody else can write what they read.
UNPICKLING = {
    "envs/_env_worker.py": "messages of the process that started this worker, over a socket pair of their own",
    "envs/_env_process.py": "messages of a worker that this process started, over a socket pair of their own",
    "envs/suite_gym.py": "specs of the parent process, which it sends to its workers with their environments or runs",
    "rlds2reverb/system/task_process.py": "the call of this process, and its result, over pipes to its parent process",
}
LOADS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
ROOT = Path(__file__).parents[2]


def find_unpickling(tree):
    """Yields the line of each import of an unpickling module, and of each call that may unpickle."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name.split(".")[0] in LOADS for name in names):
            yield node.lineno
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            allows = [keyword for keyword in node.keywords if keyword.arg == "allow_pickle"]
            may_unpickle = any(
                not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False) for keyword in allows
            )
            if may_unpickle or function.endswith(("torch.load", "read_pickle")):
                yield node.lineno


def test_search_finds_calls_that_unpickle():
    code = "import pickle\nfrom joblib import load\nnp.load(f, allow_pickle=True)\ntorch.load(f)\nnp.load(f)\n"
    assert list(find_unpickling(ast.parse(code))) == [1, 2, 3, 4]


@pytest.mark.drill("F23")
def test_no_module_unpickles_files():
    paths = [path for folder in ("rlds2reverb", "adders", "learners", "envs", "training", "cli")
             for path in (ROOT / folder).rglob("*.py")]  # fmt: skip
    assert len(paths) > 150
    found = {}
    for path in paths:
        lines = list(find_unpickling(ast.parse(path.read_text(encoding="utf-8"))))
        if lines:
            found[str(path.relative_to(ROOT))] = lines
    # These only write: what they pickle is read by the modules above.
    writing = {"training/placement.py"}
    for path in writing:
        assert ".load" not in "".join(line for line in (ROOT / path).read_text().splitlines() if "pickle" in line)
    assert {path: lines for path, lines in found.items() if path not in {*UNPICKLING, *writing}} == {}


# --- F24: SavedModels


@pytest.mark.drill("F24")
def test_runs_are_read_without_loading_saved_models(tmp_path, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise AssertionError("a SavedModel was loaded")

    monkeypatch.setattr(tf.saved_model, "load", fail)
    path = write_run(tmp_path / "run")
    for name in ("policy", "best_policy"):
        (path / name).mkdir()
        (path / name / "saved_model.pb").write_bytes(b"code")
    assert load_run(path).best_return == 20
    assert run_command(["inspect", str(path)]) == 0
    assert run_command(["inspect", str(path), "--report", str(tmp_path / "report.html")]) == 0
    assert run_command(["plot", str(path), "--out", str(tmp_path / "plot.png")]) == 0, capsys.readouterr().err
    with pytest.raises(AssertionError, match="a SavedModel was loaded"):
        _ = load_run(path).policy


@pytest.mark.drill("F24")
def test_training_is_resumed_without_loading_saved_models(tmp_path, data, monkeypatch):
    options = {"env": None, "progress": False, "hyperparameters": {"hidden_sizes": (4,)}}
    train(data / "d4rl/pendulum_mixed-v2.hdf5", "bc", tmp_path / "run", steps=5, **options)
    assert (tmp_path / "run/policy/saved_model.pb").is_file()

    def fail(*arguments, **options):
        raise AssertionError("a SavedModel was loaded")

    monkeypatch.setattr(tf.saved_model, "load", fail)
    train(data / "d4rl/pendulum_mixed-v2.hdf5", "bc", tmp_path / "run", steps=10, **options)


@pytest.mark.drill("F24")
def test_documentation_says_that_a_saved_model_is_code():
    assert "A SavedModel is code" in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


# --- F31: written directories on Reverb's own server


def write_directories(data, tmp_path, kind):
    """Writes a dataset; returns the directories with checkpoints, and the expected number of items."""
    source = data / "d4rl/hopper_medium-v2.hdf5"
    if kind == "beam":
        pytest.importorskip("apache_beam")
        from rlds2reverb.beam import conversion

        report = conversion.convert_with_beam(str(source), tmp_path / "out")
        return [tmp_path / "out"], report.items
    if kind == "sharded":
        paths = [tmp_path / "out" / f"shard_{shard}" for shard in range(2)]
        return paths, ingest(source, paths).items
    return [tmp_path / "out"], ingest(source, tmp_path / "out").items


@pytest.mark.drill("F31")
@pytest.mark.filterwarnings("ignore::rlds2reverb.reverb.writing.report.IngestWarning")
@pytest.mark.parametrize("kind", ["ingest", "sharded", "beam"])
def test_reverb_serves_written_directories_bit_for_bit(data, tmp_path, kind):
    directories, num_items = write_directories(data, tmp_path, kind)
    expected = sorted(
        (episode.steps["observation"][t : t + 2].tobytes(), episode.steps["reward"][t].tobytes())
        for episode in load(data / "d4rl/hopper_medium-v2.hdf5")
        for t in range(episode.num_transitions)
    )
    got = []
    for directory in directories:
        shutil.copytree(directory, tmp_path / "served" / directory.name)  # Reverb also writes there.
        folder = tmp_path / "served" / directory.name / "checkpoints"
        fifo = reverb.selectors.Fifo()
        table = reverb.Table("replay", fifo, fifo, 10**6, reverb.rate_limiters.MinSize(1), max_times_sampled=1)
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(folder))
        server = reverb.Server([table], port=None, checkpointer=checkpointer)
        client = server.localhost_client()
        size = client.server_info(timeout=30)["replay"].current_size
        seen = {}
        while len(seen) < size:
            for sample in client.sample("replay", 500, emit_timesteps=False):
                seen[sample.info.key] = sample.data
        got += [read_window(columns) for columns in seen.values()]
        server.stop()
    assert len(got) == num_items == len(expected)
    assert sorted(got) == expected


def read_window(columns):
    """Returns the bytes of the observations and the first reward of a trajectory's columns, found by their shapes."""
    observation = next(column for column in columns if np.shape(column) == (2, 11))
    return np.asarray(observation).tobytes(), np.asarray(columns[-2][0]).tobytes()
