"""The environment in which a run is evaluated: chosen by the user, or found for the dataset."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlds2reverb.datasets import Source
from rlds2reverb.envs.evaluation import Evaluator, name_environment
from rlds2reverb.errors import ArgumentError, Message
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.runs import Run
from rlds2reverb.system.installation import install_command
from rlds2reverb.types.evaluations import read_reference_returns
from rlds2reverb.types.locations import TableLocation
from rlds2reverb.types.scores import D4RL, REFERENCE_RETURNS, d4rl_environment

from .config import AUTO, NO_ENVIRONMENT, TrainingConfig
from .environment_spec import describe_env, restore_env

#: Modules of environments, and the extras that install them.
_EXTRAS = {"ogbench": "ogbench", "dm_control": "dm-control"}
#: Gymnasium environments by a word in the name of a dataset.
_ENVIRONMENTS = {
    name.partition("-")[0].lower(): name
    for name in ("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5",
                 "Pendulum-v1", "Reacher-v5", "Swimmer-v5", "Walker2d-v5")
}  # fmt: skip
#: Part of the names of OGBench's environments that have one task.
_SINGLE_TASK = "singletask"
_NO_TASK = "no evaluation, because the tasks of the dataset's environment are goals; train an agent that observes them"
_DISABLE = Message("; evaluation can be disabled", env=None)


@dataclass(frozen=True)
class EvaluationEnvironment:
    """The environment of the evaluations, or the reason why nothing is evaluated.

    Attributes:
      name: name of the environment, or ''.
      make_env: argument of `Evaluator` that makes environments, or None.
      note: sentence for the user about an environment that was not chosen by the user; None if it was.
    """

    name: str
    make_env: Any
    note: str | None = None

    @cached_property
    def spec(self) -> dict[str, Any] | None:
        """The description of the environment as JSON values, which identifies it; see `describe_env`."""
        return None if self.make_env is None else describe_env(self.make_env)


def environment_key(environment: EvaluationEnvironment | None) -> tuple[str | None, dict[str, Any] | None]:
    """Returns the name and the description of an environment; None for both without an environment."""
    return (None, None) if environment is None or environment.make_env is None else (environment.name, environment.spec)


def restore_environment(run: Run) -> EvaluationEnvironment | None:
    """Returns the environment in which a run was evaluated, with its arguments, own time limit and wrappers.

    The option `eval_max_episode_steps` of the run is not a part of it.

    Returns:
      The environment; None if the run was not evaluated.

    Raises:
      ValueError: If it was created by a function that cannot be imported, or has changed.
    """
    name: str | None = run.environment
    spec: Any = run.config.get("environment_spec")
    if name is None:
        return None
    environment = EvaluationEnvironment(name, name)
    if spec is None:  # `train` did not write the run.
        return environment
    try:
        if environment.spec == spec:
            return environment
    except (ImportError, ValueError):  # It is not registered here.
        pass
    return EvaluationEnvironment(name, restore_env(spec))


def find_environment(config: TrainingConfig, source: Source | TableLocation | None) -> EvaluationEnvironment | None:
    """Returns the environment of the evaluations of a run on `source`; see `resolve_environment`."""
    return resolve_environment(config.env, source, has_goals=get_algorithm(config.algo).items == "goals")


def resolve_environment(
    env: Any, source: Source | TableLocation | None, *, has_goals: bool = False
) -> EvaluationEnvironment | None:
    """Returns the environment of the evaluations.

    Args:
      env: None or 'none' for no evaluation; the id of a Gymnasium environment; 'my_module:MyEnv-v0' to import a module
        first; a `gymnasium.Env` with a `spec`, from which new ones are made; a `gymnasium.EnvSpec`; a function that
        returns a new environment in each call, or its reference 'my_module:make_env'; a description of one of these,
        see `describe_env`; or 'auto' for the environment that a Minari dataset names, or else that of a word in the
        dataset's name, such as Hopper-v5 for hopper_medium-v2.hdf5.
      source: the data, opened with `open_source`, or None. With 'auto', nothing that they name is imported: only
        environments that are already registered are used.
      has_goals: whether the agent observes goals, without which most environments of OGBench have no fixed task.

    Returns:
      The environment; None if `env` is None. With 'auto' there is always a note, and no `make_env` if none was found.

    Raises:
      ValueError: If an environment has no `spec`, or a description names something that cannot be imported.
      TypeError: If `env` is not one of these.
      ImportError: If `env` is an object, and Gymnasium is not installed.
    """
    if env is None or (isinstance(env, str) and env == NO_ENVIRONMENT):
        return None
    if not (isinstance(env, str) and env == AUTO):
        return EvaluationEnvironment(*name_environment(restore_env(env) if isinstance(env, Mapping) else env))
    if isinstance(source, Source) and source.env_spec is not None:
        if source.kind == "ogbench" and not has_goals and _SINGLE_TASK not in source.env_spec:
            return EvaluationEnvironment("", None, Message(_NO_TASK, algo="gciql"))
        if source.kind == "ogbench":  # Its description comes from the name that the user passed, not from a file.
            with contextlib.suppress(ImportError):
                importlib.import_module("ogbench")
        return _find_own(source.env_spec)
    if isinstance(source, TableLocation):
        data_name = "" if source.directory is None else source.directory.name
    else:
        data_name = "" if source is None or source.kind == "memory" else source.name
    words = re.split(r"[^a-z0-9]+", data_name.lower())
    name = next((_ENVIRONMENTS[word] for word in reversed(words) if word in _ENVIRONMENTS), None)
    if name is None:
        sentence = "no evaluation, because the environment of the dataset is unknown; choose one"
        return EvaluationEnvironment("", None, Message(sentence, env="Hopper-v5"))
    if name not in _read_registry():
        note = f"no evaluation, because {name} is not installed; run {install_command('eval')}"
        return EvaluationEnvironment("", None, note)
    return EvaluationEnvironment(name, name, f"evaluating in {name}, derived from the name of the dataset" + _DISABLE)


def _read_registry() -> Mapping[str, Any]:
    """Returns Gymnasium's registered environments by id; none if it is not installed."""
    try:
        from gymnasium.envs.registration import registry
    except ImportError:
        return {}
    return registry


