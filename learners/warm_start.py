"""Initialisation of an agent with another run's weights, but not its optimisers and counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.agents import tf_agent

from rlds2reverb.errors import CheckpointError, SpecMismatchError
from rlds2reverb.types.specs import path_name

from .checkpoints import Checkpoint


def describe_specs(agent: tf_agent.TFAgent) -> dict[str, Any]:
    """Returns dtype, shape and bounds of each observation and action of an agent by name, as JSON values."""
    nests = {"observation": agent.time_step_spec.observation, "action": agent.action_spec}
    return {
        path_name(path, name): _describe(spec)
        for name, nest in nests.items()
        for path, spec in tree.flatten_with_path(nest)
    }


def _describe(spec: tf.TypeSpec) -> dict[str, Any]:
    bounds = {name: np.asarray(getattr(spec, name)).tolist() for name in ("minimum", "maximum") if hasattr(spec, name)}
    return {"dtype": spec.dtype.name, "shape": list(spec.shape), **bounds}


def load_weights(checkpoint: Checkpoint, agent: tf_agent.TFAgent) -> None:
    """Sets an agent's weights and normalisation to those of a checkpoint; optimisers and counters are left unchanged.

    All variables of the agent's optimisers must already exist.

    Raises:
      CheckpointError: If the checkpoint belongs to a different agent, or was written before it contained specs.
      SpecMismatchError: If observations or actions differ, including the bounds of actions.
    """
    saved, own = checkpoint.manifest.get("specs"), describe_specs(agent)
    if saved is None:
        raise CheckpointError(f"{checkpoint.path} does not contain the specs of its agent; continue that run first")
    for name in {**saved, **own}:
        if saved.get(name) != own.get(name):
            raise SpecMismatchError(
                f"{name} is {_format(own.get(name))}, but {_format(saved.get(name))} in {checkpoint.path}; "
                "use an agent with the same specs"
            )
    kept = [(variable, variable.numpy()) for variable in _optimizer_variables(agent)]
    kept.append((agent.train_step_counter, agent.train_step_counter.numpy()))
    try:
        checkpoint.read({"agent": agent})
    finally:
        for variable, value in kept:
            variable.assign(value)


def _format(spec: dict[str, Any] | None) -> str:
    if spec is None:
        return "missing"
    bounds = f" in [{spec['minimum']}, {spec['maximum']}]" if "minimum" in spec else ""
    return f"{spec['dtype']} {spec['shape']}{bounds}"


def _optimizer_variables(agent: tf_agent.TFAgent) -> Iterable[tf.Variable]:
    """Yields the variables of all optimisers except the weights that they train."""
    for part in tf.train.TrackableView(agent).descendants():
        if not callable(getattr(part, "minimize", None)):
            continue
        own = getattr(part, "variables", ())
        candidates = [*(own() if callable(own) else own), *tf.train.TrackableView(part).descendants()]
        for variable in candidates:
            if isinstance(variable, tf.Variable) and not variable.trainable:
                yield variable
