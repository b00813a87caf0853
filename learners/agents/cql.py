"""Conservative Q-learning (CQL) for continuous actions."""

from typing import Annotated, Any, ClassVar

import numpy as np
import tensorflow as tf

from ..option_declarations import Range
from .adam import Adam
from .hyperparameters import Count, LayerSizes, NonNegative, Positive, configurable
from .image_networks import ImageNetwork
from .networks import Network, critic_values
from .offline_agent import ActorCriticAgent, TransitionBatch
from .squashed_gaussian import SquashedGaussianActor, squash
from .temperature import Temperature


def conservative_penalty(q_sampled: tf.Tensor, log_densities: tf.Tensor, q_data: tf.Tensor) -> tf.Tensor:
    """Computes by how much the values of all actions exceed those of the data's actions.

        penalty = log sum_j exp(Q(s, a_j) - log p(a_j)) - Q(s, a)

    Kumar et al. (2020), CQL(H), eq. 4, with the first term estimated by importance sampling as in appendix F. As in
    the authors' code, the constant -log N of the mean is omitted because it has no gradient.

    Args:
      q_sampled: float32 [..., N, B], values of N sampled actions.
      log_densities: float32 [N, B], log densities with which these actions were sampled.
      q_data: float32 [..., B], values of the data's actions.

    Returns:
      float32 [..., B].
    """
    return tf.reduce_logsumexp(q_sampled - log_densities, axis=-2) - q_data


