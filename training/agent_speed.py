"""The speed of an agent's updates on this machine."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np

from rlds2reverb.episodes import from_transitions
from rlds2reverb.learners.algorithms import get_algorithm

from .config import TrainingConfig
from .training import Training

_OBSERVATION_SIZE, _ACTION_SIZE = 17, 6
_NUM_EPISODES, _EPISODE_LENGTH = 20, 200
#: Number of updates before the measurement, of which the first one builds the graph.
_NUM_WARM_UP = 10


def measure_updates_per_sec(algo: str, *, secs: float = 2.0) -> float:
    """Returns the number of gradient updates per second that an agent makes from random data in memory.

    The data have the shapes of HalfCheetah: observations of 17 floats, and 6 actions or numbers of an action. Batch
    size, networks and other hyperparameters are the published ones.

    Args:
      algo: name of the algorithm; see `train`.
      secs: duration of the measurement, after the graph is built.

    Raises:
      ValueError: If there is no such algorithm.
    """
    episodes = _make_episodes(is_discrete=get_algorithm(algo).actions == "discrete")
    config = TrainingConfig(algo, env=None, steps=1_000_000, log_every=1_000_000, checkpoint_every=1_000_000, track=())
    with tempfile.TemporaryDirectory() as folder, Training(episodes, config, folder) as training:
        learner = training.learner
        with learner.running():
            learner.advance(_NUM_WARM_UP)
            count, began = 1, time.perf_counter()
            while time.perf_counter() - began < secs:
                learner.advance(learner.step + count)
                count *= 2
            return (learner.step - _NUM_WARM_UP) / (time.perf_counter() - began)


def _make_episodes(*, is_discrete: bool) -> list[dict[str, Any]]:
    random, length = np.random.default_rng(0), _EPISODE_LENGTH

    def make() -> dict[str, Any]:
        observations = random.normal(size=(length + 1, _OBSERVATION_SIZE)).astype(np.float32)
        actions = random.uniform(-1, 1, (length, _ACTION_SIZE)).astype(np.float32)
        return from_transitions(
            observations,
            random.integers(0, _ACTION_SIZE, length) if is_discrete else actions,
            rewards=random.normal(size=length).astype(np.float32),
            terminated=False,
        )

    return [make() for _ in range(_NUM_EPISODES)]
