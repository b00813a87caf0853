"""Contrastive reinforcement learning (CRL)."""

from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets.steps.goals import GoalDistribution, GoalSampling

from .goal_agent import GoalAgent, GoalShares, Parts, ddpg_bc_loss
from .hyperparameters import Count, NonNegative, configurable
from .offline_agent import TransitionBatch


@configurable
class CRLAgent(GoalAgent):
    """Contrastive RL with binary NCE (Eysenbach, Zhang, Levine & Salakhutdinov 2022, arXiv:2206.07568).

        log Q_e(s, a, g) = phi_e(s, a)^T psi_e(g) / sqrt(latent_size)
        critic = mean_{i, j, e} BCE(sigmoid(log Q_e(s_i, a_i, g_j)), 1(i = j))
        actor  = `ddpg_bc_loss` of min_e log Q_e(s, pi(s, g), g)

    The goals of the critic are later states with geometric distances, so that exp(log Q) is proportional to the
    discounted probability of reaching g over that of g in the data. The goals of the other items are the negatives.
    The actor and the two critics are those of OGBench (Park et al. 2025, arXiv:2410.20092).

    Updates and defaults are those of OGBench: impls/agents/crl.py of github.com/seohongpark/ogbench.

    Attributes:
      latent_size: size of phi and psi.
      alpha: weight of cloning.
      value_goals: probabilities of the current state, a future one and a random one as the goal of the critics
        (OGBench's value_p_curgoal, value_p_trajgoal and value_p_randomgoal).
      value_geometric: whether the number of steps to its future goals is geometric rather than uniform.
    """

    latent_size: Count = 512
    alpha: NonNegative = 0.1
    value_goals: GoalShares = (0.0, 1.0, 0.0)
    value_geometric: bool = True

    def _make_goal_sampling(self) -> GoalSampling:
        actor = super()._make_goal_sampling().observed
        value = GoalDistribution(*self.value_goals, self.value_geometric)
        return GoalSampling(value, actor, gamma=self.discount, is_negative=False)

    def _create(self) -> Any:
        super()._create()
        self._parts, sizes = Parts(self.observations.spec), [*self.hidden_sizes, self.latent_size]
        latent = {"copies": 2, "layer_norm": True}
        self.phi = self._make_network(
            None, sizes, observations=self._parts.state, action_size=self.actions.size, name="phi", **latent
        )
        self.psi = self._make_network(None, sizes, observations=self._parts.goal, name="psi", **latent)
        self._scale = np.float32(1 / np.sqrt(self.latent_size))
        actor = self._make_actor()
        self._create_optimizers(critic_loss=[self.phi, self.psi], actor_loss=[actor.network])
        return actor

    def represent(self, inputs: tf.Tensor, action: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns phi(s, a) and psi(g), float32 [2, B, latent_size] each, of observations [B, D] and actions [B, A]."""
        state, goal = self._parts.split(inputs)
        return self.phi(tf.concat([state, action], axis=-1)), self.psi(goal)

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of critics and actor, float32 []."""
        phi, psi = self.represent(batch.observation, batch.action)
        logits = tf.matmul(phi, psi, transpose_b=True) * self._scale
        labels = tf.broadcast_to(tf.eye(tf.shape(phi)[1]), tf.shape(logits))
        entropies = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        critic_loss = tf.reduce_mean(batch.weights * tf.reduce_mean(entropies, axis=[0, 2]))
        return {"critic_loss": critic_loss, "actor_loss": self.actor_loss(batch)}

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of the actor, float32 []."""
        inputs = batch.goals["actor"]
        phi, psi = self.represent(inputs, tf.clip_by_value(self.actor.mode(inputs), -1.0, 1.0))
        log_q = tf.reduce_min(tf.reduce_sum(phi * psi, axis=-1) * self._scale, axis=0)
        return ddpg_bc_loss(log_q, self.actor.log_prob(inputs, batch.action), self.alpha)
