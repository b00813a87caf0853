"""`train` and `Training`: a run from Python, its continuation, its result, and what it leaves behind."""

import json
import signal
import sys
from itertools import islice

import gin
import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from skipped_exports import skip_exports
from tf_agents.trajectories import time_step

from rlds2reverb import (
    CheckpointError,
    InvalidEpisodeError,
    Source,
    Training,
    TrainingConfig,
    load,
    load_policy,
    load_run,
    train,
    train_seeds,
)
from rlds2reverb.envs import evaluate
from rlds2reverb.learners.curves import learning_curves
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.libraries.tensorflow_internals import op_determinism
from rlds2reverb.training import Progress, progress

#: Options of a run that takes a second.
SMALL = {"env": None, "batch_size": 8, "hyperparameters": {"hidden_sizes": (8, 8)}, "log_every": 20, "progress": False}


def get_options(**options):
    """Returns the options of a small run for `TrainingConfig`."""
    return {**{name: value for name, value in SMALL.items() if name != "progress"}, **options}


@pytest.fixture(scope="module")
def hopper(data):
    return data / "d4rl" / "hopper_medium-v2.hdf5"


@pytest.fixture(scope="module")
def few(hopper):
    """Provides the first five episodes of the file."""
    return list(islice(load(hopper), 5))


@pytest.fixture
def source(few):
    return Source("few", "memory", lambda: iter(few))


def list_weights(training):
    return [variable.numpy() for variable in training.agent.trainable_variables]


def test_train_returns_a_run_that_can_be_continued_and_loaded(hopper, tmp_path, capsys, drawn):
    run = train(hopper, "td3_bc", tmp_path / "run", steps=40, **SMALL)
    assert str(run) == f"td3_bc in {tmp_path / 'run'}: 40 updates" and run.best_return is None
    assert run.data_return == pytest.approx(978.3, abs=0.1) and run.progress["step"].tolist() == [20, 40]
    action = run.policy.action(time_step.restart(np.zeros((3, 11), np.float32), 3)).action
    assert action.shape == (3, 3) and np.isfinite(action).all()
    assert run.values(np.zeros((3, 11)), action)["q"].shape == (3,)
    assert run.plot(tmp_path / "a.png")._repr_png_().startswith(b"\x89PNG") and (tmp_path / "a.png").is_file()
    assert not capsys.readouterr().err  # Not even the note about the bounds of the actions.

    with skip_exports():
        run = train(hopper, "td3_bc", tmp_path / "run", steps=60, **{**SMALL, "progress": True})
    assert "continuing from update 40" in capsys.readouterr().err
    assert run.progress["step"].tolist() == load_run(tmp_path / "run").progress["step"].tolist() == [20, 40, 60]
    config = TrainingConfig.from_dict(run.configuration)
    assert (config.algo, config.steps, config.batch_size, config.normalize_observations) == ("td3_bc", 60, 8, True)
    with pytest.raises(CheckpointError, match="steps must be at least 60, the number of updates that .* already made"):
        train(hopper, "td3_bc", tmp_path / "run", steps=59, **SMALL)


@pytest.mark.slow
def test_predict_acts_as_the_evaluator_does(data, tmp_path):
    run = train(data / "d4rl/pendulum_mixed-v2.hdf5", "bc", tmp_path, steps=2, **SMALL)
    env, total = gymnasium.make("Pendulum-v1"), 0.0
    observation, _ = env.reset(seed=4)
    for _ in range(30):
        action = run.predict(observation)
        assert env.action_space.contains(action)
        observation, reward, *_ = env.step(action)
        total += reward
    evaluation = evaluate("Pendulum-v1", run.policy, seeds=[4], max_episode_steps=30)
    assert evaluation.returns[0] == pytest.approx(total, rel=1e-4)
    np.testing.assert_array_equal(load_policy(tmp_path).predict(observation), run.predict(observation))
    with pytest.raises(ValueError, match="has no best_policy/, which an evaluated run writes when it ends"):
        _ = run.best_policy


