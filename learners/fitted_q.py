"""Fitted Q evaluation: Q-functions of a given policy, learned from the transitions of other policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.types.specs import Nest

from .agents.custom_networks import make_network
from .agents.networks import critic_values
from .agents.unit_conversions import DiscreteActions, Observations
from .ensemble_fit import EnsembleFit, FitOptions, PolicyTransitions


class FittedQ(EnsembleFit):
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

    Attributes:
      target: the target networks.
    """

    title = "fitted Q evaluation"

    def __init__(
        self,
        observations: Observations,
        actions: Any,
        options: FitOptions,
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
        self._is_discrete = isinstance(actions, DiscreteActions)
        num_outputs, action_size = (actions.num_actions, 0) if self._is_discrete else (1, actions.size)
        network = make_network(
            None,
            observations,
            [*options.hidden_sizes, num_outputs],
            action_size=action_size,
            seed=options.seed,
            copies=options.ensemble_size,
            layer_norm=True,
            name="critic",
        )
        self.target, self._observations, self._gamma = network.copy(), observations, gamma
        self._offset, self._scale, self._bounds = offset, scale, bounds
        super().__init__(network, observations.spec, action_size or num_outputs, options, "fitted_q")
        self._values = tf.function(self._estimate, autograph=False).get_concrete_function(
            self.observation_spec, self.choice_spec
        )

    def values(self, observation: Nest, choice: np.ndarray) -> np.ndarray:
        """Returns the values of choices `[B, C]`, float32 `[K, B]`: Q(s, a), or its mean over discrete actions."""
        arrays = tf.nest.map_structure(tf.convert_to_tensor, (observation, choice))
        return self._values(*arrays).numpy()

    def _estimate(self, observation: Nest, choice: tf.Tensor) -> tf.Tensor:
        return self._q(self.network, self._observations(observation), choice)

    def _q(self, network: Any, inputs: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
        if self._is_discrete:
            outputs = tf.reduce_sum(network(inputs) * choice, axis=-1)
        else:
            outputs = critic_values(network, inputs, choice)
        return self._offset + self._scale * outputs

    def targets(self, batch: PolicyTransitions) -> tf.Tensor:
        """Returns y, float32 [K, B]."""
        next_values = self._q(self.target, self._observations(batch.next_observation), batch.next_choice)
        return tf.clip_by_value(batch.reward + self._gamma * batch.discount * next_values, *self._bounds)

    def clipped_share(self, batches: PolicyTransitions) -> float:
        """Returns the share of targets of the first of some batches, see `fit`, that are clipped."""
        targets = self.targets(tf.nest.map_structure(lambda column: tf.convert_to_tensor(column[0]), batches)).numpy()
        return float(np.isin(targets, np.array(self._bounds, np.float32)).mean())

    def errors(self, batch: PolicyTransitions) -> tf.Tensor:
        """Returns ((Q - y) / scale)^2, float32 [K, B]."""
        errors = self._estimate(batch.observation, batch.choice) - tf.stop_gradient(self.targets(batch))
        return tf.square(errors / self._scale)

    def update(self, batch: PolicyTransitions) -> tf.Tensor:
        """Makes one update of all Q-functions and their targets; see `EnsembleFit`."""
        losses = super().update(batch)
        self.target.track(self.network, self._options.target_update_rate)
        return losses

    @property
    def trackables(self) -> dict[str, tf.Module]:
        """The networks and optimiser that a checkpoint must contain so that a fit continues from it."""
        return {**super().trackables, "target": self.target}
