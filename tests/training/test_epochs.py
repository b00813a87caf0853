"""Training in epochs: the order of the items, from memory and from a store, and runs that are killed or extended."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from reference_impls import assert_equal_nests

from rlds2reverb import CheckpointError, Training, TrainingConfig, train
from rlds2reverb.datasets.steps.item_index import permute
from rlds2reverb.learners.feeds import SEED_SALT
from rlds2reverb.training.sources import open_data

#: Options of a run of 40 updates per epoch.
OPTIONS = {"env": None, "deterministic": True, "hyperparameters": {"hidden_sizes": (8,)}, "checkpoint_every": 15}
KILLED = """
import os, signal
from rlds2reverb import train
from rlds2reverb.learners.hooks import LearnerHook

class Kill(LearnerHook):
    def __call__(self, learner):
        os.kill(os.getpid(), signal.SIGKILL)

train({source!r}, "bc", {path!r}, epochs=2, hooks=[Kill("kill", position="after_iter", every=53)], **{options!r})
"""


@pytest.fixture(scope="module")
def hopper(data):
    return str(data / "d4rl/hopper_medium-v2.hdf5")


def test_each_epoch_contains_each_item_once_from_memory_and_from_a_store(hopper, tmp_path):
    config, batches = TrainingConfig("iql", epochs=3, batch_size=300, seed=5), []
    for folder in (None, str(tmp_path)):
        opened = open_data(hopper, config.replace(store_dir=folder))
        resolved, num_items = opened.resolve_steps(config), opened.items.num_items
        assert resolved.steps == -(-3 * num_items // 300)
        with opened.open_batches(resolved) as made:
            got = made.feed.sample_indices(0, resolved.steps)
            orders = [permute(np.arange(num_items), num_items, seed=5 ^ SEED_SALT, epoch=epoch) for epoch in range(4)]
            np.testing.assert_array_equal(got.ravel(), np.concatenate(orders)[: got.size])
            np.testing.assert_array_equal(made.feed.sample_indices(20, 7), got[20:27])
            batches.append(made.feed.read(0, resolved.steps)[0])
            online = made.resize(150)  # The online phase samples with replacement.
            assert (online.sample_indices(9) == opened.items.resize(150).sample_indices(9)).all()
    assert_equal_nests(batches[0], batches[1])


@pytest.mark.slow
def test_run_of_fewer_epochs_or_of_sampled_items_cannot_continue(hopper, tmp_path, capsys):
    options = {**OPTIONS, "top_percent": 2, "progress": False}
    assert train(hopper, "bc", tmp_path, epochs=2, **{**options, "progress": True}).num_updates == 5
    assert "epochs=2 takes 5 updates" in capsys.readouterr().err
    assert train(hopper, "bc", tmp_path, epochs=3, **options).num_updates == 7
    for changes, message in (
        ({"epochs": 1}, "epochs must take at least 7, .* has already made, got 3; set more epochs"),
        ({"steps": 5}, "sampler was epochs, is now uniform"),
    ):
        with pytest.raises(CheckpointError, match=message):
            train(hopper, "bc", tmp_path, **changes, **options)


@pytest.mark.slow
def test_killed_run_continues_from_a_store_bit_for_bit(hopper, tmp_path):
    code = KILLED.format(source=hopper, path=str(tmp_path / "killed"), options=OPTIONS)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    weights = []
    for name, stores in (("whole", None), ("killed", str(tmp_path / "stores"))):
        config = TrainingConfig("bc", epochs=2, store_dir=stores, **OPTIONS)
        with Training(hopper, config, tmp_path / name) as training:
            assert training.learner.step == (45 if stores else 0)
            training.run()
            weights.append([variable.numpy() for variable in training.agent.trainable_variables])
    assert_equal_nests(weights[0], weights[1])
