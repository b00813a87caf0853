"""Actors for discrete actions."""

import numpy as np
import tensorflow as tf

from .networks import ILLEGAL, Dropout, MaskedNetwork, Network


class EpsilonGreedyActor(tf.Module):
    """An actor that takes the action with the highest value, or in `sample` a random one with probability epsilon."""

    def __init__(self, network: Network, *, epsilon: float) -> None:
        """Sets the network.

        Args:
          network: network from observations [B, D] to values [B, actions].
          epsilon: probability of a uniformly random action in `sample`.
        """
        super().__init__(name="actor")
        self.network = network
        self._epsilon = epsilon

    def values(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the values of the actions, float32 [B, actions]."""
        return self.network(observation)

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the best actions, int32 [B], from 0."""
        return tf.argmax(self.values(observation), axis=-1, output_type=tf.int32)

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions, int32 [B], from 0. `seed` is [2] integers."""
        values = self.values(observation)
        greedy = tf.argmax(values, axis=-1, output_type=tf.int32)
        seeds = tf.random.experimental.stateless_split(seed, 2)
        explores = tf.random.stateless_uniform(tf.shape(greedy), seeds[0]) < self._epsilon
        if isinstance(self.network, MaskedNetwork):
            logits = tf.where(self.network.find_legal(observation), 0.0, ILLEGAL)
            any_action = tf.squeeze(tf.random.stateless_categorical(logits, 1, seeds[1], tf.int32), axis=-1)
        else:
            any_action = tf.random.stateless_uniform(tf.shape(greedy), seeds[1], 0, tf.shape(values)[-1], tf.int32)
        return tf.where(explores, any_action, greedy)

    def log_prob(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns the log probabilities of `sample`, float32 [B], of actions, int32 [B] from 0."""
        values = self.values(observation)
        is_greedy = tf.equal(tf.argmax(values, axis=-1, output_type=tf.int32), action)
        share = self._epsilon / tf.cast(tf.shape(values)[-1], tf.float32)
        if isinstance(self.network, MaskedNetwork):
            legal = tf.cast(self.network.find_legal(observation), tf.float32)
            is_legal = tf.gather(legal, action, batch_dims=1)
            share = self._epsilon * is_legal / tf.reduce_sum(legal, axis=-1)
        return tf.math.log(share + tf.where(is_greedy, 1.0 - self._epsilon, 0.0))


class ConstrainedActor(EpsilonGreedyActor):
    """An actor that takes the action with the highest value among those that are likely in the data.

        pi(s) = argmax Q(s, a) over the actions with G(a|s) > threshold * max_b G(b|s)

    Fujimoto, Conti, Ghavamzadeh & Pineau (2019), "Benchmarking batch deep reinforcement learning algorithms", eq. 6.
    """

    def __init__(self, network: Network, imitation: Network, *, threshold: float, epsilon: float) -> None:
        """Sets the networks.

        Args:
          network: network from observations [B, D] to values [B, actions].
          imitation: network from observations to the logits of G [B, actions].
          threshold: minimum probability of an action in relation to the most likely one, in [0, 1).
          epsilon: probability of a uniformly random action in `sample`.
        """
        super().__init__(network, epsilon=epsilon)
        self.imitation = imitation
        self._threshold = threshold

    def values(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the values of the actions, float32 [B, actions]; -inf for unlikely ones."""
        logits = self.imitation(observation)
        likelihoods = tf.exp(logits - tf.reduce_max(logits, axis=-1, keepdims=True))
        return tf.where(likelihoods > self._threshold, self.network(observation), -np.inf)


class CategoricalActor(tf.Module):
    """An actor that takes the most likely action; `sample` follows the softmax of the network's outputs."""

    def __init__(self, network: Network) -> None:
        """Sets the network, from observations [B, D] to logits [B, actions]."""
        super().__init__(name="actor")
        self.network, self.trained_variables = network, network.trained_variables

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the most likely actions, int32 [B], from 0."""
        return tf.argmax(self.network(observation), axis=-1, output_type=tf.int32)

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns sampled actions, int32 [B], from 0. `seed` is [2] integers."""
        sample = tf.random.stateless_categorical(self.network(observation), 1, seed, dtype=tf.int32)
        return tf.squeeze(sample, axis=-1)

    def log_prob(self, observation: tf.Tensor, action: tf.Tensor, *, dropout: Dropout | None = None) -> tf.Tensor:
        """Returns the log probabilities, float32 [B], of actions, int32 [B] from 0; see `MLP` for `dropout`."""
        logits = self.network(observation, dropout=dropout)
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(action, logits)
