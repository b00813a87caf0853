"""Supported policy optimization (SPOT)."""

from typing import Annotated, Any, ClassVar

import tensorflow as tf

from ..option_declarations import Range
from .adam import Adam
from .hyperparameters import Count, FractionBelowOne, LayerSizes, NonNegative, Positive, configurable
from .networks import critic_values
from .offline_agent import TransitionBatch
from .td3_bc import TD3BCAgent

#: Bounds of the encoder's log standard deviations (the authors' vae.py).
_LOG_STD_BOUNDS = (-4.0, 15.0)
#: Number of the first draw of the actor's dropout.
_ACTOR_DROPOUT = 200


@configurable
class SPOTAgent(TD3BCAgent):
    """SPOT (Wu, Wu, Qiu, Wang & Long 2022, "Supported Policy Optimization for Offline RL", arXiv:2202.06239).

        density = mean(nll(s, a)),   nll(s, a) = |u(s, z) - a|^2 + kl_weight * KL(q(z|s, a) | N(0, I)),  z ~ q(z|s, a)
        critic  = as in TD3
        actor   = support_weight * mean(nll(s, pi(s))) - lambda * mean(Q_1(s, pi(s))),  lambda = 1 / mean|Q_1(s, pi(s))|

    The first `num_density_updates` updates train a conditional variational autoencoder, whose evidence lower bound
    estimates the log density of the data's actions, up to a factor and a constant; TD errors are then 1. All later
    updates train actor and critics, and leave the density as it is. As in the authors' code, |.|^2 and KL are means
    over their elements, there is one sample of z, decoded actions are the tanh of a network, and the dropout of the
    actor applies to the target actor as well.

    Updates and defaults are those of the authors' code for the D4RL locomotion tasks (train_vae.py, SPOT.py and main.py
    of github.com/thuml/SPOT).

    Attributes:
      support_weight: the paper's lambda, tuned for each task; the default is that of hopper-medium.
      num_density_updates: number of initial updates that train the density; fewer than all updates of a run.
      density_hidden_sizes: sizes of the hidden layers of the autoencoder's two networks.
      density_learning_rate: Adam's learning rate for them.
      kl_weight: weight of the divergence, the authors' beta.
      latent_size: number of elements of z; None for twice the size of the action.
      dropout: probability of dropout in the hidden layers of the actor while it learns; a custom network has none.
      actor_final_scale: bound of the uniform initial weights and biases of the actor's last layer, 1e-3 for AntMaze;
        None to initialise it like the others.
      critic_final_scale: the same of the critics, 3e-3 for AntMaze.
    """

    alpha: ClassVar[None] = None  # type: ignore[misc]

    support_weight: NonNegative = 0.1
    num_density_updates: Annotated[int, Range(0)] = 100_000
    density_hidden_sizes: LayerSizes = (750, 750)
    density_learning_rate: Positive = 1e-3
    kl_weight: NonNegative = 0.5
    latent_size: Count | None = None
    dropout: FractionBelowOne = 0.1  # type: ignore[misc]
    actor_final_scale: Positive | None = None
    critic_final_scale: Positive | None = None

    @property
    def _actor_network_options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"final_scale": self.actor_final_scale}

    @property
    def _critic_network_options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"final_scale": self.critic_final_scale}

    def _create(self) -> Any:
        width = self.actions.size
        latent_size = self.latent_size or 2 * width
        hidden = self.density_hidden_sizes
        self.encoder = self._make_network(None, [*hidden, 2 * latent_size], action_size=width, name="encoder")
        self.decoder = self._make_network(None, [*hidden, width], action_size=latent_size, name="decoder")
        density_variables = [*self.encoder.trained_variables, *self.decoder.trained_variables]
        self.density_optimizer = Adam(density_variables, self.density_learning_rate)
        return super()._create()

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        step = self.train_step_counter - self.num_density_updates
        zero = tf.constant(0.0)
        (density_loss,) = self._update_if(step < 0, self.density_optimizer, lambda: [self.density_loss(batch)], [zero])
        critic_loss, td_error, q_mean = self._update_if(
            step >= 0,
            self.critic_optimizer,
            lambda: self._critic_terms(batch, self.critic_targets(batch)),
            [zero, tf.ones_like(batch.reward), zero],
        )
        actor_loss = self._update_actor(batch, tf.logical_and(step >= 0, (step + 1) % self.policy_delay == 0))
        losses = {"density_loss": density_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        return density_loss + critic_loss + actor_loss, {"td_error": td_error, **losses, "q_mean": q_mean}

    def density_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of the autoencoder, float32 []."""
        return tf.reduce_mean(batch.weights * self.negative_log_density(batch.observation, batch.action, 1))

    def actor_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the actor's loss, float32 []."""
        action = self.actor.mode(batch.observation, dropout=self.make_dropout(self.dropout, _ACTOR_DROPOUT))
        value = critic_values(self.critic, batch.observation, action, copy_index=0)
        scale = 1.0 / tf.stop_gradient(tf.reduce_mean(tf.abs(value)))
        distance = self.negative_log_density(batch.observation, action, 2)
        return self.support_weight * tf.reduce_mean(distance) - scale * tf.reduce_mean(value)

    def negative_log_density(self, observation: tf.Tensor, action: tf.Tensor, draw: int) -> tf.Tensor:
        """Returns the loss of the autoencoder for actions [B, A], float32 [B]; `draw` is the number of its noise."""
        encoded = self.encoder(tf.concat([observation, action], axis=-1))
        mean, log_std = tf.split(encoded, 2, axis=-1)
        log_std = tf.clip_by_value(log_std, *_LOG_STD_BOUNDS)
        noise = tf.random.stateless_normal(tf.shape(mean), self.noise_seed(draw))
        latent = mean + tf.exp(log_std) * noise
        decoded = tf.tanh(self.decoder(tf.concat([observation, latent], axis=-1)))
        divergence = 0.5 * (tf.square(mean) + tf.exp(2.0 * log_std) - 2.0 * log_std - 1.0)
        distance = tf.reduce_mean(tf.square(decoded - action), axis=-1)
        return distance + self.kl_weight * tf.reduce_mean(divergence, axis=-1)
