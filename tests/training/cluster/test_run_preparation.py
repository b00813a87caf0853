"""The checks of the directory and of the data before a run on a cluster is started."""

import numpy as np
import pytest

from rlds2reverb import CheckpointError, TrainingConfig, load, load_run, train
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training import Progress
from rlds2reverb.training.cluster import ClusterTraining, launch
from rlds2reverb.training.cluster.run_preparation import prepare

QUIET = Progress(quiet=True)
SMALL = {"steps": 4, "batch_size": 8, "env": None, "hyperparameters": {"hidden_sizes": (8, 8)}}


@pytest.fixture(scope="module")
def hopper(data):
    return data / "d4rl" / "hopper_medium-v2.hdf5"


@pytest.mark.usefixtures("no_policies")
def test_directory_of_a_different_run_is_left_unchanged(hopper, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "import_ray", lambda: None)
    run = train(hopper, "bc", tmp_path / "run", progress=False, **SMALL)
    before = run.config
    with pytest.raises(CheckpointError, match="contains a different run: algo was bc, is now td3"):
        ClusterTraining(hopper, TrainingConfig("td3", **SMALL), tmp_path / "run")
    assert load_run(tmp_path / "run").config == before
    save_json(tmp_path / "plan.json", {"runs": []})
    with pytest.raises(CheckpointError, match="contains several runs"):
        ClusterTraining(hopper, TrainingConfig("bc", **SMALL), tmp_path)


@pytest.mark.parametrize("algo", ["decision_transformer", "gcbc"])
def test_algorithms_on_windows_or_goals_raise(hopper, tmp_path, algo):
    with pytest.raises(ValueError, match=f"algo cannot be {algo}, which requires a single process"):
        prepare(hopper, TrainingConfig(algo, **SMALL | {"hyperparameters": {}}), tmp_path, 1, QUIET)


def test_relative_actions_raise(tmp_path):
    log = {
        "observations": {"state": np.ones((4, 2))},
        "actions": np.eye(3, 2),
        "rewards": np.ones(3),
        "terminated": True,
    }
    source = load([log], mapping={"delta": {"action": "observation.state"}})
    with pytest.raises(ValueError, match="mapping of relative actions requires a single process; use train"):
        prepare(source, TrainingConfig("bc", **SMALL), tmp_path, 1, QUIET)


def test_weights_of_samples_raise(hopper, tmp_path):
    with pytest.raises(ValueError, match="sampler requires a single process for weights; use train"):
        prepare(hopper, TrainingConfig("bc", sampler=len, **SMALL), tmp_path, 1, QUIET)


def test_data_that_do_not_match_their_name_are_trained_on_without_evaluation(hopper, tmp_path, capsys):
    path = tmp_path / "pendulum_x.hdf5"
    path.symlink_to(hopper)
    config = TrainingConfig("bc", **{**SMALL, "env": "auto"})
    parts = prepare(path, config, tmp_path / "run", 1, Progress(quiet=True))
    assert parts.evaluator is None and parts.document["environment"] is None
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: no evaluation: ") and warning.endswith("was recorded in (env)")


def test_replay_servers_share_the_capacity(tmp_path):
    config = TrainingConfig("sac", env="Pendulum-v1", steps=0, online_steps=20_000, replay_size=10)
    (table,) = prepare(None, config, tmp_path / "run", 4, QUIET).tables
    assert table.max_size == 3
