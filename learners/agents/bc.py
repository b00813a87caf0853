"""Behavioural cloning of continuous actions."""

from typing import Any, Literal

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .adam import Adam
from .hyperparameters import NonNegative, Positive, configurable
from .networks import GaussianActor, TanhActor
from .offline_agent import OfflineAgent, TransitionBatch


@configurable
class BCAgent(OfflineAgent):
    """Behavioural cloning: the actor is fitted to the data's actions.

        deterministic: loss = mean(w * mean_over_actions((pi(s) - a)^2))
        gaussian:      loss = -mean(w * log pi(a | s))

    The first is the "BC" baseline of TD3+BC (Fujimoto & Gu 2021, eq. 3 without Q); the second is IQL's actor with all
    advantage weights 1 (Kostrikov et al. 2021, eq. 7 with beta = 0). For top-x % cloning, train on the best episodes.

    With chunks of actions, both are means over the actions that exist: those after the end of an episode, for which the
    policy info contains a `mask` [B, length], have no weight.

    The defaults are those of TD3+BC's actor (Fujimoto & Gu 2021, table 3). Updates, defaults and initial weights of the
    first are those of algorithms/offline/any_percent_bc.py of github.com/tinkoff-ai/CORL.

    Attributes:
      actor_network: function that creates the network, see `CustomNetwork`; None for the default.
      learning_rate: Adam's learning rate.
      distribution: whether the actor predicts a single action or a Gaussian distribution of actions.
      exploration_noise: standard deviation of the collect policy's noise, if the actor is deterministic.
    """

    actor_network: NetworkFactory | None = None
    learning_rate: Positive = 3e-4
    distribution: Literal["deterministic", "gaussian"] = "deterministic"
    exploration_noise: NonNegative = 0.1

    def _create(self) -> Any:
        size = self.actions.size
        network = self._make_network(self.actor_network, [*self.hidden_sizes, size], name="actor")
        actor: GaussianActor | TanhActor = TanhActor(network, exploration_noise=self.exploration_noise)
        if self.distribution == "gaussian":
            actor = GaussianActor(network, size)
        self.optimizer = Adam(actor.trained_variables, self.learning_rate)
        return actor

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss = self.optimizer.minimize(lambda: tf.reduce_mean(batch.weights * self.losses(batch)))
        return loss, {"actor_loss": loss}

    def losses(self, batch: TransitionBatch) -> tf.Tensor:
        """Returns the unweighted loss of each item, float32 [B]."""
        is_real = batch.real_actions()
        weights = is_real / tf.reduce_mean(is_real)
        if isinstance(self.actor, GaussianActor):
            return -tf.reduce_sum(weights * self.actor.log_probs(batch.observation, batch.action), axis=-1)
        return tf.reduce_mean(weights * tf.square(self.actor.mode(batch.observation) - batch.action), axis=-1)
