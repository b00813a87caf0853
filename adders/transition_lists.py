"""Lists of transitions, the dicts that DI-engine keeps: checked, cut at their ends, stacked.

A value may be None in some transitions, such as the `prev_state` of a recurrent policy at the first one, or the `logit`
of a random action. Where such values are stacked, zeros stand in their place; a value that is None in all of them
stays None. `get_gae` and `get_nstep_return_data` refuse it in the fields that they compute with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from .returns import n_step_returns

#: A step of the agent: a dict with `obs`, `action`, `reward`, `done`, and whatever else; values may be nests.
Transition = dict[str, Any]


def listed(data: Iterable[Transition], *keys: str) -> list[Transition]:
    """The transitions, all of which have the keys."""
    trajectory = list(data)
    if not trajectory:
        raise ValueError("there are no transitions, expected at least one")
    wanted = frozenset(keys)
    for number, transition in enumerate(trajectory):
        if not wanted <= transition.keys():
            missing = next(key for key in keys if key not in transition)
            raise ValueError(f"transition {number} has no {missing!r}, found {list(transition)}")
    return trajectory


def column(trajectory: Sequence[Transition], key: str) -> np.ndarray:
    """Returns what all transitions have under a key, `[T, ...]`; raises `ValueError` where one has None."""
    for number, transition in enumerate(trajectory):
        if transition[key] is None:
            raise ValueError(f"transition {number} has None as its {key!r}, expected a number or an array")
    return np.array([transition[key] for transition in trajectory])


def flag(transition: Mapping[str, Any], key: str) -> bool:
    """Whether a transition has the flag, False where it has no such key."""
    value = transition.get(key, False)
    return bool(value if isinstance(value, (bool, np.bool_)) else np.any(value))


def flags(trajectory: Sequence[Transition], key: str) -> np.ndarray:
    """Bool `[T]`: whether each transition has the flag, False where it has no such key."""
    return np.array([flag(transition, key) for transition in trajectory])


def breaks_off(transition: Any) -> bool:
    """Returns whether a transition says that its episode continues after it."""
    if not isinstance(transition, Mapping) or "done" not in transition:
        return False
    return not flag(transition, "done") and not flag(transition, "truncated")


def episodes(trajectory: list[Transition], traj_len: float) -> Iterable[list[Transition]]:
    """Parts that end with a `done`, a `truncated`, or a full trajectory."""
    part: list[Transition] = []
    for number, transition in enumerate(trajectory, start=1):
        part.append(transition)
        ended = flag(transition, "done") or flag(transition, "truncated")
        if ended or number == len(trajectory) or (traj_len != math.inf and number % traj_len == 0):
            yield part
            part = []


def n_step_part(part: list[Transition], nstep: int, *, cum_reward: bool, gamma: float) -> list[Transition]:
    """The n-step transitions of one part; see `Adder.get_nstep_return_data`."""
    rewards = column(part, "reward")
    if cum_reward:
        floats = rewards.astype(rewards.dtype if rewards.dtype.kind == "f" else np.float32)
        per_step = n_step_returns(floats, np.ones_like(floats), n=nstep, gamma=gamma)[0].numpy()
    else:
        padded = np.concatenate([rewards, np.zeros((nstep - 1, *rewards.shape[1:]), rewards.dtype)])
        per_step = padded[np.arange(len(part))[:, None] + np.arange(nstep)]
        if rewards.shape[1:] == (1,):  # DI-engine joins rewards of shape [1] to [nstep]
            per_step = per_step[:, :, 0]
    out = []
    for first, transition in enumerate(part):
        steps = min(nstep, len(part) - first)
        changed = {
            "reward": per_step[first],
            "done": part[first + steps - 1]["done"],
            "value_gamma": gamma**steps,
        }
        if "next_obs" in transition:
            inside = first + steps < len(part)
            changed["next_obs"] = part[first + steps]["obs"] if inside else part[-1]["next_obs"]
        out.append({**transition, **changed})
    return out


def null(given: Transition | None, template: Transition) -> Transition:
    """Returns a null transition: the one that is given, or zeros like the template's values; either way it is done.

    `done` is True, and `reward` and `value_gamma` are 0, where it has them.
    """
    transition = tree.map_structure(_zeros, template) if given is None else dict(given)
    if "done" in transition:
        transition["done"] = np.ones_like(np.asarray(transition["done"]))
    for name in ("reward", "value_gamma"):
        if name in transition:
            transition[name] = tree.map_structure(_zeros, transition[name])
    return transition


def _zeros(leaf: Any) -> Any:
    """Returns zeros like a leaf; empty strings like one of strings, and None for None."""
    return None if leaf is None else np.zeros_like(np.asarray(leaf))


def stacked(chunk: Sequence[Transition]) -> dict[str, Any]:
    """Returns the nest of a transition with the leaves of all stacked, `[T, ...]`; None where all are None."""
    return dict(tree.map_structure(_stack, *chunk))


def without_none(trajectory: Sequence[Transition]) -> list[Transition]:
    """Returns the transitions with zeros where a value is None but another transition has one of that name.

    Raises:
      ValueError: if they have other fields or nests than the first.
    """
    names = list(trajectory[0])
    for number, transition in enumerate(trajectory):
        if transition.keys() != trajectory[0].keys():
            raise ValueError(f"transition {number} has the fields {list(transition)}, the first one has {names}")
    columns = [_without_none(name, [transition[name] for transition in trajectory]) for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _without_none(name: str, nests: Sequence[Any]) -> list[Any]:
    """Returns one field of all transitions, with zeros like the first value that there is in the place of None."""
    example = next((nest for nest in nests if nest is not None), None)
    if tree.is_nested(example):
        return _parts_without_none(name, nests, example)
    return [_zeros(example) if nest is None else nest for nest in nests]


def _parts_without_none(name: str, nests: Sequence[Any], example: Any) -> list[Any]:
    """The same for a nest, part by part: the nest may be None as a whole, or a part of it."""
    shallow = [tree.map_structure(lambda _: None, example) if nest is None else nest for nest in nests]
    try:
        for nest in shallow:
            tree.assert_same_structure(example, nest)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the transitions have {name!r} in different nests: {example} and {nest}") from error
    columns = [_without_none(name, leaves) for leaves in zip(*map(tree.flatten, shallow), strict=True)]
    return [tree.unflatten_as(example, leaves) for leaves in zip(*columns, strict=True)]


def _stack(*parts: Any) -> Any:
    return None if parts[0] is None else np.stack([np.asarray(part) for part in parts])
