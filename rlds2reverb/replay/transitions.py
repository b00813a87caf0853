"""From the steps of RLDS episodes to transitions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlds2reverb import fields
from rlds2reverb.specs import Nest, map_structure


def transitions_of(steps: Mapping[str, Nest]) -> dict[str, Nest]:
    """The transitions of episodes, whose steps stand one after the other.

    An episode of `T + 1` steps gives `T` transitions: from each step but the last one to the next. The discount is 0
    where the next step is terminal, whatever the step itself says, and is kept where an episode is only truncated.

    Args:
      steps: RLDS columns `[R, ...]` of valid episodes.

    Returns:
      dict of `observation, action, reward, discount` of the first step and `next_observation` of the second, and of
      whatever else the steps have but for their flags; columns `[M, ...]`.
    """
    rows = np.flatnonzero(~steps[fields.IS_LAST])
    kept = {name: column for name, column in steps.items() if name not in fields.FLAG_FIELDS}
    found: dict[str, Nest] = map_structure(lambda column: column[rows], kept)
    into_terminal = steps[fields.IS_TERMINAL][rows + 1]
    discount = found[fields.DISCOUNT]
    stays = (~into_terminal).reshape(-1, *[1] * (discount.ndim - 1))
    found[fields.DISCOUNT] = (discount * stays).astype(discount.dtype)
    found[f"next_{fields.OBSERVATION}"] = map_structure(lambda column: column[rows + 1], steps[fields.OBSERVATION])
    return found
