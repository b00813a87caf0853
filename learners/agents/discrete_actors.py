"""Actors that choose one of several actions."""

import tensorflow as tf

from .networks import MLP


class EpsilonGreedyActor(tf.Module):
    """Takes the action of the largest value; `sample` takes any action with probability epsilon."""

    def __init__(self, network: MLP, *, epsilon: float) -> None:
        """Keeps the network.

        Args:
          network: [B, D] -> [B, actions], the values.
          epsilon: share of the actions of `sample` that are uniformly random.
        """
        super().__init__(name="actor")
        self.network = network
        self._epsilon = epsilon

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns int32 [B], from 0."""
        return tf.argmax(self.network(observation), axis=-1, output_type=tf.int32)

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns int32 [B], from 0. `seed` is [2] integers."""
        values = self.network(observation)
        greedy = tf.argmax(values, axis=-1, output_type=tf.int32)
        seeds = tf.random.experimental.stateless_split(seed, 2)
        explores = tf.random.stateless_uniform(tf.shape(greedy), seeds[0]) < self._epsilon
        any_action = tf.random.stateless_uniform(tf.shape(greedy), seeds[1], 0, tf.shape(values)[-1], tf.int32)
        return tf.where(explores, any_action, greedy)


class CategoricalActor(tf.Module):
    """Takes the most likely action; `sample` takes each with its probability, the softmax of a network's outputs."""

    def __init__(self, network: MLP) -> None:
        """Keeps the network, [B, D] -> [B, actions]."""
        super().__init__(name="actor")
        self.network = network

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns int32 [B], from 0."""
        return tf.argmax(self.network(observation), axis=-1, output_type=tf.int32)

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns int32 [B], from 0. `seed` is [2] integers."""
        drawn = tf.random.stateless_categorical(self.network(observation), 1, seed, dtype=tf.int32)
        return tf.squeeze(drawn, axis=-1)

    def log_prob(self, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B]: the log probability of actions, int32 [B] from 0."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(action, self.network(observation))
