"""Detection and description of losses and weights that are not finite."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from rlds2reverb.errors import TrainingDivergedError

_MAX_LISTED_KEYS = 10


def is_check_numerics_error(error: tf.errors.OpError) -> bool:
    """Returns whether an error was raised by `tf.debugging.check_numerics`, which some TF-Agents agents call."""
    return " values" in error.message and any(f"had {kind}" in error.message for kind in ("NaN", "Inf", "-Inf"))


def make_divergence_error(iteration: int, loss: float, kind: str, keys: np.ndarray) -> TrainingDivergedError:
    """Returns the error for a diverged iteration.

    Args:
      iteration: index of the iteration.
      loss: its loss.
      kind: kind of the keys: 'keys', or 'items' for indices of items in memory.
      keys: keys of the items in its batch; empty if unknown.
    """
    cause = "a weight is not finite" if np.isfinite(loss) else f"the loss is {loss}"
    message = (
        f"training diverged at iteration {iteration}: {cause}; lower the learning rate or fix the data, and resume "
        "from the last checkpoint"
    )
    if len(keys):
        listed = ", ".join(map(str, keys[:_MAX_LISTED_KEYS].tolist()))
        more = f" and {len(keys) - _MAX_LISTED_KEYS} more" if len(keys) > _MAX_LISTED_KEYS else ""
        message += f" ({kind} of the batch: {listed}{more})"
    return TrainingDivergedError(message)
