"""The speed of an agent's updates on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlds2reverb.episodes import from_transitions
from rlds2reverb.learners.agents import get_hyperparameters
from rlds2reverb.learners.algorithms import get_algorithm

from .config import TrainingConfig
from .progress import Progress
from .training import Training

_OBSERVATION_SIZE, _ACTION_SIZE = 17, 6
_NUM_EPISODES, _EPISODE_LENGTH = 20, 200
#: Number of updates before the measurement, of which the first one builds the graph.
_NUM_WARM_UP = 10
#: Options that are numbers of updates after which something else happens.
_STEP_OPTIONS = ("steps", "log_every", "checkpoint_every")


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
    with open_training(algo) as training:
        return time_updates(training, secs=secs)


@contextmanager
def open_training(algo: str, **options: Any) -> Iterator[Training]:
    """Yields a running training of an agent on random data in memory, after its first updates; see `train`."""
    is_discrete = get_algorithm(algo).actions == "discrete"
    bounds = (0, _ACTION_SIZE - 1) if is_discrete else (-1, 1)
    fixed: dict[str, Any] = {"env": None, "track": (), "action_bounds": bounds}
    fixed |= dict.fromkeys(_STEP_OPTIONS, 1_000_000)
    if "num_density_updates" in get_hyperparameters(algo):
        fixed["hyperparameters"] = {"num_density_updates": 0}  # Most updates of a run come after those of the density.
    episodes, config = _make_episodes(is_discrete=is_discrete), TrainingConfig(algo, **fixed, **options)
    with (
        tempfile.TemporaryDirectory() as folder,
        Training(episodes, config, folder, progress=Progress(quiet=True, notes=False)) as training,
        training.learner.running(),
    ):
        training.learner.advance(_NUM_WARM_UP)
        yield training


def time_updates(training: Training, *, secs: float) -> float:
    """Returns the number of updates per second of a running training, measured for at least `secs`."""
    learner, count = training.learner, 1
    first, began = learner.step, time.perf_counter()
    while time.perf_counter() - began < secs:
        learner.advance(learner.step + count)
        count *= 2
    return (learner.step - first) / (time.perf_counter() - began)


def _make_episodes(*, is_discrete: bool) -> list[dict[str, Any]]:
    random, shape = np.random.default_rng(0), (_NUM_EPISODES, _EPISODE_LENGTH, _ACTION_SIZE)
    actions = random.uniform(-1, 1, shape).astype(np.float32)
    return [
        from_transitions(
            random.normal(size=(_EPISODE_LENGTH + 1, _OBSERVATION_SIZE)).astype(np.float32),
            random.integers(0, _ACTION_SIZE, _EPISODE_LENGTH) if is_discrete else actions[number],
            rewards=random.normal(size=_EPISODE_LENGTH).astype(np.float32),
            terminated=False,
        )
        for number in range(_NUM_EPISODES)
    ]
