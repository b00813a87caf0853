"""Soft actor-critic (SAC) for continuous actions, and its ensembles of critics for fixed datasets: SAC-N and EDAC."""

import math
from typing import Any

import tensorflow as tf

from rlds2reverb.errors import ArgumentError

from ..options import NetworkFactory
from .adam import Adam
from .hyperparameters import (
    Count,
    Fraction,
    LayerSizes,
    LogStdBounds,
    NonNegative,
    Positive,
    PositiveFraction,
    configurable,
)
from .networks import critic_values, values_and_action_gradients
from .offline_agent import OfflineAgent, TransitionBatch
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
class SACAgent(OfflineAgent):
    """SAC (Haarnoja et al. 2018b, "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905).

        y           = r + gamma * discount * (min_i Q'_i(s', a') - temperature * log pi(a'|s')),  a' ~ pi(s')
        critic      = mean(sum_i (Q_i(s, a) - y)^2 + diversity_weight * similarity)       (eq. 5)
        actor       = mean(temperature * log pi(a_pi|s) - min_i Q_i(s, a_pi)),  a_pi ~ pi(s)    (eq. 7)
        temperature = -log(temperature) * mean(log pi(a_pi|s) + target entropy)           (eq. 18)

    As in the paper's algorithm 1, each step updates the critics, then the actor with the new critics, then the
    temperature, then the targets. Eq. 5 has a factor of 1/2, which Adam's normalisation makes irrelevant.

    SAC is meant for data that the agent collects itself; on a fixed dataset the values of two critics usually diverge.
    SAC-N and EDAC (An et al. 2021, arXiv:2110.01548, algorithm 1) learn from fixed datasets: the minimum of many
    critics is low where their values differ, which is far from the data. EDAC needs fewer critics because the
    `gradient_similarity` keeps them different.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        actor_learning_rate: Positive = 3e-4,
        critic_learning_rate: Positive = 3e-4,
        temperature_learning_rate: Positive = 3e-4,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        initial_temperature: Positive = 1.0,
        target_entropy: float | None = None,
        log_std_bounds: LogStdBounds = (-20.0, 2.0),
        num_critics: Count = 2,
        diversity_weight: NonNegative = 0.0,
        **common: Any,
    ) -> None:
        """Creates the networks, and target networks for the critics.

        The defaults are those of the paper's table 1. The bounds of log std, and an initial temperature of 1, are those
        of the authors' code (github.com/rail-berkeley/softlearning).

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers of actor and critics.
          actor_network: function that creates the actor's network, see `CustomNetwork`, for A means and
            A log standard deviations; None for the default.
          critic_network: function that creates each critic; its input is the pair of observation and action.
          actor_learning_rate: Adam's learning rate.
          critic_learning_rate: Adam's learning rate.
          temperature_learning_rate: Adam's learning rate.
          discount: discount factor gamma.
          target_update_rate: share of the online weights in a target update.
          initial_temperature: initial weight of the entropy.
          target_entropy: entropy of the actor that the temperature aims at; None for -A.
          log_std_bounds: minimum and maximum log standard deviation of the actor, before tanh.
          num_critics: number of critics N; SAC-N has 10 to 500, and EDAC 10 or 50.
          diversity_weight: weight eta of the similarity of the critics' gradients in EDAC, 1 or 5; 0 for SAC and SAC-N.
          **common: hyperparameters of the base class.

        Raises:
          ValueError: If there is only one critic, but the weight is not 0.
        """
        if diversity_weight and num_critics == 1:
            raise ArgumentError(
                "must be at least 2 for EDAC's diversity_weight, which compares critics, got 1; use more critics, or a "
                "weight of 0",
                about="num_critics",
            )
        super().__init__(time_step_spec, action_spec, **common)
        width = self._actions.size
        gaussian = self._build(actor_network, [*hidden_sizes, 2 * width], name="actor")
        critic = self._build(critic_network, [*hidden_sizes, 1], action_size=width, copies=num_critics, name="critic")
        self._set_critic(critic, critic_learning_rate, discount, target_update_rate)
        entropy = -float(width) if target_entropy is None else target_entropy
        self._temperature = Temperature(entropy, temperature_learning_rate, initial=initial_temperature)
        self._actor_optimizer = Adam(gaussian.trained_variables, actor_learning_rate)
        self._num_critics, self._diversity_weight = num_critics, diversity_weight
        actor = SquashedGaussianActor(gaussian, mean_bound=math.inf, log_std_bounds=log_std_bounds)
        self._complete(time_step_spec, action_spec, actor)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        noise = tf.random.stateless_normal([2, *tf.unstack(tf.shape(batch.action))], self.noise_seed(0))
        targets = self.critic_targets(batch, noise[0])
        with tf.GradientTape() as tape:
            critic_loss, td = self.critic_loss(batch, targets)
        self._critic_optimizer.minimize(critic_loss, tape)
        with tf.GradientTape() as tape:
            actor_loss, log_prob = self.actor_loss(batch, noise[1])
        self._actor_optimizer.minimize(actor_loss, tape)
        self._temperature.update(log_prob)
        self._target_critic.track(self._critic, self._target_update_rate)
        extra = {
            "td_error": tf.reduce_mean(tf.abs(td), axis=0),
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "temperature": self._temperature(),
            "entropy": -tf.reduce_mean(log_prob),
            "q_mean": tf.reduce_mean(targets + td),
        }
        return critic_loss + actor_loss, extra

    def critic_targets(self, batch: TransitionBatch, noise: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the soft value of s', for standard normal `noise` [B, A]."""
        mean, log_std = self._actor.gaussian(batch.next_observation)
        action, log_prob = squash(mean, log_std, noise)
        value = tf.reduce_min(critic_values(self._target_critic, batch.next_observation, action), axis=0)
        return batch.reward + self._discount * batch.discount * (value - self._temperature() * log_prob)

    def critic_loss(self, batch: TransitionBatch, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of all critics, float32 [], and Q - y, float32 [N, B]."""
        penalty: Any = 0.0
        if self._diversity_weight:
            actions = tf.tile(batch.action[tf.newaxis], [self._num_critics, 1, 1])
            values, gradients = values_and_action_gradients(self._critic, batch.observation, actions)
            penalty = self._diversity_weight * gradient_similarity(gradients)
        else:
            values = critic_values(self._critic, batch.observation, batch.action)
        td = values - targets
        return tf.reduce_mean(batch.weights * (tf.reduce_sum(tf.square(td), axis=0) + penalty)), td

    def actor_loss(self, batch: TransitionBatch, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the actor's loss, float32 [], and the log densities [B] of its actions for `noise` [B, A]."""
        mean, log_std = self._actor.gaussian(batch.observation)
        action, log_prob = squash(mean, log_std, noise)
        value = tf.reduce_min(critic_values(self._critic, batch.observation, action), axis=0)
        return tf.reduce_mean(self._temperature() * log_prob - value), log_prob
