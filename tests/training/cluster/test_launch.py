"""Runs on a cluster from start to end, whose processes are threads."""

import time

import numpy as np
import pytest
from threaded_ray import RayActorError, ThreadedRay

from rlds2reverb import errors
from rlds2reverb.training import TrainingConfig
from rlds2reverb.training.cluster import ClusterConfig, ClusterTraining, actors, launch
from rlds2reverb.training.cluster.replay_shards import ShardCheckpoint, ShardReport
from rlds2reverb.training.cluster.status import format_status

CONFIG = TrainingConfig(
    "td3",
    env="Pendulum-v1",
    steps=4,
    online_steps=30,
    warmup_steps=10,
    batch_size=8,
    eval_every=30,
    eval_episodes=1,
    hyperparameters={"hidden_sizes": (8, 8)},
)
LOG = {
    "observations": np.zeros((31, 3), np.float32),
    "actions": np.linspace(-2, 2, 30, dtype=np.float32)[:, None],
    "rewards": -np.ones(30, np.float32),
    "terminated": False,
}


@pytest.fixture
def ray(monkeypatch):
    ray = ThreadedRay(3)
    ray.install(monkeypatch)
    monkeypatch.setattr(actors, "REPORT_SECS", 0.02)
    return ray


def test_run_trains_on_a_dataset_and_collected_items(ray, tmp_path, monkeypatch):
    added, evaluated = [], []

    def change_collectors(status, config):
        evaluated.append(status["evaluation"].get("step"))
        if not added:  # The first progress is shown.
            added.append(training.add_collector())
            training.remove_collector("collector_1")
            for name in ("learner", "collector_1"):
                with pytest.raises(ValueError, match=f"there is no collector '{name}'; there are collector_0, coordin"):
                    training.remove_collector(name)
            ray.num_cpus = 0.5
            with pytest.raises(RuntimeError, match=r"no room for another process with 0.59 CPUs; remove a collector"):
                training.add_collector()
        return format_status(status, config)

    monkeypatch.setattr(launch, "format_status", change_collectors)
    with ClusterTraining([LOG], CONFIG, tmp_path / "run", ClusterConfig(num_collectors=1)) as training:
        assert ray.options["address"] == "local"
        for function in (training.status, training.add_collector):
            with pytest.raises(RuntimeError, match="has not started yet|this run is not running"):
                function()
        run = training.run()
        status, group = training.status(), ray.group
        names = ["coordinator", "replay_0", "learner", "evaluator", "collector_0"]
        assert list(training.actors) == names and added == ["collector_1"]
    assert group == ([{"CPU": 0.59}] * 5, "SPREAD")
    assert [actor.options.get("scheduling_strategy") for actor in ray.actors] == [0, 1, 2, 3, 4, None]
    assert all(actor.is_killed for actor in ray.actors) and ray.options is None and ray.group is None
    assert (status["step"], status["stop_reason"], status["replay_size"]["offline"]) == (24, "complete", 30)
    assert status["collected_steps"] >= 30
    assert run.evaluations["step"].tolist()[-1] == evaluated[-1] == 24 and run.best_return is not None
    assert (run.path / "curve.png").exists() and run.progress["step"].tolist()[-1] == 24


def test_cluster_without_room_raises(ray, tmp_path):
    with ClusterTraining(None, CONFIG.replace(steps=0), tmp_path / "run", ClusterConfig(num_cpus=50)) as training:
        with pytest.raises(RuntimeError, match=r"no room for 6 processes with 50 CPUs each; it has 3 CPUs\."):
            training.run()
        assert not training.actors


class Replay:
    """A replay server without a server, which fails with an error."""

    error = None

    def __init__(self, call, shard, *_):
        self._call, self._shard = call, shard

    def run(self):
        if self.error is not None:
            raise self.error
        report = ShardReport("localhost:1", {}, 0, ShardCheckpoint("", None, 0))
        while not self._call("report_shard", self._shard, report).is_stopped:
            time.sleep(0.01)


class Waiting:
    """A process that does nothing."""

    def __init__(self, *_, **options):
        pass

    def run(self):
        pass


class Failing(Waiting):
    """A learner whose task fails for a reason."""

    reason = ""

    def __init__(self, call, *_):
        self._call = call

    def run(self):
        self._call("report_task", self._call("next_task", "learner")["name"], "failed", 3, self.reason)


@pytest.mark.parametrize(
    ("error", "reason", "kind", "message"),
    [
        (ValueError("it is broken"), "", ValueError, "^it is broken$"),
        (RayActorError("died\nno such file"), "", RuntimeError, "the process 'replay_0' cannot be started: no such fi"),
        (None, "TrainingDivergedError: in step 3", errors.TrainingDivergedError, "^in step 3$"),
        (None, "KeyError: 'x'", RuntimeError, "^the learner failed: KeyError: 'x'$"),
    ],
)
def test_errors_of_processes_end_the_run(ray, tmp_path, monkeypatch, error, reason, kind, message):
    monkeypatch.setattr(Replay, "error", error)
    monkeypatch.setattr(Failing, "reason", reason)
    parts = {"ReplayActor": Replay, "LearnerActor": Failing, "EvaluatorActor": Waiting, "CollectorActor": Waiting}
    for name, part in parts.items():
        monkeypatch.setattr(launch, name, part)
    with ClusterTraining(None, CONFIG.replace(steps=0), tmp_path / "run") as training:
        with pytest.raises(kind, match=message):
            training.run()
    assert all(actor.is_killed for actor in ray.actors)
