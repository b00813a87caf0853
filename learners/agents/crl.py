"""Contrastive reinforcement learning (CRL)."""

from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.store.goals import GoalDistribution, GoalSampling

from .goal_agent import GoalAgent, GoalShares, Parts, ddpg_bc_loss, make_goal_actor, make_goal_network
from .hyperparameters import (
    Count,
    Fraction,
    ImageEncoderName,
    LayerSizes,
    NonNegative,
    Positive,
    Seed,
    configurable,
)
from .offline_agent import TransitionBatch
from .spaces import BoundedActions, Observations

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

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: Seed = 0,
        hidden_sizes: LayerSizes = (512, 512, 512),
        latent_size: Count = 512,
        image_encoder: ImageEncoderName = "nature",
        learning_rate: Positive = 3e-4,
        discount: Fraction = 0.99,
        alpha: NonNegative = 0.1,
        value_goals: GoalShares = (0.0, 1.0, 0.0),
        value_geometric: bool = True,
        actor_goals: GoalShares = (0.0, 1.0, 0.0),
        actor_geometric: bool = False,
    ) -> None:
        """Creates the networks.

        The defaults are those of OGBench: impls/agents/crl.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          observation_mean: mean to subtract from states and goals; None for no normalisation.
          observation_std: standard deviation to divide states and goals by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers of all networks.
          latent_size: size of phi and psi.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          learning_rate: Adam's learning rate.
          discount: discount factor gamma, the parameter of geometric goals.
          alpha: weight of cloning.
          value_goals: probabilities of the current state, a future one and a random one as the goal of the critics
            (OGBench's value_p_curgoal, value_p_trajgoal and value_p_randomgoal).
          value_geometric: whether the number of steps to its future goals is geometric rather than uniform.
          actor_goals: the same probabilities for the goal of the actor.
          actor_geometric: the same choice for the goal of the actor.
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions, parts = BoundedActions(action_spec), Parts(time_step_spec.observation)
        goals = GoalDistribution(*value_goals, value_geometric), GoalDistribution(*actor_goals, actor_geometric)
        self.goal_sampling = GoalSampling(*goals, gamma=discount, is_negative=False)
        options: dict[str, Any] = {"seed": seed, "image_encoder": image_encoder}
        latent = {**options, "copies": 2, "layer_norm": True}
        sizes = [*hidden_sizes, latent_size]
        actor = make_goal_actor(None, observations, hidden_sizes, actions.size, **options)
        self._phi = make_goal_network(None, parts.state, sizes, action_size=actions.size, name="phi", **latent)
        self._psi = make_goal_network(None, parts.goal, sizes, name="psi", **latent)
        self._parts, self._alpha, self._scale = parts, alpha, np.float32(1 / np.sqrt(latent_size))
        self._create_optimizers(learning_rate, critic_loss=[self._phi, self._psi], actor_loss=[actor.network])
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

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
