"""Categories and action masks in the observations of data: what is said about them, and the check of the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.datasets.steps.step_columns import StepColumns
from rlds2reverb.errors import ErrorFinding, InvalidEpisodeError
from rlds2reverb.learners.agents.unit_conversions import count_categories, find_action_mask
from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest, leaves, path_name

_FIELDS = (fields.OBSERVATION, fields.ACTION, fields.IS_LAST, fields.IS_TERMINAL)


class LegalValues:
    """The categories and the action mask of observations.

    Attributes:
      notes: sentences about them.
    """

    def __init__(self, observation_spec: Nest, action_spec: Any, action_mask: str | None) -> None:
        """Reads the specs.

        Args:
          observation_spec: nest of TensorSpecs, with the bounds of categories.
          action_spec: BoundedTensorSpec of the actions.
          action_mask: name of the field with the mask, see `find_action_mask`.

        Raises:
          ArgumentError: If there is no such field.
        """
        self._minimum, is_discrete = action_spec.minimum, action_spec.dtype.is_integer
        num_actions = int(action_spec.maximum) - int(action_spec.minimum) + 1 if is_discrete else None
        self._mask = find_action_mask(observation_spec, num_actions, action_mask)
        self._categories, self.notes = dict[Any, Any](), list[str]()
        for path, leaf in leaves(observation_spec):
            counts, name = count_categories(leaf), path_name(path, "observation")
            if path == (self._mask,):
                self.notes.append(f"{name} tells which actions are legal: agents choose among these")
            elif counts is not None:
                self._categories[path] = leaf
                self.notes.append(f"{name} has {' + '.join(map(str, counts))} categories, which are one-hot encoded")
            elif leaf.dtype.is_integer and not leaf.shape.rank:
                self.notes.append(
                    f"{name} is an integer without a declared Discrete space, so that agents see it as a number; "
                    "one-hot encode it if it stands for categories"
                )

    def require(self, steps: StepColumns) -> None:
        """Raises `InvalidEpisodeError` if a step of a dataset has an illegal value; see `find_illegal`."""
        first = 0
        for columns, num_steps in steps.read_batches(_FIELDS) if self._categories or self._mask else ():
            if found := self.find_illegal(*(columns[name] for name in _FIELDS)):
                row, message = found
                episode = int(np.searchsorted(np.cumsum(num_steps), row, side="right"))
                step = row - int(num_steps[:episode].sum())
                raise InvalidEpisodeError([ErrorFinding(first + episode, step, fields.OBSERVATION, message)])
            first += len(num_steps)

    def find_illegal(
        self, observation: Nest, action: np.ndarray, is_last: Any = False, is_terminal: Any = False
    ) -> tuple[int, str] | None:
        """Returns the row of an illegal value and a message, or None.

        Illegal are a category outside of its space, no legal action, except in a terminal state, and an action that was
        taken although it is not legal.
        """
        observed, checks = dict(leaves(observation)), list[tuple[np.ndarray, Any, str]]()
        for path, leaf in self._categories.items():
            # The goal of an agent is sampled from the states.
            column = observed[path] if path in observed else observed[path[1:]]
            is_wrong = ((column < leaf.minimum) | (column > leaf.maximum)).reshape(len(column), -1).any(axis=1)
            space = f"from {leaf.minimum} to {leaf.maximum} as in its space"
            checks.append((is_wrong, column, f"{path_name(path, 'observation')} must be {space}"))
        if self._mask:
            mask, place = observed[(self._mask,)] > 0, f"observation['{self._mask}']"
            is_legal = mask[np.arange(len(mask)), np.ravel(action).astype(np.int64) - int(self._minimum)]
            checks.append((~(mask.any(axis=1) | is_terminal), mask, f"{place} must have at least one legal action"))
            checks.append((~(is_legal | is_last), action, f"action must be legal in {place}"))
        for is_wrong, column, message in checks:
            if is_wrong.any():
                row = int(is_wrong.argmax())
                return row, f"{message}, got {column[row]}; fix the data"
        return None
