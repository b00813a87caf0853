"""The settings that identify a run, which distinguish the checkpoints of different runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from rlds2reverb.errors import CheckpointError

from .checkpoints import Checkpoint


class RunIdentity:
    """Plain values by name, such as the agent's class, the data's fingerprint and the environment.

    Attributes:
      values: the values as a manifest returns them, with lists for tuples.
    """

    def __init__(self, values: Mapping[str, Any], addable: Collection[str] = ()):
        """Checks the values; raises `TypeError` for other objects than numbers, strings, lists, dicts and None.

        Args:
          values: the values by name.
          addable: names of values that a run may get later: those that a checkpoint does not have are no difference.
        """
        self._addable = frozenset(addable)
        try:
            self.values: dict[str, Any] = json.loads(json.dumps(values))
        except (TypeError, ValueError) as error:
            raise TypeError(f"identity must contain only numbers, strings, lists, dicts and None ({error})") from error

    def compare(self, checkpoint: Checkpoint) -> list[str]:
        """Returns the names of the values that differ from those of a checkpoint."""
        saved = checkpoint.manifest.get("identity", {})
        names = [name for name in {**saved, **self.values} if name in saved or name not in self._addable]
        return [name for name in names if saved.get(name) != self.values.get(name)]

    def require_same(self, checkpoint: Checkpoint) -> None:
        """Raises `CheckpointError` if a value differs from that of a checkpoint; the message lists all differences."""
        saved = checkpoint.manifest.get("identity", {})
        differences = [
            f"{name} was {saved.get(name)}, is now {self.values.get(name)}" for name in self.compare(checkpoint)
        ]
        if differences:
            raise CheckpointError(
                f"{checkpoint.path} belongs to a different run: {'; '.join(differences)}; use a different run_dir, or "
                "continue with allow_config_mismatch=True"
            )
