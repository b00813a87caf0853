"""Tests that several learners in a script print nothing of TensorFlow's to stderr."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
from rlds2reverb.adders import NStep
from rlds2reverb.learners import InMemoryDataset, Learner
from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.hooks import EvaluateHook
from small_agents import ACTION_SPEC
from tf_agents.trajectories import time_step_spec

from rlds2reverb.types.items import Items

for number in range(6):
    images, ones = np.zeros((8, 4, 4, 3), np.uint8), np.ones(8, np.float32)
    columns = {
        "observation": images, "action": np.zeros((8, 1), np.float32), "reward": ones, "discount": ones,
        "next_observation": images,
    }
    items = Items(columns, np.arange(8), np.ones(8, np.int64), squeeze=True)
    dataset = InMemoryDataset(items, 4, to_experience=NStep(1, 0.99).as_transition)
    spec = time_step_spec(tf.TensorSpec([4, 4, 3], tf.uint8))
    agent = make_agent("td3_bc", spec, ACTION_SPEC, hidden_sizes=(4,))
    folder = f"{sys.argv[1]}/{number}"
    hooks = [EvaluateHook(lambda policy: 1.0, every=2)]
    with Learner(folder, agent, dataset, hooks=hooks, jit_compile=number == 0) as learner:
        learner.start(3)
        data, _ = dataset.read(0, 1)
        learner.train(dataset.to_experience(tf.constant(data[0])))
        if number == 0:
            learner.export_policy(folder + "/policy")
            learner.export_best_policy(folder + "/best_policy")
"""


@pytest.mark.slow
def test_learners_of_images_print_nothing(tmp_path):
    variables = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    variables["PYTHONPATH"] = str(Path(__file__).parents[1] / "support")
    script = f"import rlds2reverb\n{SCRIPT}"  # The package sets log levels before TensorFlow is imported.
    command = [sys.executable, "-c", script, str(tmp_path)]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=variables, timeout=240)
    assert (run.returncode, run.stderr) == (0, "")
