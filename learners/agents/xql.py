"""Extreme Q-learning (XQL)."""

from typing import Any, ClassVar

import tensorflow as tf

from .hyperparameters import Positive, configurable
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
    normalisation before each ReLU; and the critics have Huber's loss, which is quadratic up to 20. Everything else is
    as in IQL.

    Updates and defaults are those of the authors' code (offline/learner.py and critic.py) for the D4RL locomotion tasks
    (offline/configs/mujoco_config.py and offline/reproduce/mujoco/mujoco_consistent.sh).

    Attributes:
      loss_temperature: the paper's beta, in units of Q-values; smaller values are closer to the maximum.
      max_clip: upper bound of z.
      temperature: factor of the advantages in the actor's weights; 10 for AntMaze.
    """

    expectile: ClassVar[None] = None  # type: ignore[assignment,misc]
    _value_network_options: ClassVar[dict[str, Any]] = {"layer_norm": True, "norm_first": True}

    loss_temperature: Positive = 2.0
    max_clip: Positive = 7.0

    def value_loss(self, batch: TransitionBatch, q: tf.Tensor) -> tf.Tensor:
        """Returns float32 [], the scaled Gumbel loss of V(s) against q [B]."""
        difference = q - critic_values(self.value, batch.observation)
        z = tf.minimum(difference / self.loss_temperature, self.max_clip)
        shift = tf.stop_gradient(tf.maximum(tf.reduce_max(z), _MIN_EXPONENT))
        return tf.reduce_mean(batch.weights * (tf.exp(z - shift) - (z + 1.0) * tf.exp(-shift)))

    def td_loss(self, td: tf.Tensor) -> tf.Tensor:
        """Returns Huber's loss of each TD error."""
        clipped = tf.minimum(tf.abs(td), _HUBER_DELTA)
        return clipped * (tf.abs(td) - 0.5 * clipped)
