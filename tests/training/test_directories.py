"""The directories that training may write to."""

import pytest
from written_runs import write_run

from rlds2reverb import TrainingConfig, evaluate_offline, ingest, load, load_run, train, write_dataset
from rlds2reverb.cli import run
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training.directories import find_run_dir
from rlds2reverb.training.experiments import list_runs, run_plan
from rlds2reverb.training.plans import plan_seeds


@pytest.fixture(scope="module")
def pendulum(data):
    return load(data / "d4rl" / "pendulum_mixed-v2.hdf5")


@pytest.mark.parametrize(
    "names",
    [
        ["hopper.hdf5"],
        ["notes.txt", "photos/holiday.jpg"],
        ["model.safetensors", "config.json"],
        ["config.json"],
        ["iql/config.json"],
        ["checkpoints/best.pt"],
    ],
)
def test_directory_with_other_things_raises(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"run_dir must be a new directory .* contains {names[-1].split('/')[0]}[;,]"):
        find_run_dir(tmp_path)


@pytest.mark.parametrize(
    "names", [[], [".lock", ".DS_Store"], ["mine.gin", "sweep.json", "train.log"], ["checkpoints/0000000005.partial"]]
)
def test_directory_of_a_run_that_has_not_begun_is_accepted(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert find_run_dir(tmp_path) == tmp_path and find_run_dir(str(tmp_path / "new")) == tmp_path / "new"


@pytest.mark.parametrize("name", ["config.json", "plan.json", "progress.csv"])
def test_directory_of_a_run_or_an_experiment_is_accepted_with_other_things(tmp_path, name):
    save_json(tmp_path / name, {"a": 1})
    (tmp_path / "film.mp4").write_text("")
    assert find_run_dir(tmp_path) == tmp_path


def test_runs_and_experiments_leave_other_directories_unchanged(pendulum, tmp_path):
    ingest(pendulum, tmp_path / "table")
    write_dataset(pendulum, tmp_path / "rlds", format="rlds")
    for name in ("table", "rlds"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ValueError, match="run_dir must be a new directory or that of a run"):
            train(pendulum, "bc", tmp_path / name, steps=1)
        with pytest.raises(ValueError, match="run_dir must be a new directory or that of a run"):
            run_plan(plan_seeds(pendulum, TrainingConfig("bc", steps=1), 2), tmp_path / name)
        assert sorted(tmp_path.rglob("*")) == before


def test_empty_path_raises(pendulum):
    with pytest.raises(ValueError, match="run_dir must be a path, got ''"):
        train(pendulum, "bc", "", steps=1)


def test_home_directory_is_expanded(pendulum, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_run_dir("~/runs/a") == tmp_path / "runs/a"
    write_run(tmp_path / "run")
    assert load_run("~/run").path == tmp_path / "run" == list_runs("~/run")[0].path


@pytest.mark.parametrize(
    "command", ["eval {}", "export {} --out p.onnx", "record Pendulum-v1 --policy {} --out x.hdf5"]
)
def test_directory_of_several_runs_is_refused_where_one_is_read(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    save_json(tmp_path / "runs/plan.json", {"seed_0": {}})
    assert run([word.format("runs") for word in command.split()]) == 1
    assert "runs contains several runs; pass the directory of one, such as runs/seed_0" in capsys.readouterr().err


def test_directory_of_several_runs_is_not_a_policy(tmp_path):
    save_json(tmp_path / "plan.json", {"seed_0": {}})
    with pytest.raises(ValueError, match="contains several runs; pass the directory of one, such as .*/seed_0"):
        evaluate_offline(tmp_path, [])
