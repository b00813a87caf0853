"""The squashed Gaussian actor of SAC and CQL."""

import math

import numpy as np
import tensorflow as tf

from .networks import Network

#: Minimum distance of actions from the bounds, where their density is infinite.
_MARGIN = 1e-6


class SquashedGaussianActor(tf.Module):
    """A Gaussian actor squashed by tanh, whose mean and standard deviation depend on the observation.

    Haarnoja et al. (2018), "Soft Actor-Critic", appendix C. Densities are those of actions in [-1, 1], after tanh.
    """

    def __init__(
        self, network: Network, *, mean_bound: float = 9.0, log_std_bounds: tuple[float, float] = (-5.0, 2.0)
    ) -> None:
        """Sets the network; the default bounds are those of CQL's authors (d4rl/rlkit/torch/sac/policies.py).

        Args:
          network: network from observations [B, D] to means and then log standard deviations, [B, 2 * A].
          mean_bound: maximum magnitude of the means before tanh, applied by clipping.
          log_std_bounds: bounds to which the log standard deviations are clipped.
        """
        super().__init__(name="actor")
        self.network, self.trained_variables = network, network.trained_variables
        self._mean_bound = mean_bound
        self._log_std_bounds = log_std_bounds

    def gaussian(self, observation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns mean and log standard deviation before tanh, float32 [B, A] each."""
        mean, log_std = tf.split(self.network(observation), 2, axis=-1)
        mean = tf.clip_by_value(mean, -self._mean_bound, self._mean_bound)
        return mean, tf.clip_by_value(self.log_std(log_std), *self._log_std_bounds)

    def log_std(self, output: tf.Tensor) -> tf.Tensor:
        """Returns the log standard deviations before clipping, float32 [B, A], for that part of the output."""
        return output

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the tanh of the means, float32 [B, A] in [-1, 1]."""
        return tf.tanh(self.gaussian(observation)[0])

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions, float32 [B, A] in [-1, 1]. `seed` is [2] integers."""
        mean, log_std = self.gaussian(observation)
        return squash(mean, log_std, tf.random.stateless_normal(tf.shape(mean), seed))[0]

    def log_prob(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns the log densities, float32 [B], of actions [B, A] in [-1, 1]."""
        mean, log_std = self.gaussian(observation)
        before = tf.atanh(tf.clip_by_value(action, _MARGIN - 1.0, 1.0 - _MARGIN))
        return _log_density(before, (before - mean) * tf.exp(-log_std), log_std)


class ScaledGaussianActor(SquashedGaussianActor):
    """A squashed Gaussian actor that learns a factor and an offset of its log standard deviations, as in Cal-QL."""

    def __init__(self, network: Network) -> None:
        """Sets the network, and creates the factor 1 and the offset -1."""
        super().__init__(network, mean_bound=math.inf, log_std_bounds=(-20.0, 2.0))
        self.log_std_line = tf.Variable([1.0, -1.0], name="log_std_line")
        self.trained_variables = [*network.trained_variables, self.log_std_line]

    def log_std(self, output: tf.Tensor) -> tf.Tensor:
        """Returns the log standard deviations before clipping."""
        return self.log_std_line[0] * output + self.log_std_line[1]


def squash(mean: tf.Tensor, log_std: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the actions for standard normal `noise` [..., B, A], and their log densities [..., B]."""
    before = mean + tf.exp(log_std) * noise
    return tf.tanh(before), _log_density(before, noise, log_std)


def _log_density(before: tf.Tensor, noise: tf.Tensor, log_std: tf.Tensor) -> tf.Tensor:
    """Returns log N(before) - log d tanh(before); log(1 - tanh(u)^2) = 2 * (log 2 - u - softplus(-2u))."""
    gaussian = -0.5 * tf.square(noise) - log_std - np.float32(0.5 * np.log(2 * np.pi))
    slope = 2.0 * (np.float32(np.log(2)) - before - tf.math.softplus(-2.0 * before))
    return tf.reduce_sum(gaussian - slope, axis=-1)
