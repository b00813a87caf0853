"""Fitted Q evaluation: Q-functions of a given policy, learned from the transitions of other policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rlds2reverb.errors import TrainingDivergedError
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.specs import Nest

from .agents.adam import Adam
from .agents.custom_networks import make_network
from .agents.networks import critic_values
from .agents.unit_conversions import DiscreteActions, Observations


@dataclass(frozen=True)
class FittedQOptions:
    """The options of fitted Q evaluation.

    Attributes:
      num_updates: number of updates, at least 1.
      ensemble_size: number of Q-functions; from 2 on, each learns from its own bootstrap sample of the episodes.
      batch_size: number of transitions in a batch.
      hidden_sizes: sizes of the hidden layers; none for linear functions.
      learning_rate: Adam's initial learning rate, which falls to 0 along half a cosine.
      target_update_rate: share of the online weights in a target update. Values approach those of the policy with a
        time constant of 1 / (rate * (1 - gamma)) updates.
      seed: random seed of weights, bootstrap samples and batches, in [0, 2^31).

    Raises:
      ValueError: If a number is out of range.
    """

    num_updates: int = 10_000
    ensemble_size: int = 5
    batch_size: int = 256
    hidden_sizes: tuple[int, ...] = (256, 256)
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
      next_choice: float32 [B, C], the policy's choice at `next_observation`.
      weights: float32 [K, B], weight of each transition for each Q-function.
    """

    observation: Nest
    choice: Any
    reward: Any
    discount: Any
    next_observation: Nest
    next_choice: Any
    weights: Any


class FittedQ(tf.Module):
    """K Q-functions of a policy, learned by fitted Q evaluation.

        y_k  = clip(r + gamma * discount * Q'_k(s', pi(s')), bounds)
        loss = sum_k mean(w_k * ((Q_k(s, a) - y_k) / scale)^2)

    Le, Voloshin & Yue (2019), "Batch Policy Learning under Constraints", arXiv:1903.08738, algorithm 3. Instead of
    a new fit of Q_k in each iteration, targets follow it slowly, Q'_k + rate * (Q_k - Q'_k), as is usual with neural
    networks (Fu et al. 2021, "Benchmarks for Deep Off-Policy Evaluation", arXiv:2103.16596). Networks compute
    (Q - offset) / scale, and normalise the activations of hidden layers, which limits extrapolation to actions that the
    data do not contain (Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data",
    arXiv:2302.02948, section 4.2). Each of several Q-functions learns from its own bootstrap sample of the episodes,
    given by the weights (Hao et al. 2021, "Bootstrapping Fitted Q-Evaluation for Off-Policy Inference",
    arXiv:2102.03607).
    """

    def __init__(
        self,
        observations: Observations,
        actions: Any,
        options: FittedQOptions,
        *,
        gamma: float,
        offset: float = 0.0,
        scale: float = 1.0,
        bounds: tuple[float, float] = (-np.inf, np.inf),
    ) -> None:
        """Creates the networks.

        Args:
          observations: normalisation of observations.
          actions: `BoundedActions` or `DiscreteActions`.
          options: options.
          gamma: discount factor.
          offset: value around which Q-values begin, such as the mean return of the data.
          scale: unit of the networks' outputs, such as the standard deviation of the data's returns.
          bounds: lowest and highest value that the rewards permit, to which targets are clipped.
        """
        super().__init__(name="fitted_q")
        self._is_discrete = isinstance(actions, DiscreteActions)
        num_outputs, action_size = (actions.num_actions, 0) if self._is_discrete else (1, actions.size)
        self._network = make_network(
            None,
            observations,
            [*options.hidden_sizes, num_outputs],
            action_size=action_size,
            seed=options.seed,
            copies=options.ensemble_size,
            layer_norm=True,
            name="critic",
        )
        self._target = self._network.copy()
        self._optimizer = Adam(self._network.trained_variables, options.learning_rate, decay_steps=options.num_updates)
        self._observations, self._options, self._gamma = observations, options, gamma
        self._offset, self._scale, self._bounds = offset, scale, bounds
        num_choices = num_outputs if self._is_discrete else action_size
        observation = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), observations.spec
        )
        choice, number = (tf.TensorSpec([None, *shape], tf.float32) for shape in ([num_choices], []))
        weights = tf.TensorSpec([options.ensemble_size, None], tf.float32)
        batch = PolicyTransitions(observation, choice, number, number, observation, choice, weights)
        # Concrete functions, since TensorFlow warns about many functions.
        self._values = tf.function(self._estimate, autograph=False).get_concrete_function(observation, choice)
        self._train = tf.function(self._run_updates, autograph=False).get_concrete_function(
            tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), batch)
        )

    def values(self, observation: Nest, choice: np.ndarray) -> np.ndarray:
        """Returns the values of choices `[B, C]`, float32 `[K, B]`: Q(s, a), or its mean over discrete actions."""
        arrays = tf.nest.map_structure(tf.convert_to_tensor, (observation, choice))
        return self._values(*arrays).numpy()

    def _estimate(self, observation: Nest, choice: tf.Tensor) -> tf.Tensor:
        return self._q(self._network, self._observations(observation), choice)

    def _q(self, network: Any, inputs: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
        if self._is_discrete:
            outputs = tf.reduce_sum(network(inputs) * choice, axis=-1)
        else:
            outputs = critic_values(network, inputs, choice)
        return self._offset + self._scale * outputs

    def targets(self, batch: PolicyTransitions) -> tf.Tensor:
        """Returns y, float32 [K, B]."""
        next_values = self._q(self._target, self._observations(batch.next_observation), batch.next_choice)
        return tf.clip_by_value(batch.reward + self._gamma * batch.discount * next_values, *self._bounds)

    def loss(self, batch: PolicyTransitions, targets: tf.Tensor) -> tf.Tensor:
        """Returns the loss, float32 [], for targets [K, B]."""
        error = (self._estimate(batch.observation, batch.choice) - targets) / self._scale
        return tf.reduce_sum(tf.reduce_mean(batch.weights * tf.square(error), axis=-1))

    def update(self, batch: PolicyTransitions) -> tf.Tensor:
        """Makes one update of all Q-functions and their targets, and returns the loss."""
        targets = self.targets(batch)
        loss = self._optimizer.minimize(lambda: self.loss(batch, targets))
        self._target.track(self._network, self._options.target_update_rate)
        return loss

    @property
    def trackables(self) -> dict[str, tf.Module]:
        """The networks and optimiser that a checkpoint must contain so that a fit continues from it."""
        return {"network": self._network, "target": self._target, "optimizer": self._optimizer}

    def fit(self, batches: PolicyTransitions, first: int) -> None:
        """Makes some of the updates.

        Args:
          batches: batches of the updates as arrays [n, B, ...]; weights are [n, K, B].
          first: number of updates made before.

        Raises:
          TrainingDivergedError: If the loss is not finite.
        """
        loss = float(self._train(tf.nest.map_structure(tf.convert_to_tensor, batches)))
        if not np.isfinite(loss):
            raise TrainingDivergedError(
                f"the loss of fitted Q evaluation is {loss} after {first:,} updates; lower the learning rate, or "
                "check the rewards with validate"
            )

    def _run_updates(self, batches: PolicyTransitions) -> tf.Tensor:
        """Makes one update with each of the batches [n, B, ...], and returns the last loss."""

        def update(index: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return index + 1, self.update(tf.nest.map_structure(lambda column: column[index], batches))

        count = tf.shape(batches.reward)[0]
        state = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda index, _: index < count, update, state, parallel_iterations=1)[1]
