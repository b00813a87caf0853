"""Goal-conditioned implicit V-learning (GCIVL)."""

from typing import Any

import tensorflow as tf

from ..options import NetworkFactory
from .goal_agent import (
    Expectile,
    GoalAgent,
    implicit_value_loss,
    value_advantage,
    weighted_likelihood_loss,
)
from .hyperparameters import (
    LayerSizes,
    NonNegative,
    Positive,
    PositiveFraction,
    configurable,
)
from .networks import critic_values
from .offline_agent import TransitionBatch


@configurable
class GCIVLAgent(GoalAgent):
    """Goal-conditioned implicit V-learning, GCIQL without Q (Park et al. 2025, OGBench, arXiv:2410.20092).

        value = see `implicit_value_loss`
        actor = -mean(min(exp(alpha * (V(s', g) - V(s, g))), 100) * log pi(a | s, g))

    V is the mean of two functions. Park et al. (2023), arXiv:2307.11949, with one policy.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (512, 512, 512),
        actor_network: NetworkFactory | None = None,
        value_network: NetworkFactory | None = None,
        learning_rate: Positive = 3e-4,
        target_update_rate: PositiveFraction = 0.005,
        expectile: Expectile = 0.9,
        alpha: NonNegative = 10.0,
        **common: Any,
    ) -> None:
        """Creates the networks, and target networks for the values.

        The defaults are those of OGBench: impls/agents/gcivl.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers of all networks.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          value_network: function that creates each of the two networks of V.
          learning_rate: Adam's learning rate.
          target_update_rate: share of the online weights in a target update.
          expectile: expectile of the values.
          alpha: inverse temperature of the advantages.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        actor = self._build_actor(actor_network, [*hidden_sizes, self._actions.size])
        self._values = self._build(value_network, [*hidden_sizes, 1], copies=2, layer_norm=True, name="value")
        self._target_values = self._values.copy()
        self._expectile, self._alpha = expectile, alpha
        self._targets, self._target_update_rate = [(self._target_values, self._values)], target_update_rate
        self._create_optimizers(learning_rate, value_loss=[self._values], actor_loss=[actor.network])
        self._complete(time_step_spec, action_spec, actor)

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of values and actor, float32 []."""
        values = critic_values(self._values, batch.observation)
        old, old_next = (
            critic_values(self._target_values, inputs) for inputs in (batch.observation, batch.next_observation)
        )
        advantage = value_advantage(self._values, batch.goals["actor"], batch.goals["next_actor"])
        log_prob = self._actor.log_prob(batch.goals["actor"], batch.action)
        return {
            "value_loss": implicit_value_loss(batch, values, old, old_next, self._discount, self._expectile),
            "actor_loss": weighted_likelihood_loss(advantage, log_prob, self._alpha),
        }
