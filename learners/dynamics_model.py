"""Models of the dynamics: what follows an action, learned from transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rlds2reverb.types.specs import Nest

from .agents.custom_networks import make_network
from .agents.unit_conversions import DiscreteActions, Observations
from .ensemble_fit import EnsembleFit, FitOptions, PolicyTransitions


class Prediction(NamedTuple):
    """The predictions of K models for an action in each of B states.

    Attributes:
      state: float32 [K, B, S], normalised observations.
      reward: float32 [K, B].
      discount: float32 [K, B], in [0, 1].
      spread: float32 [B], how far the models are apart, or outside the range of the data if that is more: the root mean
        square over the models of the distance of their states from the mean state, or from the range, in standard
        deviations of the observations.
    """

    state: Any
    reward: Any
    discount: Any
    spread: Any


class DynamicsModel(EnsembleFit):
    """K deterministic models of the dynamics, the reward and the ends of episodes.

        (s' - s, r, d) = f_k(s, a)
        loss = sum_k mean(w_k * (mean(((s' - s, r) - f_k)^2 / scale^2) + cross entropy of d))

    States are normalised observations. Each model predicts a single next state, so that it suits environments with
    little noise. Several models differ where the data leave open what follows, which tells when a policy leaves the
    data (Kidambi et al. 2020, "MOReL", arXiv:2005.05951, eq. 2).
    """

    title = "the model"

    def __init__(
        self,
        observations: Observations,
        actions: Any,
        options: FitOptions,
        *,
        scales: tuple[np.ndarray, np.ndarray],
        bounds: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Creates the networks.

        Args:
          observations: normalisation of observations, which `can_model` accepts.
          actions: `BoundedActions` or `DiscreteActions`.
          options: options.
          scales: means and standard deviations of s' - s and r in the data, [S + 1].
          bounds: lowest and highest values of s and r in the data, [S + 1], to which predictions are clipped.
        """
        num_choices = actions.num_actions if isinstance(actions, DiscreteActions) else actions.size
        network = make_network(
            None,
            observations,
            [*options.hidden_sizes, observations.size + 2],
            action_size=num_choices,
            seed=options.seed,
            copies=options.ensemble_size,
            activation="gelu",
            name="dynamics",
        )
        self._observations, self.num_models = observations, options.ensemble_size
        self._mean, self._scale = (np.float32(numbers) for numbers in scales)
        self._low, self._high = (np.float32(numbers) for numbers in bounds)
        super().__init__(network, observations.spec, num_choices, options, "dynamics_model")
        state = tf.TensorSpec([None, observations.size], tf.float32)
        self._predict = tf.function(self._make_prediction, autograph=False).get_concrete_function(
            state, self.choice_spec
        )

    def errors(self, batch: PolicyTransitions) -> tf.Tensor:
        """Returns the squared errors of states and rewards plus the cross entropy of discounts, float32 [K, B]."""
        state, following = self._observations(batch.observation), self._observations(batch.next_observation)
        outputs = self.network(tf.concat([state, batch.choice], axis=-1))
        found = (tf.concat([following - state, batch.reward[:, tf.newaxis]], axis=-1) - self._mean) / self._scale
        squared = tf.reduce_mean(tf.square(outputs[..., :-1] - found), axis=-1)
        labels = tf.broadcast_to(batch.discount, tf.shape(squared))
        return squared + tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs[..., -1])

    def predict(self, state: np.ndarray, choice: np.ndarray) -> Prediction:
        """Returns what follows choices [B, C] in states [B, S]."""
        return Prediction(*(part.numpy() for part in self._predict(tf.constant(state), tf.constant(choice))))

    def _make_prediction(self, state: tf.Tensor, choice: tf.Tensor) -> Prediction:
        outputs = self.network(tf.concat([state, choice], axis=-1))
        changes = self._mean + self._scale * outputs[..., :-1]
        found = tf.concat([state + changes[..., :-1], changes[..., -1:]], axis=-1)
        clipped = tf.clip_by_value(found, self._low, self._high)
        differences = changes - tf.reduce_mean(changes, axis=0), found - clipped
        distances = [tf.reduce_mean(tf.reduce_sum(part[..., :-1] ** 2, axis=-1), axis=0) for part in differences]
        spread = tf.sqrt(tf.maximum(*distances))
        return Prediction(clipped[..., :-1], clipped[..., -1], tf.sigmoid(outputs[..., -1]), spread)


def to_observation(spec: Any, state: np.ndarray, mean: Nest, std: Nest) -> Nest:
    """Returns normalised states, float32 [B, S], as a nest of observations; constant elements have an infinite std."""
    parts, first = [], 0
    for leaf, centre, width in zip(*map(tf.nest.flatten, (spec, mean, std)), strict=True):
        column = state[:, first : first + int(np.prod(leaf.shape, dtype=int))]
        first += column.shape[1]
        numbers = column.reshape(len(state), *leaf.shape) * np.where(np.isfinite(width), width, 0.0) + centre
        parts.append(numbers.astype(leaf.dtype.as_numpy_dtype))
    return tf.nest.pack_sequence_as(spec, parts)


def can_model(spec: Any) -> bool:
    """Returns whether observations of this spec consist of vectors of real numbers, whose changes can be learned."""
    return all(leaf.dtype.is_floating and leaf.shape.rank <= 1 for leaf in tf.nest.flatten(spec))
