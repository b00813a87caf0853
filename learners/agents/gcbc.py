"""Goal-conditioned behavioural cloning (GCBC)."""

from typing import Any

import tensorflow as tf

from rlds2reverb.store.goals import GoalSampling

from ..options import NetworkFactory
from .goal_agent import GoalAgent
from .hyperparameters import (
    LayerSizes,
    Positive,
    configurable,
)
from .offline_agent import TransitionBatch


@configurable
class GCBCAgent(GoalAgent):
    """Goal-conditioned behavioural cloning (Lynch et al. 2019, arXiv:1903.01973; Ghosh et al. 2021, arXiv:1912.06088).

        loss = -mean(w * log pi(a | s, g))

    The goals are later states of the episode. The actor is Gaussian with a standard deviation of 1, as in OGBench (Park
    et al. 2025, arXiv:2410.20092), so that the loss is half the squared error and a constant.
    """

    hides = ("value_goals", "value_geometric", "negative_rewards")

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        hidden_sizes: LayerSizes = (512, 512, 512),
        actor_network: NetworkFactory | None = None,
        learning_rate: Positive = 3e-4,
        **common: Any,
    ) -> None:
        """Creates the network.

        The defaults are those of OGBench: impls/agents/gcbc.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          hidden_sizes: sizes of the hidden layers.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          learning_rate: Adam's learning rate.
          **common: hyperparameters of the base class.
        """
        super().__init__(time_step_spec, action_spec, **common)
        sampling = self.goal_sampling
        self.goal_sampling = GoalSampling(sampling.actor, gamma=sampling.gamma)
        actor = self._build_actor(actor_network, [*hidden_sizes, self._actions.size])
        self._create_optimizers(learning_rate, actor_loss=[actor.network])
        self._complete(time_step_spec, action_spec, actor)

    def see_goals(self, state: Any, next_state: Any, goals: Any) -> dict[str, tuple[Any, Any]]:
        """Returns nothing: the actor learns from the goals in the observations."""
        return {}

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the loss, float32 []."""
        log_prob = self._actor.log_prob(batch.observation, batch.action)
        return {"actor_loss": -tf.reduce_mean(batch.weights * log_prob)}
