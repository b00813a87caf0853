"""`rlds2reverb train`: trains an agent from a dataset, and continues a run."""

import itertools
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from skipped_exports import skip_exports

from rlds2reverb import ReplayServer, Selector, TableConfig, TrajectoryWindows, ingest, sample_dataset
from rlds2reverb.adders import NStep
from rlds2reverb.cli import run
from rlds2reverb.datasets import load
from rlds2reverb.envs.evaluation import Evaluator
from rlds2reverb.learners import Learner, load_run
from rlds2reverb.training.presets import preset_names

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
    """Provides the first five episodes of the file."""
    from itertools import islice

    return list(islice(load(hopper), 5))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "td3_bc"


# --- a run


def test_train_writes_a_run_and_the_same_command_continues_it(hopper, root, capsys):
    command = ("--algo", "td3_bc", "--data", hopper, "--run-dir", root, *SMALL)
    code, out, err = call(capsys, *command, "--steps", 40)
    assert code == 0 and out.startswith(f"td3_bc trained in {root}\n  updates      40\n") and "978.3" in out
    assert "evaluat" not in err
    assert any(line.strip().startswith("40 of 40   loss ") for line in err.splitlines())
    names = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    assert names == {"config.json", "progress.csv", "train", "checkpoints", "policy"}
    run_ = load_run(root)
    assert run_.config["hyperparameters"]["alpha"] == 2.5 and run_.config["hyperparameters"]["hidden_sizes"] == [8, 8]
    assert run_.configuration["batch_size"] == 8 and run_.configuration["normalize_observations"] is True
    assert run_.configuration["algo"] == "td3_bc" and run_.progress["step"].tolist() == [20, 40]
    assert run_.data_return == pytest.approx(978.3, abs=0.1) and np.isfinite(run_.progress["loss"]).all()
    assert [path.name for path in (root / "checkpoints").iterdir()] == [f"{40:010d}"]

    with skip_exports():
        code, out, err = call(capsys, *command, "--steps", 60, "--json")
    document = json.loads(out)
    assert code == 0 and "continuing from update 40" in err and document["updates"] == 60
    assert document["best_return"] is None and document["stopped_by"] is None and document["run_dir"] == str(root)
    assert load_run(root).progress["step"].tolist() == [20, 40, 60]

    command = (*command, "--steps", 60)
    code, _, err = call(capsys, *command, "--reward", "scale:2", "--seed", 3)
    assert (
        code == 2 and "contains a different run" in err and "seed was 0, is now 3" in err and "reward was None" in err
    )
    assert "continue nevertheless (--allow-config-mismatch)" in err
    with skip_exports():
        code, out, _ = call(capsys, *command, "--seed", 3, "--allow-config-mismatch")
    assert code == 0 and "updates      60" in out


@pytest.mark.slow
def test_prioritized_training_keeps_its_priorities(hopper, tmp_path, capsys):
    command = ("--algo", "iql", "--data", hopper, "--run-dir", tmp_path, *SMALL, "--sampler", "prioritized")
    assert call(capsys, *command, "--steps", 20)[0] == 0
    with ReplayServer([TableConfig(sampler=Selector("prioritized", 0.6))]) as server:
        server.load_data(tmp_path / "checkpoints" / f"{20:010d}" / "replay")
        (sample,) = sample_dataset(server, "replay", 5000).take(1)
    assert len(set(sample.info.priority.numpy().tolist())) > 5  # All of them start at 1.
    code, _, err = call(capsys, *command, "--steps", 30)
    assert code == 0 and "continuing from update 20" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "adder",
    [NStep(3, 0.99), TrajectoryWindows(2)],
    ids=["transitions", "trajectories"],
)
def test_train_reads_converted_directories_and_servers(few, tmp_path, capsys, adder):
    from rlds2reverb.datasets.source import Source

    source = Source("few", "memory", lambda: iter(few))
    ingest(source, tmp_path / "table", adder=adder, layout="packed" if isinstance(adder, NStep) else "columns")
    options = ("--algo", "td3_bc", *SMALL, "--steps", 10)
    code, out, err = call(capsys, *options, "--data", tmp_path / "table", "--run-dir", tmp_path / "one")
    assert code == 0 and "updates  10\n" in out and "data return" not in out
    assert (
        f"observations are not normalised, because {tmp_path / 'table'} has no statistics; set the hyperparameters"
        in err
    )
    with ReplayServer(directory=tmp_path / "table") as server:
        more = ("--sampler", "prioritized", "--data", server.address, "--run-dir", tmp_path / "two")
        code, out, err = call(capsys, *options, *more)
        assert code == 0 and "updates  10\n" in out, err
        code, out, err = call(capsys, *options, *more)  # Continues with the priorities of the first run.
        assert code == 0, err
        if isinstance(adder, NStep):
            more = ("--sampler", "prioritized", "--data", server.address, "--run-dir", tmp_path / "three")
            code, _, err = call(capsys, *options, *more, "--gamma", 0.9)
            assert code == 1 and "is not a power of 0.9; use that of the conversion (--gamma)" in err
            code, _, err = call(capsys, "--algo", "rebrac", *options[2:], *more)
            assert code == 1 and "are transitions, but rebrac learns from trajectories of two steps; convert" in err
    code, _, err = call(capsys, *options, "--data", tmp_path / "table", "--run-dir", tmp_path / "x", "--clip-actions")
    assert code == 1 and "--clip-actions requires a dataset; the items of a table are already converted" in err


