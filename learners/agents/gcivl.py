"""Goal-conditioned implicit V-learning (GCIVL)."""

from functools import partial
from typing import Any

import tensorflow as tf

from rlds2reverb.store.goals import GoalDistribution, GoalSampling

from ..options import NetworkFactory
from .goal_agent import (
    Expectile,
    GoalAgent,
    GoalShares,
    implicit_value_loss,
    make_goal_actor,
    make_goal_network,
    value_advantage,
    weighted_likelihood_loss,
)
from .hyperparameters import (
    Fraction,
    ImageEncoderName,
    LayerSizes,
    NonNegative,
    Positive,
    PositiveFraction,
    Seed,
    configurable,
)
from .networks import critic_values
from .offline_agent import TransitionBatch
from .spaces import BoundedActions, Observations


@configurable
class GCIVLAgent(GoalAgent):
    """Goal-conditioned implicit V-learning, GCIQL without Q (Park et al. 2025, OGBench, arXiv:2410.20092).

        value = see `implicit_value_loss`
        actor = -mean(min(exp(alpha * (V(s', g) - V(s, g))), 100) * log pi(a | s, g))

    V is the mean of two functions. Park et al. (2023), arXiv:2307.11949, with one policy.
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
        value_network: NetworkFactory | None = None,
        image_encoder: ImageEncoderName = "nature",
        learning_rate: Positive = 3e-4,
        discount: Fraction = 0.99,
        target_update_rate: PositiveFraction = 0.005,
        expectile: Expectile = 0.9,
        alpha: NonNegative = 10.0,
        value_goals: GoalShares = (0.2, 0.5, 0.3),
        value_geometric: bool = True,
        actor_goals: GoalShares = (0.0, 1.0, 0.0),
        actor_geometric: bool = False,
        negative_rewards: bool = True,
    ) -> None:
        """Creates the networks, and target networks for the values.

        The defaults are those of OGBench: impls/agents/gcivl.py of github.com/seohongpark/ogbench.

        Args:
          time_step_spec: spec of the data's time steps, whose observations are dicts of 'observation' and 'goal'.
          action_spec: BoundedTensorSpec [A].
          observation_mean: mean to subtract from states and goals; None for no normalisation.
          observation_std: standard deviation to divide states and goals by.
          seed: random seed for weight initialisation.
          hidden_sizes: sizes of the hidden layers of all networks.
          actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
          value_network: function that creates each of the two networks of V.
          image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
          learning_rate: Adam's learning rate.
          discount: discount factor gamma, also of geometric goals.
          target_update_rate: share of the online weights in a target update.
          expectile: expectile of the values.
          alpha: inverse temperature of the advantages.
          value_goals: probabilities of the current state, a future one and a random one as the goal of a value
            (OGBench's value_p_curgoal, value_p_trajgoal and value_p_randomgoal).
          value_geometric: whether the number of steps to its future goals is geometric rather than uniform.
          actor_goals: the same probabilities for the goal of the actor.
          actor_geometric: the same choice for the goal of the actor.
          negative_rewards: whether rewards are -1 and, at the goal, 0, rather than 0 and 1.
        """
        observations = Observations(time_step_spec.observation, observation_mean, observation_std)
        actions = BoundedActions(action_spec)
        goals = GoalDistribution(*value_goals, value_geometric), GoalDistribution(*actor_goals, actor_geometric)
        self.goal_sampling = GoalSampling(*goals, gamma=discount, is_negative=negative_rewards)
        options: dict[str, Any] = {"seed": seed, "image_encoder": image_encoder}
        network = partial(make_goal_network, observations=observations, layer_norm=True, **options)
        actor = make_goal_actor(actor_network, observations, hidden_sizes, actions.size, **options)
        self._values = network(value_network, sizes=[*hidden_sizes, 1], copies=2, name="value")
        self._target_values = self._values.copy()
        self._expectile, self._alpha, self._discount = expectile, alpha, discount
        self._targets, self._target_update_rate = [(self._target_values, self._values)], target_update_rate
        self._create_optimizers(learning_rate, value_loss=[self._values], actor_loss=[actor.network])
        super().__init__(time_step_spec, action_spec, observations, actions, actor, seed=seed)

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the losses of values and actor, float32 []."""
        values = critic_values(self._values, batch.observation)
        old, old_next = (
            critic_values(self._target_values, inputs) for inputs in (batch.observation, batch.next_observation)
        )
        advantage = value_advantage(self._values, batch.goals["actor"], batch.goals["next_actor"])
        log_prob = self._actor.log_prob(batch.goals["actor"], batch.action)
        return {
            "value_loss": implicit_value_loss(batch, values, old, old_next, self._discount, self._expectile),
            "actor_loss": weighted_likelihood_loss(advantage, log_prob, self._alpha),
        }
