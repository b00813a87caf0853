"""Advantage-weighted actor-critic (AWAC)."""

from typing import Any, ClassVar

import tensorflow as tf

from ..options import NetworkFactory
from .adam import Adam
from .hyperparameters import (
    Fraction,
    LayerSizes,
    LogStdBounds,
    NonNegative,
    Positive,
    PositiveFraction,
    configurable,
)
from .networks import GaussianActor, critic_values
from .offline_agent import OfflineAgent, TransitionBatch


@configurable
class AWACAgent(OfflineAgent):
    """AWAC (Nair, Gupta, Dalal & Levine 2020, "AWAC: Accelerating Online RL with Offline Datasets").

        y      = r + gamma * discount * min_i Q'_i(s', a'),  a' ~ pi(s')
        critic = sum_i mean((Q_i(s, a) - y)^2)                                            (eq. 12)
        actor  = -mean(weight * log pi(a|s)),  weight = exp(A / lambda_) / Z                (eq. 13)
        A      = min_i Q_i(s, a) - min_i Q_i(s, a_pi),  a_pi ~ pi(s)

    The paper omits Z, the normalisation of the weights. The authors' code divides by their mean over the batch (softmax
    times B), and so does this class unless `normalize_weights` is False. As in the authors' code, the actor's loss uses
    the critics from before their update. Sampled actions are clipped to the bounds.
    """

    network_options: ClassVar[dict[str, Any]] = {"hidden_bias": 0.0}

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        actor_hidden_sizes: LayerSizes = (256, 256, 256, 256),
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        actor_learning_rate: Positive = 3e-4,
        critic_learning_rate: Positive = 3e-4,
        actor_weight_decay: NonNegative = 1e-4,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        lambda_: Positive = 1.0,
        normalize_weights: bool = True,
        max_weight: Positive = 100.0,
        log_std_bounds: LogStdBounds = (-6.0, 0.0),
        **common: Any,
    ) -> None:
        """Creates the networks, and target networks for the critics.

        The defaults are those of the authors' script for the MuJoCo tasks (rlkit, examples/awac/mujoco/awac1.py), which
        uses batches of 1024.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          actor_hidden_sizes: sizes of the actor's hidden layers.
          hidden_sizes: sizes of the critics' hidden layers.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          critic_network: function that creates each critic; its input is the pair of observation and action.
          actor_learning_rate: Adam's learning rate.
          critic_learning_rate: Adam's learning rate.
          actor_weight_decay: factor of the actor's weights that is added to their gradients.
          discount: discount factor gamma.
          target_update_rate: share of the online weights in a target update.
          lambda_: temperature of the weights; the script's default is 1, and its sweep includes 2.
          normalize_weights: whether to divide the weights of a batch by their mean.
          max_weight: maximum weight if the weights are not normalised; not in the paper.
          log_std_bounds: bounds of the actor's log standard deviation, applied by clipping; the script uses a sigmoid.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        width = self._actions.size
        mean = self._build(actor_network, [*actor_hidden_sizes, width], final_scale=1e-3, name="actor")
        actor = GaussianActor(mean, width, log_std_bounds=log_std_bounds)
        options: dict[str, Any] = {"action_size": width, "copies": 2, "final_scale": 3e-3, "name": "critic"}
        critic = self._build(critic_network, [*hidden_sizes, 1], **options)
        self._set_critic(critic, critic_learning_rate, discount, target_update_rate)
        self._actor_optimizer = Adam(actor.trainable_variables, actor_learning_rate)
        self._actor_weight_decay = actor_weight_decay
        self._lambda, self._normalize_weights, self._max_weight = lambda_, normalize_weights, max_weight
        self._complete(time_step_spec, action_spec, actor)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        targets = self.critic_targets(batch)
        with tf.GradientTape() as critic_tape:
            q_both = critic_values(self._critic, batch.observation, batch.action)
            td = q_both - targets
            critic_loss = tf.reduce_mean(batch.weights * tf.reduce_sum(tf.square(td), axis=0))
        q = tf.reduce_min(q_both, axis=0)
        advantage = q - self.values(batch)
        with tf.GradientTape() as actor_tape:
            actor_loss = self.actor_loss(batch, advantage)
        self._critic_optimizer.minimize(critic_loss, critic_tape)
        gradients = self._actor_optimizer.gradients(actor_loss, actor_tape)
        decay, variables = self._actor_weight_decay, self._actor_optimizer.trained_variables
        self._actor_optimizer.apply([g + decay * w for g, w in zip(gradients, variables, strict=True)])
        self._target_critic.track(self._critic, self._target_update_rate)
        extra = {
            "td_error": tf.reduce_mean(tf.abs(td), axis=0),
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "q_mean": tf.reduce_mean(q),
            "advantage_mean": tf.reduce_mean(advantage),
        }
        return critic_loss + actor_loss, extra

    def critic_targets(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the smaller target value of an action sampled from the actor."""
        action = self._actor.sample(batch.next_observation, self.noise_seed(0))
        values = critic_values(self._target_critic, batch.next_observation, action)
        return batch.reward + self._discount * batch.discount * tf.reduce_min(values, axis=0)

    def values(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns float32 [B]: V(s), the smaller value of an action sampled from the actor."""
        action = self._actor.sample(batch.observation, self.noise_seed(1))
        return tf.reduce_min(critic_values(self._critic, batch.observation, action), axis=0)

    def advantage_weights(self, advantage: tf.Tensor) -> tf.Tensor:
        """Returns the weights for advantages [B], float32 [B]; if normalised, their mean is 1."""
        if self._normalize_weights:
            return tf.nn.softmax(advantage / self._lambda) * tf.cast(tf.shape(advantage)[0], tf.float32)
        return tf.minimum(tf.exp(advantage / self._lambda), self._max_weight)

    def actor_loss(self, batch: TransitionBatch, advantage: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the negative log likelihood of the data's actions, weighted by advantages [B]."""
        weight = tf.stop_gradient(self.advantage_weights(advantage))
        return -tf.reduce_mean(weight * self._actor.log_prob(batch.observation, batch.action))
