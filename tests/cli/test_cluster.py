"""The arguments of `cluster train`; training itself is tested in `tests/training/cluster`."""

import json

import pytest

from rlds2reverb.cli import run

CONFIGURATION = {
    "algo": "sac", "env": "Pendulum-v1", "steps": 0, "online_steps": 2_000, "hyperparameters": {"hidden_sizes": [8]}
}  # fmt: skip


@pytest.fixture
def started(monkeypatch):
    """Provides the arguments with which a run would be started."""
    from rlds2reverb.training import cluster

    calls = []

    class Started(Exception):
        pass

    def start(*arguments, **options):
        calls.append((*arguments, options))
        raise Started

    def call(*arguments):
        with pytest.raises(Started):
            run(["cluster", "train", *map(str, arguments)])
        return calls[-1]

    monkeypatch.setattr(cluster, "ClusterTraining", start)
    return call


def write_config(folder, data, **options):
    path = folder / "config.json"
    path.write_text(json.dumps({"configuration": {**CONFIGURATION, **options}, "data": data}))
    return path


def test_config_of_a_run_without_data_needs_no_data(tmp_path, started):
    config_file = write_config(tmp_path, {"source": "Pendulum-v1", "fingerprint": "none"})
    source, config, run_dir, cluster, _ = started(config_file, "--run-dir", tmp_path / "run", "--collectors", "3")
    assert source is None and config.algo == "sac" and config.online_steps == 2_000
    assert run_dir == tmp_path / "run" and cluster.num_collectors == 3


def test_config_of_a_run_names_its_data_and_options_take_precedence(tmp_path, started):
    config_file = write_config(tmp_path, {"source": "hopper.hdf5", "fingerprint": "12"}, steps=10)
    options = ("--run-dir", tmp_path / "run", "--online", "3000", "--set", "hidden_sizes=(4,4)")
    source, config, *_ = started(config_file, *options, "--set", "train.batch_size=64")
    assert source == "hopper.hdf5" and (config.online_steps, config.batch_size) == (3_000, 64)
    assert config.resolved_hyperparameters["hidden_sizes"] == (4, 4)
    assert started(config_file, *options, "--data", "localhost:8000")[0] == "localhost:8000"


def test_gin_file_sets_options(tmp_path, started):
    gin_file = tmp_path / "sac.gin"
    gin_file.write_text("train.online_steps = 1500\nSACAgent.hidden_sizes = (6,)\n")
    options = ("--algo", "sac", "--data", "none", "--env", "Pendulum-v1", "--run-dir", tmp_path / "run")
    source, config, *_ = started(gin_file, *options)
    assert source is None and config.online_steps == 1_500
    assert config.resolved_hyperparameters["hidden_sizes"] == (6,)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("sac.gin", "", ["--data", "none"], "--algo is required, because CONFIG is a gin file"),
        ("sac.gin", "", ["--algo", "sac"], "--data is required; pass none to learn only from what is collected"),
        ("config.json", "{", ["--set", "train.batch=3"], "--set has no name 'train.batch'; did you mean"),
        ("config.json", "{", ["--set", "train.batch_size=x"], "batch_size must be an integer >= 1 or None, got 'x'"),
        (
            "config.json",
            "{",
            ["--steps", "2", "--set", "train.steps=2"],
            "pass only one of --steps and --set train.steps",
        ),
        (
            "config.json",
            "{",
            ["--batch-size", "4"],
            "there is no option --batch-size; pass --set train.batch_size=VALUE",
        ),
        ("config.json", "{", [], "config.json is not a JSON file"),
        ("config.json", "{}", [], "config.json must be the config.json of a run"),
    ],
)
def test_invalid_arguments_fail_with_a_sentence(tmp_path, capsys, name, content, options, message):
    (tmp_path / name).write_text(content)
    assert run(["cluster", "train", str(tmp_path / name), "--run-dir", str(tmp_path / "run"), *options]) == 1
    assert message in capsys.readouterr().err
