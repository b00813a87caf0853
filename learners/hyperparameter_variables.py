"""Hyperparameters that an agent keeps in variables, in which a checkpoint contains those of the run that wrote it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash
from tf_agents.agents import tf_agent

from .agents import Observations


class HyperparameterVariables:
    """The numbers and statistics in an agent's untrained variables, with the values that the agent was created with.

    Those of Keras optimisers are hyperparameters. Any other is one if training has not changed it; the others, such as
    counters, are a part of the run.
    """

    def __init__(self, agent: tf_agent.TFAgent):
        """Reads the values of a new agent."""
        self._variables = dict(_find(agent))

    def digests(self) -> dict[str, str]:
        """Returns a digest of the initial value of each variable by name, for `set_again`."""
        return {path: _digest(value) for path, (_, value, _) in self._variables.items()}

    def set_again(self, initial: Mapping[str, str]) -> None:
        """Sets hyperparameters to those of this agent, after a checkpoint was restored that has different ones.

        Args:
          initial: `digests` of the run that wrote the checkpoint; empty if unknown.
        """
        for path, (variable, value, is_optimizers) in self._variables.items():
            is_constant = is_optimizers or initial.get(path) == _digest(variable.numpy())
            if is_constant and initial.get(path) != _digest(value):
                variable.assign(value)


def _digest(value: np.ndarray) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(value).tobytes())


def _find(agent: tf_agent.TFAgent) -> Iterator[tuple[str, tuple[tf.Variable, np.ndarray, bool]]]:
    """Yields path, variable, value, and whether a Keras optimiser holds it, of each variable that may be one."""
    view = tf.train.TrackableView(agent)
    seen, waiting = {id(agent): agent}, deque[tuple[str, Any]]([("agent", agent)])
    while waiting:
        path, part = waiting.popleft()
        # Keras' legacy optimisers create the variables of all hyperparameters when one is read.
        is_optimizer = callable(getattr(part, "minimize", None)) and hasattr(part, "learning_rate")
        for name, child in view.children(part).items():
            if id(child) in seen:
                continue
            seen[id(child)] = child  # Keeps temporary objects alive, so that no other object has their id.
            waiting.append((f"{path}/{name}", child))
            if not isinstance(child, tf.Variable) or child is agent.train_step_counter:
                continue
            is_optimizers = is_optimizer and child.dtype.is_floating
            is_number = child.shape.rank == 0 and not child.trainable
            if is_optimizers or is_number or isinstance(part, Observations):
                yield f"{path}/{name}", (child, child.numpy(), is_optimizers)
