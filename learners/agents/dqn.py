"""Q-learning for discrete actions: DQN, double DQN and discrete CQL."""

from typing import Any, ClassVar

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .adam import Adam
from .discrete_actors import EpsilonGreedyActor
from .hyperparameters import Count, Fraction, NonNegative, Positive, PositiveFraction, configurable
from .networks import Network
from .offline_agent import DiscreteAgent, TransitionBatch


@configurable
class DQNAgent(DiscreteAgent):
    """DQN (Mnih et al. 2015), double DQN (van Hasselt, Guez & Silver 2016), discrete CQL(H) (Kumar et al. 2020).

        y    = r + gamma * discount * Q'(s', a'),  a' = argmax Q'(s', .), or argmax Q(s', .) if `double`
        loss = mean(huber(Q(s, a) - y) + conservative_weight * (log sum_a exp Q(s, a) - Q(s, a)))

    The Huber loss is u^2 / 2 for |u| <= 1 and |u| - 1/2 beyond, which is the paper's clipped error. The second term is
    CQL's eq. 4; a weight of 0 omits it. CQL's authors add it to quantile regression, and this class to plain
    Q-learning. Images are encoded by the convolutions of Mnih et al.; see `ImageNetwork`.

    Updates are those of Dopamine (dopamine/tf/agents/dqn/dqn_agent.py of github.com/google/dopamine, with Adam); with
    `double` those of DQN Zoo (dqn_zoo/double_q/agent.py of github.com/google-deepmind/dqn_zoo, with Adam); and with
    `conservative_weight` those of CQL's authors for one quantile, whose loss is half as large
    (atari/batch_rl/multi_head/quantile_agent.py of github.com/aviralkumar2907/CQL).

    Adam's settings and the period are those of Hessel et al. (2018, "Rainbow", table 1; Mnih et al. use RMSProp and
    10,000 updates); discount and exploration are those of Mnih et al. (2015, extended data table 1). They suit Atari;
    small tasks need a higher learning rate, such as 1e-3, and a shorter period.

    Attributes:
      hidden_sizes: sizes of the hidden layers; (512,) gives the network of Mnih et al. for images.
      q_network: function that creates the network, see `CustomNetwork`; None for the default.
      learning_rate: Adam's learning rate.
      adam_epsilon: constant that Adam adds to the root of the second moment, as TensorFlow does.
      discount: discount factor gamma.
      target_update_period: number of updates between two target updates.
      target_update_rate: share of the online weights in a target update; 1 copies them.
      exploration_epsilon: share of random actions in the collect policy.
      double: whether the online network selects the next action.
      conservative_weight: CQL's alpha, the weight of its penalty; its authors use 1 for 10 % and 4 for 1 % of the
        Atari data (README of github.com/aviralkumar2907/CQL).
    """

    _epsilon_hat: ClassVar[bool] = True

    q_network: NetworkFactory | None = None
    learning_rate: Positive = 6.25e-5
    adam_epsilon: Positive = 1.5e-4
    discount: Fraction = 0.99
    target_update_period: Count = 2000
    target_update_rate: PositiveFraction = 1.0
    exploration_epsilon: Fraction = 0.1
    double: bool = False
    conservative_weight: NonNegative = 0.0

    def _create(self) -> Any:
        sizes = [*self.hidden_sizes, self.actions.size]
        self.critic = self._make_network(self.q_network, sizes, name="critic")
        self.target_critic = self.critic.copy()
        self.optimizer = self._make_adam(self.critic)
        return EpsilonGreedyActor(self.critic, epsilon=self.exploration_epsilon)

    def _make_adam(self, network: Network) -> Adam:
        variables = network.trained_variables
        return Adam(variables, self.learning_rate, epsilon=self.adam_epsilon, epsilon_hat=self._epsilon_hat)

    def estimate_values(self, observation: Any, action: Any) -> dict[str, tf.Tensor]:
        """Returns 'q', Q(s, a), and 'v', Q of the greedy action, float32 [B]; see `OfflineAgent.estimate_values`."""
        inputs = self.observations(observation)
        q = tf.gather(self.critic(inputs), self._unit_action(action), batch_dims=1)
        return {"q": q, "v": tf.reduce_max(self.actor.values(inputs), axis=-1)}

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        targets = self.critic_targets(batch)
        with tf.GradientTape() as tape:
            td, penalty = self.critic_terms(batch, targets)
            loss = self.critic_loss(batch, td, penalty)
        self.optimizer.minimize(loss, tape)
        self._update_target()
        means = {"penalty": tf.reduce_mean(penalty), "q_mean": tf.reduce_mean(targets + td)}
        return loss, {"td_error": tf.abs(td), "critic_loss": loss, **means}

    def critic_targets(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the target value of the selected next action."""
        values = self.target_critic(batch.next_observation)
        next_action = self.actor.mode(batch.next_observation) if self.double else tf.argmax(values, axis=-1)
        value = tf.gather(values, next_action, batch_dims=1)
        return batch.reward + self.discount * batch.discount * value

    def critic_terms(self, batch: TransitionBatch, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns Q(s, a) - targets and CQL's penalty, float32 [B] each."""
        values = self.critic(batch.observation)
        q = tf.gather(values, batch.action, batch_dims=1)
        return q - targets, tf.reduce_logsumexp(values, axis=-1) - q

    def critic_loss(self, batch: TransitionBatch, td: tf.Tensor, penalty: tf.Tensor) -> tf.Tensor:
        """Returns the loss, float32 [], of the terms [B]."""
        magnitude = tf.abs(td)
        quadratic = tf.minimum(magnitude, 1.0)
        loss = 0.5 * tf.square(quadratic) + (magnitude - quadratic)
        if self.conservative_weight:
            loss += self.conservative_weight * penalty
        return tf.reduce_mean(batch.weights * loss)

    def _update_target(self) -> None:
        def track() -> tf.Tensor:
            self.target_critic.track(self.critic, self.target_update_rate)
            return tf.constant(True)

        is_due = tf.equal((self.train_step_counter + 1) % self.target_update_period, 0)
        tf.cond(is_due, track, lambda: tf.constant(False))
