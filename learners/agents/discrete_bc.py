"""Behavioural cloning of discrete actions."""

from collections.abc import Sequence
from typing import Any

import gin
import tensorflow as tf

from .adam import Adam
from .discrete_actors import CategoricalActor
from .networks import MLP
from .offline_agent import Batch, OfflineAgent
from .spaces import DiscreteActions, Observations


@gin.configurable(module="rlds2reverb")
class DiscreteBCAgent(OfflineAgent):
    """Behavioural cloning: loss = -mean(w * log pi(a|s)), pi the softmax of a network's outputs.

    Pomerleau (1991), "Efficient Training of Artificial Neural Networks for Autonomous Navigation", with today's loss.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: int = 0,
        hidden_sizes: Sequence[int] = (256, 256),
        learning_rate: float = 3e-4,
    ) -> None:
        """Makes the network; the defaults are those of `BCAgent`.

        Args:
          time_step_spec: of the data.
          action_spec: BoundedTensorSpec [], of integers.
          observation_mean: subtracted from observations; None for no normalisation.
          observation_std: what observations are divided by.
          seed: of the weights.
          hidden_sizes: features of the hidden layers.
          learning_rate: Adam's step size.
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions = DiscreteActions(action_spec)
        network = MLP([observations.size, *hidden_sizes, actions.count], seed=seed, name="actor")
        self._optimizer = Adam([network.flat], learning_rate)
        actor = CategoricalActor(network)
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def _update(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch.weights * self.losses(batch))
        self._optimizer.minimize(loss, tape)
        return loss, {"actor_loss": loss}

    def losses(self, batch: Batch) -> tf.Tensor:
        """Returns float32 [B], the loss of each item without its weight."""
        return -self._actor.log_prob(batch.observation, batch.action)
