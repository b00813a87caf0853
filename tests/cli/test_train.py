"""`rlds2reverb train`: from a data set to a trained agent; given again, it goes on."""

import json
import signal
import subprocess
import sys

import gin
import numpy as np
import pytest
import tensorflow as tf
from rlds2reverb.adders import NStep
from rlds2reverb.cli import run, training
from rlds2reverb.cli.train import ALGORITHMS
from rlds2reverb.learners import load_run
from rlds2reverb.learners.agents import AGENTS, resolved

from rlds2reverb import ReplayServer, Selector, TableConfig, TrajectoryWindows, ingest, sample_dataset
from rlds2reverb.sources import load

SMALL = ("--env", "none", "--batch-size", 8, "--set", "hidden_sizes=(8, 8)", "--log-every", 20)


def call(capsys, *arguments):
    code = run(["train", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def hopper(data):
    return data / "d4rl" / "hopper_medium-v2.hdf5"


@pytest.fixture(scope="module")
def few(hopper):
    """Five short episodes of the file."""
    from itertools import islice

    return list(islice(load(hopper), 5))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "td3_bc"


# --- A run


def test_a_data_set_becomes_an_agent_and_the_same_command_goes_on(hopper, root, capsys):
    command = ("--algo", "td3_bc", "--data", hopper, "--run-dir", root, *SMALL)
    code, out, err = call(capsys, *command, "--steps", 40)
    assert code == 0 and out.startswith(f"td3_bc trained in {root}\n  updates             40\n") and "978.3" in out
    assert err.splitlines()[0] == "no evaluation: give --env ID, such as --env Hopper-v5 (needs pip install '.[eval]')"
    assert any(line.strip().startswith("40 of 40   loss ") for line in err.splitlines())
    names = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    assert names == {"config.json", "repeat.txt", "progress.csv", "train", "checkpoints", "policy"}
    found = load_run(root)
    assert found.config["hyperparameters"]["alpha"] == 2.5 and found.config["hyperparameters"]["hidden_sizes"] == [8, 8]
    assert found.configuration["batch_size"] == 8 and found.configuration["normalize_observations"] is True
    assert found.configuration["algo"] == "td3_bc" and found.progress["step"].tolist() == [20, 40]
    assert found.behaviour_return == pytest.approx(978.3, abs=0.1) and np.isfinite(found.progress["loss"]).all()
    assert [path.name for path in (root / "checkpoints").iterdir()] == [f"{40:010d}"]

    code, out, err = call(capsys, *command, "--steps", 60, "--json")
    document = json.loads(out)
    assert code == 0 and "continuing from iteration 40" in err and document["iterations"] == 60
    assert document["best_return"] is None and document["stopped_by"] is None and document["run_dir"] == str(root)
    assert load_run(root).progress["step"].tolist() == [20, 40, 60]

    command = (*command, "--steps", 60)  # other data and settings are refused, unless that is what was asked for
    code, _, err = call(capsys, *command, "--reward", "scale:2", "--seed", 3)
    assert code == 2 and "is of another run" in err and "seed was 0, is 3" in err and "data was" in err
    code, out, _ = call(capsys, *command, "--seed", 3, "--override")
    assert code == 0 and "updates             60" in out


@pytest.mark.slow
def test_prioritized_batches_come_from_a_table_whose_priorities_are_kept(hopper, tmp_path, capsys):
    command = ("--algo", "iql", "--data", hopper, "--run-dir", tmp_path, *SMALL, "--sampler", "prioritized")
    assert call(capsys, *command, "--steps", 20)[0] == 0
    (root,) = (tmp_path / "replay").iterdir()
    with ReplayServer([TableConfig(sampler=Selector("prioritized", 0.6))], checkpoint_root=root) as server:
        (sample,) = sample_dataset(server, "replay", 500).take(1)
    assert len(set(sample.info.priority.numpy().tolist())) > 5  # all were 1 at first
    code, _, err = call(capsys, *command, "--steps", 30)
    assert code == 0 and "continuing from iteration 20" in err
    manifest = json.loads((tmp_path / "checkpoints" / f"{30:010d}" / "manifest.json").read_text())["content"]
    assert str(root) in manifest["replay_checkpoint"]


@pytest.mark.parametrize(
    "adder",
    [NStep(3, 0.99), pytest.param(TrajectoryWindows(2), marks=pytest.mark.slow)],
    ids=["transitions", "trajectories"],
)
def test_a_directory_or_a_running_server_gives_its_items(few, tmp_path, capsys, adder):
    from rlds2reverb.sources.source import Source

    source = Source("few", "memory", lambda: iter(few))
    ingest(source, tmp_path / "table", adder=adder, layout="packed" if isinstance(adder, NStep) else "columns")
    options = ("--algo", "td3_bc", *SMALL, "--steps", 10)
    code, out, err = call(capsys, *options, "--data", tmp_path / "table", "--run-dir", tmp_path / "one")
    assert code == 0 and "updates  10\n" in out and "return of the data" not in out
    assert f"observations are not normalised: {tmp_path / 'table'} has no statistics; give them with --set" in err
    with ReplayServer(None, data=tmp_path / "table") as server:
        more = ("--sampler", "prioritized", "--data", server.address, "--run-dir", tmp_path / "two")
        code, out, err = call(capsys, *options, *more)
        assert code == 0 and "updates  10\n" in out, err
        code, out, err = call(capsys, *options, *more)  # with the priorities of before
        assert code == 0, err
        if isinstance(adder, NStep):
            code, _, err = call(capsys, *options, *more, "--gamma", 0.9)
            assert code == 1 and "is no power of 0.9; give --gamma as it was in the conversion" in err
            code, _, err = call(capsys, *options, *more, "--algo", "rebrac")
            assert code == 1 and "are transitions, rebrac learns from trajectories of two steps; convert" in err
    code, _, err = call(capsys, *options, "--data", tmp_path / "table", "--run-dir", tmp_path / "x", "--clip-actions")
    assert code == 1 and "--clip-actions is for a data set; items of a table are as they were converted" in err


@pytest.mark.slow
def test_rebrac_learns_from_trajectories_and_is_evaluated(data, tmp_path, capsys):
    file = data / "d4rl" / "pendulum_mixed-v2.hdf5"
    command = ("--algo", "rebrac", "--data", file, "--run-dir", tmp_path / "run", *SMALL, "--env", "Pendulum-v1")
    code, out, _ = call(capsys, *command, "--steps", 40, "--eval-every", 20, "--eval-episodes", 2)
    assert code == 0 and "last return" in out and "best return" in out
    assert load_run(tmp_path / "run").evaluations["step"].tolist() == [20, 40]
    assert (tmp_path / "run" / "best_policy").is_dir() and (tmp_path / "run" / "curve.png").is_file()


@pytest.mark.slow
def test_iql_beats_the_policies_that_made_the_data_and_cloning_them(data, tmp_path, capsys):
    """Returns of the data: -515 in the mean, from policies that swing up well, badly and not at all."""
    found = {}
    for algo, recipe in (("iql", ("--reward", "iql_locomotion")), ("bc", ())):
        command = (
            "--data",
            data / "d4rl" / "pendulum_mixed-v2.hdf5",
            "--env",
            "Pendulum-v1",
            "--steps",
            10_000,
            *recipe,
        )
        code, _, _ = call(capsys, "--algo", algo, *command, "--run-dir", tmp_path / algo, "--eval-every", 1000)
        run_of = load_run(tmp_path / algo)
        found[algo] = run_of.evaluations["mean"][-5:].mean()
        assert code == 0
    assert found["iql"] > run_of.behaviour_return > found["bc"]
    assert found["iql"] > -450


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_75(hopper, tmp_path):
    command = ["--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path, "--steps", 10_000_000, *SMALL]
    code = (
        f"import sys; from rlds2reverb.cli import run; sys.exit(run(['train', *{[str(each) for each in command]!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = next(line for line in process.stderr if " of 10,000,000   loss" in line)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 75 and "SIGTERM; the same command continues" in out, (line, out)
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert int(saved.name) >= 20 and (tmp_path / "policy").is_dir()


# --- What it refuses


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("--algo", "td3bc"), "there is no algorithm 'td3bc'; did you mean 'td3_bc'?"),
        (("--set", "alpha"), "--set got 'alpha', expected NAME=VALUE"),
        (("--data", "hopper_medum-v2.hdf5"), "there is no file hopper_medum-v2.hdf5; look at the path"),
        (("--deterministic", "--sampler", "prioritized"), "--deterministic is for uniform batches"),
        (("--algo", "rebrac", "--n-step", 2), "rebrac learns from the next action too, expected --n-step 1"),
        (("--sampler", "prioritised"), "'prioritised' is not one of"),
        (("--steps", 0), "0 is not in the range x>=1"),
        (("--set", "discount=0.9"), "discount is that of the items too; give --gamma in its place"),
        (("--algo", "bc", "--sampler", "prioritized"), "bc has no TD errors to be priorities, expected --sampler unif"),
        (("--d4rl-score", "--references", __file__), "give --references or --d4rl-score, not both"),
    ],
)
def test_wrong_options_are_refused_before_tensorflow_is_loaded(hopper, tmp_path, arguments, sentence):
    given = {"--algo": "td3_bc", "--data": hopper, "--run-dir": tmp_path / "run"}
    command = [str(word) for pair in given.items() for word in pair] + [str(word) for word in arguments]
    code = f"import sys; from rlds2reverb.cli import run; code = run(['train', *{command!r}])"
    check = "; assert code == 1 and 'tensorflow' not in sys.modules, code"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and sentence in done.stderr.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_the_nearest_hyperparameter_and_file_are_named(hopper, tmp_path, capsys):
    options = ("--algo", "td3_bc", "--run-dir", tmp_path / "run")
    code, _, err = call(capsys, *options, "--data", hopper, "--set", "hiden_sizes=(8,)")
    assert code == 1 and "td3_bc has no hyperparameter 'hiden_sizes'; did you mean 'hidden_sizes'?" in err
    code, _, err = call(capsys, *options, "--data", hopper.with_name("hopper_medum-v2.hdf5"))
    assert code == 1 and "did you mean 'hopper_medium-v2.hdf5'?" in err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def nothing_set():
    yield
    gin.clear_config()


def test_a_recipe_by_name_sets_the_agent_and_the_run_and_the_command_line_wins(hopper, tmp_path, capsys, nothing_set):
    recipe = ("--config", "rebrac-antmaze-umaze", "--set", "hidden_sizes=(8, 8)", "--batch-size", 8)
    code, _, _ = call(capsys, "--algo", "rebrac", "--data", hopper, "--run-dir", tmp_path, "--steps", 2, *recipe)
    found = load_run(tmp_path).configuration
    assert code == 0
    assert (found["gamma"], found["reward"], found["batch_size"]) == (0.999, "scale:100", 8)


def test_a_config_that_is_not_there_or_sets_what_the_run_sets_is_refused(hopper, tmp_path, capsys, nothing_set):
    run_of = ("--algo", "iql", "--data", hopper, "--run-dir", tmp_path / "run")
    code, _, err = call(capsys, *run_of, "--config", "iql-antmace")
    assert code == 1 and "there is no file iql-antmace; did you mean 'iql-antmaze'?" in err
    (tmp_path / "mine.gin").write_text("IQLAgent.discount = 0.9")
    code, _, err = call(capsys, *run_of, "--config", tmp_path / "mine.gin")
    assert code == 1 and "IQLAgent.discount follows from the run; set train.gamma in its place" in err
    assert not (tmp_path / "run").exists()


def test_settings_of_another_agent_and_what_a_preset_sets(hopper, tmp_path, capsys, nothing_set):
    run_of = ("--algo", "iql", "--data", hopper, "--run-dir", tmp_path / "run")
    code, _, err = call(capsys, *run_of, "--config", "rebrac-hopper-medium")
    assert code == 1 and "the settings are of ReBRACAgent, --algo iql is IQLAgent" in err
    gin.clear_config()
    gin.parse_config("DQNAgent.learning_rate = 0.5\ntrain.normalize_observations = False")
    assert resolved("discrete_cql")["learning_rate"] == 0.5 and resolved("discrete_cql")["conservative_weight"] == 1
    gin.clear_config()
    (tmp_path / "mine.gin").write_text("train.normalize_observations = False")
    command = ("--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path / "run", *SMALL, "--steps", 2)
    assert call(capsys, *command, "--config", tmp_path / "mine.gin")[0] == 0
    assert load_run(tmp_path / "run").configuration["normalize_observations"] is False


def test_the_environment_follows_from_the_name_of_the_data(hopper, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    options = ("--algo", "bc", *SMALL[2:], "--steps", 2, "--eval-episodes", 1, "--d4rl-score")
    code, out, err = call(capsys, *options, "--data", hopper, "--run-dir", tmp_path / "run")
    assert code == 0 and "evaluating in Hopper-v5, by the name of the data (--env none: not at all)" in err
    assert "last score" in out and (tmp_path / "run" / "curve.png").is_file()
    other = tmp_path / "halfcheetah_medium.hdf5"
    other.symlink_to(hopper)
    code, out, err = call(capsys, *options, "--data", other, "--run-dir", tmp_path / "other")
    assert code == 0 and "no evaluation, give --env: the data's actions are (3,), the environment's (6,)" in err


def test_a_run_that_diverges_is_a_sentence(hopper, tmp_path, capsys):
    options = ("--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path, *SMALL, "--steps", 200)
    code, _, err = call(capsys, *options, "--set", "critic_learning_rate=1e30")
    assert code == 2 and "error: training diverged at iteration" in err and "Traceback" not in err


def test_every_agent_is_an_algorithm():
    assert set(AGENTS) == set(ALGORITHMS)


def test_an_environment_of_other_shapes_is_refused_before_anything_is_trained(hopper, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    options = ("--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path / "run", "--env", "Pendulum-v1")
    code, _, err = call(capsys, *options)
    assert (
        code == 1 and "the data's actions are (3,), the environment's (1,)" in err and not (tmp_path / "run").exists()
    )


def test_without_gymnasium_one_line_says_how_to_evaluate(hopper, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    options = ("--algo", "bc", "--data", hopper, "--run-dir", tmp_path / "run", "--steps", 2, "--env", "Hopper-v5")
    code, _, err = call(capsys, *SMALL, *options)
    (line,) = [line for line in err.splitlines() if "no evaluation" in line]
    assert code == 0 and "gymnasium" in line and "pip install '.[eval]'" in line


# --- Its parts


def test_the_best_episodes_are_so_many_also_where_returns_are_equal(few):
    from rlds2reverb.sources.source import Source

    source = Source("few", "memory", lambda: iter(few))
    returns = np.array([one.total_reward for one in few])
    best = list(training.best_episodes(source, 40, returns))
    assert [one.total_reward for one in best] == [r for r in returns if r in np.sort(returns)[-2:]]
    twice = Source("twice", "memory", lambda: iter([few[0]] * 4))
    assert len(list(training.best_episodes(twice, 50, np.ones(4)))) == 2
    assert len(list(training.best_episodes(twice, 1, np.ones(4)))) == 1


def test_statistics_are_those_of_the_steps_that_were_acted_at(few):
    from rlds2reverb.sources.source import Source

    behaviour = training.behaviour_of(Source("few", "memory", lambda: iter(few)))
    seen = np.concatenate([one.steps["observation"][:-1] for one in few]).astype(np.float64)
    np.testing.assert_allclose(behaviour.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(behaviour.std, seen.std(0) + 1e-3, rtol=1e-4)
    assert behaviour.mean_return == pytest.approx(np.mean([one.total_reward for one in few]))


def test_actions_outside_of_the_bounds_are_counted_and_clipped_on_request(few):
    from rlds2reverb.sources.source import Source

    source = Source("few", "memory", lambda: iter(few))
    behaviour = training.behaviour_of(source)
    actions = np.concatenate([one.steps["action"][:-1] for one in few])
    _, spec = training.specs_of(source, behaviour)
    assert training.count_outside(source, behaviour, spec) == (0, 0)
    tight = tf.nest.map_structure(lambda x: x, spec)
    tight = type(spec)(spec.shape, spec.dtype, -0.5, 0.5)
    expected = int((np.abs(actions) > 0.5 + 1e-5).any(1).sum())
    assert 0 < expected < len(actions)
    assert training.count_outside(source, behaviour, tight) == (expected, len(actions))
    within = training.clipped(source, tight)
    assert training.count_outside(within, training.behaviour_of(within), tight) == (0, 0)
    assert within.first_episode.steps["action"].dtype == np.float32


def test_data_without_rewards_or_transitions_and_empty_tables_are_refused(few, tmp_path):
    from dataclasses import replace

    from rlds2reverb.errors import SourceError, SpecMismatchError
    from rlds2reverb.sources.source import Source

    bare = [replace(one, steps={k: v for k, v in one.steps.items() if k != "reward"}) for one in few]
    with pytest.raises(SourceError, match="has no rewards; there is nothing to learn from"):
        training.behaviour_of(Source("bare", "memory", lambda: iter(bare)))
    single = [replace(one, steps={k: v[-1:] for k, v in one.steps.items()}) for one in few]
    with pytest.raises(SourceError, match="has no transition"):
        training.behaviour_of(Source("single", "memory", lambda: iter(single)))
    source = Source("few", "memory", lambda: iter(few))
    with ReplayServer([TableConfig()], NStep(1, 0.9).item_spec(source.step_spec)) as server:
        with pytest.raises(SourceError, match="table 'replay' at .* has no items; there is nothing to train from"):
            training.served_items(server)
    with ReplayServer([TableConfig("a"), TableConfig("b")], TrajectoryWindows(3).item_spec(source.step_spec)) as server:
        with pytest.raises(SourceError, match="has the tables a, b; expected one, or one named 'replay'"):
            training.served_items(server)
    with ReplayServer([TableConfig()], TrajectoryWindows(3).item_spec(source.step_spec)) as server:
        ingest(source, server, adder=TrajectoryWindows(3))
        with pytest.raises(SpecMismatchError, match="are neither transitions .* nor trajectories of two steps"):
            training.served_items(server)
