"""A whole experiment with an agent, a hook, a network and a custom tracker, killed and continued."""

import csv
import json
import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

from rlds2reverb import load_experiment

PARTS = """
import os
import tensorflow as tf
from rlds2reverb import register_agent
from rlds2reverb.learners.agents import IQLAgent
from rlds2reverb.learners.hooks import LearnerHook


class CautiousIQL(IQLAgent):
    def actor_loss(self, batch, advantage):
        return super().actor_loss(batch, advantage - 0.1)


class Count(LearnerHook):
    def __init__(self, every=100):
        super().__init__("count", position="after_iter", every=every)

    def __call__(self, learner):
        with open(learner.run_dir / "count.txt", "a") as file:
            file.write(f"{learner.step} ")
        marker = os.environ.get("KILLED")
        if learner.step == 200 and marker and learner.run_dir.name == "seed_1" and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(int(os.environ["VICTIM"]) if "VICTIM" in os.environ else os.getppid(), 9)
            os._exit(1)


def make_network(observation_spec, num_outputs, seed):
    initializer = tf.keras.initializers.GlorotUniform(seed)
    hidden = tf.keras.layers.Dense(16, "swish", kernel_initializer=initializer)
    return tf.keras.Sequential([hidden, tf.keras.layers.Dense(num_outputs, kernel_initializer=initializer)])


register_agent("cautious_iql", CautiousIQL, batch_size=32)
"""
SCRIPT = """
import json
import sys
from rlds2reverb import train_seeds


class FileTracker:
    def start(self, run):
        self.file = open(run.run_dir / "tracked.txt", "a", buffering=1)

    def log(self, step, numbers):
        self.file.write(json.dumps([step, sorted(numbers)]) + "\\n")

    def finish(self, status):
        self.file.write(json.dumps([status, []]) + "\\n")


experiment = train_seeds(
    sys.argv[1], "cautious_iql", sys.argv[2], seeds=3, jobs=2, steps=300, log_every=100, eval_every=100, eval_episodes=2,
    checkpoint_every=100, deterministic=True, hooks=[Count(every=100)], hyperparameters={"actor_network": make_network},
    track=["tensorboard", FileTracker()], progress=False,
)
print(experiment)
experiment.plot(sys.argv[2] + "/figure.png")
"""
NUM_STEPS = [100, 200, 300]


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """Provides a directory with the data, the user's module and the user's script."""
    path = tmp_path_factory.mktemp("own")
    (path / "pendulum_mixed-v2.hdf5").symlink_to(data / "d4rl" / "pendulum_mixed-v2.hdf5")
    (path / "my_parts.py").write_text(PARTS)
    (path / "script.py").write_text(PARTS + SCRIPT)
    return path


def run_script(folder, root, **environment):
    return start(folder, [sys.executable, "script.py", "pendulum_mixed-v2.hdf5", root], environment)


def run_command(folder, root, **environment):
    options = ["--steps", 300, "--log-every", 100, "--eval-every", 100, "--eval-episodes", 2, "--checkpoint-every", 100,
               "--deterministic"]  # fmt: skip
    own = ["--algo", "my_parts:CautiousIQL", "--hook", "my_parts:Count(every=100)",
           "--set", "actor_network=my_parts:make_network"]  # fmt: skip
    command = [sys.executable, "-m", "rlds2reverb.cli", "train", "--data", "pendulum_mixed-v2.hdf5", "--run-dir", root,
               "--seeds", 3, "--jobs", 2, "--track", "tensorboard", "--track", "wandb", *own, *options]  # fmt: skip
    return start(folder, command, environment)


def start(folder, command, environment):
    environment = {**os.environ, "WANDB_MODE": "offline", **environment}
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, env=environment)


def read_numbers(path):
    """Returns the rows of a CSV file of a run as numbers, without those that measure time."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {
            name: float(value)
            for name, value in row.items()
            if value and not name.endswith(("_ms", "_share", "_sec", "_secs"))
        }
        for row in rows
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", [run_script, run_command])
@pytest.mark.drill("F6")
def test_experiment_of_custom_parts_is_killed_and_continued(folder, run):
    name = run.__name__
    whole, killed = folder / f"{name}_whole", folder / f"{name}_killed"
    process = run(folder, whole)
    assert process.returncode == 0, process.stderr
    process = run(folder, killed, KILLED=str(folder / f"{name}.txt"))
    assert process.returncode == -9
    assert not load_experiment(killed).is_complete
    process = run(folder, killed)
    assert process.returncode == 0, process.stderr
    assert " ± " in process.stdout

    experiment = load_experiment(killed)
    assert experiment.is_complete and list(experiment.runs) == ["seed_0", "seed_1", "seed_2"]
    (row,), (expected,) = experiment.rows, load_experiment(whole).rows
    assert (row.last, row.best) == (expected.last, expected.best) and row.last[1] > 0
    assert json.loads((killed / "summary.json").read_text())
    figure = "figure.png" if run is run_script else "curves.png"
    assert np.ptp(matplotlib.image.imread(killed / figure)) > 0
    for seed in experiment.runs:
        if run is run_script:
            assert '["complete", []]' in (killed / seed / "tracked.txt").read_text()
        else:
            tracked = json.loads((killed / seed / "trackers.json").read_text())
            assert tracked["logged"] == {"wandb": {"progress": 300, "evaluation": 300}}
            assert list((killed / seed / "wandb").glob(f"offline-run-*-{tracked['id']}"))
        # Means over intervals that a kill has split are rounded differently.
        for log, steps, tolerance in (("evaluations.csv", [0, *NUM_STEPS], 0), ("progress.csv", NUM_STEPS, 1e-12)):
            rows = read_numbers(killed / seed / log)
            assert [row["step"] for row in rows] == steps
            for got, expected in zip(rows, read_numbers(whole / seed / log), strict=True):
                assert got == pytest.approx(expected, rel=tolerance, abs=0)
        assert list((killed / seed / "train").glob("events.*"))
        counted = [int(step) for step in (killed / seed / "count.txt").read_text().split()]
        assert sorted(set(counted)) == NUM_STEPS
    if run is run_script:
        tracked = [json.loads(line) for line in (killed / "seed_1" / "tracked.txt").read_text().splitlines()]
        logged = [step for step, numbers in tracked if "loss" in str(numbers)]
        assert sorted(set(logged)) == logged and tracked[-1][0] == "complete"
