"""Behavioural cloning of discrete actions."""

from typing import Any

import tensorflow as tf

from ..options import NetworkFactory
from .adam import Adam
from .discrete_actors import CategoricalActor
from .hyperparameters import LayerSizes, Positive, configurable
from .offline_agent import OfflineAgent, TransitionBatch
from .spaces import DiscreteActions


@configurable
class DiscreteBCAgent(OfflineAgent):
    """Behavioural cloning: loss = -mean(w * log pi(a|s)), where pi is the softmax of a network's outputs.

    Pomerleau (1991), "Efficient Training of Artificial Neural Networks for Autonomous Navigation", with the
    cross-entropy loss in common use today.
    """

    actions_type = DiscreteActions

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        learning_rate: Positive = 3e-4,
        **common: Any,
    ) -> None:
        """Creates the network; the defaults are those of `BCAgent`.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: integer BoundedTensorSpec [].
          hidden_sizes: sizes of the hidden layers.
          actor_network: function that creates the network, see `CustomNetwork`; None for the default.
          learning_rate: Adam's learning rate.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        network = self._build(actor_network, [*hidden_sizes, self._actions.size], name="actor")
        self._optimizer = Adam(network.trained_variables, learning_rate)
        self._complete(time_step_spec, action_spec, CategoricalActor(network))

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss = self._optimizer.minimize(lambda: tf.reduce_mean(batch.weights * self.losses(batch)))
        return loss, {"actor_loss": loss}

    def losses(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the unweighted loss of each item, float32 [B]."""
        return -self._actor.log_prob(batch.observation, batch.action)
