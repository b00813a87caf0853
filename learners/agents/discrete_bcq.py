"""Discrete batch-constrained Q-learning (BCQ)."""

from typing import Any, ClassVar

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .discrete_actors import ConstrainedActor
from .dqn import DQNAgent
from .hyperparameters import Count, FractionBelowOne, NonNegative, configurable
from .networks import ILLEGAL
from .offline_agent import TransitionBatch


@configurable
class DiscreteBCQAgent(DQNAgent):
    """Discrete BCQ (Fujimoto, Conti, Ghavamzadeh & Pineau 2019, arXiv:1910.01708, "Benchmarking batch deep RL").

        y         = r + gamma * discount * Q'(s', pi(s')),  pi as in `ConstrainedActor`          (eq. 6)
        critic    = mean(huber(Q(s, a) - y))                                                     (eq. 7)
        imitation = mean(-log G(a|s) + logit_penalty * mean_b logit(b|s)^2)

    It is double DQN whose greedy actions are likely in the data: G is cloned from them. A threshold of 0 is double DQN,
    and one near 1 is behavioural cloning. The penalty of the logits is in the authors' code only.

    Updates are those of the authors' code (discrete_BCQ/discrete_BCQ.py of github.com/sfujim/BCQ), and defaults are
    those of its main.py for Atari. There, Q and G share the convolutions of images; here, they are separate networks.
    Small tasks need a higher learning rate, such as 3e-4, and a shorter period.

    Attributes:
      hidden_sizes: sizes of the hidden layers; (512,) gives the networks of Mnih et al. for images.
      q_network: function that creates the network of Q, see `CustomNetwork`; None for the default.
      imitation_network: function that creates the network of G's logits.
      target_update_period: number of updates between two target updates.
      threshold: the paper's tau, the minimum probability of an action in relation to the most likely one.
      adam_epsilon: constant that Adam adds to the root of the second moment, as PyTorch does.
      logit_penalty: weight of the squared logits in the loss of G.
    """

    _epsilon_hat: ClassVar[bool] = False
    double: ClassVar[bool] = True  # type: ignore[misc]
    conservative_weight: ClassVar[float] = 0.0  # type: ignore[misc]

    imitation_network: NetworkFactory | None = None
    target_update_period: Count = 8000
    threshold: FractionBelowOne = 0.3
    logit_penalty: NonNegative = 0.01

    def _create(self) -> Any:
        super()._create()
        sizes = [*self.hidden_sizes, self.actions.size]
        self.imitation = self._make_network(self.imitation_network, sizes, name="imitation")
        self.imitation_optimizer = self._make_adam(self.imitation)
        return ConstrainedActor(self.critic, self.imitation, threshold=self.threshold, epsilon=self.exploration_epsilon)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss, extra = super()._update(batch)
        imitation_loss = self.imitation_optimizer.minimize(lambda: self.imitation_loss(batch))
        del extra["penalty"]
        return loss + imitation_loss, {**extra, "imitation_loss": imitation_loss}

    def imitation_loss(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the loss of G, float32 []."""
        logits = self.imitation(batch.observation)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.action, logits)
        squares = tf.where(logits > ILLEGAL, tf.square(logits), 0.0)
        penalty = self.logit_penalty * tf.reduce_mean(squares, axis=-1)
        return tf.reduce_mean(batch.weights * (cross_entropy + penalty))
