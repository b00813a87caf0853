"""Q-learning of discrete actions: DQN, double DQN, discrete CQL."""

from collections.abc import Sequence
from typing import Any

import gin
import tensorflow as tf

from .adam import Adam
from .discrete_actors import EpsilonGreedyActor
from .networks import MLP
from .offline_agent import Batch, OfflineAgent
from .spaces import DiscreteActions, Observations


@gin.configurable(module="rlds2reverb")
class DQNAgent(OfflineAgent):
    """DQN (Mnih et al. 2015), double DQN (van Hasselt, Guez & Silver 2016), discrete CQL(H) (Kumar et al. 2020).

        y    = r + gamma * discount * Q'(s', a'),  a' = argmax Q'(s', .), or argmax Q(s', .) if `double`
        loss = mean(huber(Q(s, a) - y) + conservative_weight * (log sum_a exp Q(s, a) - Q(s, a)))

    Huber's loss is u^2 / 2 within 1 and |u| - 1/2 beyond: the paper's clipped error. The second term is CQL's eq. 4;
    0 leaves it out. CQL's authors add it to quantile regression; here it is on plain Q-learning. Observations go
    through fully connected layers: the papers' convolutions are for images.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: int = 0,
        hidden_sizes: Sequence[int] = (256, 256),
        learning_rate: float = 6.25e-5,
        adam_epsilon: float = 1.5e-4,
        discount: float = 0.99,
        target_update_period: int = 2000,
        target_update_rate: float = 1.0,
        exploration_epsilon: float = 0.1,
        double: bool = False,
        conservative_weight: float = 0.0,
    ) -> None:
        """Makes the network and its target.

        Adam's settings and the period are those of Hessel et al. (2018, "Rainbow", table 1; Mnih et al. have RMSProp
        and 10,000 updates), discount and exploration those of Mnih et al. (2015, extended data table 1). They are for
        Atari; small tasks want a larger step size, such as 1e-3, and a shorter period.

        Args:
          time_step_spec: of the data.
          action_spec: BoundedTensorSpec [], of integers.
          observation_mean: subtracted from observations; None for no normalisation.
          observation_std: what observations are divided by.
          seed: of the weights.
          hidden_sizes: features of the hidden layers.
          learning_rate: Adam's step size.
          adam_epsilon: what Adam adds to the root of the second moment.
          discount: gamma.
          target_update_period: updates from one target update to the next.
          target_update_rate: share of the online weights in a target update; 1 copies them.
          exploration_epsilon: share of random actions of the collect policy.
          double: whether the online network chooses the next action.
          conservative_weight: CQL's alpha, the weight of its penalty; its authors have 1 for 10 % and 4 for 1 % of the
            Atari data (README of github.com/aviralkumar2907/CQL).
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions = DiscreteActions(action_spec)
        self._critic = MLP([observations.size, *hidden_sizes, actions.count], seed=seed, name="critic")
        self._target_critic = self._critic.copy()
        self._optimizer = Adam([self._critic.flat], learning_rate, epsilon=adam_epsilon)
        self._discount = discount
        self._target_update_period = target_update_period
        self._target_update_rate = target_update_rate
        self._double = double
        self._conservative_weight = conservative_weight
        actor = EpsilonGreedyActor(self._critic, epsilon=exploration_epsilon)
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def _update(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        targets = self.critic_targets(batch)
        with tf.GradientTape() as tape:
            td, penalty = self.critic_terms(batch, targets)
            loss = self.critic_loss(batch, td, penalty)
        self._optimizer.minimize(loss, tape)
        self._update_target()
        extra = {
            "td_error": tf.abs(td),
            "critic_loss": loss,
            "penalty": tf.reduce_mean(penalty),
            "q_mean": tf.reduce_mean(targets + td),
        }
        return loss, extra

    def critic_targets(self, batch: Batch) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the target value of the chosen next action."""
        values = self._target_critic(batch.next_observation)
        chooser = self._critic(batch.next_observation) if self._double else values
        value = tf.gather(values, tf.argmax(chooser, axis=-1), batch_dims=1)
        return batch.reward + self._discount * batch.discount * value

    def critic_terms(self, batch: Batch, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns Q(s, a) - targets and CQL's penalty, float32 [B] each."""
        values = self._critic(batch.observation)
        q = tf.gather(values, batch.action, batch_dims=1)
        return q - targets, tf.reduce_logsumexp(values, axis=-1) - q

    def critic_loss(self, batch: Batch, td: tf.Tensor, penalty: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], for the terms [B]."""
        size = tf.abs(td)
        inner = tf.minimum(size, 1.0)
        loss = 0.5 * tf.square(inner) + (size - inner)
        if self._conservative_weight:
            loss += self._conservative_weight * penalty
        return tf.reduce_mean(batch.weights * loss)

    def _update_target(self) -> None:
        def track() -> tf.Tensor:
            self._target_critic.track(self._critic, self._target_update_rate)
            return tf.constant(True)

        is_due = tf.equal((self.train_step_counter + 1) % self._target_update_period, 0)
        tf.cond(is_due, track, lambda: tf.constant(False))
