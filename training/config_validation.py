"""The rules that the options of a training run must meet, and those that have no effect in a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds2reverb.datasets.transforms import parse_reward
from rlds2reverb.errors import ArgumentError, Message
from rlds2reverb.learners.algorithms import RUN_HYPERPARAMETERS, Algorithm, get_algorithm
from rlds2reverb.learners.hooks.configuration import SHORTHAND, read_shorthand
from rlds2reverb.learners.option_declarations import parse_literal
from rlds2reverb.system.references import is_reference, resolve_reference
from rlds2reverb.system.text import suggest
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.scores import D4RL

from .option_fields import EVALUATION, ONLINE, declare_fields

if TYPE_CHECKING:
    from .config import TrainingConfig

#: The options that agents of some kinds of items do not have: their value, and the reason.
_FIXED_OPTIONS: dict[str | None, dict[str, tuple[Any, str]]] = {
    "trajectories": {
        "n_step": (1, "which learns from the next action as well"),
        "observation_offsets": ((0,), "which learns from trajectories"),
    },
    "goals": {
        "n_step": (1, "which learns to reach goals"),
        "random_shift": (0, "which learns to reach goals"),
        "observation_offsets": ((0,), "which learns to reach goals"),
    },
    "windows": {
        "observation_offsets": ((0,), "which sees its context_length instead"),
        "n_step": (1, "which learns from windows of single steps"),
        "reward": (None, "whose policy subtracts the environment's own rewards from its target return"),
        "online_steps": (0, "which learns from the episodes of a dataset only"),
        "random_shift": (0, "which does not learn from images"),
    },
}
NO_ENVIRONMENT_TO_COLLECT_IN = Message("requires an environment to collect in", about="online_steps", env=...)


def require_consistent(config: TrainingConfig) -> None:
    """Raises an error if options contradict each other or the algorithm; see `TrainingConfig`."""
    algorithm = get_algorithm(config.algo)
    if config.reward is not None:
        parse_reward(config.reward)
    _require_reference_returns(config.reference_returns)
    _require_suitable(config, algorithm)
    _require_chunks(config, algorithm)
    _require_online(config, algorithm)


def resolve_sampler(sampler: Any) -> Callable[[Any], Any] | None:
    """Returns the function that weighs episodes, or None for uniform and prioritized sampling.

    Raises:
      ArgumentError: If it is neither 'uniform', 'prioritized' nor a function, or cannot be imported.
    """
    if sampler in ("uniform", "prioritized"):
        return None
    found = resolve_reference("sampler", sampler) if is_reference(sampler) else sampler
    if not callable(found):
        raise ArgumentError(
            f"must be 'uniform', 'prioritized', or a function that returns weights, got {sampler!r}", about="sampler"
        )
    return found


def _require_suitable(config: TrainingConfig, algorithm: Algorithm) -> None:
    if config.epochs is not None and config.steps is not None:
        sentence = f"cannot be combined with {config.steps:,} updates; leave out one of them"
        raise ArgumentError(sentence, about="epochs", steps=...)
    resolve_sampler(config.sampler)
    if config.epochs is not None and config.sampler != "uniform":
        raise ArgumentError("requires a uniform sampler", about="epochs", sampler="uniform")
    for name, (value, reason) in _FIXED_OPTIONS.get(algorithm.items, {}).items():
        if getattr(config, name) != value:
            raise ArgumentError(f"must be {value} for {config.algo}, {reason}", about=name)
    if config.sampler == "prioritized" and algorithm.has_td_errors is False:
        sentence = f"must be 'uniform' for {config.algo}, which has no TD errors to use as priorities"
        raise ArgumentError(sentence, about="sampler")
    if config.deterministic and config.sampler == "prioritized":
        sentence = "requires a uniform sampler; servers sample nondeterministically"
        raise ArgumentError(sentence, about="deterministic", value=True, sampler="uniform")
    for name in ("discount", "gamma"):
        if name in config.hyperparameters:
            sentence = f"the hyperparameter {name!r} cannot be set, because it must match the stored items"
            raise ArgumentError(f"{sentence}; set the discount factor of the run", gamma=...)


def _require_chunks(config: TrainingConfig, algorithm: Algorithm) -> None:
    if (config.execution_horizon or 1) > config.chunk_length:
        sentence = f"must be at most chunk_length, which is {config.chunk_length}, got {config.execution_horizon}"
        raise ArgumentError(sentence, about="execution_horizon")
    if config.chunk_length == 1:
        return
    if (algorithm.actions, algorithm.items) != ("continuous", "transitions"):
        sentence = f"must be 1 for {config.algo}, which does not learn from transitions with continuous actions"
        raise ArgumentError(sentence, about="chunk_length")
    if config.n_step > 1:
        raise ArgumentError("must be 1 with chunks of actions, which span chunk_length steps", about="n_step")


def _require_online(config: TrainingConfig, algorithm: Algorithm) -> None:
    if not config.online_steps:
        require_count("steps", 1 if config.steps is None else config.steps)
        return
    if not algorithm.learns_from_rewards:
        sentence = f"requires an algorithm that learns from rewards, unlike {config.algo}"
        raise ArgumentError(sentence, about="online_steps")
    if config.env is None:
        raise ValueError(NO_ENVIRONMENT_TO_COLLECT_IN)
    if config.online_steps <= config.warmup_steps:
        raise ArgumentError(
            f"must be greater than the {config.warmup_steps:,} steps of the warm-up, got {config.online_steps:,}",
            about="online_steps",
            warmup_steps=...,
        )
    if config.sampler != "uniform":
        raise ArgumentError("requires a uniform sampler", about="online_steps", sampler="uniform")
    if config.deterministic and config.online_replay == "reverb":
        sentence = "requires collected data in memory; servers sample nondeterministically"
        raise ArgumentError(sentence, about="deterministic", value=True, online_replay="memory")


def _require_reference_returns(value: Any) -> None:
    if value is None or isinstance(value, (str, Path)):
        return
    try:
        random, expert = map(float, value)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"must be two numbers, {D4RL!r}, or the path of a JSON file, got {value!r}", about="reference_returns"
        ) from None
    if not 0 < abs(expert - random) < math.inf:
        raise ValueError(f"the two reference returns must be finite and differ, got {random:g} and {expert:g}")


def read_hooks(hooks: Any) -> tuple[Any, ...]:
    """Returns hooks as a tuple; raises `TypeError` or `ValueError` unless each is a hook, a dict or a reference."""
    if isinstance(hooks, (str, Mapping)) or not isinstance(hooks, Iterable):
        raise TypeError(f"hooks must be a list, such as ['my_module:MyHook'], got {hooks!r}")
    hooks = tuple(hooks)
    for hook in hooks:
        if isinstance(hook, str) and not is_reference(hook) and read_shorthand(hook) == hook:
            similar = suggest(hook.partition("=")[0], SHORTHAND)
            raise ArgumentError(f"must be written as 'my_module:MyHook', got {hook!r}{similar}", about="hooks")
        if not isinstance(hook, (str, Mapping)) and not callable(hook):
            raise TypeError(f"hooks must contain hooks, dicts or text such as 'my_module:MyHook', got {hook!r}")
    return hooks


def read_offsets(offsets: Any) -> Any:
    """Returns offsets of observations as ascending tuples, or a dict of them.

    Raises:
      ArgumentError: If they are not different integers up to 0.
    """
    if isinstance(offsets, str):
        offsets = parse_literal(offsets)
    if isinstance(offsets, Mapping) and offsets:
        return {name: read_offsets(given) for name, given in offsets.items()}
    given = tuple(offsets) if isinstance(offsets, Sequence) and not isinstance(offsets, str) else (offsets,)
    if not given or not all(type(one) is int and one <= 0 for one in given) or len(set(given)) < len(given):
        sentence = "must be different integers up to 0, such as (-1, 0), or a dict of them by parts of the observation"
        raise ArgumentError(f"{sentence}, got {offsets!r}", about="observation_offsets")
    return tuple(sorted(given))


def describe_unused(config: TrainingConfig) -> list[str]:
    """Returns sentences about options that were set, but have no effect in this run."""
    sentences: list[str] = []
    unused = {ONLINE: "an online phase"} if not config.online_steps else {}
    unused |= {EVALUATION: "an environment"} if config.env is None else {}
    kind: Any = type(config)
    declared = declare_fields(kind)
    changed = [name for name, option in declared.items() if name != "env" and getattr(config, name) != option.default]
    for group, missing in unused.items():
        names = [name for name in changed if declared[name].group == group]
        sentences += [Message(f"has no effect without {missing}", about=name) for name in names]
    algorithm = get_algorithm(config.algo)
    sentence = f"does not reach {config.algo}, which has no such argument"
    sentences += [Message(sentence, about=name) for name in ("gamma", "seed") if ignores(config, name)]
    if not algorithm.learns_from_rewards:
        of_rewards = [] if algorithm.items == "goals" else ["gamma", "n_step"]
        of_rewards += [] if config.top_percent else ["reward"]
        sentence = f"has no effect on {config.algo}, which does not learn from rewards"
        sentences += [Message(sentence, about=name) for name in changed if name in of_rewards]
    if algorithm.items == "windows" and "gamma" in changed:
        sentences.append(Message(f"has no effect on {config.algo}, whose returns are undiscounted", about="gamma"))
    return sentences


def ignores(config: TrainingConfig, option: str) -> bool:
    """Returns whether an agent that may depend on an option that the run determines does not accept it."""
    from rlds2reverb.learners.agents import get_hyperparameters

    algorithm = get_algorithm(config.algo)
    accepted = [RUN_HYPERPARAMETERS.get(name) for name in get_hyperparameters(config.algo)]
    is_affected = option != "gamma" or algorithm.has_td_errors is not False
    return algorithm.factory is not None and is_affected and option not in accepted
