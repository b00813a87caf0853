"""Goal-conditioned behavioural cloning (GCBC)."""

from typing import Any

import tensorflow as tf

from rlds2reverb.store.goals import GoalDistribution, GoalSampling

from ..options import NetworkFactory
from .goal_agent import GoalAgent, GoalShares, make_goal_actor
from .hyperparameters import (
    Fraction,
    ImageEncoderName,
    LayerSizes,
    Positive,
    Seed,
    configurable,
)
from .offline_agent import TransitionBatch
from .spaces import BoundedActions, Observations


@configurable
class GCBCAgent(GoalAgent):
    """Goal-conditioned behavioural cloning (Lynch et al. 2019, arXiv:1903.01973; Ghosh et al. 2021, arXiv:1912.06088).

        loss = -mean(w * log pi(a | s, g))

    The goals are later states of the episode. The actor is Gaussian with a standard deviation of 1, as in OGBench (Park
    et al. 2025, arXiv:2410.20092), so that the loss is half the squared error and a constant.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        *,
        observation_mean: Any = None,
        observation_std: Any = None,
        seed: Seed = 0,
        hidden_sizes: LayerSizes = (512, 512, 512),
        actor_network: NetworkFactory | None = None,
        image_encoder: ImageEncoderName = "nature",
        learning_rate: Positive = 3e-4,
        discount: Fraction = 0.99,
        actor_goals: GoalShares = (0.0, 1.0, 0.0),
        actor_geometric: bool = False,
    ) -> None:
        """Creates the network.

        The defaults are those of OGBench: impls/agents/gcbc.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          observation_mean: mean to subtract from states and goals; None for no normalisation.
          observation_std: standard deviation to divide states and goals by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          learning_rate: Adam's learning rate.
          discount: parameter gamma of geometric goals.
          actor_goals: probabilities of the current state, a future one and a random one as the goal (OGBench's
            actor_p_curgoal, actor_p_trajgoal and actor_p_randomgoal).
          actor_geometric: whether the number of steps to future goals is geometric rather than uniform.
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions = BoundedActions(action_spec)
        self.goal_sampling = GoalSampling(GoalDistribution(*actor_goals, actor_geometric), gamma=discount)
        actor = make_goal_actor(
            actor_network, observations, hidden_sizes, actions.size, seed=seed, image_encoder=image_encoder
        )
        self._create_optimizers(learning_rate, actor_loss=[actor.network])
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def see_goals(self, state: Any, next_state: Any, goals: Any) -> dict[str, tuple[Any, Any]]:
        """Returns nothing: the actor learns from the goals in the observations."""
        return {}

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the loss, float32 []."""
        log_prob = self._actor.log_prob(batch.observation, batch.action)
        return {"actor_loss": -tf.reduce_mean(batch.weights * log_prob)}
