"""The checks of the directory and of the data before a run on a cluster is started."""

import pytest

from rlds2reverb import CheckpointError, TrainingConfig, load_run, train
from rlds2reverb.training.cluster import ClusterTraining, launch
from rlds2reverb.training.cluster.preparation import prepare

SMALL = {"steps": 4, "batch_size": 8, "env": None, "hyperparameters": {"hidden_sizes": (8, 8)}}


@pytest.fixture(scope="module")
def hopper(data):
    return data / "d4rl" / "hopper_medium-v2.hdf5"


@pytest.mark.usefixtures("no_policies")
def test_directory_of_a_different_run_is_left_unchanged(hopper, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "import_ray", lambda: None)
    run = train(hopper, "bc", tmp_path / "run", progress=False, **SMALL)
    before = run.config, (tmp_path / "run" / "repeat.txt").read_text()
    with pytest.raises(CheckpointError, match="contains a different run: algo was bc, is now td3"):
        ClusterTraining(hopper, TrainingConfig("td3", **SMALL), tmp_path / "run")
    assert (load_run(tmp_path / "run").config, (tmp_path / "run" / "repeat.txt").read_text()) == before
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(CheckpointError, match="contains several runs"):
        ClusterTraining(hopper, TrainingConfig("bc", **SMALL), tmp_path)


def test_algorithms_on_windows_raise(hopper, tmp_path):
    with pytest.raises(ValueError, match="algo cannot be decision_transformer, which requires a single process"):
        prepare(hopper, TrainingConfig("decision_transformer", **SMALL | {"hyperparameters": {}}), tmp_path, 1)


def test_data_that_do_not_match_their_name_are_trained_on_without_evaluation(hopper, tmp_path):
    path = tmp_path / "pendulum_x.hdf5"
    path.symlink_to(hopper)
    parts = prepare(path, TrainingConfig("bc", **{**SMALL, "env": "auto"}), tmp_path / "run", 1)
    assert parts.evaluator is None and parts.environment is None and parts.document["environment"] is None
    assert parts.warnings[0].startswith("no evaluation: ") and parts.warnings[0].endswith("was recorded in (env)")


def test_replay_servers_share_the_capacity(tmp_path):
    config = TrainingConfig("sac", env="Pendulum-v1", steps=0, online_steps=20_000, replay_size=10)
    (table,) = prepare(None, config, tmp_path / "run", 4).tables
    assert table.max_size == 3
