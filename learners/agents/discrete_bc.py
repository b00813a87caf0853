"""Behavioural cloning of discrete actions."""

from typing import Any

import tensorflow as tf

from ..options import NetworkFactory
from .adam import Adam
from .custom_networks import make_network
from .discrete_actors import CategoricalActor
from .hyperparameters import ImageEncoderName, LayerSizes, Positive, Seed, configurable
from .offline_agent import OfflineAgent, TransitionBatch
from .spaces import DiscreteActions, Observations


@configurable
class DiscreteBCAgent(OfflineAgent):
    """Behavioural cloning: loss = -mean(w * log pi(a|s)), where pi is the softmax of a network's outputs.

    Pomerleau (1991), "Efficient Training of Artificial Neural Networks for Autonomous Navigation", with the
    cross-entropy loss in common use today.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: Seed = 0,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        image_encoder: ImageEncoderName = "nature",
        learning_rate: Positive = 3e-4,
    ) -> None:
        """Creates the network; the defaults are those of `BCAgent`.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: integer BoundedTensorSpec [].
          observation_mean: mean to subtract from observations; None for no normalisation.
          observation_std: standard deviation to divide observations by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers.
          actor_network: function that creates the network, see `CustomNetwork`; None for the default.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          learning_rate: Adam's learning rate.
        """
        actions = DiscreteActions(action_spec)
        observations = Observations(
            time_step_spec.observation, observation_mean, observation_std, num_actions=actions.num_actions
        )
        sizes = [*hidden_sizes, actions.num_actions]
        network = make_network(actor_network, observations, sizes, seed=seed, image_encoder=image_encoder, name="actor")
        self._optimizer = Adam(network.trained_variables, learning_rate)
        actor = CategoricalActor(network)
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss = self._optimizer.minimize(lambda: tf.reduce_mean(batch.weights * self.losses(batch)))
        return loss, {"actor_loss": loss}

    def losses(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the unweighted loss of each item, float32 [B]."""
        return -self._actor.log_prob(batch.observation, batch.action)
