"""The checks of the directory and of the data before a run on a cluster is started."""

import gymnasium
import numpy as np
import pytest

from rlds2reverb import CheckpointError, Selector, TableConfig, TrainingConfig, load, load_run, train
from rlds2reverb.system.sealed_files import save_json
from rlds2reverb.training import Progress
from rlds2reverb.training.cluster import ClusterTraining, launch
from rlds2reverb.training.cluster.reverb_comm_learner import ReplayTables
from rlds2reverb.training.cluster.run_preparation import prepare

QUIET = Progress(quiet=True)
SMALL = {"steps": 4, "batch_size": 8, "env": None, "hyperparameters": {"hidden_sizes": (8, 8)}}


PENDULUM = {"observations": np.zeros((9, 3), np.float32), "actions": np.zeros((8, 1), np.float32)}
PENDULUM |= {"rewards": np.zeros(8, np.float32), "terminated": False}


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


def make_pendulum():
    return gymnasium.make("Pendulum-v1")


def test_tables_and_environments_follow_from_the_options(hopper, tmp_path):
    config = TrainingConfig("sac", env="Pendulum-v1", steps=0, online_steps=20_000, replay_size=10)
    for env, make_env in (("Pendulum-v1", gymnasium.spec("Pendulum-v1")), (make_pendulum, make_pendulum)):
        parts = prepare(None, config.replace(env=env), tmp_path / "run", 4, QUIET)
        assert parts.evaluator["make_env"] == make_env
    assert parts.tables == [TableConfig("collected", Selector("uniform"), max_size=3)]  # Servers share the capacity.
    assert parts.replay == ReplayTables(False, collected_ratio=0.5, num_updates=19_000) and parts.dataset is None
    parts = prepare(hopper, TrainingConfig("iql", sampler="prioritized", **SMALL), tmp_path / "run", 4, QUIET)
    assert parts.tables == [TableConfig("offline", Selector("prioritized", 0.6))] and parts.evaluator is None
    assert parts.replay == ReplayTables(True, num_offline_updates=4, is_prioritized=True, num_updates=4)
    online = config.replace(steps=5, online_ratio=0.25)
    parts = prepare([PENDULUM], online, tmp_path / "run", 1, QUIET)
    assert [table.name for table in parts.tables] == ["offline", "collected"]
    assert parts.replay == ReplayTables(True, num_offline_updates=5, collected_ratio=0.25, num_updates=19_005)
