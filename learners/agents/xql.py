"""Extreme Q-learning (XQL)."""

from typing import Any, ClassVar

import tensorflow as tf

from ..options import NetworkFactory
from .hyperparameters import (
    Count,
    Fraction,
    ImageEncoderName,
    LayerSizes,
    LogStdBounds,
    NonNegative,
    Positive,
    PositiveFraction,
    Seed,
    configurable,
    select_hyperparameters,
)
from .iql import IQLAgent
from .networks import critic_values
from .offline_agent import TransitionBatch

#: Magnitude of TD errors from which the critics' loss is linear (the authors' offline/critic.py).
_HUBER_DELTA = 20.0
#: Lower bound of the exponent by which the loss of V is scaled (the authors' offline/critic.py).
_MIN_EXPONENT = -1.0


@configurable
class XQLAgent(IQLAgent):
    """XQL (Garg, Hejna, Geist & Ermon 2023, "Extreme Q-Learning: MaxEnt RL without Entropy", arXiv:2301.02328).

        value  = mean(exp(z) - z - 1) / exp(m),  z = min((min_i Q'_i(s, a) - V(s)) / loss_temperature, max_clip)
        critic = sum_i mean(huber(r + gamma * discount * V(s') - Q_i(s, a)))
        actor  = -mean(min(exp(temperature * (min_i Q'_i(s, a) - V(s))), 100) * log pi(a|s))

    V is fitted by Gumbel regression, whose solution is loss_temperature * log mean exp(Q / loss_temperature): a soft
    maximum over the data's actions, where IQL has an expectile. As in the authors' code (github.com/Div99/XQL), the
    loss is divided by exp(m), with m = max(max z, -1) in the batch, which is not differentiated; V has layer
    normalisation, here after each ReLU instead of before it; and the critics have Huber's loss, which is quadratic up
    to 20. Everything else is as in IQL.
    """

    value_network_options: ClassVar[dict[str, Any]] = {"layer_norm": True}

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: Seed = 0,
        hidden_sizes: LayerSizes = (256, 256),
        actor_network: NetworkFactory | None = None,
        critic_network: NetworkFactory | None = None,
        value_network: NetworkFactory | None = None,
        image_encoder: ImageEncoderName = "nature",
        actor_learning_rate: Positive = 3e-4,
        critic_learning_rate: Positive = 3e-4,
        value_learning_rate: Positive = 3e-4,
        num_updates: Count | None = 1_000_000,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        loss_temperature: Positive = 2.0,
        max_clip: Positive = 7.0,
        temperature: NonNegative = 3.0,
        max_weight: Positive = 100.0,
        log_std_bounds: LogStdBounds = (-5.0, 2.0),
    ) -> None:
        """Creates the networks, and target networks for the critics.

        The defaults are those of the authors' code for the D4RL locomotion tasks (offline/configs/mujoco_config.py and
        offline/reproduce/mujoco/mujoco_consistent.sh).

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: BoundedTensorSpec [A].
          observation_mean: mean to subtract from observations; None, as in the paper, for no normalisation.
          observation_std: standard deviation to divide observations by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers of all networks.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          critic_network: function that creates each critic; its input is the pair of observation and action.
          value_network: function that creates the network of V.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          actor_learning_rate: Adam's initial learning rate.
          critic_learning_rate: Adam's learning rate.
          value_learning_rate: Adam's learning rate.
          num_updates: number of updates after which the actor's cosine schedule reaches 0; None for a constant rate.
          discount: discount factor gamma.
          target_update_rate: share of the online weights in a target update.
          loss_temperature: the paper's beta, in units of Q-values; smaller values are closer to the maximum.
          max_clip: upper bound of z.
          temperature: factor of the advantages in the actor's weights; 10 for AntMaze.
          max_weight: maximum weight of the actor's log likelihood.
          log_std_bounds: minimum and maximum log standard deviation of the actor.
        """
        self._loss_temperature, self._max_clip = loss_temperature, max_clip
        inherited = select_hyperparameters(IQLAgent, locals())
        super().__init__(time_step_spec, action_spec, **inherited)

    def value_loss(self, batch: TransitionBatch, q: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the scaled Gumbel loss of V(s) against q [B]."""
        difference = q - critic_values(self._value, batch.observation)
        z = tf.minimum(difference / self._loss_temperature, self._max_clip)
        shift = tf.stop_gradient(tf.maximum(tf.reduce_max(z), _MIN_EXPONENT))
        return tf.reduce_mean(batch.weights * (tf.exp(z - shift) - (z + 1.0) * tf.exp(-shift)))

    def _td_loss(self, td: tf.Tensor) -> tf.Tensor:
        clipped = tf.minimum(tf.abs(td), _HUBER_DELTA)
        return clipped * (tf.abs(td) - 0.5 * clipped)
