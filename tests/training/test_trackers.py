"""Trackers: what they receive, that continued runs repeat nothing, and the offline modes of wandb and MLflow."""

import json

import numpy as np
import pytest

from rlds2reverb import TrackerError, Training, TrainingConfig
from rlds2reverb.training import Progress
from rlds2reverb.training.trackers import RunTrackers


class Recorder:
    """A tracker that records its calls."""

    def __init__(self):
        self.calls = []

    def start(self, run):
        self.calls.append(("start", run.id, run.name, run.group, dict(run.config)))

    def log(self, step, numbers):
        self.calls.append(("log", step, numbers))

    def finish(self, status):
        self.calls.append(("finish", status))


def test_a_continued_run_keeps_its_id_and_repeats_no_step(tmp_path):
    first, second = Recorder(), Recorder()
    trackers = RunTrackers([first, "tensorboard"], tmp_path, pytest.fail)
    trackers.start({"configuration": {"algo": "bc"}})
    trackers.log(20, {"loss": 1.0})
    trackers.log(20, {"evaluation/mean_return": 5.0})
    trackers.log(40, {"loss": 0.5})  # The process is killed here, with a checkpoint at step 20.

    trackers = RunTrackers([second], tmp_path, pytest.fail)
    trackers.start({})
    for step in (40, 60):
        trackers.log(step, {"loss": 0.4})
        trackers.log(step, {"evaluation/mean_return": 6.0})
    trackers.finish("complete")
    trackers.finish("stopped")
    assert first.calls[0][1] == second.calls[0][1] and first.calls[0][2:4] == (tmp_path.name, None)
    logged = [(step, *numbers) for kind, step, numbers in [call for call in second.calls if call[0] == "log"]]
    assert logged == [(40, "evaluation/mean_return"), (60, "loss"), (60, "evaluation/mean_return")]
    assert second.calls[-1] == ("finish", "complete") and [call[0] for call in second.calls].count("finish") == 1


def test_a_different_run_in_the_directory_has_a_new_id(tmp_path):
    ids = []
    for algo, is_continued in (("bc", False), ("bc", False), ("td3", True), ("iql", False)):
        recorder = Recorder()
        trackers = RunTrackers([recorder], tmp_path, pytest.fail)
        trackers.start({"identity": {"algo": algo}}, is_continued=is_continued)
        trackers.log(10, {"loss": 1.0})
        ids.append((recorder.calls[0][1], len(recorder.calls)))
    assert ids[0][0] == ids[1][0] == ids[2][0] != ids[3][0]
    assert [num_calls for _, num_calls in ids] == [2, 1, 1, 2]


def test_runs_of_an_experiment_are_grouped(tmp_path):
    (tmp_path / "hopper/iql/seed_0").mkdir(parents=True)
    (tmp_path / "plan.json").write_text("{}")
    recorder = Recorder()
    RunTrackers([recorder], tmp_path / "hopper/iql/seed_0", pytest.fail).start({})
    assert recorder.calls[0][2:4] == ("hopper/iql/seed_0", tmp_path.name)


def test_a_tracker_that_fails_is_left_out(tmp_path):
    class Failing(Recorder):
        def log(self, step, numbers):
            raise ConnectionError("no network")

    recorder, warnings = Recorder(), []
    trackers = RunTrackers([Failing(), recorder], tmp_path, warnings.append)
    trackers.start({})
    trackers.log(1, {"loss": 1.0})
    trackers.log(2, {"loss": 1.0})
    assert warnings == ["the tracker Failing failed, and the run continues without it: no network"]
    assert [call[1] for call in recorder.calls[1:]] == [1, 2]


def test_a_tracker_that_cannot_be_started_ends_the_others(tmp_path):
    class Offline(Recorder):
        def start(self, run):
            raise ConnectionError("Traceback ...\nno network")

    recorder = Recorder()
    trackers = RunTrackers([recorder, Offline()], tmp_path, pytest.fail)
    with pytest.raises(TrackerError, match="the tracker Offline cannot be started: no network"):
        trackers.start({})
    trackers.finish("stopped")
    assert [call[0] for call in recorder.calls] == ["start", "finish"] and recorder.calls[1][1] == "failed"


def test_invalid_trackers_raise(tmp_path, monkeypatch):
    for value, error, message in (
        ("wandb", TypeError, "track must be a list of trackers"),
        (["wandv"], ValueError, "did you mean 'wandb'"),
        ([Recorder], TypeError, "objects with start, log and finish"),
    ):
        with pytest.raises(error, match=message):
            TrainingConfig("bc", track=value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install -c .* 'mlflow-skinny"):
        RunTrackers(["mlflow"], tmp_path, pytest.fail)


def test_continued_run_notes_that_trackers_keep_earlier_scores(tmp_path, capsys):
    log = {"observations": np.zeros((9, 3)), "actions": np.zeros((8, 1)), "rewards": np.ones(8), "terminated": False}
    config = TrainingConfig("bc", env="Pendulum-v1", steps=5, hyperparameters={"hidden_sizes": (4,)})
    noted = []
    for maximum, track in ((100, [Recorder()]), (100, [Recorder()]), (50, ["tensorboard"]), (60, [Recorder()])):
        with Training(
            [log], config.replace(reference_returns=(0, maximum), track=track), tmp_path, progress=Progress()
        ):
            noted.append("trackers keep the scores that were logged with" in capsys.readouterr().err)
    assert noted == [False, False, False, True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_receives_each_step_once_when_a_run_is_continued(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    for steps in ((20, 40), (40, 60)):
        trackers = RunTrackers(["mlflow"], tmp_path, pytest.fail)
        trackers.start({"configuration": {"algo": "bc"}, "hyperparameters": {"expectile": 0.7}})
        for step in steps:
            trackers.log(step, {"loss": 1.0, "evaluation/mean_return": 5.0})
        trackers.finish("complete")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("rlds2reverb").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params == {"algo": "bc", "hyperparameter.expectile": "0.7"}
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == [20, 40, 60]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_parts_of_one_run_offline_when_a_run_is_continued(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (20, 40):
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / f"part_{step}"))
        (tmp_path / f"part_{step}").mkdir()
        trackers = RunTrackers(["wandb"], tmp_path, pytest.fail)
        trackers.start({"configuration": {"algo": "bc"}})
        trackers.log(step, {"loss": 1.0})
        trackers.finish("stopped")
    run_id = json.loads((tmp_path / "trackers.json").read_text())["id"]
    assert len(list(tmp_path.glob(f"part_*/wandb/offline-run-*-{run_id}"))) == 2
