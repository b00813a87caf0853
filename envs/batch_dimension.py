"""A batch dimension for a single environment."""

from __future__ import annotations

from typing import Any

from .batched_environment import BatchedEnvironment
from .environment import Environment, require_single


class BatchDimension(BatchedEnvironment):
    """A single environment as a batch of one, for code that requires batches.

    ALF's `BatchedTensorWrapper`. For several environments (ALF's `BatchEnvironmentWrapper`) use `BatchedEnvironment` or
    `ParallelEnvironment`.

    Attributes:
      env: the environment, whose attributes are also those of the batch.
    """

    def __init__(self, env: Environment):
        """Creates the batch, which closes the environment.

        Args:
          env: an environment that is not batched.

        Raises:
          TypeError: If the environment is batched.
        """
        self.env = require_single(env, "BatchDimension")
        super().__init__([env])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)
