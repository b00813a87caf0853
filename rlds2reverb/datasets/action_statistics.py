"""The actions of a dataset: nested ones joined to vectors, and their range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, path_name

#: Maximum number of distinct discrete actions to distinguish, which is also the limit of the agents.
_MAX_VALUES = 1 << 20


class ActionStatistics:
    """The minimum and maximum of the actions of a dataset, and the distinct values of discrete ones."""

    def __init__(self, spec: ArraySpec):
        """Starts without actions.

        Args:
          spec: spec of one action.
        """
        self.spec = spec
        self.low: Any = None
        self.high: Any = None
        self.values = np.zeros(0, spec.dtype)

    @property
    def is_discrete(self) -> bool:
        """True if the actions are integers."""
        return np.issubdtype(self.spec.dtype, np.integer)

    def add(self, actions: np.ndarray) -> None:
        """Adds actions `[T, ...]`; there may be none."""
        if not len(actions):
            return
        low, high = actions.min(0), actions.max(0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)
        if self.is_discrete and len(self.values) < _MAX_VALUES:
            self.values = np.union1d(self.values, actions)


def join_actions(actions: Nest) -> Nest:
    """Returns nested actions as one float32 vector, by the order of their names.

    Single floats become vectors of one float, and vectors of one integer become single integers. Other actions that
    are one array, or a nest with parts that are not floats, are returned unchanged.

    Args:
      actions: nest of arrays `[T, ...]`.
    """
    if isinstance(actions, np.ndarray) and actions.dtype.kind in "fiu" and math.prod(actions.shape[1:]) == 1:
        return actions.reshape(len(actions), 1) if actions.dtype.kind == "f" else actions.reshape(len(actions))
    parts = [column for _, column in _list_parts(actions)]
    columns = [column.reshape(len(column), math.prod(column.shape[1:])).astype(np.float32) for column in parts]
    return np.concatenate(columns, axis=1) if columns else actions


def require_joined(spec: Nest) -> ArraySpec:
    """Returns the spec of actions after `join_actions`; raises `SpecMismatchError` if they are still a nest."""
    if isinstance(spec, ArraySpec):
        return spec
    discrete = [
        f"{path_name(path, 'action')} {describe(part)}" for path, part in leaves(spec) if part.dtype.kind in "iub"
    ]
    sentence = "the actions must be one array, got a nest; drop parts of it"
    if discrete:
        sentence += f", or encode {' and '.join(discrete)}: agents learn either one integer, or floats only"
    raise SpecMismatchError(sentence)


def describe_joined_actions(spec: Nest) -> list[str]:
    """Returns a sentence that says where `join_actions` puts the parts of actions of a spec; none if it does not."""
    ranges, start = [], 0
    for path, part in _list_parts(spec):
        end = start + math.prod(part.shape)
        ranges.append(f"{'/'.join(map(str, path))} [{start}:{end}]")
        start = end
    return [f"the parts of the actions are joined to one vector: {', '.join(ranges)}"] if ranges else []


def _list_parts(actions: Nest) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the parts of nested actions, or of their specs, that can be joined, with their paths."""
    parts = [] if hasattr(actions, "dtype") else leaves(actions)
    return parts if all(part.dtype.kind == "f" for _, part in parts) else []
