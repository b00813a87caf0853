"""A batch dimension for a single environment."""

from __future__ import annotations

from .batched_environment import BatchedEnvironment
from .environment import EnvAttributes, Environment


class BatchDimension(EnvAttributes, BatchedEnvironment):
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
        self.env = env
        super().__init__([env])
