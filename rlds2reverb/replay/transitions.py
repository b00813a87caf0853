"""Transitions from the steps of RLDS episodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlds2reverb import fields
from rlds2reverb.specs import Nest, map_structure


def make_transitions(steps: Mapping[str, Nest]) -> dict[str, Nest]:
    """Returns the transitions of concatenated episodes.

    An episode of `T + 1` steps yields `T` transitions, one from each step except the last to the next one. The discount
    is 0 if the next step is terminal, whatever the step itself says, and is kept if the episode is only truncated.

    Args:
      steps: RLDS columns `[R, ...]` of valid episodes.

    Returns:
      dict with `observation, action, reward, discount` of the first step, `next_observation` of the second, and all
      other fields of the first step except the flags; columns `[M, ...]`.
    """
    rows = np.flatnonzero(~steps[fields.IS_LAST])
    kept = {name: column for name, column in steps.items() if name not in fields.FLAG_FIELDS}
    transitions: dict[str, Nest] = map_structure(lambda column: column[rows], kept)
    discount = transitions[fields.DISCOUNT]
    continues = ~steps[fields.IS_TERMINAL][rows + 1].reshape(-1, *[1] * (discount.ndim - 1))
    transitions[fields.DISCOUNT] = (discount * continues).astype(discount.dtype)
    transitions[f"next_{fields.OBSERVATION}"] = map_structure(
        lambda column: column[rows + 1], steps[fields.OBSERVATION]
    )
    return transitions