@pytest.mark.slow
def test_rebrac_is_trained_and_evaluated(data, tmp_path, capsys):
    file = data / "d4rl" / "pendulum_mixed-v2.hdf5"
    command = ("--algo", "rebrac", "--data", file, "--run-dir", tmp_path / "run", *SMALL[2:], "--env", "Pendulum-v1")
    code, out, _ = call(capsys, *command, "--steps", 40, "--eval-every", 20, "--eval-episodes", 2)
    assert code == 0 and "last return" in out and "best return" in out
    assert load_run(tmp_path / "run").evaluations["step"].tolist() == [0, 20, 40]
    assert (tmp_path / "run" / "best_policy").is_dir() and (tmp_path / "run" / "curve.png").is_file()


@pytest.mark.slow
def test_iql_beats_the_behaviour_policies_and_behaviour_cloning(data, tmp_path, capsys):
    """The mean return of the dataset is -515, from policies that swing up well, badly and not at all."""
    returns = {}
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
        trained = load_run(tmp_path / algo)
        returns[algo] = trained.evaluations["mean"][-5:].mean()
        assert code == 0
    assert returns["iql"] > trained.data_return > returns["bc"]
    assert returns["iql"] > -450


@pytest.mark.drill("F5")
@pytest.mark.usefixtures("no_policies")
def test_ctrl_c_saves_and_exits_with_75(hopper, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Learner, "show_log", lambda learner: signal.raise_signal(signal.SIGINT))
    code, out, _ = call(capsys, "--algo", "bc", "--data", hopper, "--run-dir", tmp_path, "--steps", 90, *SMALL)
    assert code == 75 and "updates      20\n" in out and "SIGINT; run the same command to continue" in out


@pytest.mark.usefixtures("no_policies")
def test_ctrl_c_after_the_last_update_says_that_nothing_is_missing(hopper, tmp_path, capsys, monkeypatch):
    save, has_signal = Learner.save_checkpoint, []

    def interrupt_at_the_end(learner):
        if learner.step == 40 and not has_signal:
            has_signal.append(True)  # A second signal would end the command at once.
            signal.raise_signal(signal.SIGINT)
        return save(learner)

    monkeypatch.setattr(Learner, "save_checkpoint", interrupt_at_the_end)
    command = ["--algo", "bc", "--data", hopper, "--run-dir", tmp_path, "--steps", 40, *SMALL]
    code, out, _ = call(capsys, *command)
    assert code == 0 and "SIGINT; all updates are made" in out


@pytest.mark.usefixtures("no_policies")
def test_ctrl_c_in_the_last_evaluation_says_that_it_is_missing(data, tmp_path, capsys, monkeypatch):
    evaluate, evaluated = Evaluator.evaluate, []

    def interrupt(evaluator, policy, **options):
        evaluated.append(policy)
        if len(evaluated) > 1:  # The first evaluation precedes training.
            signal.raise_signal(signal.SIGINT)
        return evaluate(evaluator, policy, **options)

    monkeypatch.setattr(Evaluator, "evaluate", interrupt)
    source = data / "d4rl" / "pendulum_mixed-v2.hdf5"
    command = [
        "--algo",
        "bc",
        "--data",
        source,
        "--run-dir",
        tmp_path,
        "--steps",
        20,
        *SMALL[2:],
        "--env",
        "Pendulum-v1",
    ]
    code, out, _ = call(capsys, *command, "--eval-every", 20, "--eval-episodes", 1)
    assert code == 75 and "SIGINT; run the same command to make the last evaluation" in out


