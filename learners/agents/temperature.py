"""The temperature of maximum entropy reinforcement learning, adjusted to a target entropy."""

import tensorflow as tf

from .adam import Adam


class Temperature(tf.Module):
    """The weight of the entropy in the objective of SAC and CQL, which keeps the actor's entropy near a target.

        loss = -log(temperature) * mean(log pi(a|s) + target entropy)

    Haarnoja et al. (2018b), "Soft Actor-Critic Algorithms and Applications", eq. 18, with the logarithm of the
    temperature as the factor, as in the authors' code.
    """

    def __init__(self, target_entropy: float, learning_rate: float, *, initial: float = 1.0) -> None:
        """Creates the variable and its optimiser.

        Args:
          target_entropy: entropy that the temperature aims at, of actions in [-1, 1].
          learning_rate: Adam's learning rate.
          initial: initial temperature, above 0.
        """
        super().__init__(name="temperature")
        self.log_value = tf.Variable(tf.math.log(float(initial)), name="log_temperature")
        self._target_entropy = target_entropy
        self._optimizer = Adam([self.log_value], learning_rate)

    def __call__(self) -> tf.Tensor:
        """Returns the temperature, float32 []."""
        return tf.exp(self.log_value)

    def update(self, log_prob: tf.Tensor) -> None:
        """Makes one gradient step, given the log densities [B] of actions that the actor has sampled."""
        self._optimizer.apply([-tf.stop_gradient(tf.reduce_mean(log_prob) + self._target_entropy)])
