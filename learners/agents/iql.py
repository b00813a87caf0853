"""Implicit Q-learning (IQL)."""

from typing import Annotated, Any, ClassVar

import tensorflow as tf

from ..options import NetworkFactory, Range
from .adam import Adam
from .hyperparameters import (
    Count,
    Fraction,
    LayerSizes,
    LogStdBounds,
    NonNegative,
    Positive,
    PositiveFraction,
    configurable,
)
from .networks import GaussianActor, Network, critic_values
from .offline_agent import OfflineAgent, TransitionBatch


@configurable
class IQLAgent(OfflineAgent):
    """IQL (Kostrikov, Nair & Levine 2021, "Offline Reinforcement Learning with Implicit Q-Learning").

        value  = mean(|expectile - 1(u < 0)| * u^2),  u = min_i Q'_i(s, a) - V(s)          (eq. 5)
        critic = sum_i mean((r + gamma * discount * V(s') - Q_i(s, a))^2)                   (eq. 6)
        actor  = -mean(min(exp(temperature * (min_i Q'_i(s, a) - V(s))), 100) * log pi(a|s))  (eq. 7)

    As in the authors' code, each step updates V, then the actor, then the critics with the new V, then their targets.
    Rewards are used unchanged; the paper multiplies them by 1000 / (best return - worst return) for the D4RL
    locomotion tasks, and subtracts 1 for AntMaze (section 5.1).
    """

    network_options: ClassVar[dict[str, Any]] = {"init": "orthogonal"}
    #: Arguments of `MLP` for the network of V, which subclasses may change.
    value_network_options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        value_network: NetworkFactory | None = None,
        actor_learning_rate: Positive = 3e-4,
        critic_learning_rate: Positive = 3e-4,
        value_learning_rate: Positive = 3e-4,
        num_updates: Count | None = 1_000_000,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        expectile: Annotated[float, Range(0, 1, min_open=True, max_open=True)] = 0.7,
        temperature: NonNegative = 3.0,
        max_weight: Positive = 100.0,
        log_std_bounds: LogStdBounds = (-5.0, 2.0),
        **common: Any,
    ) -> None:
        """Creates the networks, and target networks for the critics.

        The defaults are those for the D4RL locomotion tasks (paper, section 5 and appendix B). What the paper does not
        specify (the maximum weight of 100, orthogonal initialisation, bounds of log std) follows the authors' code.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers of all networks.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          critic_network: function that creates each critic; its input is the pair of observation and action.
          value_network: function that creates the network of V.
          actor_learning_rate: Adam's initial learning rate.
          critic_learning_rate: Adam's learning rate.
          value_learning_rate: Adam's learning rate.
          num_updates: number of updates after which the actor's cosine schedule reaches 0; None for a constant rate.
          discount: discount factor gamma.
          target_update_rate: share of the online weights in a target update.
          expectile: expectile of the values; 0.5 is the mean, and the paper uses 0.9 for AntMaze.
          temperature: the paper's beta; 10 for AntMaze, 0.5 for Kitchen and Adroit.
          max_weight: maximum weight of the actor's log likelihood.
          log_std_bounds: minimum and maximum log standard deviation of the actor.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        actions = self._actions
        actor = self._make_actor(
            self._build(actor_network, [*hidden_sizes, actions.size], name="actor"), log_std_bounds
        )
        options: dict[str, Any] = {"action_size": actions.input_size, "copies": 2, "name": "critic"}
        critic = self._build(critic_network, [*hidden_sizes, actions.num_values], **options)
        self._set_critic(critic, critic_learning_rate, discount, target_update_rate)
        self._value = self._build(value_network, [*hidden_sizes, 1], name="value", **self.value_network_options)
        self._value_optimizer = Adam(self._value.trained_variables, value_learning_rate)
        self._actor_optimizer = Adam(actor.trainable_variables, actor_learning_rate, decay_steps=num_updates)
        self._expectile, self._temperature, self._max_weight = expectile, temperature, max_weight
        self._complete(time_step_spec, action_spec, actor)

    def _make_actor(self, network: Network, log_std_bounds: tuple[float, float]) -> Any:
        """Returns the actor with a network."""
        return GaussianActor(network, self._actions.size, log_std_bounds=log_std_bounds)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        q = tf.reduce_min(self._action_values(self._target_critic, batch.observation, batch.action), axis=0)
        value_loss = self._value_optimizer.minimize(lambda: self.value_loss(batch, q))
        both = critic_values(self._value, tf.concat([batch.observation, batch.next_observation], axis=0))
        value, next_value = tf.split(both, 2)
        actor_loss = self._actor_optimizer.minimize(lambda: self.actor_loss(batch, q - value))
        targets = batch.reward + self._discount * batch.discount * next_value
        critic_loss, td_error, _ = self._update_critic(batch, targets)
        self._target_critic.track(self._critic, self._target_update_rate)
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
        difference = q - critic_values(self._value, batch.observation)
        side = tf.where(difference < 0, 1.0 - self._expectile, self._expectile)
        return tf.reduce_mean(batch.weights * side * tf.square(difference))

    def actor_loss(self, batch: TransitionBatch, advantage: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the negative log likelihood of the data's actions, weighted by advantages [B]."""
        weight = tf.minimum(tf.exp(self._temperature * advantage), self._max_weight)
        return -tf.reduce_mean(weight * self._actor.log_prob(batch.observation, batch.action))
