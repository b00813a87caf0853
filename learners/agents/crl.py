"""Contrastive reinforcement learning (CRL)."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from .goal_agent import GoalAgent, Parts, ddpg_bc_loss
from .hyperparameters import (
    Count,
    LayerSizes,
    NonNegative,
    Positive,
    configurable,
)
from .offline_agent import TransitionBatch

#: Minimum of log Q in the actor's loss.
_MIN_LOG_Q = np.float32(np.log(1e-6))


@configurable
class CRLAgent(GoalAgent):
    """Contrastive RL with binary NCE (Eysenbach, Zhang, Levine & Salakhutdinov 2022, arXiv:2206.07568).

        log Q_e(s, a, g) = phi_e(s, a)^T psi_e(g) / sqrt(latent_size)
        critic = mean_{i, j, e} BCE(sigmoid(log Q_e(s_i, a_i, g_j)), 1(i = j))
        actor  = `ddpg_bc_loss` of max(min_e log Q_e(s, pi(s, g), g), log 1e-6)

    The goals of the critic are later states with geometric distances, so that exp(log Q) is proportional to the
    discounted probability of reaching g over that of g in the data. The goals of the other items are the negatives.
    The actor and the two critics are those of OGBench (Park et al. 2025, arXiv:2410.20092).
    """

    hides = ("negative_rewards",)
    inherited_defaults: ClassVar[dict[str, Any]] = {"value_goals": (0.0, 1.0, 0.0)}

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (512, 512, 512),
        latent_size: Count = 512,
        learning_rate: Positive = 3e-4,
        alpha: NonNegative = 0.1,
        **common: Any,
    ) -> None:
        """Creates the networks.

        The defaults are those of OGBench: impls/agents/crl.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers of all networks.
          latent_size: size of phi and psi.
          learning_rate: Adam's learning rate.
          alpha: weight of cloning.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, negative_rewards=False, **common)
        parts, width, sizes = Parts(time_step_spec.observation), self._actions.size, [*hidden_sizes, latent_size]
        actor = self._build_actor(None, [*hidden_sizes, width])
        latent: dict[str, Any] = {"copies": 2, "layer_norm": True}
        self._phi = self._build(None, sizes, observations=parts.state, action_size=width, name="phi", **latent)
        self._psi = self._build(None, sizes, observations=parts.goal, name="psi", **latent)
        self._parts, self._alpha, self._scale = parts, alpha, np.float32(1 / np.sqrt(latent_size))
        self._create_optimizers(learning_rate, critic_loss=[self._phi, self._psi], actor_loss=[actor.network])
        self._complete(time_step_spec, action_spec, actor)

    def represent(self, inputs: tf.Tensor, action: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns phi(s, a) and psi(g), float32 [2, B, latent_size] each, of observations [B, D] and actions [B, A]."""
        state, goal = self._parts.split(inputs)
        return self._phi(tf.concat([state, action], axis=-1)), self._psi(goal)

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
        phi, psi = self.represent(inputs, tf.clip_by_value(self._actor.mode(inputs), -1.0, 1.0))
        log_q = tf.reduce_min(tf.reduce_sum(phi * psi, axis=-1) * self._scale, axis=0)
        return ddpg_bc_loss(tf.maximum(log_q, _MIN_LOG_Q), self._actor.log_prob(inputs, batch.action), self._alpha)
