"""The text of an episode's task, wherever a dataset has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves

#: Names of fields that contain the text of a task, the preferred first.
TASK_FIELDS = ("task", "language_instruction", "natural_language_instruction")


def find_task(episode: Episode, metadata: Mapping[str, Any]) -> np.ndarray:
    """Returns the text of the task in each step, an array of objects `[N]`; empty texts if nothing names the task.

    Args:
      episode: an episode, which may have the text in its steps or in its metadata.
      metadata: the metadata of the dataset, which may have it as well.
    """
    texts = [(path, column) for path, column in episode.columns if column.ndim == 1]
    texts += [(path, value) for path, value in leaves(episode.metadata) if not value.ndim]
    texts += [((key,), np.array(value, object)) for key, value in metadata.items() if isinstance(value, str)]
    found = [column for name in TASK_FIELDS for path, column in texts if path[-1] == name and column.dtype == object]
    return np.broadcast_to(found[0] if found else np.array("", object), episode.num_steps)
