"""Conservative Q-learning of continuous actions."""

from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from .adam import Adam
from .networks import MLP, critic_values
from .offline_agent import Batch, OfflineAgent
from .spaces import BoundedActions, Observations
from .squashed_gaussian import SquashedGaussianActor, squashed


def conservative_penalty(q_sampled: tf.Tensor, log_densities: tf.Tensor, q_data: tf.Tensor) -> tf.Tensor:
    """How much larger the values of all actions are than those of the data.

        penalty = log sum_j exp(Q(s, a_j) - log p(a_j)) - Q(s, a)

    Kumar et al. (2020), CQL(H), eq. 4, the first term by importance sampling as in appendix F. The constant of the
    mean, -log N, is left out, as the authors do: it has no gradient.

    Args:
      q_sampled: float32 [..., N, B], values of N drawn actions.
      log_densities: float32 [N, B], what they were drawn with.
      q_data: float32 [..., B], values of the data's actions.

    Returns:
      float32 [..., B].
    """
    return tf.reduce_logsumexp(q_sampled - log_densities, axis=-2) - q_data


@gin.configurable(module="rlds2reverb")
class CQLAgent(OfflineAgent):
    """CQL(H) on SAC (Kumar, Zhou, Tucker & Levine 2020, "Conservative Q-Learning for Offline Reinforcement Learning").

        y           = r + gamma * discount * min_i Q'_i(s', a'),  a' ~ pi(s')
        critic      = sum_i mean((Q_i(s, a) - y)^2 + min_q_weight * penalty_i)            (eq. 4)
        actor       = mean(temperature * log pi(a_pi|s) - min_i Q_i(s, a_pi)),  a_pi ~ pi(s)
        temperature = -log(temperature) * mean(log pi(a_pi|s) + target entropy)           (SAC, eq. 18)

    The penalty (`conservative_penalty`) is over `num_samples` uniform actions and as many of pi(s) and of pi(s'), all
    of them valued at s. With `lagrange_threshold` its weight is learned (eq. 30): it grows while
    min_q_weight * penalty is larger than the threshold.

    As in the authors' code, the temperature moves first; actor and critics move by losses of the same old networks;
    the targets follow. Their warm start of the actor by cloning is `num_bc_updates`.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: int = 0,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        actor_learning_rate: float = 1e-4,
        critic_learning_rate: float = 3e-4,
        discount: float = 0.99,
        target_update_rate: float = 0.005,
        min_q_weight: float = 5.0,
        num_samples: int = 10,
        deterministic_backup: bool = True,
        lagrange_threshold: float | None = None,
        target_entropy: float | None = None,
        num_bc_updates: int = 0,
        max_q_backup: bool = False,
    ) -> None:
        """Makes the networks; the critics have a target.

        The defaults are those of the authors' code and its README for the D4RL locomotion tasks: a fixed weight, 5 or
        10, and 1e-4 for the actor (github.com/aviralkumar2907/CQL, d4rl/examples/cql_mujoco_new.py). As there, last
        layers start within 1e-3 (actor) and 3e-3 (critics).

        Args:
          time_step_spec: of the data.
          action_spec: BoundedTensorSpec [A].
          observation_mean: subtracted from observations; None, as in the paper, for no normalisation.
          observation_std: what observations are divided by.
          seed: of the weights and the noise.
          hidden_sizes: features of the hidden layers of actor and critics.
          actor_learning_rate: Adam's step size, of the temperature too; the README has 3e-4 as well.
          critic_learning_rate: Adam's step size, of the penalty's learned weight too.
          discount: gamma.
          target_update_rate: share of the online weights in a target update.
          min_q_weight: the paper's alpha, 5 or 10; the authors' script has 1 with `lagrange_threshold`.
          num_samples: actions of each of the three kinds in the penalty (paper, appendix F).
          deterministic_backup: whether targets leave out the entropy term -temperature * log pi(a'|s').
          lagrange_threshold: the paper's tau, 5 or 10; None keeps the weight fixed.
          target_entropy: what the temperature steers the actor's entropy to; None is -A (SAC, table 1).
          num_bc_updates: updates at the start in which log pi(a|s) of the data stands for Q in the actor's loss. The
            paper has none; the authors' script has 40,000 and says that it matters little.
          max_q_backup: whether targets take, for each critic, the largest target value of the `num_samples` actions of
            pi(s') in the place of one action's (paper, appendix F; an option of the authors' script for AntMaze).
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions = BoundedActions(action_spec)
        features, width = observations.size, actions.size
        actor_network = MLP(
            [features, *hidden_sizes, 2 * width], seed=seed, hidden_bias=0.0, final_scale=1e-3, name="actor"
        )
        self._critic = MLP(
            [features + width, *hidden_sizes, 1], seed=seed, copies=2, hidden_bias=0.0, final_scale=3e-3, name="critic"
        )
        self._target_critic = self._critic.copy()
        self._log_temperature = tf.Variable(0.0, name="log_temperature")
        self._log_penalty_weight = tf.Variable(0.0, name="log_penalty_weight")
        self._actor_optimizer = Adam([actor_network.flat], actor_learning_rate)
        self._temperature_optimizer = Adam([self._log_temperature], actor_learning_rate)
        self._critic_optimizer = Adam([self._critic.flat], critic_learning_rate)
        self._penalty_optimizer = Adam([self._log_penalty_weight], critic_learning_rate)
        self._discount = discount
        self._target_update_rate = target_update_rate
        self._min_q_weight = min_q_weight
        self._num_samples = num_samples
        self._deterministic_backup = deterministic_backup
        self._lagrange_threshold = lagrange_threshold
        self._target_entropy = -float(width) if target_entropy is None else target_entropy
        self._num_bc_updates = num_bc_updates
        self._max_q_backup = max_q_backup
        actor = SquashedGaussianActor(actor_network)
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def _update(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        shape = tf.shape(batch.action)
        count = self._num_samples
        noise = tf.random.stateless_normal([2, 1 + count, *tf.unstack(shape)], self.noise_seed(0))
        uniform = tf.random.stateless_uniform([count, *tf.unstack(shape)], self.noise_seed(1), -1.0, 1.0)
        with tf.GradientTape() as actor_tape:
            mean, log_std = self._actor.gaussian(batch.observation)
            action, log_prob = squashed(mean, log_std, noise[0, 0])
            self._update_temperature(log_prob)
            actor_loss = self.actor_loss(batch, action, log_prob)
        next_mean, next_log_std = self._actor.gaussian(batch.next_observation)
        if self._max_q_backup:
            targets = self.critic_targets(batch, *squashed(next_mean, next_log_std, noise[1, 1:]))
        else:
            targets = self.critic_targets(batch, *squashed(next_mean, next_log_std, noise[1, :1]))
        sampled, log_densities = _join(
            (uniform, tf.fill(tf.shape(uniform)[:2], np.float32(-np.log(2) * action.shape[-1]))),
            squashed(next_mean, next_log_std, noise[1, 1:]),
            squashed(mean, log_std, noise[0, 1:]),
        )
        with tf.GradientTape() as critic_tape:
            td, penalty = self.critic_terms(batch, targets, sampled, log_densities)
            critic_loss = self.critic_loss(batch, td, penalty)
        self._actor_optimizer.minimize(actor_loss, actor_tape)
        self._critic_optimizer.minimize(critic_loss, critic_tape)
        extra = {
            "td_error": tf.reduce_mean(tf.abs(td), axis=0),
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "penalty": tf.reduce_mean(penalty),
            "penalty_weight": self.penalty_weight(),
            "temperature": tf.exp(self._log_temperature),
            "entropy": -tf.reduce_mean(log_prob),
            "q_mean": tf.reduce_mean(targets + td),
        }
        self._update_penalty_weight(penalty)
        self._target_critic.track(self._critic, self._target_update_rate)
        return critic_loss + actor_loss, extra

    def actor_loss(self, batch: Batch, action: tf.Tensor, log_prob: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], for actions [B, A] of the actor and their log densities [B]."""

        def value() -> tf.Tensor:
            return tf.reduce_min(critic_values(self._critic, batch.observation, action), axis=0)

        def likelihood() -> tf.Tensor:
            return self._actor.log_prob(batch.observation, batch.action)

        if self._num_bc_updates > 0:
            gain = tf.cond(self.train_step_counter < self._num_bc_updates, likelihood, value)
        else:
            gain = value()
        return tf.reduce_mean(tf.exp(self._log_temperature) * log_prob - gain)

    def critic_targets(self, batch: Batch, next_actions: tf.Tensor, next_log_probs: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the smaller target value.

        Args:
          batch: the data.
          next_actions: float32 [N, B, A]; of several the one with the largest value counts, for each critic its own.
          next_log_probs: float32 [N, B].
        """
        values = self._values(self._target_critic, batch.next_observation, next_actions)
        if not self._deterministic_backup:
            values -= tf.exp(self._log_temperature) * next_log_probs
        return batch.reward + self._discount * batch.discount * tf.reduce_min(tf.reduce_max(values, axis=1), axis=0)

    def critic_terms(
        self, batch: Batch, targets: tf.Tensor, sampled: tf.Tensor, log_densities: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns Q - targets and the penalty, float32 [2, B] each, by one call of the critics.

        Args:
          batch: the data.
          targets: float32 [B].
          sampled: float32 [N, B, A], actions of the penalty.
          log_densities: float32 [N, B].
        """
        actions = tf.concat([batch.action[tf.newaxis], sampled], axis=0)
        values = self._values(self._critic, batch.observation, actions)
        q = values[:, 0]
        return q - targets, conservative_penalty(values[:, 1:], log_densities, q)

    def critic_loss(self, batch: Batch, td: tf.Tensor, penalty: tf.Tensor) -> tf.Tensor:
        """Returns the loss of both critics, float32 [], of the terms [2, B]."""
        loss = tf.square(td) + self.penalty_weight() * self._min_q_weight * penalty
        return tf.reduce_mean(batch.weights * tf.reduce_sum(loss, axis=0))

    def _values(self, critic: MLP, observation: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """Returns float32 [2, N, B], the values of actions [N, B, A] at observations [B, D], by one call."""
        observations = tf.tile(observation, [tf.shape(actions)[0], 1])
        values = critic_values(critic, observations, tf.reshape(actions, [-1, actions.shape[-1]]))
        return tf.reshape(values, [2, *tf.unstack(tf.shape(actions)[:2])])

    def penalty_weight(self) -> tf.Tensor:
        """Returns float32 []: what `min_q_weight` is multiplied by; 1 unless it is learned."""
        if self._lagrange_threshold is None:
            return tf.constant(1.0)
        return tf.minimum(tf.exp(self._log_penalty_weight), 1e6)

    def _update_temperature(self, log_prob: tf.Tensor) -> None:
        excess = tf.stop_gradient(tf.reduce_mean(log_prob) + self._target_entropy)
        self._temperature_optimizer.apply([-excess])

    def _update_penalty_weight(self, penalty: tf.Tensor) -> None:
        """Makes one step of ascent on weight * (min_q_weight * penalty - threshold), the mean over both critics."""
        if self._lagrange_threshold is not None:
            gap = self._min_q_weight * tf.reduce_mean(penalty) - self._lagrange_threshold
            self._penalty_optimizer.apply([-self.penalty_weight() * gap])


def _join(*pairs: tuple[tf.Tensor, tf.Tensor]) -> list[tf.Tensor]:
    """Returns actions [N, B, A] and log densities [N, B] of all pairs of them."""
    return [tf.concat(each, axis=0) for each in zip(*pairs, strict=True)]
