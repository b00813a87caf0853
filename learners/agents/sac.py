"""Soft actor-critic (SAC) for continuous actions, and its ensembles of critics for fixed datasets: SAC-N and EDAC."""

import math
from typing import Any

import tensorflow as tf

from rlds2reverb.errors import ArgumentError

from .adam import Adam
from .hyperparameters import Count, LogStdBounds, NonNegative, Positive, configurable
from .networks import critic_values, values_and_action_gradients
from .offline_agent import ActorCriticAgent, TransitionBatch
from .squashed_gaussian import SquashedGaussianActor, squash
from .temperature import Temperature


def gradient_similarity(gradients: tf.Tensor) -> tf.Tensor:
    """Computes how much the critics agree on the direction in which the action should change.

        similarity = 1 / (N - 1) * sum_{i != j} <g_i, g_j> = 1 / (N - 1) * (|sum_i g_i|^2 - sum_i |g_i|^2),
        g_i        = grad_a Q_i(s, a) / |grad_a Q_i(s, a)|

    An et al. (2021), "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", algorithm 1.

    Args:
      gradients: float32 [N, B, A], of N >= 2 critics. A gradient of 0 has no direction and is similar to none.

    Returns:
      float32 [B], at most N, for equal directions; 0 for orthogonal ones.
    """
    directions = tf.math.l2_normalize(gradients, axis=-1, epsilon=1e-20)
    sums = tf.reduce_sum(tf.square(tf.reduce_sum(directions, axis=0)), axis=-1)
    return (sums - tf.reduce_sum(tf.square(directions), axis=[0, -1])) / (gradients.shape[0] - 1)


