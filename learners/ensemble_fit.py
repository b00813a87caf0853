"""Fits of ensembles to transitions, each member to its own bootstrap sample of the episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rlds2reverb.errors import TrainingDivergedError
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.specs import Nest

from .agents.adam import Adam


@dataclass(frozen=True)
class FitOptions:
    """The options of fitted Q evaluation, of models of the dynamics and of behavioural cloning.

    Attributes:
      num_updates: number of updates, at least 1.
      ensemble_size: number of Q-functions or models; from 2 on, each learns from its own bootstrap sample of the
        episodes.
      batch_size: number of transitions in a batch.
      hidden_sizes: sizes of the hidden layers; none for linear functions.
      learning_rate: Adam's initial learning rate, which falls to 0 along half a cosine.
      target_update_rate: share of the online weights in a target update of fitted Q evaluation. Values approach those
        of the policy with a time constant of 1 / (rate * (1 - gamma)) updates.
      seed: random seed of weights, bootstrap samples and batches, in [0, 2^31).

    Raises:
      ValueError: If a number is out of range.
    """

    num_updates: int = 10_000
    ensemble_size: int = 5
    batch_size: int = 256
    hidden_sizes: tuple[int, ...] = (128, 128)
    learning_rate: float = 1e-3
    target_update_rate: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_updates", "ensemble_size", "batch_size"):
            require_count(name, getattr(self, name))
        for name in ("learning_rate", "target_update_rate"):
            require_number(name, getattr(self, name), 0, 1)
        require_count("seed", self.seed, 0, 2**31 - 1)


class PolicyTransitions(NamedTuple):
    """Transitions, with what the evaluated policy does afterwards.

    A choice is a float32 vector that describes what is done in a state: a continuous action in [-1, 1] `[A]`, or the
    probabilities of all discrete actions, which are 0 or 1 for an action that was taken.

    Attributes:
      observation: nest of arrays [B, ...], in the environment's units.
      choice: float32 [B, C], the action of the data.
      reward: float32 [B].
      discount: float32 [B], 0 where the transition ends in a terminal state; a truncated one ends like any other.
      next_observation: nest of arrays [B, ...].
      next_choice: float32 [B, C], the policy's choice at `next_observation`; that of the data, and unused, in the fit
        of a model.
      weights: float32 [K, B], how often each transition occurs in the bootstrap sample of each member.
    """

    observation: Nest
    choice: Any
    reward: Any
    discount: Any
    next_observation: Nest
    next_choice: Any
    weights: Any


class EnsembleFit(tf.Module):
    """K networks that minimise the weighted mean of their squared errors, sum_k mean(w_k * e_k).

    Attributes:
      network: the networks.
      losses: mean losses of the latest updates inside and outside the bootstrap samples, a variable, float32 [2]. The
        latter are those of episodes that a network has not learned from; -1 without bootstrap samples.
    """

    title = "the fit"

    def __init__(self, network: Any, observation_spec: Any, num_choices: int, options: FitOptions, name: str) -> None:
        """Creates the optimiser, and traces the updates.

        Args:
          network: the networks, with `options.ensemble_size` copies.
          observation_spec: nest of specs of observations.
          num_choices: number of elements of a choice.
          options: options.
          name: name of the module.
        """
        super().__init__(name=name)
        self.network, self._options = network, options
        self.losses = tf.Variable([-1.0, -1.0], trainable=False, name="losses")
        self._optimizer = Adam(network.trained_variables, options.learning_rate, decay_steps=options.num_updates)
        self.observation_spec = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), observation_spec
        )
        self.choice_spec, number = (tf.TensorSpec([None, *shape], tf.float32) for shape in ([num_choices], []))
        weights = tf.TensorSpec([options.ensemble_size, None], tf.float32)
        now, following = (self.observation_spec, self.choice_spec), (self.observation_spec, self.choice_spec)
        batch = PolicyTransitions(*now, number, number, *following, weights)
        # Concrete functions, since TensorFlow warns about many functions.
        self._train = tf.function(self._run_updates, autograph=False).get_concrete_function(
            tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), batch)
        )

    def errors(self, batch: PolicyTransitions) -> tf.Tensor:
        """Returns the squared errors, float32 [K, B]."""
        raise NotImplementedError

    def update(self, batch: PolicyTransitions) -> tf.Tensor:
        """Makes one update, and returns numbers from before it, float32 [3].

        These are the mean loss inside the bootstrap samples, and the sum and the number of those outside.
        """
        with tf.GradientTape() as tape:
            errors = self.errors(batch)
            loss = tf.reduce_sum(tf.reduce_mean(batch.weights * errors, axis=-1))
        self._optimizer.minimize(loss, tape)
        is_outside = tf.cast(batch.weights == 0, tf.float32)
        inside = tf.reduce_sum(batch.weights * errors) / tf.reduce_sum(batch.weights)
        return tf.stack([inside, tf.reduce_sum(is_outside * errors), tf.reduce_sum(is_outside)])

    @property
    def trackables(self) -> dict[str, tf.Module]:
        """The networks and optimiser that a checkpoint must contain so that a fit continues from it."""
        return {"network": self.network, "optimizer": self._optimizer, "losses": self.losses}

    def fit(self, batches: PolicyTransitions, first: int) -> None:
        """Makes some of the updates.

        Args:
          batches: batches of the updates as arrays [n, B, ...]; weights are [n, K, B].
          first: number of updates made before.

        Raises:
          TrainingDivergedError: If the loss is not finite.
        """
        loss, outside, count = self._train(tf.nest.map_structure(tf.convert_to_tensor, batches)).numpy()
        loss /= len(batches.reward)
        if not np.isfinite(loss):
            raise TrainingDivergedError(
                f"the loss of {self.title} is {loss} after {first:,} updates; lower the learning rate, or check "
                "the rewards with validate"
            )
        self.losses.assign([loss, outside / count if count else -1.0])

    def _run_updates(self, batches: PolicyTransitions) -> tf.Tensor:
        """Makes one update with each of the batches [n, B, ...], and returns the sums of their numbers."""

        def update(index: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return index + 1, losses + self.update(tf.nest.map_structure(lambda column: column[index], batches))

        count = tf.shape(batches.reward)[0]
        state = (tf.constant(0), tf.zeros(3))
        return tf.while_loop(lambda index, _: index < count, update, state, parallel_iterations=1)[1]
