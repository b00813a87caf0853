"""Discrete batch-constrained Q-learning (BCQ)."""

from typing import Annotated, Any

import tensorflow as tf

from ..options import NetworkFactory, Range
from .adam import Adam
from .custom_networks import make_network
from .discrete_actors import ConstrainedActor
from .dqn import DQNAgent
from .hyperparameters import (
    Count,
    Fraction,
    ImageEncoderName,
    LayerSizes,
    NonNegative,
    Positive,
    PositiveFraction,
    Seed,
    configurable,
    select_hyperparameters,
)
from .networks import ILLEGAL
from .offline_agent import TransitionBatch
from .spaces import DiscreteActions, Observations


@configurable
class DiscreteBCQAgent(DQNAgent):
    """Discrete BCQ (Fujimoto, Conti, Ghavamzadeh & Pineau 2019, arXiv:1910.01708, "Benchmarking batch deep RL").

        y         = r + gamma * discount * Q'(s', pi(s')),  pi as in `ConstrainedActor`          (eq. 6)
        critic    = mean(huber(Q(s, a) - y))                                                     (eq. 7)
        imitation = mean(-log G(a|s) + logit_penalty * mean_b logit(b|s)^2)

    It is double DQN whose greedy actions are likely in the data: G is cloned from them. A threshold of 0 is double DQN,
    and one near 1 is behavioural cloning. The penalty of the logits is in the authors' code only.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: Seed = 0,
        hidden_sizes: LayerSizes = (256, 256),
        q_network: NetworkFactory | None = None,
        imitation_network: NetworkFactory | None = None,
        image_encoder: ImageEncoderName = "nature",
        learning_rate: Positive = 6.25e-5,
        adam_epsilon: Positive = 1.5e-4,
        discount: Fraction = 0.99,
        target_update_period: Count = 8000,
        target_update_rate: PositiveFraction = 1.0,
        exploration_epsilon: Fraction = 0.1,
        threshold: Annotated[float, Range(0, 1, max_open=True)] = 0.3,
        logit_penalty: NonNegative = 0.01,
    ) -> None:
        """Creates the network of Q, its target network, and that of G.

        The defaults are the authors' settings for Atari (paper, appendix; github.com/sfujim/BCQ, discrete_BCQ), where
        Q and G share their convolutions; here, they are separate networks. Small tasks need a higher learning rate,
        such as 3e-4, and a shorter period.

        Args:
          time_step_spec: spec of the data's time steps.
          action_spec: integer BoundedTensorSpec [].
          observation_mean: mean to subtract from observations; None for no normalisation.
          observation_std: standard deviation to divide observations by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers; (512,) gives the networks of Mnih et al. for images.
          q_network: function that creates the network of Q, see `CustomNetwork`; None for the default.
          imitation_network: function that creates the network of G's logits.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          learning_rate: Adam's learning rate.
          adam_epsilon: constant that Adam adds to the root of the second moment.
          discount: discount factor gamma.
          target_update_period: number of updates between two target updates.
          target_update_rate: share of the online weights in a target update; 1 copies them.
          exploration_epsilon: share of random actions in the collect policy.
          threshold: the paper's tau, the minimum probability of an action in relation to the most likely one.
          logit_penalty: weight of the squared logits in the loss of G.
        """
        num_actions = DiscreteActions(action_spec).num_actions
        observations = Observations(
            time_step_spec.observation, observation_mean, observation_std, num_actions=num_actions
        )
        sizes = [*hidden_sizes, num_actions]
        self._imitation = make_network(
            imitation_network, observations, sizes, seed=seed, image_encoder=image_encoder, name="imitation"
        )
        self._imitation_optimizer = Adam(self._imitation.trained_variables, learning_rate, epsilon=adam_epsilon)
        self._threshold, self._logit_penalty = threshold, logit_penalty
        inherited = select_hyperparameters(DQNAgent, locals())
        super().__init__(time_step_spec, action_spec, **inherited, double=True, conservative_weight=0.0)

    def _make_actor(self, epsilon: float) -> ConstrainedActor:
        return ConstrainedActor(self._critic, self._imitation, threshold=self._threshold, epsilon=epsilon)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss, extra = super()._update(batch)
        imitation_loss = self._imitation_optimizer.minimize(lambda: self.imitation_loss(batch))
        del extra["penalty"]
        return loss + imitation_loss, {**extra, "imitation_loss": imitation_loss}

    def imitation_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of G, float32 []."""
        logits = self._imitation(batch.observation)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.action, logits)
        squares = tf.where(logits > ILLEGAL, tf.square(logits), 0.0)
        penalty = self._logit_penalty * tf.reduce_mean(squares, axis=-1)
        return tf.reduce_mean(batch.weights * (cross_entropy + penalty))
