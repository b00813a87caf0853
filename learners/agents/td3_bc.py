"""TD3+BC and TD3."""

from typing import Any, ClassVar

import tensorflow as tf

from ..options import NetworkFactory
from .adam import Adam
from .hyperparameters import (
    Count,
    Fraction,
    LayerSizes,
    NonNegative,
    Positive,
    PositiveFraction,
    configurable,
)
from .networks import TanhActor, critic_values
from .offline_agent import OfflineAgent, TransitionBatch
from .replicas import assign_on_replica


@configurable
class TD3BCAgent(OfflineAgent):
    """TD3+BC (Fujimoto & Gu 2021); with `alpha=None` TD3 (Fujimoto, van Hoof & Meger 2018).

        y      = r + gamma * discount * min_i Q'_i(s', clip(pi'(s') + clip(noise)))
        critic = sum_i mean((Q_i(s, a) - y)^2)
        actor  = -lambda * mean(Q_1(s, pi(s))) + mean((pi(s) - a)^2),   lambda = alpha / mean|Q_1(s, pi(s))|

    The actor and all targets are updated once every `policy_delay` critic updates. TD3's actor loss is just
    -mean(Q_1(s, pi(s))).
    """

    #: Arguments of `MLP` for the two networks, which subclasses may change.
    actor_options: ClassVar[dict[str, Any]] = {}
    critic_options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        actor_learning_rate: Positive = 3e-4,
        critic_learning_rate: Positive = 3e-4,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        policy_noise: NonNegative = 0.2,
        noise_clip: NonNegative = 0.5,
        policy_delay: Count = 2,
        exploration_noise: NonNegative = 0.1,
        alpha: NonNegative | None = 2.5,
        **common: Any,
    ) -> None:
        """Creates the networks and their target networks.

        The defaults are those of TD3+BC (Fujimoto & Gu 2021, appendix C, table 3), which are also TD3's.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers of actor and critics.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          critic_network: function that creates each critic; its input is the pair of observation and action.
          actor_learning_rate: Adam's learning rate.
          critic_learning_rate: Adam's learning rate.
          discount: discount factor gamma.
          target_update_rate: share of the online weights in a target update.
          policy_noise: standard deviation of the target policy's noise, in [-1, 1] units.
          noise_clip: maximum magnitude of that noise.
          policy_delay: number of critic updates per update of actor and targets.
          exploration_noise: standard deviation of the collect policy's noise.
          alpha: weight of the critic relative to behavioural cloning; None for TD3.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        width = self._actions.size
        self._actor_network = self._build(actor_network, [*hidden_sizes, width], name="actor", **self.actor_options)
        critic_options = {"action_size": width, "copies": 2, **self.critic_options}
        critic = self._build(critic_network, [*hidden_sizes, 1], name="critic", **critic_options)
        self._set_critic(critic, critic_learning_rate, discount, target_update_rate)
        self._target_actor = TanhActor(self._actor_network.copy())
        self._actor_optimizer = Adam(self._actor_network.trained_variables, actor_learning_rate)
        self._policy_noise, self._noise_clip = policy_noise, noise_clip
        self._policy_delay, self._alpha = policy_delay, alpha
        self._last_actor_loss = tf.Variable(0.0, trainable=False, name="last_actor_loss")
        actor = TanhActor(self._actor_network, exploration_noise=exploration_noise)
        self._complete(time_step_spec, action_spec, actor)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        critic_loss, td_error, q_mean = self._update_critic(batch, self.critic_targets(batch))
        is_due = tf.equal((self.train_step_counter + 1) % self._policy_delay, 0)
        actor_loss = self._update_actor(batch, is_due)
        extra = {"td_error": td_error, "critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": q_mean}
        return critic_loss + actor_loss, extra

    def critic_targets(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the target value of the smoothed target action."""
        action = self._target_actor.sample_smoothed(
            batch.next_observation, self.noise_seed(0), noise=self._policy_noise, clip=self._noise_clip
        )
        return batch.reward + self._discount * batch.discount * self.target_values(batch, action)

    def target_values(self, batch: TransitionBatch, action: tf.Tensor) -> tf.Tensor:
        """Returns the smaller target value of actions [B, A] at the next observations, float32 [B]."""
        return tf.reduce_min(critic_values(self._target_critic, batch.next_observation, action), axis=0)

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the actor's loss, float32 []."""
        action = self._actor.mode(batch.observation)
        value = critic_values(self._critic, batch.observation, action, copy_index=0)
        if self._alpha is None:
            return -tf.reduce_mean(value)
        scale = self._alpha / tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
        return -scale * tf.reduce_mean(value) + tf.reduce_mean(tf.square(action - batch.action))

    def _update_actor(self, batch: TransitionBatch, is_due: tf.Tensor) -> tf.Tensor:
        """Updates the actor and the targets if it is their turn, and returns the actor's loss at their last update."""

        def update_targets(loss: tf.Tensor) -> None:
            self._target_actor.network.track(self._actor_network, self._target_update_rate)
            self._target_critic.track(self._critic, self._target_update_rate)
            assign_on_replica(self._last_actor_loss, loss)

        last = [self._last_actor_loss.read_value()]
        (loss,) = self._update_if(
            is_due, self._actor_optimizer, lambda: [self.actor_loss(batch)], last, then=update_targets
        )
        return loss
