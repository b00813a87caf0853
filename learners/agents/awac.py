"""Advantage-weighted actor-critic (AWAC)."""

from typing import Any, ClassVar

import tensorflow as tf

from .adam import Adam
from .hyperparameters import LayerSizes, LogStdBounds, NonNegative, Positive, configurable
from .networks import GaussianActor, critic_values
from .offline_agent import ActorCriticAgent, TransitionBatch


@configurable
class AWACAgent(ActorCriticAgent):
    """AWAC (Nair, Gupta, Dalal & Levine 2020, "AWAC: Accelerating Online RL with Offline Datasets").

        y      = r + gamma * discount * min_i Q'_i(s', a'),  a' ~ pi(s')
        critic = sum_i mean((Q_i(s, a) - y)^2)                                            (eq. 12)
        actor  = -mean(weight * log pi(a|s)),  weight = exp(A / lambda_) / Z                (eq. 13)
        A      = min_i Q_i(s, a) - min_i Q_i(s, a_pi),  a_pi ~ pi(s)

    The paper omits Z, the normalisation of the weights. The authors' code divides by their mean over the batch (softmax
    times B), and so does this class unless `normalize_weights` is False. As in the authors' code, the actor's loss uses
    the critics from before their update. Critics see the samples of the Gaussian as they are, which may lie outside of
    [-1, 1]; policies clip them.

    Updates and initial weights are those of the authors' code, rlkit/torch/sac/awac_trainer.py of
    github.com/rail-berkeley/rlkit, and the defaults those of its script for the MuJoCo tasks,
    examples/awac/mujoco/awac1.py.

    Attributes:
      actor_hidden_sizes: sizes of the actor's hidden layers.
      actor_weight_decay: factor of the actor's weights that is added to their gradients.
      lambda_: temperature of the weights; the script's default is 1, and its sweep includes 2.
      normalize_weights: whether to divide the weights of a batch by their mean.
      max_weight: maximum weight if the weights are not normalised; not in the paper.
      log_std_bounds: bounds of the actor's log standard deviation, the limits of a sigmoid; it begins in the middle.
    """

    _network_options: ClassVar[dict[str, Any]] = {"init": "fan_out"}

    actor_hidden_sizes: LayerSizes = (256, 256, 256, 256)
    actor_weight_decay: NonNegative = 1e-4
    lambda_: Positive = 1.0
    normalize_weights: bool = True
    max_weight: Positive = 100.0
    log_std_bounds: LogStdBounds = (-6.0, 0.0)

    def _create(self) -> Any:
        sizes = [*self.actor_hidden_sizes, self.actions.size]
        mean = self._make_network(self.actor_network, sizes, final_scale=1e-3, name="actor")
        self._create_critics(final_scale=3e-3)
        actor = GaussianActor(mean, self.actions.size, log_std_bounds=self.log_std_bounds, has_sigmoid=True)
        self.actor_optimizer = Adam(actor.trainable_variables, self.actor_learning_rate)
        return actor

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        targets = self.critic_targets(batch)
        with tf.GradientTape() as critic_tape:
            q_both = critic_values(self.critic, batch.observation, batch.action)
            td = q_both - targets
            critic_loss = tf.reduce_mean(batch.weights * tf.reduce_sum(tf.square(td), axis=0))
        q = tf.reduce_min(q_both, axis=0)
        advantage = q - self.values(batch)
        with tf.GradientTape() as actor_tape:
            actor_loss = self.actor_loss(batch, advantage)
        self.critic_optimizer.minimize(critic_loss, critic_tape)
        gradients = self.actor_optimizer.gradients(actor_loss, actor_tape)
        decay, variables = self.actor_weight_decay, self.actor_optimizer.trained_variables
        self.actor_optimizer.apply([g + decay * w for g, w in zip(gradients, variables, strict=True)])
        self.target_critic.track(self.critic, self.target_update_rate)
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
        action = self.actor.sample_unclipped(batch.next_observation, self.noise_seed(0))
        values = critic_values(self.target_critic, batch.next_observation, action)
        return batch.reward + self.discount * batch.discount * tf.reduce_min(values, axis=0)

    def values(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns float32 [B]: V(s), the smaller value of an action sampled from the actor."""
        action = self.actor.sample_unclipped(batch.observation, self.noise_seed(1))
        return tf.reduce_min(critic_values(self.critic, batch.observation, action), axis=0)

    def advantage_weights(self, advantage: tf.Tensor) -> tf.Tensor:
        """Returns the weights for advantages [B], float32 [B]; if normalised, their mean is 1."""
        if self.normalize_weights:
            return tf.nn.softmax(advantage / self.lambda_) * tf.cast(tf.shape(advantage)[0], tf.float32)
        return tf.minimum(tf.exp(advantage / self.lambda_), self.max_weight)

    def actor_loss(self, batch: TransitionBatch, advantage: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the negative log likelihood of the data's actions, weighted by advantages [B]."""
        weight = tf.stop_gradient(self.advantage_weights(advantage))
        return -tf.reduce_mean(weight * self.actor.log_prob(batch.observation, batch.action))
