"""`rlds2reverb record`, and the way from an environment to an agent in four commands or one script."""

import json

import h5py
import numpy as np
import pytest
from policies import LinearPolicy, save_policy

from rlds2reverb import load
from rlds2reverb.cli import run
from rlds2reverb.learners.run_directory import RunDirectory


def call(capsys, *arguments):
    code = run([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(("name", "format"), [("p.hdf5", "d4rl"), ("p/1.0.0", "rlds"), ("p-v0", "minari")])
def test_format_follows_from_the_name(capsys, tmp_path, name, format):
    arguments = ("record", "Pendulum-v1", "--out", tmp_path / name, "--steps", 5, "--seed", 3, "--epsilon", 0.5)
    code, out, err = call(capsys, *arguments, "--json")
    document = json.loads(out)
    assert (code, err, document["format"], document["transitions"], document["terminal"]) == (0, "", format, 5, 0)
    source = load(tmp_path / name)
    (episode,) = source
    assert document["mean_return"] == pytest.approx(episode.total_reward)
    assert json.loads(source.env_spec)["id"] == "Pendulum-v1" and episode.unterminated
    assert source.metadata == {"algorithm_name": "random", "seed": 3, "num_envs": 1, "epsilon": 0.5}
    assert call(capsys, *arguments)[0] == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Provides a run whose last policy always acts with 1, and the best one with -1."""
    folder = tmp_path_factory.mktemp("runs") / "iql"
    with RunDirectory(folder) as directory:
        directory.write_config({"environment": "Pendulum-v1"})
    save_policy(LinearPolicy(np.zeros((3, 1)), bias=1), folder / "policy", step=20)
    save_policy(LinearPolicy(np.zeros((3, 1)), bias=-1), folder / "best_policy", step=15)
    return folder


@pytest.mark.parametrize(("which", "action"), [("last", 1), ("best", -1)])
def test_policy_of_a_run_is_recorded(capsys, tmp_path, trained, which, action):
    out = tmp_path / "out.hdf5"
    options = ("--which", which, "--episodes", 2, "--max-episode-steps", 3)
    code, printed, err = call(capsys, "record", "Pendulum-v1", "--policy", trained, "--out", out, *options)
    assert (code, err) == (0, "") and "ends         0 terminal, 2 truncated" in printed
    with h5py.File(out) as file:
        assert file["actions"][:, 0].tolist() == [action] * 6
        assert file["timeouts"][:].tolist() == [False, False, True] * 2
        assert file["metadata/algorithm_name"][()] == f"{which} policy of run iql".encode()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("iql/policy", "last policy of run iql"),
        ("iql/best_policy", "best policy of run iql"),
        ("copy", "policy copy"),
    ],
)
def test_recorded_data_name_a_saved_policy_and_its_run(capsys, tmp_path, trained, name, expected):
    save_policy(LinearPolicy(np.zeros((3, 1)), bias=1), trained.parent / "copy", step=20)
    out = tmp_path / "out.hdf5"
    code, _, _ = call(capsys, "record", "Pendulum-v1", "--policy", trained.parent / name, "--out", out, "--steps", 2)
    assert code == 0 and load(out).metadata["algorithm_name"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", 1, "--steps", 1], "pass only one of --episodes and --steps"),
        (["--which", "best"], "--which requires a --policy of a training run"),
        (
            ["--policy", "nowhere"],
            "--policy must be 'random', the directory of a training run or an ONNX file, got 'nowhere'",
        ),
        (["--env-info", "x"], "--env-info requires --format rlds or minari"),
        (["--format", "minari"], "must end in a name with a version, of ASCII letters"),
        (["--format", "rlds", "--env-info", "x"], "the environment's info has no fields"),
    ],
)
def test_wrong_usage_is_reported_and_leaves_nothing(capsys, tmp_path, arguments, message):
    code, _, err = call(capsys, "record", "Pendulum-v1", "--out", tmp_path / "p.hdf5", *arguments)
    assert code == 1 and message in err and not list(tmp_path.iterdir())


def test_datasets_are_converted_between_formats(capsys, data, tmp_path):
    source = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5"
    code, out, _ = call(capsys, "convert", source, "--format", "minari", "--out", tmp_path / "hopper-v0")
    assert code == 0 and "format       Minari" in out
    code, out, _ = call(capsys, "convert", tmp_path / "hopper-v0", "--format", "d4rl", "--out", tmp_path / "x.hdf5")
    assert code == 0
    for got, expected in zip(load(tmp_path / "x.hdf5"), load(source), strict=True):
        assert np.array_equal(got.steps["observation"], expected.steps["observation"])
    code, _, err = call(capsys, "convert", source, "--format", "rlds")
    assert code == 1 and "missing option '--out'" in err
    code, _, err = call(capsys, "convert", source, "--format", "rlds", "--out", tmp_path / "y", "--n-step", 3)
    assert code == 1 and "--n-step requires --format reverb" in err
    code, _, err = call(capsys, "convert", source, "--format", "d4rl", "--out", tmp_path / "y", "--shard-mb", 3)
    assert code == 1 and "--shard-mb requires --format rlds" in err
    code, _, _ = call(capsys, "convert", source, "--format", "rlds", "--out", tmp_path / "y/1.0.0", "--shard-mb", 1)
    assert code == 0 and len(list((tmp_path / "y/1.0.0").glob("*.tfrecord*"))) == 1


@pytest.mark.slow
def test_four_commands_lead_from_an_environment_to_an_online_agent(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = "train --algo td3_bc --data pendulum/ --run-dir runs/pendulum --steps 60 --eval-episodes 1"
    for command in (
        "record Pendulum-v1 --policy random --out pendulum.hdf5 --steps 600",
        "convert pendulum.hdf5 --out pendulum/",
        train,
        f"{train} --online 150 --warmup-steps 50",
    ):
        code, _, err = call(capsys, *command.split())
        assert code == 0, err
    curve = (tmp_path / "runs/pendulum/progress.csv").read_text().splitlines()
    numbers = dict(zip(curve[0].split(","), curve[-1].split(","), strict=True))
    assert (numbers["step"], float(numbers["collected_steps"])) == ("160", 150)
    code, _, err = call(capsys, *train.replace("60", "40").split(), "--online", 150, "--warmup-steps", 50)
    assert code == 2 and "steps was 60, is now 40" in err


@pytest.mark.slow
def test_one_script_leads_from_an_environment_to_an_online_agent(tmp_path):
    from rlds2reverb import ReplayServer, TableConfig, ingest, train
    from rlds2reverb.envs import record_episodes

    source = record_episodes("Pendulum-v1", num_steps=600)
    options = {"steps": 60, "eval_episodes": 1, "run_dir": tmp_path / "run"}
    report = ingest(source, tmp_path / "pendulum", [TableConfig("replay")])
    assert report.items == 600
    with ReplayServer(directory=tmp_path / "pendulum") as server:
        assert server.client.server_info()["replay"].current_size == 600
    run = train(source, "td3_bc", **options)
    assert run.progress["step"][-1] == 60
    run = train(source, "td3_bc", **options, online_steps=150, warmup_steps=50)
    assert run.progress["collected_steps"][-1] == 150
    policy_source = record_episodes("Pendulum-v1", run.policy, num_episodes=1)
    assert next(iter(policy_source)).num_transitions == 200
