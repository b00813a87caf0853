"""Goal-conditioned implicit V-learning (GCIVL)."""

from typing import Any

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .goal_agent import GoalValueAgent, implicit_value_loss, value_advantage, weighted_likelihood_loss
from .hyperparameters import NonNegative, configurable
from .networks import critic_values
from .offline_agent import TransitionBatch


@configurable
class GCIVLAgent(GoalValueAgent):
    """Goal-conditioned implicit V-learning, GCIQL without Q (Park et al. 2025, OGBench, arXiv:2410.20092).

        value = see `implicit_value_loss`
        actor = -mean(min(exp(alpha * (V(s', g) - V(s, g))), 100) * log pi(a | s, g))

    V is the mean of two functions. Park et al. (2023), arXiv:2307.11949, with one policy.

    Updates and defaults are those of OGBench: impls/agents/gcivl.py of github.com/seohongpark/ogbench.

    Attributes:
      actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
      value_network: function that creates each of the two networks of V.
      alpha: inverse temperature of the advantages.
    """

    actor_network: NetworkFactory | None = None
    value_network: NetworkFactory | None = None
    alpha: NonNegative = 10.0

    def _create(self) -> Any:
        super()._create()
        sizes = [*self.hidden_sizes, 1]
        self.values = self._make_network(self.value_network, sizes, copies=2, layer_norm=True, name="value")
        self.target_values = self.values.copy()
        self.targets = [(self.target_values, self.values)]
        actor = self._make_actor(self.actor_network)
        self._create_optimizers(value_loss=[self.values], actor_loss=[actor.network])
        return actor

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of values and actor, float32 []."""
        values = critic_values(self.values, batch.observation)
        old, old_next = (
            critic_values(self.target_values, inputs) for inputs in (batch.observation, batch.next_observation)
        )
        advantage = value_advantage(self.values, batch.goals["actor"], batch.goals["next_actor"])
        log_prob = self.actor.log_prob(batch.goals["actor"], batch.action)
        return {
            "value_loss": implicit_value_loss(batch, values, old, old_next, self.discount, self.expectile),
            "actor_loss": weighted_likelihood_loss(advantage, log_prob, self.alpha),
        }
