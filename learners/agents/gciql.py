"""Goal-conditioned implicit Q-learning (GCIQL)."""

from typing import Any, Literal

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .goal_agent import GoalValueAgent, ddpg_bc_loss, expectile_loss, weighted_likelihood_loss
from .hyperparameters import NonNegative, configurable
from .networks import critic_values
from .offline_agent import TransitionBatch


@configurable
class GCIQLAgent(GoalValueAgent):
    """IQL (Kostrikov, Nair & Levine 2021) with goals, as in OGBench (Park et al. 2025, arXiv:2410.20092).

        value  = mean(|expectile - 1(u < 0)| * u^2),  u = min_i Q'_i(s, a, g) - V(s, g)     (IQL, eq. 5)
        critic = sum_i mean((r + gamma * discount * V(s', g) - Q_i(s, a, g))^2)              (IQL, eq. 6)
        actor  = `ddpg_bc_loss` of min_i Q_i(s, pi(s, g), g), or with "awr"
                 -mean(min(exp(alpha * (min_i Q_i(s, a, g) - V(s, g))), 100) * log pi(a | s, g))  (IQL, eq. 7)

    The observations of critics and actor contain the goal g, and rewards are those of goals; see `GoalAgent`.

    Updates and defaults are those of OGBench: impls/agents/gciql.py of github.com/seohongpark/ogbench.

    Attributes:
      actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
      critic_network: function that creates each critic; its input is the pair of observation and action.
      value_network: function that creates the network of V.
      actor_loss: whether the actor maximises Q close to the data or clones weighted actions.
      alpha: weight of cloning, or with "awr" the inverse temperature.
    """

    actor_network: NetworkFactory | None = None
    critic_network: NetworkFactory | None = None
    value_network: NetworkFactory | None = None
    actor_loss: Literal["ddpgbc", "awr"] = "ddpgbc"
    alpha: NonNegative = 0.3

    def _create(self) -> Any:
        super()._create()
        sizes = [*self.hidden_sizes, 1]
        self.value = self._make_network(self.value_network, sizes, layer_norm=True, name="value")
        options = {"action_size": self.actions.size, "copies": 2, "layer_norm": True}
        self.critic = self._make_network(self.critic_network, sizes, name="critic", **options)
        self.target_critic = self.critic.copy()
        self.targets = [(self.target_critic, self.critic)]
        actor = self._make_actor(self.actor_network)
        self._create_optimizers(value_loss=[self.value], critic_loss=[self.critic], actor_loss=[actor.network])
        return actor

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of values, critics and actor, float32 []."""
        old_q = tf.stop_gradient(
            tf.reduce_min(critic_values(self.target_critic, batch.observation, batch.action), axis=0)
        )
        both = critic_values(self.value, tf.concat([batch.observation, batch.next_observation], axis=0))
        value, next_value = tf.split(both, 2)
        u = old_q - value
        targets = tf.stop_gradient(batch.reward + self.discount * batch.discount * next_value)
        td = critic_values(self.critic, batch.observation, batch.action) - targets
        return {
            "value_loss": tf.reduce_mean(batch.weights * expectile_loss(u, u, self.expectile)),
            "critic_loss": tf.reduce_mean(batch.weights * tf.reduce_sum(tf.square(td), axis=0)),
            "actor_loss": self.policy_loss(batch),
        }

    def policy_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of the actor, float32 []."""
        inputs, is_weighted = batch.goals["actor"], self.actor_loss == "awr"
        log_prob = self.actor.log_prob(inputs, batch.action)
        action = batch.action if is_weighted else tf.clip_by_value(self.actor.mode(inputs), -1.0, 1.0)
        q = tf.reduce_min(critic_values(self.critic, inputs, action), axis=0)
        if is_weighted:
            return weighted_likelihood_loss(q - critic_values(self.value, inputs), log_prob, self.alpha)
        return ddpg_bc_loss(q, log_prob, self.alpha)
