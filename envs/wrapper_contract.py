"""A check that an environment, with its wrappers, keeps the contract of `Environment`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, path_name

from .batched_environment import make_row_reader, stack
from .env_specs import BoundedArraySpec, require_equal_specs, sample_action
from .environment import Environment
from .time_steps import FIRST, LAST, TimeStep


def check_wrapper(make_env: Callable[[], Environment], *, num_steps: int = 200, seed: int = 0) -> None:
    """Checks an environment, and so the wrappers around it, with random actions.

        check_wrapper(lambda: MyWrapper(suite_gym.load("Pendulum-v1")))

    It checks that

    - time steps match the specs in structure, shapes, dtypes and bounds, and do not change after they were returned;
    - episodes start with FIRST, end with LAST and continue with FIRST, and `reset` starts a new one at any time;
    - only LAST steps have the discount 0, and `prev_action` is the action;
    - no wrapper hides the end of an episode, turns a termination into a truncation or a truncation into a termination,
      unless its `intended_changes` say so;
    - rewards and observations that differ from those of the wrapped environment come with `untransformed`, which
      contains the ones before the first change;
    - equal seeds give equal time steps, `current_time_step` is the last one returned, and `close` is idempotent.

    Args:
      make_env: function that creates the environment, batched or not. In a batch each environment is checked.
      num_steps: number of steps; in the middle, the environment is reset.
      seed: seed of the environment and of the actions.

    Raises:
      AssertionError: If the environment breaks the contract; the message names the step and the field.
    """
    require_count("num_steps", num_steps)
    first = _play(make_env, num_steps, seed)
    second = _play(make_env, num_steps, seed)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        complaint = "differs between two environments with the same seed; seed all random numbers in seed()"
        _require_equal(one, other, number, complaint)


def _play(make_env: Callable[[], Environment], num_steps: int, seed: int) -> list[TimeStep]:
    """Steps an environment with random actions, checks each time step, and returns copies of all of them.

    The copies have no `untransformed`, which contains their other fields again.
    """
    env, random = make_env(), np.random.default_rng(seed)
    env.seed(seed)
    spec, size = env.time_step_spec(), env.batch_size
    _check_specs(env, spec)
    time_steps: list[TimeStep] = []
    copies: list[TimeStep] = []
    previous: list[TimeStep | None] = [None] * (size or 1)
    for number in range(num_steps):
        actions = [sample_action(env.action_spec(), random) for _ in previous]
        action = actions[0] if size is None else stack(actions)
        must_reset = not env.auto_reset and (previous[0] is None or previous[0].step_type == LAST)
        if must_reset or number == num_steps // 2:
            time_step, previous = env.reset(), [None] * len(previous)
        else:
            time_step = env.step(action)
        _check_values(spec, time_step, number, () if size is None else (size,))
        _require(env.current_time_step() is time_step, f"current_time_step() differs from step {number}")
        _check_layers(env, number)
        current = [time_step] if size is None else _split(time_step, size)
        for before, one, own_action in zip(previous, current, actions, strict=True):
            _check_order(before, one, number)
            if one.step_type != FIRST:
                _require(_are_equal(one.prev_action, own_action), f"prev_action of step {number} is not the action")
        previous = list(current)
        time_steps.append(time_step._replace(untransformed=()))
        copies.append(copy_arrays(time_steps[-1]))
    for number, (time_step, copied) in enumerate(zip(time_steps, copies, strict=True)):
        _require_equal(time_step, copied, number, "changed after it was returned; return new arrays in each step")
    env.close()
    env.close()
    return copies


def _split(time_step: TimeStep, size: int) -> list[TimeStep]:
    rows = make_row_reader(tuple(time_step._replace(untransformed=())))
    return [TimeStep(*rows(index)) for index in range(size)]


def _check_specs(env: Environment, spec: TimeStep) -> None:
    require_equal_specs(
        spec,
        Environment.time_step_spec(env),
        holders=("the environment's own spec", "time_step_spec()"),
        advice="override observation_spec(), action_spec(), reward_spec() or env_info_spec() instead",
    )


def _check_layers(env: Environment, number: int) -> None:
    """Compares the current time step of each wrapper with that of the environment it wraps."""
    layer: Any = env
    while isinstance(inner := getattr(layer, "env", None), Environment):
        before, after = inner.current_time_step(), layer.current_time_step()
        if inner.batched == layer.batched and before is not None:
            changes: frozenset[str] = getattr(layer, "intended_changes", frozenset())
            _check_transformation(before, after, number, changes)
            _check_ends(before, after, number, changes)
        layer = inner


def _check_transformation(before: TimeStep, after: TimeStep, number: int, changes: frozenset[str]) -> None:
    if not np.array_equal(before.step_type == FIRST, after.step_type == FIRST):
        return  # The wrapper splits episodes, for example into lives.
    if after.untransformed == ():
        for name in ("reward", "observation"):
            _require(
                _are_equal(getattr(before, name), getattr(after, name))
                or (name == "reward" and "sums_rewards" in changes),
                f"{name} of step {number} was transformed, but untransformed is (); use keep_untransformed",
            )
        return
    original = before if before.untransformed == () else before.untransformed
    _require(
        _are_equal(original.observation, after.untransformed.observation),
        f"untransformed of step {number} is not the time step before the first transformation; use keep_untransformed",
    )


def _check_ends(before: TimeStep, after: TimeStep, number: int, changes: frozenset[str]) -> None:
    is_running = np.asarray(after.step_type != FIRST)
    _require(
        not np.any(is_running & (before.step_type == LAST) & (after.step_type != LAST)),
        f"step {number} is LAST in the wrapped environment, but not in the wrapper; its next step would be the first "
        "of a different episode",
    )
    before_is_terminated, after_is_terminated = before.is_terminated(), after.is_terminated()
    if "hides_terminations" not in changes:
        _require(
            not np.any(is_running & before_is_terminated & ~np.asarray(after_is_terminated)),
            f"step {number} is terminated in the wrapped environment, but the wrapper changed its discount from 0; "
            "keep it, or add 'hides_terminations' to intended_changes",
        )
    if "adds_terminations" not in changes:
        _require(
            not np.any(is_running & after_is_terminated & ~np.asarray(before_is_terminated)),
            f"step {number} is not terminated in the wrapped environment, but the wrapper changed its discount to 0; "
            "truncated episodes keep their discount; otherwise add 'adds_terminations' to intended_changes",
        )


def _check_values(spec: TimeStep, time_step: TimeStep, number: int, leading: tuple[int, ...]) -> None:
    _require(isinstance(time_step, TimeStep), f"step {number} must be a TimeStep, got a {type(time_step).__name__}")
    got, expected = leaves(time_step._replace(untransformed=())), leaves(spec)
    names = [[_name(path) for path, _ in nest] for nest in (got, expected)]
    _require(names[0] == names[1], f"step {number} has the fields {names[0]}, its spec has {names[1]}")
    for (path, value), (_, leaf) in zip(got, expected, strict=True):
        array, place = np.asarray(value), f"{_name(path)} of step {number}"
        expected_leaf = ArraySpec((*leading, *leaf.shape), leaf.dtype)
        _require(
            (array.shape, array.dtype) == (expected_leaf.shape, leaf.dtype),
            f"{place} is {describe(array)}, its spec is {describe(expected_leaf)}",
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


def _require_equal(one: TimeStep, other: TimeStep, number: int, complaint: str) -> None:
    differences = _find_differences(one, other)
    _require(not differences, f"{', '.join(differences)} of step {number} {complaint}")


def _are_equal(one: Nest, other: Nest) -> bool:
    return not _find_differences(one, other)


def _find_differences(one: Nest, other: Nest) -> list[str]:
    """Returns the names of the leaves in which two nests differ."""
    first, second = dict(leaves(one)), dict(leaves(other))
    return [_name(path) for path in {**first, **second} if not _is_equal(first.get(path, ()), second.get(path, ()))]


def _is_equal(value: Any, other: Any) -> bool:
    return np.array_equal(value, other, equal_nan=np.asarray(value).dtype.kind == "f")


def _name(path: tuple[Any, ...]) -> str:
    """Returns the name of a leaf of a time step, such as `observation['joints']`."""
    return path_name(path[1:], *path[:1])


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)