@configurable
class CQLAgent(ActorCriticAgent):
    """CQL(H) on SAC (Kumar, Zhou, Tucker & Levine 2020, "Conservative Q-Learning for Offline Reinforcement Learning").

        y           = r + gamma * discount * min_i Q'_i(s', a'),  a' ~ pi(s')
        critic      = sum_i mean((Q_i(s, a) - y)^2 + weight * (min_q_weight * penalty_i - lagrange_threshold))  (eq. 4)
        actor       = mean(temperature * log pi(a_pi|s) - min_i Q_i(s, a_pi)),  a_pi ~ pi(s)
        temperature = -log(temperature) * mean(log pi(a_pi|s) + target entropy)           (SAC, eq. 18)

    The penalty (`conservative_penalty`) samples `num_samples` actions each from a uniform distribution, pi(s) and
    pi(s'), and evaluates all of them at s. Its weight is 1 without `lagrange_threshold`, and otherwise learned (eq.
    30): it grows while min_q_weight * penalty exceeds the threshold.

    As in the authors' code, the temperature is updated first, then actor and critics with losses that both use the
    networks from before the step, then the targets. `num_bc_updates` is their warm start of the actor by cloning.

    Updates and initial weights are those of the authors' code (d4rl/rlkit/torch/sac/cql.py of
    github.com/aviralkumar2907/CQL), and defaults are those of its README for the D4RL locomotion tasks: a fixed weight,
    5 or 10, and 1e-4 for the actor. Four details differ: densities are exact, where the code adds 1e-6 to the
    derivative of tanh; the last biases are 0; targets of `max_q_backup` share the penalty's actions; and the script
    clones the first 40,000 updates by default. Before PyTorch 1.5, the code also multiplied the actor's gradient by
    the critics' weights of after their update.

    Attributes:
      hidden_sizes: sizes of the hidden layers of actor and critics.
      actor_network: function that creates the actor's network, see `CustomNetwork`, for A means and A log
        standard deviations; None for the default.
      actor_learning_rate: Adam's learning rate for actor and temperature; the README also uses 3e-4.
      min_q_weight: the paper's alpha, 5 or 10; the authors' script uses 1 with `lagrange_threshold`.
      num_samples: number of sampled actions of each of the three kinds in the penalty (paper, appendix F).
      deterministic_backup: whether to omit the entropy term -temperature * log pi(a'|s') from the targets.
      lagrange_threshold: the paper's tau, 5 or 10; None for a fixed weight.
      target_entropy: entropy of the actor that the temperature aims at; None for -A (SAC, table 1).
      num_bc_updates: number of initial updates in which log pi(a|s) of the data replaces Q in the actor's loss.
        The paper uses none; the authors' script uses 40,000 and says that it matters little.
      max_q_backup: whether targets use, for each critic, the maximum target value of `num_samples` actions of
        pi(s') instead of the value of one action (paper, appendix F; the authors' script has it for AntMaze).
    """

    _network_options: ClassVar[dict[str, Any]] = {"init": "fan_out", "hidden_bias": 0.1}
    #: Arguments of the last layers of actor and critics.
    _final_scales: ClassVar[tuple[float, float]] = (1e-3, 3e-3)
    _initial_log_weight: ClassVar[float] = 0.0
    #: Whether losses contain the temperature after its update.
    _temperature_first: ClassVar[bool] = True

    hidden_sizes: LayerSizes = (256, 256, 256)
    actor_learning_rate: Positive = 1e-4
    min_q_weight: NonNegative = 5.0
    num_samples: Count = 10
    deterministic_backup: bool = True
    lagrange_threshold: NonNegative | None = None
    target_entropy: float | None = None
    num_bc_updates: Annotated[int, Range(0)] = 0
    max_q_backup: bool = False

    def _create(self) -> Any:
        width = self.actions.size
        sizes = [*self.hidden_sizes, 2 * width]
        gaussian = self._make_network(self.actor_network, sizes, final_scale=self._final_scales[0], name="actor")
        self._create_critics(final_scale=self._final_scales[1])
        entropy = -float(width) if self.target_entropy is None else self.target_entropy
        self._temperature = Temperature(entropy, self.actor_learning_rate)
        self.log_penalty_weight = tf.Variable(self._initial_log_weight, name="log_penalty_weight")
        self.penalty_optimizer = Adam([self.log_penalty_weight], self.critic_learning_rate)
        actor = self._make_actor(gaussian)
        self.actor_optimizer = Adam(actor.trained_variables, self.actor_learning_rate)
        return actor

    def _make_actor(self, network: Network) -> SquashedGaussianActor:
        return SquashedGaussianActor(network)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        shape, num_samples = tf.unstack(tf.shape(batch.action)), self.num_samples
        noise = tf.random.stateless_normal([2, 1 + num_samples, *shape], self.noise_seed(0))
        uniform = tf.random.stateless_uniform([num_samples, *shape], self.noise_seed(1), -1.0, 1.0)
        with tf.GradientTape() as actor_tape:
            mean, log_std = self.actor.gaussian(batch.observation)
            action, log_prob = squash(mean, log_std, noise[0, 0])
            if self._temperature_first:
                self._temperature.update(log_prob)
            actor_loss = self.actor_loss(batch, action, log_prob)
        next_mean, next_log_std = self.actor.gaussian(batch.next_observation)
        target_noise = noise[1, 1:] if self.max_q_backup else noise[1, :1]
        targets = self.critic_targets(batch, *squash(next_mean, next_log_std, target_noise))
        uniform_log_densities = tf.fill(tf.shape(uniform)[:2], np.float32(-np.log(2) * action.shape[-1]))
        next_actions, next_log_densities = squash(next_mean, next_log_std, noise[1, 1:])
        actions, log_densities = squash(mean, log_std, noise[0, 1:])
        sampled = tf.concat([uniform, next_actions, actions], axis=0)
        log_densities = tf.concat([uniform_log_densities, next_log_densities, log_densities], axis=0)
        with tf.GradientTape() as critic_tape:
            td, penalty = self.critic_terms(batch, targets, sampled, log_densities)
            critic_loss = self.critic_loss(batch, td, penalty)
        if not self._temperature_first:
            self._temperature.update(log_prob)
        self.actor_optimizer.minimize(actor_loss, actor_tape)
        self.critic_optimizer.minimize(critic_loss, critic_tape)
        extra = {
            "td_error": tf.reduce_mean(tf.abs(td), axis=0),
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "penalty": tf.reduce_mean(penalty),
            "penalty_weight": self.penalty_weight(),
            "temperature": self._temperature(),
            "entropy": -tf.reduce_mean(log_prob),
            "q_mean": tf.reduce_mean(targets + td),
        }
        self.update_penalty_weight(penalty)
        self.target_critic.track(self.critic, self.target_update_rate)
        return critic_loss + actor_loss, extra

    def actor_loss(self, batch: TransitionBatch, action: tf.Tensor, log_prob: tf.Tensor) -> tf.Tensor:
        """Returns the loss, float32 [], of the actor's actions [B, A] with log densities [B]."""

        def value() -> tf.Tensor:
            return tf.reduce_min(critic_values(self.critic, batch.observation, action), axis=0)

        def likelihood() -> tf.Tensor:
            return self.actor.log_prob(batch.observation, batch.action)

        is_cloning = self.train_step_counter < self.num_bc_updates
        gain = tf.cond(is_cloning, likelihood, value) if self.num_bc_updates else value()
        return tf.reduce_mean(self._temperature() * log_prob - gain)

    def critic_targets(self, batch: TransitionBatch, next_actions: tf.Tensor, next_log_probs: tf.Tensor) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the smaller target value.

        Args:
          batch: batch of transitions.
          next_actions: float32 [N, B, A]; each critic contributes the maximum value of the N actions.
          next_log_probs: float32 [N, B].
        """
        values = self._values(self.target_critic, batch.next_observation, next_actions)
        if not self.deterministic_backup:
            values -= self._temperature() * next_log_probs
        return batch.reward + self.discount * batch.discount * self.reduce_values(values)

    def reduce_values(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the minimum over critics of the maximum over actions, float32 [B], of values [2, N, B]."""
        return tf.reduce_min(tf.reduce_max(values, axis=1), axis=0)

    def critic_terms(
        self, batch: TransitionBatch, targets: tf.Tensor, sampled: tf.Tensor, log_densities: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns Q - targets and the penalty, float32 [2, B] each, from a single call of the critics.

        Args:
          batch: batch of transitions.
          targets: float32 [B].
          sampled: float32 [N, B, A], actions of the penalty; the first `num_samples` are uniform.
          log_densities: float32 [N, B].
        """
        actions = tf.concat([batch.action[tf.newaxis], sampled], axis=0)
        values = self._values(self.critic, batch.observation, actions)
        q, uniform_values, policy_values = tf.split(values, [1, self.num_samples, -1], axis=1)
        policy_values = self.calibrate(batch, policy_values)
        sampled_values = tf.concat([uniform_values, policy_values], axis=1)
        q = tf.squeeze(q, axis=1)
        return q - targets, conservative_penalty(sampled_values, log_densities, q)

    def calibrate(self, batch: TransitionBatch, values: tf.Tensor) -> tf.Tensor:
        """Returns the values, float32 [2, N, B], of sampled actions of the actor in the penalty."""
        return values

    def critic_loss(self, batch: TransitionBatch, td: tf.Tensor, penalty: tf.Tensor) -> tf.Tensor:
        """Returns the loss of both critics, float32 [], from the terms [2, B]."""
        loss = tf.square(td) + self.penalty_weight() * self.excess(penalty)
        return tf.reduce_mean(batch.weights * tf.reduce_sum(loss, axis=0))

    def excess(self, penalty: tf.Tensor) -> tf.Tensor:
        """Returns by how much the weighted penalty exceeds the threshold, if there is one."""
        return self.min_q_weight * penalty - (self.lagrange_threshold or 0.0)

    def _values(self, critic: Network, observation: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """Returns the values, float32 [2, N, B], of actions [N, B, A] at observations [B, D]."""
        if isinstance(critic, ImageNetwork):
            values = critic.call_with_actions(observation, actions)
        else:
            observations = tf.tile(observation, [tf.shape(actions)[0], 1])
            values = critic_values(critic, observations, tf.reshape(actions, [-1, actions.shape[-1]]))
        return tf.reshape(values, [2, *tf.unstack(tf.shape(actions)[:2])])

    def penalty_weight(self) -> tf.Tensor:
        """Returns the learned factor of `min_q_weight`, float32 []; 1 unless it is learned."""
        if self.lagrange_threshold is None:
            return tf.constant(1.0)
        return tf.minimum(tf.exp(self.log_penalty_weight), 1e6)

    def update_penalty_weight(self, penalty: tf.Tensor) -> None:
        """Makes one ascent step on weight * excess(penalty), averaged over both critics."""
        if self.lagrange_threshold is not None:
            self.penalty_optimizer.apply([-self.penalty_weight() * tf.reduce_mean(self.excess(penalty))])