def _find_own(env_spec: str) -> EvaluationEnvironment:
    """Returns the environment that a dataset describes, if it is registered and nothing else needs to be imported.

    Args:
      env_spec: Gymnasium's `EnvSpec` as JSON. Its author may be anyone: it may name any module as its entry point, as a
        wrapper, or as an argument of a harmless environment.
    """
    spec: Any = {}  # Any part of the JSON may be damaged.
    with contextlib.suppress(ValueError, RecursionError):
        spec = json.loads(env_spec)
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
        spec = {}
    name, arguments, steps = spec.get("id", ""), spec.get("kwargs"), spec.get("max_episode_steps")
    arguments = arguments if isinstance(arguments, dict) else {}
    has_wrappers, registered = bool(spec.get("additional_wrappers")), _read_registry().get(name)
    if registered is None:
        module = str(spec.get("entry_point")).partition(":")[0].partition(".")[0]
        is_importable = module.isidentifier() and module not in ("None", "__main__", "gymnasium")
        reason = f"{name or 'its description'} is not registered with Gymnasium"
        advice, env = "import its module", f"{module if is_importable else 'MODULE'}:{name or 'NAME'}"
        if module in _EXTRAS and importlib.util.find_spec(module) is None:
            advice = f"run {install_command(_EXTRAS[module])}, then repeat the command or import its module"
    elif has_wrappers or any(isinstance(value, str) for value in arguments.values()):
        reason = f"its {name} has {'wrappers' if has_wrappers else 'arguments'} that may import other modules"
        advice, env = "pass a function that creates it", "MODULE:NAME"
    else:
        limit = steps if isinstance(steps, int) and steps > 0 else registered.max_episode_steps
        own = replace(registered, kwargs={**registered.kwargs, **arguments}, max_episode_steps=limit)
        note = f"evaluating in {name}, the environment of the dataset" + _DISABLE
        return EvaluationEnvironment(name, name if own == registered else own, note)
    note = Message(f"no evaluation in the dataset's environment, because {reason}; {advice}", env=env)
    return EvaluationEnvironment("", None, note)


def evaluator_arguments(config: TrainingConfig, environment: EvaluationEnvironment) -> dict[str, Any]:
    """Returns the arguments of the `Evaluator` of a run in an environment that has a `make_env`.

    Raises:
      ValueError: See `resolve_reference_returns`.
    """
    has_goals = get_algorithm(config.algo).items == "goals"
    return {
        "make_env": environment.make_env,
        "num_episodes": config.eval_episodes,
        "max_episode_steps": config.eval_max_episode_steps,
        "reference_returns": resolve_reference_returns(config.reference_returns, environment.name),
        # The evaluations are then comparable to the agent's Q-values, unless its rewards are those of goals.
        "discount": config.gamma if "discount" in config.resolved_hyperparameters and not has_goals else None,
        "with_goals": has_goals,
    }


def make_evaluator(
    config: TrainingConfig, environment: EvaluationEnvironment | None, warn: Callable[[str], None]
) -> Evaluator | None:
    """Returns the evaluator of a run; None without evaluation.

    If the environment cannot be created because a package is missing, `warn` is called, unless the run has an online
    phase.

    Raises:
      ImportError: If the environment of an online phase requires a package that is missing.
      Exception: See `Evaluator`.
    """
    if environment is None or environment.make_env is None:
        return None
    try:
        return Evaluator(**evaluator_arguments(config, environment))
    except ImportError as error:
        if config.online_steps:
            raise
        warn(f"no evaluation: {error}")
        return None


def resolve_reference_returns(value: Any, environment: str) -> tuple[float, float] | None:
    """Returns the returns of a random policy and an expert that define the scores 0 and 100 in an environment.

    Args:
      value: two numbers; 'd4rl' for those of D4RL, which were measured in its v2 environments with mujoco-py; the path
        of a JSON file, see `read_reference_returns`; or None.
      environment: name of the environment.

    Raises:
      ValueError: If D4RL or the file has no reference returns for the environment.
    """
    if value is None:
        return None
    if isinstance(value, str) and value == D4RL:
        key = d4rl_environment(environment)
        if key is None:
            sentence = f"D4RL has no reference returns for {environment}; pass two numbers or a JSON file"
            raise ArgumentError(sentence, reference_returns=...)
        return REFERENCE_RETURNS[key]
    if isinstance(value, (str, Path)):
        return read_reference_returns(value, environment)
    random, expert = value
    return float(random), float(expert)
