"""Behavioural cloning of continuous actions."""

from typing import Any, Literal

import tensorflow as tf

from ..options import NetworkFactory
from .adam import Adam
from .custom_networks import make_network
from .hyperparameters import ImageEncoderName, LayerSizes, NonNegative, Positive, Seed, configurable
from .networks import GaussianActor, TanhActor
from .offline_agent import OfflineAgent, TransitionBatch
from .spaces import BoundedActions, Observations


@configurable
class BCAgent(OfflineAgent):
    """Behavioural cloning: the actor is fitted to the data's actions.

        deterministic: loss = mean(w * mean_over_actions((pi(s) - a)^2))
        gaussian:      loss = -mean(w * log pi(a | s))

    The first is the "BC" baseline of TD3+BC (Fujimoto & Gu 2021, eq. 3 without Q); the second is IQL's actor with all
    advantage weights 1 (Kostrikov et al. 2021, eq. 7 with beta = 0). For top-x % cloning, train on the best episodes.

    With chunks of actions, both are means over the actions that exist: those after the end of an episode, for which the
    policy info contains a `mask` [B, length], have no weight.
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
        distribution: Literal["deterministic", "gaussian"] = "deterministic",
        exploration_noise: NonNegative = 0.1,
    ) -> None:
        """Creates the network.

        The defaults are those of TD3+BC's actor (Fujimoto & Gu 2021, table 3).

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          observation_mean: mean to subtract from observations; None for no normalisation.
          observation_std: standard deviation to divide observations by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers.
          actor_network: function that creates the network, see `CustomNetwork`; None for the default.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          learning_rate: Adam's learning rate.
          distribution: whether the actor predicts a single action or a Gaussian distribution of actions.
          exploration_noise: standard deviation of the collect policy's noise, if the actor is deterministic.
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions = BoundedActions(action_spec)
        sizes = [*hidden_sizes, actions.size]
        network = make_network(actor_network, observations, sizes, seed=seed, image_encoder=image_encoder, name="actor")
        actor: TanhActor | GaussianActor
        if distribution == "gaussian":
            actor = GaussianActor(network, actions.size)
            self._optimizer = Adam([*network.trained_variables, actor.log_std], learning_rate)
        else:
            actor = TanhActor(network, exploration_noise=exploration_noise)
            self._optimizer = Adam(network.trained_variables, learning_rate)
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss = self._optimizer.minimize(lambda: tf.reduce_mean(batch.weights * self.losses(batch)))
        return loss, {"actor_loss": loss}

    def losses(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the unweighted loss of each item, float32 [B]."""
        weights = batch.action_weights()
        if isinstance(self._actor, GaussianActor):
            return -tf.reduce_sum(weights * self._actor.log_probs(batch.observation, batch.action), axis=-1)
        return tf.reduce_mean(weights * tf.square(self._actor.mode(batch.observation) - batch.action), axis=-1)
