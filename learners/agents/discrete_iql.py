"""Implicit Q-learning (IQL) for discrete actions."""

from typing import ClassVar

import tensorflow as tf

from .discrete_actors import CategoricalActor
from .hyperparameters import configurable
from .iql import IQLAgent
from .networks import Network
from .offline_agent import DiscreteAgent


@configurable
class DiscreteIQLAgent(DiscreteAgent, IQLAgent):
    """IQL with a softmax policy, and critics with one output for each action.

    The losses are those of `IQLAgent` (Kostrikov, Nair & Levine 2021, eq. 5 to 7), which need nothing from the actions
    but Q(s, a) and log pi(a|s). Paper and authors' code have continuous actions only. Updates, initial weights and
    defaults are those of that code after its policy and critics are replaced.

    Attributes:
      actor_network: function that creates the network of the logits, see `CustomNetwork`; None for the default.
    """

    log_std_bounds: ClassVar[None] = None  # type: ignore[assignment,misc]

    def _create_actor(self) -> CategoricalActor:
        sizes = [*self.hidden_sizes, self.actions.size]
        return CategoricalActor(self._make_network(self.actor_network, sizes, name="actor"))

    def _action_values(self, critic: Network, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        values = critic(observation)
        return tf.gather(values, tf.broadcast_to(action, tf.shape(values)[:2]), batch_dims=2)