@configurable
class SACAgent(ActorCriticAgent):
    """SAC (Haarnoja et al. 2018b, "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905).

        y           = r + gamma * discount * (min_i Q'_i(s', a') - temperature * log pi(a'|s')),  a' ~ pi(s')
        critic      = mean(sum_i (Q_i(s, a) - y)^2 + diversity_weight * similarity)       (eq. 5)
        actor       = mean(temperature * log pi(a_pi|s) - min_i Q_i(s, a_pi)),  a_pi ~ pi(s)    (eq. 7)
        temperature = -log(temperature) * mean(log pi(a_pi|s) + target entropy)           (eq. 18)

    As in the paper's algorithm 1, each step updates the critics, then the actor with the new critics, then the
    temperature, then the targets. Eq. 5 has a factor of 1/2, which Adam's normalisation makes irrelevant. With
    `actor_first`, the order is temperature, actor, critics and targets, each with what was updated before.

    SAC is meant for data that the agent collects itself; on a fixed dataset the values of two critics usually diverge.
    SAC-N and EDAC (An et al. 2021, arXiv:2110.01548, algorithm 1) learn from fixed datasets: the minimum of many
    critics is low where their values differ, which is far from the data. EDAC needs fewer critics because the
    `gradient_similarity` keeps them different. 'sac_n' and 'edac' are presets of this class: updates, initial weights
    and defaults are those of algorithms/offline/sac_n.py and edac.py of github.com/tinkoff-ai/CORL, except that
    temperature and actor share their sampled actions. Hidden biases are initialised to 0.1, and the last layers within
    1e-3 (actor) and 3e-3 (critics).

    Updates, initial weights and defaults of 'sac' are those of the authors' code at the time of the paper
    (softlearning/algorithms/sac.py of github.com/rail-berkeley/softlearning, commit 6f25c33), except that TensorFlow 1
    ran an update's operations in no defined order. Later commits use the mean of the critics in the actor's loss, and
    softplus for standard deviations.

    Attributes:
      actor_network: function that creates the actor's network, see `CustomNetwork`, for A means and A log
        standard deviations; None for the default.
      temperature_learning_rate: Adam's learning rate.
      initial_temperature: initial weight of the entropy.
      target_entropy: entropy of the actor that the temperature aims at; None for -A.
      log_std_bounds: minimum and maximum log standard deviation of the actor, before tanh.
      num_critics: number of critics N; SAC-N has 10 to 500, and EDAC 10 or 50.
      actor_first: whether temperature and actor are updated before the critics, and weights are initialised, as by
        EDAC's authors.
      diversity_weight: weight eta of the similarity of the critics' gradients in EDAC, 1 or 5; 0 for SAC and
        SAC-N.

    Raises:
      ValueError: If there is only one critic, but the weight is not 0.
    """

    temperature_learning_rate: Positive = 3e-4
    initial_temperature: Positive = 1.0
    target_entropy: float | None = None
    log_std_bounds: LogStdBounds = (-20.0, 2.0)
    num_critics: Count = 2
    actor_first: bool = False
    diversity_weight: NonNegative = 0.0

    @property
    def _network_options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"hidden_bias": 0.1} if self.actor_first else {"init": "glorot"}

    def _create(self) -> Any:
        if self.diversity_weight and self.num_critics == 1:
            raise ArgumentError(
                "must be at least 2 for EDAC's diversity_weight, which compares critics, got 1; use more critics, or a "
                "weight of 0",
                about="num_critics",
            )
        width = self.actions.size
        scales = (1e-3, 3e-3) if self.actor_first else (None, None)
        sizes = [*self.hidden_sizes, 2 * width]
        gaussian = self._make_network(self.actor_network, sizes, final_scale=scales[0], name="actor")
        self._create_critics(self.num_critics, final_scale=scales[1])
        entropy = -float(width) if self.target_entropy is None else self.target_entropy
        self._temperature = Temperature(entropy, self.temperature_learning_rate, initial=self.initial_temperature)
        self.actor_optimizer = Adam(gaussian.trained_variables, self.actor_learning_rate)
        return SquashedGaussianActor(gaussian, mean_bound=math.inf, log_std_bounds=self.log_std_bounds)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        noise = tf.random.stateless_normal([2, *tf.unstack(tf.shape(batch.action))], self.noise_seed(0))
        if self.actor_first:
            actor_loss, log_prob = self._update_actor(batch, noise[1])
            critic_loss, td, q_mean = self._update_critics(batch, noise[0])
        else:
            critic_loss, td, q_mean = self._update_critics(batch, noise[0])
            actor_loss, log_prob = self._update_actor(batch, noise[1])
        self.target_critic.track(self.critic, self.target_update_rate)
        extra = {
            "td_error": tf.reduce_mean(tf.abs(td), axis=0),
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "temperature": self._temperature(),
            "entropy": -tf.reduce_mean(log_prob),
            "q_mean": q_mean,
        }
        return critic_loss + actor_loss, extra

    def _update_critics(self, batch: TransitionBatch, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Makes one update of all critics, and returns their loss, Q - y [N, B], and their mean value."""
        targets = self.critic_targets(batch, noise)
        with tf.GradientTape() as tape:
            loss, td = self.critic_loss(batch, targets)
        self.critic_optimizer.minimize(loss, tape)
        return loss, td, tf.reduce_mean(targets + td)

    def _update_actor(self, batch: TransitionBatch, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Makes one update of actor and temperature; returns the actor's loss, and the log densities [B] in it."""
        with tf.GradientTape() as tape:
            log_prob, value = self.actor_terms(batch, noise)
            if self.actor_first:
                self._temperature.update(log_prob)
            loss = tf.reduce_mean(self._temperature() * log_prob - value)
        self.actor_optimizer.minimize(loss, tape)
        if not self.actor_first:
            self._temperature.update(log_prob)
        return loss, log_prob

    def critic_targets(self, batch: TransitionBatch, noise: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the soft value of s', for standard normal `noise` [B, A]."""
        mean, log_std = self.actor.gaussian(batch.next_observation)
        action, log_prob = squash(mean, log_std, noise)
        value = tf.reduce_min(critic_values(self.target_critic, batch.next_observation, action), axis=0)
        return batch.reward + self.discount * batch.discount * (value - self._temperature() * log_prob)

    def critic_loss(self, batch: TransitionBatch, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of all critics, float32 [], and Q - y, float32 [N, B]."""
        penalty: Any = 0.0
        if self.diversity_weight:
            actions = tf.tile(batch.action[tf.newaxis], [self.num_critics, 1, 1])
            values, gradients = values_and_action_gradients(self.critic, batch.observation, actions)
            penalty = self.diversity_weight * gradient_similarity(gradients)
        else:
            values = critic_values(self.critic, batch.observation, batch.action)
        td = values - targets
        return tf.reduce_mean(batch.weights * (tf.reduce_sum(tf.square(td), axis=0) + penalty)), td

    def actor_terms(self, batch: TransitionBatch, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the log densities of the actor's actions for `noise` [B, A], and their values, float32 [B] each."""
        mean, log_std = self.actor.gaussian(batch.observation)
        action, log_prob = squash(mean, log_std, noise)
        return log_prob, tf.reduce_min(critic_values(self.critic, batch.observation, action), axis=0)
