"""Implicit Q-learning (IQL) for discrete actions."""

from typing import Any

import tensorflow as tf

from .discrete_actors import CategoricalActor
from .hyperparameters import (
    configurable,
)
from .iql import IQLAgent
from .networks import Network
from .spaces import DiscreteActions


@configurable
class DiscreteIQLAgent(IQLAgent):
    """IQL with a softmax policy, and critics with one output for each action.

    The losses are those of `IQLAgent` (Kostrikov, Nair & Levine 2021, eq. 5 to 7), which need nothing from the actions
    but Q(s, a) and log pi(a|s). The paper has continuous actions only.
    """

    actions_type = DiscreteActions
    hides = ("log_std_bounds",)

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        **common: Any,
    ) -> None:
        """Creates the networks, and target networks for the critics; the defaults are those of `IQLAgent`.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: integer BoundedTensorSpec [].
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)

    def _make_actor(self, network: Network, log_std_bounds: tuple[float, float]) -> CategoricalActor:
        return CategoricalActor(network)

    def _action_values(self, critic: Network, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        values = critic(observation)
        return tf.gather(values, tf.broadcast_to(action, tf.shape(values)[:2]), batch_dims=2)
