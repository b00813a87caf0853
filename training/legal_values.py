"""Categories and action masks in the observations of a dataset: what is said about them, and the check of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb.errors import InvalidEpisodeError, Problem
from rlds2reverb.learners.agents.spaces import ACTION_MASK, count_categories, has_action_mask
from rlds2reverb.specs import Nest, leaves, path_name
from rlds2reverb.store.step_columns import StepColumns


def require_legal(steps: StepColumns, observation_spec: Nest, action_spec: Any) -> list[str]:
    """Checks the categories and the action mask of a dataset, and returns sentences about them.

    Args:
      steps: the steps.
      observation_spec: nest of TensorSpecs, with the bounds of categories.
      action_spec: BoundedTensorSpec of the actions.

    Raises:
      InvalidEpisodeError: If a category is outside of its space, no action is legal, or one that was taken is illegal.
    """
    notes, categories = [], {}
    for path, leaf in leaves(observation_spec):
        counts, name = count_categories(leaf), path_name(path, "observation")
        if counts is not None:
            categories[path] = leaf
            notes.append(f"{name} has {' + '.join(map(str, counts))} categories, which are one-hot encoded")
        elif leaf.dtype.is_integer and not leaf.shape.rank:
            notes.append(
                f"{name} is an integer without a declared Discrete space, so that agents see it as a number; one-hot "
                "encode it if it stands for categories"
            )
    num_actions = int(action_spec.maximum) - int(action_spec.minimum) + 1 if action_spec.dtype.is_integer else 0
    is_masked = bool(num_actions) and has_action_mask(observation_spec, num_actions)
    if is_masked:
        notes.append(f"observation['{ACTION_MASK}'] tells which actions are legal: agents choose among these only")
    if not categories and not is_masked:
        return notes
    first = 0
    for columns, num_steps in steps.read_batches([fields.OBSERVATION, fields.ACTION, *_FLAGS]):
        observed = dict(leaves(columns[fields.OBSERVATION]))
        for path, leaf in categories.items():
            column = observed.get(path)
            if column is None:  # The goal of an agent is drawn from the states.
                column = observed[path[1:]]
            is_wrong = ((column < leaf.minimum) | (column > leaf.maximum)).reshape(len(column), -1).any(1)
            place = f"{path_name(path, 'observation')} must be from {leaf.minimum} to {leaf.maximum} as in its space"
            _require_none(is_wrong, num_steps, first, place + ", got {}; fix the data", column)
        if is_masked:
            _require_actions(columns, num_steps, first, int(action_spec.minimum))
        first += len(num_steps)
    return notes


_FLAGS = (fields.IS_LAST, fields.IS_TERMINAL)


def _require_actions(columns: Mapping[str, Nest], num_steps: np.ndarray, first: int, minimum: int) -> None:
    """Raises `InvalidEpisodeError` if no action is legal before a terminal state, or an illegal one was taken."""
    mask, action = columns[fields.OBSERVATION][ACTION_MASK] > 0, columns[fields.ACTION]
    has_none = ~mask.any(1) & ~np.asarray(columns[fields.IS_TERMINAL], bool)
    place = f"observation['{ACTION_MASK}']"
    _require_none(
        has_none, num_steps, first, place + " must have at least one legal action, got {}; fix the data", mask
    )
    is_illegal = ~mask[np.arange(len(mask)), action.reshape(-1).astype(np.int64) - minimum]
    is_illegal &= ~np.asarray(columns[fields.IS_LAST], bool)
    message = f"action must be legal in {place}, got {{}}; fix the data, or drop the field"
    _require_none(is_illegal, num_steps, first, message, action)


def _require_none(is_wrong: np.ndarray, num_steps: np.ndarray, first: int, message: str, column: np.ndarray) -> None:
    if is_wrong.any():
        row = int(is_wrong.argmax())
        ends = np.cumsum(num_steps)
        episode = int(np.searchsorted(ends, row, side="right"))
        step = row - int(ends[episode] - num_steps[episode])
        problem = Problem(first + episode, step, fields.OBSERVATION, message.format(column[row]))
        raise InvalidEpisodeError([problem])