@pytest.mark.parametrize("module", ["click", "rlds2reverb.cli.train"])
def test_ctrl_c_during_an_import_ends_the_command_without_a_traceback(module):
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell in the background ignores it.
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["train", "--help"]
from rlds2reverb.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.drill("F5")
def test_sigterm_saves_and_exits_with_75(hopper, tmp_path):
    command = ["--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path, "--steps", 10_000_000, *SMALL]
    code = (
        f"import sys; from rlds2reverb.cli import run; sys.exit(run(['train', *{[str(word) for word in command]!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = next(line for line in process.stderr if " of 10,000,000   loss" in line)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 75 and "SIGTERM; run the same command to continue" in out, (line, out)
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert int(saved.name) >= 20 and (tmp_path / "policy").is_dir()


# --- wrong usage


WRONG_OPTIONS = {
    ("--algo", "td3bc"): "got 'td3bc'; did you mean 'td3_bc'?",
    ("--set", "alpha"): "--set must be NAME=VALUE such as alpha=2.5, got 'alpha'",
    ("--data", "hopper_medum-v2.hdf5"): "there is no file 'hopper_medum-v2.hdf5'; check the path",
    ("--deterministic", "--sampler", "prioritized"): "--deterministic requires a uniform sampler; servers sample "
    "nondeterministically (--sampler uniform)",
    ("--algo", "rebrac", "--n-step", "2"): "--n-step must be 1 for rebrac",
    ("--sampler", "prioritised"): "--sampler must be 'uniform', 'prioritized', or a function that returns weights",
    ("--steps", "0"): "--steps must be an integer >= 1, got 0",
    (
        "--set",
        "discount=0.9",
    ): "'discount' cannot be set, because it must match the stored items; set the discount factor of the run (--gamma)",
    ("--algo", "bc", "--sampler", "prioritized"): "--sampler must be 'uniform' for bc",
    ("--reference-returns", "d4"): "--reference-returns must be d4rl, a JSON file, or two numbers such as -1200,-150",
    ("--config", "missing.gin"): "'missing.gin' does not exist",
    ("--preset", "iql-antmace"): "unknown preset 'iql-antmace'; did you mean 'iql-antmaze'?",
}
#: Runs commands in one process; prints their exit codes and messages, and whether one of them has loaded TensorFlow.
WRONG_OPTIONS_PROGRAM = """
import contextlib, io, json, sys
from rlds2reverb.cli import run
done = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as error:
        done.append((run(command), error.getvalue(), 'tensorflow' in sys.modules))
print(json.dumps(done))
"""


def test_wrong_options_fail_before_tensorflow_is_loaded(hopper, tmp_path):
    options = {"--algo": "td3_bc", "--data": str(hopper), "--run-dir": str(tmp_path / "run")}
    commands = json.dumps(
        [
            ["train", *itertools.chain(*(pair for pair in options.items() if pair[0] not in arguments)), *arguments]
            for arguments in WRONG_OPTIONS
        ]
    )
    program = [sys.executable, "-c", WRONG_OPTIONS_PROGRAM, commands]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    for (code, error, is_loaded), message in zip(json.loads(done.stdout), WRONG_OPTIONS.values(), strict=True):
        assert code == 1 and not is_loaded and message in error.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_unknown_names_suggest_the_most_similar_name(hopper, tmp_path, capsys):
    options = ("--algo", "td3_bc", "--run-dir", tmp_path / "run")
    code, _, err = call(capsys, *options, "--data", hopper, "--set", "hiden_sizes=(8,)")
    assert code == 1 and "td3_bc has no hyperparameter 'hiden_sizes'; did you mean 'hidden_sizes'?" in err
    code, _, err = call(capsys, *options, "--data", hopper.with_name("hopper_medum-v2.hdf5"))
    assert code == 1 and "did you mean 'hopper_medium-v2.hdf5'?" in err
    assert not (tmp_path / "run").exists()


def test_list_of_presets(capsys):
    code, out, _ = call(capsys, "--list-presets")
    assert code == 0 and out.splitlines() == preset_names()


@pytest.mark.slow
@pytest.mark.usefixtures("no_policies")
def test_a_preset_sets_the_run_unless_the_command_line_does(hopper, tmp_path, capsys):
    recipe = ("--preset", "rebrac-antmaze-umaze", "--set", "hidden_sizes=(8, 8)", "--batch-size", 8)
    code, _, _ = call(capsys, "--algo", "rebrac", "--data", hopper, "--run-dir", tmp_path, "--steps", 2, *recipe)
    configuration = load_run(tmp_path).configuration
    assert code == 0
    assert (configuration["gamma"], configuration["reward"], configuration["batch_size"]) == (0.999, "scale:100", 8)


@pytest.mark.usefixtures("no_policies")
def test_gin_files_are_checked_and_override_the_defaults(hopper, tmp_path, capsys):
    options = ("--algo", "iql", "--data", hopper, "--run-dir", tmp_path / "run")
    (tmp_path / "mine.gin").write_text("IQLAgent.discount = 0.9")
    code, _, err = call(capsys, *options, "--config", tmp_path / "mine.gin")
    assert code == 1 and "IQLAgent.discount cannot be set because the run determines it; set gamma instead" in err
    code, _, err = call(capsys, *options, "--preset", "rebrac-hopper-medium")
    assert code == 1 and "the settings are for ReBRACAgent, not for IQLAgent (--algo)" in err
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine.gin").write_text("train.normalize_observations = False")
    command = ("--algo", "bc", "--data", hopper, "--run-dir", tmp_path / "run", *SMALL, "--steps", 2)
    assert call(capsys, *command, "--config", tmp_path / "mine.gin")[0] == 0
    assert load_run(tmp_path / "run").configuration["normalize_observations"] is False


@pytest.mark.slow
def test_the_environment_is_derived_from_the_name_of_the_dataset(hopper, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    options = ("--algo", "bc", *SMALL[2:], "--steps", 2, "--eval-episodes", 1, "--reference-returns", "d4rl")
    code, out, err = call(capsys, *options, "--data", hopper, "--run-dir", tmp_path / "run")
    assert (
        code == 0
        and "evaluating in Hopper-v5, derived from the name of the dataset; evaluation can be disabled (--env none)"
        in err
    )
    assert "last score" in out and (tmp_path / "run" / "curve.png").is_file()
    for name, message, option in (
        ("halfcheetah_medium", "no evaluation: the dataset's actions have shape", "was recorded in (--env)"),
        ("logs", "no evaluation, because the environment of the dataset is unknown; choose one", "(--env Hopper-v5)"),
    ):
        (tmp_path / f"{name}.hdf5").symlink_to(hopper)
        data = ("--data", tmp_path / f"{name}.hdf5", "--run-dir", tmp_path / name)
        code, out, err = call(capsys, *SMALL[2:], "--algo", "bc", "--steps", 2, *data)
        assert code == 0 and message in err and option in err


@pytest.mark.slow
@pytest.mark.drill("F20")
def test_a_diverging_run_fails_with_one_sentence(hopper, tmp_path, capsys):
    options = ("--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path, *SMALL, "--steps", 200)
    code, _, err = call(capsys, *options, "--set", "critic_learning_rate=1e30")
    assert code == 2 and "error: training diverged at iteration" in err and "Traceback" not in err


def test_an_environment_with_a_different_action_shape_is_rejected(hopper, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    options = ("--algo", "td3_bc", "--data", hopper, "--run-dir", tmp_path / "run", "--env", "Pendulum-v1")
    code, _, err = call(capsys, *options)
    assert code == 1 and "the dataset's actions have shape (3,), but those of the environment (1,)" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_gymnasium_one_line_names_the_extra(hopper, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    options = ("--algo", "bc", "--data", hopper, "--run-dir", tmp_path / "run", "--steps", 2, "--env", "Hopper-v5")
    code, _, err = call(capsys, *SMALL[2:], *options)
    (line,) = [line for line in err.splitlines() if "no evaluation" in line]
    assert code == 0 and "gymnasium" in line and "mujoco==" in line
