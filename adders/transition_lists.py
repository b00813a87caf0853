"""Lists of transitions, the dicts that DI-engine keeps: checked, cut at their ends, stacked."""

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
    """What all transitions have under a key, `[T, ...]`."""
    return np.array([transition[key] for transition in trajectory])


def flag(transition: Mapping[str, Any], key: str) -> bool:
    """Whether a transition has the flag, False where it has no such key."""
    value = transition.get(key, False)
    return bool(value if isinstance(value, (bool, np.bool_)) else np.any(value))


def flags(trajectory: Sequence[Transition], key: str) -> np.ndarray:
    """Bool `[T]`: whether each transition has the flag, False where it has no such key."""
    return np.array([flag(transition, key) for transition in trajectory])


def breaks_off(transition: Any) -> bool:
    """Whether a transition says that its episode goes on after it."""
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


def null(transition: Transition) -> Transition:
    """A copy with `done` True, `reward` and `value_gamma` 0, where it has them."""
    changed = {}
    if "done" in transition:
        changed["done"] = np.ones_like(np.asarray(transition["done"]))
    for name in ("reward", "value_gamma"):
        if name in transition:
            changed[name] = tree.map_structure(lambda leaf: np.zeros_like(np.asarray(leaf)), transition[name])
    return {**transition, **changed}


def stacked(chunk: Sequence[Transition]) -> dict[str, Any]:
    """The nest of a transition with the leaves of all stacked, `[T, ...]`."""
    return dict(tree.map_structure(lambda *parts: np.stack([np.asarray(part) for part in parts]), *chunk))
