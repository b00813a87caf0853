"""TD3+BC and TD3."""

from typing import Any, ClassVar

import tensorflow as tf

from .adam import Adam
from .hyperparameters import Count, NonNegative, configurable
from .networks import TanhActor, critic_values
from .offline_agent import ActorCriticAgent, TransitionBatch
from .replicas import assign_on_replica

#: Number of the first draw of the target actor's dropout.
_TARGET_DROPOUT = 100


@configurable
class TD3BCAgent(ActorCriticAgent):
    """TD3+BC (Fujimoto & Gu 2021); with `alpha=None` TD3 (Fujimoto, van Hoof & Meger 2018).

        y      = r + gamma * discount * min_i Q'_i(s', clip(pi'(s') + clip(noise)))
        critic = sum_i mean((Q_i(s, a) - y)^2)
        actor  = -lambda * mean(Q_1(s, pi(s))) + mean((pi(s) - a)^2),   lambda = alpha / mean|Q_1(s, pi(s))|

    The actor and all targets are updated once every `policy_delay` critic updates. TD3's actor loss is just
    -mean(Q_1(s, pi(s))).

    Updates and defaults are those of TD3_BC.py of github.com/sfujim/TD3_BC (Fujimoto & Gu 2021, appendix C, table 3),
    which are also those of TD3.py of github.com/sfujim/TD3.

    Attributes:
      policy_noise: standard deviation of the target policy's noise, in [-1, 1] units.
      noise_clip: maximum magnitude of that noise.
      policy_delay: number of critic updates per update of actor and targets.
      exploration_noise: standard deviation of the collect policy's noise.
      alpha: weight of the critic relative to behavioural cloning; None for TD3.
    """

    #: Arguments of `MLP` for the two networks, which subclasses may change.
    _actor_network_options: ClassVar[dict[str, Any]] = {}
    _critic_network_options: ClassVar[dict[str, Any]] = {}
    #: Whether delayed updates begin at the end of the first period (1) or with the first update (0).
    _first_delay: ClassVar[int] = 1
    #: Whether the target actor tracks the weights before the actor's update.
    _tracks_old_actor: ClassVar[bool] = False
    #: Probability of dropout in the hidden layers of actor and target actor.
    dropout: ClassVar[float] = 0.0

    policy_noise: NonNegative = 0.2
    noise_clip: NonNegative = 0.5
    policy_delay: Count = 2
    exploration_noise: NonNegative = 0.1
    alpha: NonNegative | None = 2.5

    def _create(self) -> Any:
        sizes = [*self.hidden_sizes, self.actions.size]
        network = self._make_network(self.actor_network, sizes, name="actor", **self._actor_network_options)
        self._create_critics(**self._critic_network_options)
        self.target_actor = TanhActor(network.copy())
        self.actor_optimizer = Adam(network.trained_variables, self.actor_learning_rate)
        self._last_actor_loss = tf.Variable(0.0, trainable=False, name="last_actor_loss")
        return TanhActor(network, exploration_noise=self.exploration_noise)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        critic_loss, td_error, q_mean = self._update_critic(batch, self.critic_targets(batch))
        is_due = tf.equal((self.train_step_counter + self._first_delay) % self.policy_delay, 0)
        actor_loss = self._update_actor(batch, is_due)
        extra = {"td_error": td_error, "critic_loss": critic_loss, "actor_loss": actor_loss, "q_mean": q_mean}
        return critic_loss + actor_loss, extra

    def critic_targets(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns float32 [B]: r + gamma * discount * the target value of the smoothed target action."""
        action = self.target_actor.sample_smoothed(
            batch.next_observation,
            self.noise_seed(0),
            noise=self.policy_noise,
            clip=self.noise_clip,
            dropout=self.make_dropout(self.dropout, _TARGET_DROPOUT),
        )
        return batch.reward + self.discount * batch.discount * self.target_values(batch, action)

    def target_values(self, batch: TransitionBatch, action: tf.Tensor) -> tf.Tensor:
        """Returns the smaller target value of actions [B, A] at the next observations, float32 [B]."""
        return tf.reduce_min(critic_values(self.target_critic, batch.next_observation, action), axis=0)

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the actor's loss, float32 []."""
        action = self.actor.mode(batch.observation)
        value = critic_values(self.critic, batch.observation, action, copy_index=0)
        if self.alpha is None:
            return -tf.reduce_mean(value)
        scale = self.alpha / tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
        return -scale * tf.reduce_mean(value) + tf.reduce_mean(tf.square(action - batch.action))

    def _update_actor(self, batch: TransitionBatch, is_due: tf.Tensor) -> tf.Tensor:
        """Updates the actor and the targets if it is their turn, and returns the actor's loss at their last update."""

        def track_actor(*, is_old: bool) -> None:
            if is_old == self._tracks_old_actor:
                self.target_actor.network.track(self.actor.network, self.target_update_rate)

        def update_targets(loss: tf.Tensor) -> None:
            track_actor(is_old=False)
            self.target_critic.track(self.critic, self.target_update_rate)
            assign_on_replica(self._last_actor_loss, loss)

        last = [self._last_actor_loss.read_value()]
        hooks: dict[str, Any] = {"before": lambda: track_actor(is_old=True), "then": update_targets}
        (loss,) = self._update_if(is_due, self.actor_optimizer, lambda: [self.actor_loss(batch)], last, **hooks)
        return loss
