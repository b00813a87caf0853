"""A check that an environment, with its wrappers, keeps the contract of `Environment`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb._arguments import require_count
from rlds2reverb.specs import ArraySpec, Nest, describe, leaves, path_name

from .environment import Environment
from .specs import BoundedArraySpec
from .time_steps import FIRST, LAST, TimeStep


def check_wrapper(make_env: Callable[[], Environment], *, num_steps: int = 200, seed: int = 0) -> None:
    """Checks an environment, and so the wrappers around it, with random actions.

        check_wrapper(lambda: MyWrapper(suite_gym.load("Pendulum-v1")))

    It checks that time steps match the specs (structure, shapes, dtypes, bounds), that episodes start with FIRST, end
    with LAST and continue with FIRST, that only LAST steps have the discount 0, that `prev_action` is the action, that
    `current_time_step` is the last one returned, that rewards and observations that differ from those of the wrapped
    environment come with `untransformed`, that equal seeds give equal time steps, and that `close` is idempotent.

    Args:
      make_env: function that creates the environment, which is not batched.
      num_steps: number of steps.
      seed: seed of the environment and of the actions.

    Raises:
      AssertionError: If the environment breaks the contract; the message names the step and the field.
    """
    require_count("num_steps", num_steps)
    first = _play(make_env, num_steps, seed)
    second = _play(make_env, num_steps, seed)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        for (path, value), (_, repeated) in zip(leaves(tuple(one[:5])), leaves(tuple(other[:5])), strict=True):
            _require(
                np.array_equal(value, repeated, equal_nan=np.asarray(value).dtype.kind == "f"),
                f"{path_name(path[1:], TimeStep._fields[path[0]])} of step {number} differs between two environments "
                "with the same seed; seed all random numbers in seed()",
            )


def _play(make_env: Callable[[], Environment], num_steps: int, seed: int) -> list[TimeStep]:
    env, random = make_env(), np.random.default_rng(seed)
    _require(not env.batched, "the environment must not be batched; check the environments of the batch")
    env.seed(seed)
    time_steps: list[TimeStep] = []
    for number in range(num_steps):
        action = sample_action(env.action_spec(), random)
        time_step = env.step(action)
        _check_values(env.time_step_spec(), time_step, number)
        _check_order(time_steps[-1] if time_steps else None, time_step, number)
        _require(env.current_time_step() is time_step, f"current_time_step() differs from step {number}")
        inner = env.env.current_time_step() if hasattr(env, "env") else None
        if inner is not None and time_step.untransformed == ():
            for name in ("reward", "observation"):
                same = _are_equal(getattr(inner, name), getattr(time_step, name))
                is_summed = name == "reward" and np.shape(inner.reward) == np.shape(time_step.reward)
                _require(
                    same or is_summed,
                    f"{name} of step {number} was transformed, but untransformed is (); use keep_untransformed",
                )
        if time_step.step_type != FIRST:
            _require(_are_equal(time_step.prev_action, action), f"prev_action of step {number} is not the action")
        time_steps.append(time_step)
    env.close()
    env.close()
    return time_steps


def _check_values(spec: TimeStep, time_step: TimeStep, number: int) -> None:
    _require(isinstance(time_step, TimeStep), f"step {number} must be a TimeStep, got a {type(time_step).__name__}")
    for name in TimeStep._fields:
        if name == "untransformed":
            continue
        got, expected = leaves(getattr(time_step, name)), leaves(getattr(spec, name))
        paths = [[path for path, _ in nest] for nest in (got, expected)]
        _require(paths[0] == paths[1], f"{name} of step {number} has the fields {paths[0]}, its spec has {paths[1]}")
        for (path, value), (_, leaf) in zip(got, expected, strict=True):
            array = np.asarray(value)
            place = f"{path_name(path, name)} of step {number}"
            _require(
                (array.shape, array.dtype) == (leaf.shape, leaf.dtype),
                f"{place} is {describe(array)}, its spec is {describe(leaf)}",
            )
            if isinstance(leaf, BoundedArraySpec) and array.size:
                _require(leaf.contains(array), f"{place} is outside the bounds of its spec: {array}")


def _check_order(previous: TimeStep | None, time_step: TimeStep, number: int) -> None:
    is_start = previous is None or previous.step_type == LAST
    expected = "FIRST" if is_start else "MID or LAST"
    _require((time_step.step_type == FIRST) == is_start, f"step_type of step {number} must be {expected}")
    if time_step.step_type == FIRST:
        _require(not np.any(time_step.reward), f"reward of step {number} must be 0 in the first step of an episode")
    if time_step.step_type != LAST:
        _require(time_step.discount != 0, f"discount of step {number} is 0, which only LAST steps may have")


def sample_action(spec: Nest, random: np.random.Generator) -> Nest:
    """Returns a random action within its bounds; unbounded floats are normally distributed."""
    if isinstance(spec, dict):
        return {key: sample_action(part, random) for key, part in spec.items()}
    if isinstance(spec, tuple):
        return tuple(sample_action(part, random) for part in spec)
    return _sample_leaf(spec, random)


def _sample_leaf(spec: ArraySpec, random: np.random.Generator) -> Any:
    if not isinstance(spec, BoundedArraySpec):
        raise TypeError(f"actions must have bounds to be sampled, got {spec}")
    shape: Any = spec.shape
    if spec.dtype.kind in "iu":
        return random.integers(spec.minimum, spec.maximum, shape, spec.dtype, endpoint=True)
    is_bounded = np.isfinite(spec.minimum) & np.isfinite(spec.maximum)
    low, high = np.where(is_bounded, spec.minimum, 0), np.where(is_bounded, spec.maximum, 1)
    values = np.where(is_bounded, random.uniform(low, high, shape), random.normal(size=shape))
    return np.clip(values, spec.minimum, spec.maximum).astype(spec.dtype)


def _are_equal(one: Nest, other: Nest) -> bool:
    first, second = leaves(one), leaves(other)
    return len(first) == len(second) and all(
        path == other_path and np.array_equal(value, other_value)
        for (path, value), (other_path, other_value) in zip(first, second, strict=True)
    )


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)
