"""Implicit Q-learning (IQL)."""

from typing import Any, ClassVar

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .adam import Adam
from .hyperparameters import Count, Expectile, FractionBelowOne, LogStdBounds, NonNegative, Positive, configurable
from .networks import GaussianActor, critic_values
from .offline_agent import ActorCriticAgent, TransitionBatch


@configurable
class IQLAgent(ActorCriticAgent):
    """IQL (Kostrikov, Nair & Levine 2021, "Offline Reinforcement Learning with Implicit Q-Learning").

        value  = mean(|expectile - 1(u < 0)| * u^2),  u = min_i Q'_i(s, a) - V(s)          (eq. 5)
        critic = sum_i mean((r + gamma * discount * V(s') - Q_i(s, a))^2)                   (eq. 6)
        actor  = -mean(min(exp(temperature * (min_i Q'_i(s, a) - V(s))), 100) * log pi(a|s))  (eq. 7)

    As in the authors' code, each step updates V, then the actor, then the critics with the new V, then their targets.
    Rewards are used unchanged; the paper multiplies them by 1000 / (best return - worst return) for the D4RL
    locomotion tasks, and subtracts 1 for AntMaze (section 5.1).

    Updates and defaults are those of the authors' code for the D4RL locomotion tasks (learner.py and
    configs/mujoco_config.py of github.com/ikostrikov/implicit_q_learning; paper, section 5 and appendix B).

    Attributes:
      value_network: function that creates the network of V.
      value_learning_rate: Adam's learning rate.
      num_updates: number of updates after which the actor's cosine schedule reaches 0; None for a constant rate.
      expectile: expectile of the values; 0.5 is the mean, and the paper uses 0.9 for AntMaze.
      temperature: the paper's beta; 10 for AntMaze, 0.5 for Kitchen and Adroit.
      max_weight: maximum weight of the actor's log likelihood.
      log_std_bounds: minimum and maximum log standard deviation of the actor.
      dropout: probability of dropout in the hidden layers of the actor while it learns, 0.1 for Kitchen and Adroit; a
        custom network has none.
    """

    _network_options: ClassVar[dict[str, Any]] = {"init": "orthogonal"}
    #: Arguments of `MLP` for the network of V, which subclasses may change.
    _value_network_options: ClassVar[dict[str, Any]] = {}

    value_network: NetworkFactory | None = None
    value_learning_rate: Positive = 3e-4
    num_updates: Count | None = 1_000_000
    expectile: Expectile = 0.7
    temperature: NonNegative = 3.0
    max_weight: Positive = 100.0
    log_std_bounds: LogStdBounds = (-5.0, 2.0)
    dropout: FractionBelowOne = 0.0

    def _create(self) -> Any:
        actor = self._create_actor()
        self._create_critics()
        sizes = [*self.hidden_sizes, 1]
        self.value = self._make_network(self.value_network, sizes, name="value", **self._value_network_options)
        self.value_optimizer = Adam(self.value.trained_variables, self.value_learning_rate)
        self.actor_optimizer = Adam(actor.trained_variables, self.actor_learning_rate, decay_steps=self.num_updates)
        return actor

    def _create_actor(self) -> Any:
        sizes = [*self.hidden_sizes, self.actions.size]
        mean = self._make_network(self.actor_network, sizes, name="actor")
        return GaussianActor(mean, self.actions.size, log_std_bounds=self.log_std_bounds)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        q = tf.reduce_min(self._action_values(self.target_critic, batch.observation, batch.action), axis=0)
        value_loss = self.value_optimizer.minimize(lambda: self.value_loss(batch, q))
        both = critic_values(self.value, tf.concat([batch.observation, batch.next_observation], axis=0))
        value, next_value = tf.split(both, 2)
        actor_loss = self.actor_optimizer.minimize(lambda: self.actor_loss(batch, q - value))
        targets = batch.reward + self.discount * batch.discount * next_value
        critic_loss, td_error, _ = self._update_critic(batch, targets)
        self.target_critic.track(self.critic, self.target_update_rate)
        extra = {
            "td_error": td_error,
            "critic_loss": critic_loss,
            "value_loss": value_loss,
            "actor_loss": actor_loss,
            "q_mean": tf.reduce_mean(q),
            "value_mean": tf.reduce_mean(value),
            "advantage_mean": tf.reduce_mean(q - value),
        }
        return critic_loss + value_loss + actor_loss, extra

    def value_loss(self, batch: TransitionBatch, q: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the expectile loss of V(s) against q [B]."""
        difference = q - critic_values(self.value, batch.observation)
        side = tf.where(difference < 0, 1.0 - self.expectile, self.expectile)
        return tf.reduce_mean(batch.weights * side * tf.square(difference))

    def actor_loss(self, batch: TransitionBatch, advantage: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the negative log likelihood of the data's actions, weighted by advantages [B]."""
        weight = tf.minimum(tf.exp(self.temperature * advantage), self.max_weight)
        dropout = self.make_dropout(self.dropout)
        return -tf.reduce_mean(weight * self.actor.log_prob(batch.observation, batch.action, dropout=dropout))
