"""Experiments: plans, their results, and experiments that fail, are killed or continued."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from properties import mark_slow_except

from rlds2reverb import CheckpointError, CorruptFileError, TrainingConfig, load_experiment, train, train_seeds
from rlds2reverb.cli import run as run_command
from rlds2reverb.learners import RunDirectory
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training.experiments import choose_placement, run_plan
from rlds2reverb.training.placement import Outcome
from rlds2reverb.training.plans import plan_seeds
from rlds2reverb.training.sources import find_fingerprint
from rlds2reverb.types.evaluations import Evaluation

SMALL = {"batch_size": 8, "hyperparameters": {"hidden_sizes": (8, 8)}, "log_every": 20, "steps": 20, "eval_episodes": 1}


@pytest.fixture(scope="module")
def pendulum(data):
    return data / "d4rl" / "pendulum_mixed-v2.hdf5"


# --- plans


def plan_gammas(sources, gammas=(0.99,), seeds=1, **options):
    """Plans a run for each of the sources, discounts and seeds."""
    return [
        replace(run, name=f"{data}/{gamma}/{run.name}", data=data, variant=f"bc, gamma={gamma}")
        for data, source in sources.items()
        for gamma in gammas
        for run in plan_seeds(source, TrainingConfig("bc", gamma=gamma, **options), seeds)
    ]


def make_agent(time_step_spec, action_spec, *, network=None):
    raise KeyError("missing")


def test_plan_of_seeds_is_named_after_the_data(pendulum):
    plan = plan_seeds(pendulum, TrainingConfig("iql", gamma=0.9, seed=7), [3, 5])
    assert [(run.name, run.data, run.variant) for run in plan] == [
        ("seed_3", "pendulum_mixed-v2", "iql"),
        ("seed_5", "pendulum_mixed-v2", "iql"),
    ]
    assert [(run.config.seed, run.config.gamma) for run in plan] == [(3, 0.9), (5, 0.9)]
    (run,) = plan_seeds(None, TrainingConfig("sac", env="Pendulum-v1", online_steps=2000), 1)
    assert (run.name, run.data, run.source, run.config.steps) == ("seed_0", "online", None, 0)


@pytest.mark.parametrize("seeds", [0, [], [1, 1], [-1], "3"])
def test_invalid_seeds_raise(seeds):
    with pytest.raises((ValueError, TypeError), match="seeds must be"):
        plan_seeds("a", TrainingConfig("bc"), seeds)


class Count(LearnerHook):
    """A hook that remembers how often it was called."""

    def __init__(self, num_calls=2):
        super().__init__("count", position="after_iter", every=1)
        self.num_calls, self.lock = num_calls, None

    def __call__(self, learner):
        self.num_calls -= 1
        if not self.num_calls:
            learner.stop("counted")


def test_each_run_has_its_own_copy_of_a_hook():
    hook = Count()
    plan = plan_seeds("a", TrainingConfig("bc", hooks=[hook, "my_module:MyHook"]), 2)
    copies = [run.config.hooks[0] for run in plan]
    assert hook not in copies and copies[0] is not copies[1] and plan[0].config.hooks[1] == "my_module:MyHook"
    hook.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"hook .*:Count cannot be copied for each run .*; pass a class"):
        plan_seeds("a", TrainingConfig("bc", hooks=[hook]), 2)


# --- experiments


def place_fake(runs, root, report):
    """Writes runs with known evaluations instead of training them; those with a gamma of 0.5 fail.

    There are more than five evaluations: 0, 30, 10, 10, 10, 10 and 20, plus 100 for the data "b"; the second one is
    higher by 2 for each seed, and the last one by 10. Seed 0 does not know the mean return of the data. With a gamma of
    0.8 only seed 1 has a score, which is the return.
    """
    for run in runs:
        if run.config.gamma == 0.5:
            report(run.name, Outcome("failed", 0, "no luck"))
            continue
        seed, scale = run.config.seed, (0.0, 100.0) if (run.config.gamma, run.config.seed) == (0.8, 1) else None
        means = 100 * (run.data == "b") + np.array([0, 30 + 2 * seed, 10, 10, 10, 10, 20 + 10 * seed], float)
        known = {"data": {"data_return": 4.0 if seed else None}, "reference_returns": scale}
        with RunDirectory(root / run.name) as directory:
            directory.writes_events = False
            directory.write_config({"identity": {"seed": seed}, **known})
            for step, mean in enumerate(means, 1):
                directory.log(10 * step + seed, {"loss": 1.0})
                directory.log_evaluation(10 * step, Evaluation(np.array([mean]), np.array([1]), (0,), scale))
        report(run.name, Outcome("complete", 70))
    return ""


def list_started(plan, root):
    """Returns the names of the runs of a plan that are started, without running them."""
    started = []
    run_plan(plan, root, place=lambda runs, root, report: started.extend(run.name for run in runs) or "SIGTERM")
    return started


@pytest.mark.slow
def test_experiment_has_a_table_and_figures_and_continues_only_what_is_incomplete(pendulum, tmp_path):
    sources = {"a": pendulum, "b": str(pendulum)}
    plan = plan_gammas(sources, [0.5, 0.8, 0.9], 2)
    result = run_plan(plan, tmp_path, place=place_fake)
    assert [(row.data, row.variant, row.last, row.best) for row in result.rows if row.last] == [
        ("a", "bc, gamma=0.8", (25.0, 5.0), (31.0, 1.0)),
        ("a", "bc, gamma=0.9", (25.0, 5.0), (31.0, 1.0)),
        ("b", "bc, gamma=0.8", (125.0, 5.0), (131.0, 1.0)),
        ("b", "bc, gamma=0.9", (125.0, 5.0), (131.0, 1.0)),
    ]
    row = result.rows[1]
    assert (row.last_five, row.swing, row.data_return) == ((13.0, 1.0), 6.0, 4.0)
    assert (row.updates, row.seeds, row.scores) == (70, (0, 1), {})
    (line,) = result.plot(data="b").axes[0].lines[:1]
    assert np.nanmin(line.get_ydata()) == 100
    assert "b/0.5/seed_1 failed: no luck" in str(result) and len(result.failures) == 4
    assert (tmp_path / "curves_a.png").is_file()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["complete"] and summary["rows"][1]["last"] == {"mean": 25.0, "std": 5.0}

    assert list_started(plan, tmp_path) == [run.name for run in plan if run.config.gamma == 0.5]
    assert str(load_experiment(tmp_path)) == str(result)
    same = {"sources": sources, "gammas": [0.5, 0.8, 0.9], "seeds": 2}
    for changes, message in (
        ({"seeds": 1}, "seed_1 is missing"),
        ({"n_step": 3}, "n_step was 1, is now 3"),
        ({"env": "Pendulum-v1"}, "env was auto, is now Pendulum-v1"),
        ({"hyperparameters": {"learning_rate": 1.0}}, r"hyperparameters\.learning_rate was None, is now 1\.0"),
        ({"sources": {"a": pendulum, "b": pendulum.parent}}, "source was .*, is now"),
    ):
        changed = plan_gammas(**{**same, **changes})
        with pytest.raises(CheckpointError, match=f"contains a different plan: .*{message}"):
            run_plan(changed, tmp_path, place=place_fake)
    more = plan_gammas(sources, [0.6, 0.8, 0.9], 3)  # No run with a gamma of 0.5 has begun.
    assert len(run_plan(more, tmp_path, place=place_fake).runs) == 18
    changed = plan_gammas(sources, [0.6, 0.8, 0.9], 3, n_step=3, allow_config_mismatch=True)
    assert list_started(changed, tmp_path) == []
    with pytest.raises(CheckpointError, match="is missing"):  # Some of its runs do not allow it.
        run_plan(changed[:1] + plan_gammas({"c": pendulum}), tmp_path)


@pytest.mark.slow
def test_complete_experiment_is_extended_by_more_updates(pendulum, tmp_path, monkeypatch):
    plan = plan_gammas({"a": pendulum}, seeds=2, steps=70)
    assert run_plan(plan, tmp_path, place=place_fake).is_complete
    monkeypatch.chdir(pendulum.parent)  # The path that is relative to this directory is that of the same data.
    assert list_started(plan_gammas({"a": pendulum.name}, seeds=2, steps=70), tmp_path) == []
    shutil.rmtree(tmp_path / plan[1].name)
    assert list_started(plan, tmp_path) == [plan[1].name]
    longer = plan_gammas({"a": pendulum}, seeds=2, steps=71)
    assert list_started(longer, tmp_path) == [run.name for run in plan]


def test_complete_experiment_is_extended_by_more_epochs(pendulum, tmp_path):
    plan = plan_gammas({"a": pendulum}, epochs=2)
    assert run_plan(plan, tmp_path, place=place_fake).is_complete
    assert list_started(plan, tmp_path) == []
    assert list_started(plan_gammas({"a": pendulum}, epochs=3), tmp_path) == [plan[0].name]


def test_runs_that_have_begun_are_compared_with_their_own_data(pendulum, tmp_path):
    plan = plan_gammas({"a": pendulum, "b": pendulum.parent / "hopper_medium-v2.hdf5"})
    names = [run.name for run in plan]
    assert list_started(plan, tmp_path) == names
    fingerprints = [find_fingerprint(run.source, run.config) for run in plan]
    for name, fingerprint in zip(names, fingerprints, strict=True):
        (tmp_path / name / "checkpoints/5").mkdir(parents=True)
        save_json(tmp_path / name / "config.json", {"identity": {"data": fingerprint}})
    assert list_started(plan, tmp_path) == names
    save_json(tmp_path / names[1] / "config.json", {"identity": {"data": fingerprints[0]}})
    with pytest.raises(CheckpointError, match=f"{names[1]} contains a different run"):
        list_started(plan, tmp_path)


def test_invalid_runs_raise_before_anything_is_written(pendulum, tmp_path):
    root = tmp_path / "runs"
    missing = {"sources": {"a": pendulum, "b": "missing.hdf5"}}
    for options, error, message in (
        (missing, FileNotFoundError, "no file 'missing.hdf5'"),
        ({"hyperparameters": {"learning_rat": 1}}, ValueError, "0.99/seed_0: bc has no hyperparameter 'learning_rat'"),
        ({"hooks": ["math:pi"]}, ValueError, "0.99/seed_0: hooks must contain instances or subclasses of LearnerHook"),
    ):
        with pytest.raises(error, match=message):
            run_plan(plan_gammas(**{"sources": {"a": pendulum}, **options}), root, place=place_fake)
        assert not (root / "plan.json").exists()


def test_rows_contain_the_seeds_with_evaluations(pendulum, tmp_path):
    def place(runs, root, report):
        place_fake(runs[:2], root, report)
        with RunDirectory(root / runs[2].name) as directory:
            directory.write_config({})
            directory.log(10, {"loss": 1.0})
        report(runs[2].name, Outcome("failed", 10, "no luck"))
        return ""

    result = run_plan(plan_seeds(pendulum, TrainingConfig("bc"), 3), tmp_path, place=place)
    (row,) = result.rows
    assert (row.seeds, row.planned, row.last) == ((0, 1), 3, (25.0, 5.0)) and " 2 of 3 " in str(result)


@pytest.mark.usefixtures("no_policies")
def test_seeds_do_not_share_hooks_or_differ_in_their_data(tmp_path, capsys):
    random = np.random.default_rng(0)
    episodes, others = ([{"observations": random.normal(size=(9, 3)), "actions": random.uniform(-1, 1, (8, 1)),
                          "rewards": np.ones(8), "terminated": False}] for _ in range(2))  # fmt: skip
    options = {**SMALL, "env": None, "progress": False}
    first = train_seeds(episodes, "bc", tmp_path / "runs", seeds=2, hooks=[Count(2)], **options)
    assert first.failures == {}
    assert [run.progress["step"].tolist() for run in first.runs.values()] == [[2], [2]]
    with pytest.raises(CheckpointError, match="seed_0 contains a different run: data was"):
        train_seeds(others, "bc", tmp_path / "runs", seeds=3, hooks=[Count(2)], **options)
    with pytest.raises(CheckpointError, match="contains several runs; repeat the call that started them"):
        train(episodes, "bc", tmp_path / "runs", **options)
    failed = train_seeds(episodes, make_agent, tmp_path / "own", seeds=1, **{**options, "hyperparameters": {}})
    report = tmp_path / "own" / "seed_0" / "exception.txt"
    assert failed.failures == {"seed_0": f"KeyError: 'missing'; see {report}"}
    assert "in make_agent" in report.read_text()


@pytest.mark.parametrize("name", mark_slow_except(["status.json"], ["plan.json", "status.json"]))
def test_damaged_files_of_an_experiment_raise(pendulum, tmp_path, name):
    plan = plan_seeds(pendulum, TrainingConfig("bc"), 1)
    run_plan(plan, tmp_path, place=place_fake)
    (tmp_path / name).write_text((tmp_path / name).read_text().replace("seed_0", "seed_1"))
    with pytest.raises(CorruptFileError, match=f"{name} is damaged"):
        load_experiment(tmp_path)
    with pytest.raises(CorruptFileError, match=f"{name} is damaged"):
        run_plan(plan, tmp_path, place=place_fake)


@pytest.mark.slow
def test_seeds_return_a_table_and_a_failed_run_is_trained_again(pendulum, tmp_path, monkeypatch, capsys):
    root = tmp_path / "runs"
    train_seeds(pendulum, "bc", root, seeds=1, env="Pendulum-v1", progress=False, **SMALL)
    (root / "seed_1").write_text("")  # A file where the directory of a run should be.
    result = train_seeds(pendulum, "bc", root, seeds=2, env="Pendulum-v1", progress=False, **SMALL)
    assert list(result.failures) == ["seed_1"] and not result.is_complete and "seed_1 failed: " in str(result)
    assert "1 of 2" in str(result)

    (root / "seed_1").unlink()
    before = (root / "seed_0" / "config.json").stat().st_mtime_ns
    result = train_seeds(pendulum, "bc", root, seeds=2, env="Pendulum-v1", progress=False, **SMALL)
    assert result.is_complete and (root / "seed_0" / "config.json").stat().st_mtime_ns == before
    (row,) = result.rows
    returns = [result.runs[name].evaluations["mean"][-1] for name in ("seed_0", "seed_1")]
    assert row.last == pytest.approx((sum(returns) / 2, abs(returns[0] - returns[1]) / 2)) and row.seeds == (0, 1)
    assert (root / "curves.png").is_file() and json.loads((root / "summary.json").read_text())["complete"]
    assert str(load_experiment(root)) == str(result)
    with pytest.raises(CheckpointError, match="different plan: seed_0: gamma was 0.99, is now 0.5"):
        train_seeds(pendulum, "bc", root, seeds=2, env="Pendulum-v1", gamma=0.5, **SMALL)
    with pytest.raises(CheckpointError, match="seed_1 is missing"):
        train_seeds(pendulum, "bc", root, seeds=1, env="Pendulum-v1", **SMALL)
    with pytest.raises(CheckpointError, match="contains a single run"):
        train_seeds(pendulum, "bc", root / "seed_0", seeds=1, env="Pendulum-v1", **SMALL)


def test_arguments_that_contradict_seeds_raise(tmp_path):
    with pytest.raises(ValueError, match="seed cannot be set"):
        train_seeds("a", "bc", tmp_path, seeds=2, seed=1)
    for options in ({"seeds": 2}, {"jobs": 2}):
        with pytest.raises(TypeError, match="train makes a single run and has no .*; call train_seeds"):
            train("a", "bc", tmp_path, **options)
    with pytest.raises(ValueError, match=r"contains no plan.json"):
        load_experiment(tmp_path)


@pytest.mark.slow
def test_plan_is_trained_in_worker_processes_and_reports_failures(pendulum, tmp_path, capfd):
    few = {name: SMALL[name] for name in ("batch_size", "steps", "log_every", "eval_episodes")}
    plan = [
        replace(run, name=f"{algo}/{run.name}")
        for algo in ("bc", "td3_bc", "dqn")
        for run in plan_seeds(str(pendulum), TrainingConfig(algo, env="Pendulum-v1", **few), 1)
    ]
    result = run_plan(plan, tmp_path / "runs", place=choose_placement(2))
    assert list(result.failures) == ["dqn/seed_0"] and "dqn requires discrete actions" in str(result)
    assert [row.updates for row in result.rows] == [20, 20, 0]
    assert (tmp_path / "runs/curves.png").is_file()
    assert "bc/seed_0:        20 of 20   return" in capfd.readouterr().err


def start_command(pendulum, root):
    command = [sys.executable, "-m", "rlds2reverb.cli", "train", "--algo", "bc", "--data", pendulum, "--run-dir", root]
    options = [
        "--seeds",
        2,
        "--jobs",
        2,
        "--steps",
        3000,
        "--env",
        "none",
        "--log-every",
        200,
        "--set",
        "hidden_sizes=(8,8)",
    ]
    process = subprocess.Popen(
        [*map(str, command + options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if " of 3,000" in line:
            return process
    raise AssertionError(process.stdout.read())


@pytest.mark.slow
@pytest.mark.drill("F6")
def test_a_killed_command_leaves_no_processes_and_continues(pendulum, tmp_path):
    process = start_command(pendulum, tmp_path / "runs")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    assert len(children) == 2
    deadline = time.monotonic() + 20
    while any(
        Path(f"/proc/{child}").exists() and "(zombie)" not in Path(f"/proc/{child}/status").read_text()
        for child in children
    ):
        assert time.monotonic() < deadline, "a worker survived its parent"

    process = start_command(pendulum, tmp_path / "runs")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode in (0, 75)  # The runs may have ended before the signal.
    assert load_experiment(tmp_path / "runs").runs.keys() == {"seed_0", "seed_1"}


def test_train_rejects_jobs_without_seeds(capsys, tmp_path):
    command = ["train", "--algo", "bc", "--data", "a", "--run-dir", str(tmp_path)]
    assert run_command([*command, "--jobs", "2"]) == 1 and "--jobs requires --seeds" in capsys.readouterr().err
    assert run_command([*command, "--seeds", "2", "--seed", "1"]) == 1
