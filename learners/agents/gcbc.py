"""Goal-conditioned behavioural cloning (GCBC)."""

from typing import Any

import tensorflow as tf

from ..option_declarations import NetworkFactory
from .goal_agent import GoalAgent
from .hyperparameters import configurable
from .offline_agent import TransitionBatch


@configurable
class GCBCAgent(GoalAgent):
    """Goal-conditioned behavioural cloning (Lynch et al. 2019, arXiv:1903.01973; Ghosh et al. 2021, arXiv:1912.06088).

        loss = -mean(w * log pi(a | s, g))

    The goals are later states of the episode. The actor is Gaussian with a standard deviation of 1, as in OGBench (Park
    et al. 2025, arXiv:2410.20092), so that the loss is half the squared error and a constant.

    Updates and defaults are those of OGBench: impls/agents/gcbc.py of github.com/seohongpark/ogbench.

    Attributes:
      actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
    """

    actor_network: NetworkFactory | None = None

    def _create(self) -> Any:
        super()._create()
        actor = self._make_actor(self.actor_network)
        self._create_optimizers(actor_loss=[actor.network])
        return actor

    def see_goals(self, state: Any, next_state: Any, goals: Any) -> dict[str, tuple[Any, Any]]:
        """Returns nothing: the actor learns from the goals in the observations."""
        return {}

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the loss, float32 []."""
        log_prob = self.actor.log_prob(batch.observation, batch.action)
        return {"actor_loss": -tf.reduce_mean(batch.weights * log_prob)}