@pytest.mark.usefixtures("no_policies")
def test_a_run_leaves_nothing_behind_in_the_process(source, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["unrelated", "--nonsense"])
    before = gin.config_str(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    (tmp_path / "mine.gin").write_text("BCAgent.learning_rate = 0.1")
    options = {**SMALL, "deterministic": True, "gin_files": [tmp_path / "mine.gin"]}
    run = train(source, "bc", tmp_path / "one", steps=4, **options)
    assert run.config["hyperparameters"]["learning_rate"] == 0.1
    assert train(source, "bc", tmp_path / "two", steps=4, **SMALL).config["hyperparameters"]["learning_rate"] == 3e-4
    assert (gin.config_str(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    tf.timestamp()  # Raises if operations were still deterministic.


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_episodes_in_memory_and_generator_functions_are_sources(few, source, tmp_path):
    logs = [dict(episode.steps) for episode in few]
    from_list = train(logs, "bc", tmp_path / "list", steps=2, **SMALL)
    from_function = train(lambda: iter(logs), "bc", tmp_path / "function", steps=2, **SMALL)
    assert from_list.data_return == from_function.data_return
    assert from_list.identity["data"] == from_function.identity["data"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_settings_of_a_different_run_are_rejected_before_the_data_are_read(source, tmp_path):
    train(source, "bc", tmp_path, steps=2, **SMALL)

    def fail():
        raise AssertionError("the data were read")

    unread = Source("unread", "memory", fail)
    for changes, message in (
        ({"seed": 3}, "seed was 0, is now 3"),
        ({"reward": "scale:2"}, "reward was None, is now scale:2"),
        ({"hyperparameters": {"hidden_sizes": (4,)}}, r"hyperparameter hidden_sizes was \[8, 8\], is now \[4\]"),
        ({"env": "Pendulum-v1"}, "environment was None, is now Pendulum-v1"),
    ):
        with pytest.raises(CheckpointError, match=f"contains a different run: .*{message}.*allow_config_mismatch=True"):
            train(unread, "bc", tmp_path, steps=4, **{**SMALL, **changes})
    with pytest.raises(CheckpointError, match="data was"):
        train(Source("one", "memory", lambda: islice(iter(source), 1)), "bc", tmp_path, steps=4, **SMALL)
    run = train(source, "bc", tmp_path, steps=4, seed=3, allow_config_mismatch=True, **SMALL)
    assert run.identity["seed"] == 3


def test_invalid_episodes_are_rejected(few, tmp_path):
    steps = dict(few[1].steps)
    steps["is_first"] = steps["is_first"].copy()
    steps["is_first"][3] = True
    with pytest.raises(InvalidEpisodeError, match="is_first"):
        train([few[0].steps, steps], "bc", tmp_path / "run", steps=2, **SMALL)
    assert not (tmp_path / "run").exists()


class Signal(LearnerHook):
    """A hook that sends a signal to this process after every 30 updates."""

    def __init__(self, number=signal.SIGINT):
        super().__init__("signal", position="after_iter", every=30)
        self.number = number

    def __call__(self, learner):
        signal.raise_signal(self.number)


@pytest.mark.slow
@pytest.mark.drill("F5")
def test_an_interrupted_script_ends_and_the_run_is_saved_and_continues(source, tmp_path):
    message = (
        f"bc in {tmp_path}: 30 updates; the same training continues it"  # The last log entry is that of update 20.
    )
    with pytest.raises(KeyboardInterrupt, match=f"^{message}$"):
        train(source, "bc", tmp_path, steps=90, hooks=[Signal()], **SMALL)
    run = load_run(tmp_path)
    assert run.num_updates == 30 and run.progress["step"].tolist() == [20] and run.policy is not None
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"{30:010d}"]
    assert train(source, "bc", tmp_path, steps=60, **SMALL).progress["step"].tolist() == [20, 40, 60]


@pytest.mark.usefixtures("no_policies")
def test_an_interrupted_notebook_cell_and_a_terminated_process_get_the_incomplete_run(source, tmp_path, monkeypatch):
    run = train(source, "bc", tmp_path / "terminated", steps=60, hooks=[Signal(signal.SIGTERM)], **SMALL)
    assert run.num_updates == 30
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    run = train(source, "bc", tmp_path / "interrupted", steps=60, hooks=[Signal()], **SMALL)
    assert run.num_updates == 30


@pytest.mark.usefixtures("no_policies")
def test_interrupted_seeds_end_the_script_after_all_is_saved(source, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="is saved; the same call continues it"):
        train_seeds(source, "bc", tmp_path, steps=60, seeds=2, hooks=[Signal()], **SMALL)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["runs"] == {"seed_0": {"state": "stopped", "step": 30, "reason": "SIGINT"}}


@pytest.mark.usefixtures("no_policies")
def test_parts_of_a_training_are_exposed(source, few, tmp_path):
    with Training(source, TrainingConfig("bc", **get_options(steps=6)), tmp_path) as training:
        assert training.data.items.num_items == sum(episode.num_transitions for episode in few)
        assert training.evaluator is None and training.learner.agent is training.agent
        training.run()
        assert training.learner.step == 6
    document = json.loads((tmp_path / "config.json").read_text())
    assert {"configuration", "hyperparameters", "identity", "data", "environment", "versions"} <= document.keys()
    assert document["identity"] == load_run(tmp_path).identity


@pytest.mark.slow
def test_deterministic_runs_are_equal_bit_for_bit_if_they_are_continued(source, tmp_path):
    def run(path, *ends):
        for steps in ends:
            config = TrainingConfig("iql", **get_options(steps=steps, deterministic=True))
            config = config.replace(hyperparameters={**SMALL["hyperparameters"], "num_updates": 50})
            with Training(source, config, path) as training:
                training.run()
                weights = list_weights(training)
        return weights

    for once, twice in zip(run(tmp_path / "a", 30), run(tmp_path / "b", 13, 30), strict=True):
        np.testing.assert_array_equal(once, twice)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["iql", "fql"])
def test_evaluations_do_not_change_what_is_learned(algo, data, tmp_path):
    pytest.importorskip("gymnasium")
    weights = []
    for env in (None, "Pendulum-v1"):
        options = {"env": env, "steps": 4, "eval_every": 2, "eval_episodes": 1, "eval_max_episode_steps": 10}
        config = TrainingConfig(algo, **get_options(**options, deterministic=True))
        with Training(data / "d4rl" / "pendulum_mixed-v2.hdf5", config, tmp_path / str(env)) as training:
            run = training.run()
            weights.append(list_weights(training))
    assert run.evaluations["step"].tolist() == [0, 2, 4] and run.results["step"].tolist() == [2, 4]
    for without, evaluated in zip(*weights, strict=True):
        np.testing.assert_array_equal(without, evaluated)


@pytest.mark.slow
def test_runs_with_different_seeds_form_one_curve(data, tmp_path):
    pytest.importorskip("gymnasium")
    options = {**SMALL, "env": "Pendulum-v1", "eval_every": 2, "eval_episodes": 1, "steps": 4}
    file = data / "d4rl" / "pendulum_mixed-v2.hdf5"
    runs = [
        train(file, "bc", tmp_path / str(seed), seed=seed, keep_checkpoints=1 + seed, **options) for seed in range(2)
    ]
    (curve,) = learning_curves(runs)
    assert (
        len(curve.runs) == 2
        and curve.steps.tolist() == [0, 2, 4]
        and runs[0].best_return == runs[0].evaluations["mean"][1:].max()
    )
    assert (runs[0].path / "curve.png").is_file() and runs[0].best_policy is not None


@pytest.mark.slow
def test_environments_may_be_functions_and_objects(data, tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    file = data / "d4rl" / "pendulum_mixed-v2.hdf5"
    options = {**SMALL, "eval_episodes": 1, "steps": 2}

    def make_pendulum():
        return gymnasium.make("Pendulum-v1")

    by_function = train(file, "bc", tmp_path / "function", **{**options, "env": make_pendulum})
    by_object = train(file, "bc", tmp_path / "object", **{**options, "env": make_pendulum()})
    by_id = train(file, "bc", tmp_path / "id", **{**options, "env": "Pendulum-v1"})
    assert by_function.last_return == by_object.last_return == by_id.last_return
    assert by_id.identity["action bounds"] == "[-2, 2]" and by_id.environment == "Pendulum-v1"


@pytest.mark.slow
def test_best_return_starts_anew_in_a_different_environment(data, tmp_path):
    gymnasium = pytest.importorskip("gymnasium")
    file = data / "d4rl" / "pendulum_mixed-v2.hdf5"

    def make_lighter_pendulum():
        return gymnasium.make("Pendulum-v1", g=1.0)

    options = {**SMALL, "eval_episodes": 1, "allow_config_mismatch": True}
    train(file, "bc", tmp_path, steps=2, **{**options, "env": "Pendulum-v1"})
    with Training(
        file,
        TrainingConfig("bc", **{**get_options(steps=4, eval_episodes=1), "env": make_lighter_pendulum, "allow_config_mismatch": True}),
        tmp_path,
    ) as training:  # fmt: skip
        assert training.learner.best_return == -np.inf
        training.run()
        assert training.learner.best_return == training.learner.latest["evaluation/mean_return"]


@pytest.mark.slow
def test_configuration_of_a_run_repeats_it(hopper, tmp_path):
    first = train(str(hopper), "bc", tmp_path / "first", steps=5, deterministic=True, **SMALL)
    config = TrainingConfig.from_dict(first.configuration)
    with Training(str(hopper), config, tmp_path / "again") as training:
        again = training.run()
    np.testing.assert_array_equal(again.progress["loss"], first.progress["loss"])
    assert again.identity == first.identity and again.configuration == first.configuration


@pytest.mark.slow
def test_prioritized_runs_keep_their_priorities(source, tmp_path, monkeypatch):
    options = get_options(sampler="prioritized", checkpoint_every=10)
    with Training(source, TrainingConfig("iql", steps=20, **options), tmp_path) as training:
        training.run()
    (saved,) = [path for path in (tmp_path / "checkpoints").iterdir() if path.name == f"{20:010d}"]
    assert (saved / "replay").is_dir()
    notes = []
    progress = Progress(quiet=True)
    monkeypatch.setattr(progress, "note", notes.append)
    with Training(source, TrainingConfig("iql", steps=30, **options), tmp_path, progress=progress) as training:
        run = training.run()
    assert "continuing from update 20" in notes and run.progress["step"][-1] == 30
    assert len(run.priorities) == len(run.weights) >= 1
    assert (run.weights.sum(1) == run.priorities.sum(1)).all()  # One weight and one TD error for each item.


def test_op_determinism_is_restored():
    tf.timestamp()
    with op_determinism(), pytest.raises(tf.errors.FailedPreconditionError):
        tf.timestamp()
    tf.timestamp()
