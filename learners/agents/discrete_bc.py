"""Behavioural cloning of discrete actions."""

from typing import Any

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .adam import Adam
from .discrete_actors import CategoricalActor
from .hyperparameters import Positive, configurable
from .offline_agent import DiscreteAgent, TransitionBatch


@configurable
class DiscreteBCAgent(DiscreteAgent):
    """Behavioural cloning: loss = -mean(w * log pi(a|s)), where pi is the softmax of a network's outputs.

    Pomerleau (1991), "Efficient Training of Artificial Neural Networks for Autonomous Navigation", with the
    cross-entropy loss in common use today. Updates are those of github.com/takuseno/d3rlpy with beta=0; by default, it
    adds half of the mean squared logit to the loss, which makes all actions more likely. The defaults are those of
    `BCAgent`.

    Attributes:
      actor_network: function that creates the network, see `CustomNetwork`; None for the default.
      learning_rate: Adam's learning rate.
    """

    actor_network: NetworkFactory | None = None
    learning_rate: Positive = 3e-4

    def _create(self) -> Any:
        sizes = [*self.hidden_sizes, self.actions.size]
        actor = CategoricalActor(self._make_network(self.actor_network, sizes, name="actor"))
        self.optimizer = Adam(actor.trained_variables, self.learning_rate)
        return actor

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss = self.optimizer.minimize(lambda: tf.reduce_mean(batch.weights * self.losses(batch)))
        return loss, {"actor_loss": loss}

    def losses(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the unweighted loss of each item, float32 [B]."""
        return -self.actor.log_prob(batch.observation, batch.action)
