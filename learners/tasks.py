"""Tasks of a learner as plain dicts, which other processes can create, store and send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tree
from google.protobuf import json_format
from tensorflow.core.protobuf import struct_pb2
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

_LEARNER = {
    "run_dir": "",
    "num_iterations": 0,
    "batch_size": 0,
    "log_every": 500,
    "checkpoint_every": 10_000,
    "checkpoint_every_secs": 300.0,
    "keep_checkpoints": 3,
    "jit_compile": False,
    "random_shift": 0,
    "seed": 0,
    "hooks": (),
    "identity": {},
    "allow_config_mismatch": False,
}
_REQUIRED = {"learner": ("run_dir", "num_iterations", "batch_size"), "policy": ("algo", "specs")}
_STATISTICS = ("observation_mean", "observation_std")


class PolicyTask(NamedTuple):
    """The agent of a task: its algorithm, specs and hyperparameters, as `make_agent` expects them."""

    algo: str
    time_step_spec: Any
    action_spec: Any
    hyperparameters: dict[str, Any]


def make_task(
    name: str,
    algo: str,
    time_step_spec: Any,
    action_spec: Any,
    *,
    hyperparameters: Mapping[str, Any] | None = None,
    **learner: Any,
) -> dict[str, Any]:
    """Returns a task of a `BaseCommLearner`: a dict of JSON values, with the configs of learner and policy.

        make_task("pendulum", "sac", time_step_spec, action_spec, run_dir="runs/sac", num_iterations=10_000,
                  batch_size=256)

    Args:
      name: name of the task.
      algo: name of the algorithm, or reference "my_module:MyAgent" to a custom agent.
      time_step_spec: TF-Agents' spec of the time steps.
      action_spec: bounded spec of the actions.
      hyperparameters: those of the agent; networks as references "my_module:make_network".
      **learner: `run_dir`, `num_iterations` and `batch_size`; optionally `log_every`, `checkpoint_every`,
        `checkpoint_every_secs`, `keep_checkpoints`, `jit_compile`, `random_shift` and its `seed` (see `RandomShift`),
        `hooks` (references such as "my_module:MyHook"), `identity` and `allow_config_mismatch`, see `Learner` and its
        `load_checkpoint`.

    Raises:
      ValueError: If an option is missing or unknown.
    """
    specs = tensor_spec.to_proto({"observation": time_step_spec.observation, "action": action_spec})
    values = tree.map_structure(_make_plain, dict(hyperparameters or {}))
    task = {
        "name": name,
        "learner": {**_LEARNER, **learner, "hooks": list(learner.get("hooks", ()))},
        "policy": {"algo": algo, "specs": json_format.MessageToDict(specs), "hyperparameters": values},
    }
    require_task(task)
    return task


def require_task(task: Mapping[str, Any]) -> None:
    """Raises `ValueError` unless a dict is a complete task."""
    for part, names in _REQUIRED.items():
        missing = [name for name in names if not (task.get(part) or {}).get(name)]
        if missing:
            raise ValueError(f"the {part} config of a task must contain {', '.join(missing)}; create it with make_task")
    unknown = sorted(set(task["learner"]) - set(_LEARNER))
    if unknown:
        raise ValueError(f"the learner config of a task contains {', '.join(unknown)}; use {', '.join(_LEARNER)}")


def read_policy(policy: Mapping[str, Any]) -> PolicyTask:
    """Returns the agent of a task's policy config."""
    message = json_format.ParseDict(policy["specs"], struct_pb2.StructuredValue())
    specs = tensor_spec.from_proto(message)
    hyperparameters, observation = dict(policy.get("hyperparameters") or {}), specs["observation"]
    for name in _STATISTICS:
        if hyperparameters.get(name) is not None:
            hyperparameters[name] = tree.map_structure_up_to(observation, np.float64, hyperparameters[name])
    return PolicyTask(policy["algo"], ts.time_step_spec(observation), specs["action"], hyperparameters)


def _make_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
