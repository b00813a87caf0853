"""The masks of rows that may be padding."""

from __future__ import annotations

import numpy as np
import tree

from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest

from .arrays import Array, keep_where, namespace

#: True for the rows of an episode, False for padding.
MASK = "mask"

#: True for the rows of an episode whose action was taken: all except the row of the final observation.
ACTION_TAKEN = "action_taken"


def add_masks(rows: dict[str, Nest], is_real: Array) -> dict[str, Nest]:
    """Returns padded rows with both masks, bool `[R]`."""
    is_last = rows.get(fields.IS_LAST, namespace(is_real).zeros_like(is_real))  # Every row of NStep has an action.
    return {**rows, MASK: is_real, ACTION_TAKEN: is_real & ~is_last}


def pad(columns: Nest, is_real: Array, filler: object = 0) -> Nest:
    """Returns columns `[R, ...]` with a filler, or empty strings, in the rows `[R]` that are not real."""
    if isinstance(is_real, np.ndarray) and is_real.all():
        return columns
    return tree.map_structure(lambda column: keep_where(is_real, column, filler), columns)
