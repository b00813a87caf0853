"""Goal-conditioned implicit Q-learning (GCIQL)."""

from typing import Any, Literal

import tensorflow as tf

from ..options import NetworkFactory
from .goal_agent import (
    Expectile,
    GoalAgent,
    ddpg_bc_loss,
    expectile_loss,
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
class GCIQLAgent(GoalAgent):
    """IQL (Kostrikov, Nair & Levine 2021) with goals, as in OGBench (Park et al. 2025, arXiv:2410.20092).

        value  = mean(|expectile - 1(u < 0)| * u^2),  u = min_i Q'_i(s, a, g) - V(s, g)     (IQL, eq. 5)
        critic = sum_i mean((r + gamma * discount * V(s', g) - Q_i(s, a, g))^2)              (IQL, eq. 6)
        actor  = `ddpg_bc_loss` of min_i Q_i(s, pi(s, g), g), or with "awr"
                 -mean(min(exp(alpha * (min_i Q_i(s, a, g) - V(s, g))), 100) * log pi(a | s, g))  (IQL, eq. 7)

    The observations of critics and actor contain the goal g, and rewards are those of goals; see `GoalAgent`.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (512, 512, 512),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        value_network: NetworkFactory | None = None,
        learning_rate: Positive = 3e-4,
        target_update_rate: PositiveFraction = 0.005,
        expectile: Expectile = 0.9,
        actor_loss: Literal["ddpgbc", "awr"] = "ddpgbc",
        alpha: NonNegative = 0.3,
        **common: Any,
    ) -> None:
        """Creates the networks, and target networks for the critics.

        The defaults are those of OGBench: impls/agents/gciql.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers of all networks.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          critic_network: function that creates each critic; its input is the pair of observation and action.
          value_network: function that creates the network of V.
          learning_rate: Adam's learning rate.
          target_update_rate: share of the online weights in a target update.
          expectile: expectile of the values.
          actor_loss: whether the actor maximises Q close to the data or clones weighted actions.
          alpha: weight of cloning, or with "awr" the inverse temperature.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        actor = self._build_actor(actor_network, [*hidden_sizes, self._actions.size])
        self._value = self._build(value_network, [*hidden_sizes, 1], layer_norm=True, name="value")
        options: dict[str, Any] = {"action_size": self._actions.size, "copies": 2, "layer_norm": True}
        self._critic = self._build(critic_network, [*hidden_sizes, 1], name="critic", **options)
        self._target_critic = self._critic.copy()
        self._expectile, self._alpha, self._is_weighted = expectile, alpha, actor_loss == "awr"
        self._targets, self._target_update_rate = [(self._target_critic, self._critic)], target_update_rate
        self._create_optimizers(
            learning_rate, value_loss=[self._value], critic_loss=[self._critic], actor_loss=[actor.network]
        )
        self._complete(time_step_spec, action_spec, actor)

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of values, critics and actor, float32 []."""
        old_q = tf.reduce_min(critic_values(self._target_critic, batch.observation, batch.action), axis=0)
        both = critic_values(self._value, tf.concat([batch.observation, batch.next_observation], axis=0))
        value, next_value = tf.split(both, 2)
        u = old_q - value
        targets = batch.reward + self._discount * batch.discount * next_value
        td = critic_values(self._critic, batch.observation, batch.action) - targets
        return {
            "value_loss": tf.reduce_mean(batch.weights * expectile_loss(u, u, self._expectile)),
            "critic_loss": tf.reduce_mean(batch.weights * tf.reduce_sum(tf.square(td), axis=0)),
            "actor_loss": self.actor_loss(batch),
        }

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of the actor, float32 []."""
        inputs = batch.goals["actor"]
        log_prob = self._actor.log_prob(inputs, batch.action)
        action = batch.action if self._is_weighted else tf.clip_by_value(self._actor.mode(inputs), -1.0, 1.0)
        q = tf.reduce_min(critic_values(self._critic, inputs, action), axis=0)
        if self._is_weighted:
            return weighted_likelihood_loss(q - critic_values(self._value, inputs), log_prob, self._alpha)
        return ddpg_bc_loss(q, log_prob, self._alpha)
