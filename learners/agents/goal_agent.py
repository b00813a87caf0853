"""The base class of agents with goals, and the equations that they share."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets.steps.goals import ACTOR_GOAL, GOAL, STATE, GoalDistribution, GoalSampling
from rlds2reverb.errors import SpecMismatchError

from ..option_declarations import NetworkFactory, Range
from .adam import Adam
from .hyperparameters import Expectile, Fraction, LayerSizes, Positive, PositiveFraction
from .networks import Dropout, GaussianActor, Network, critic_values
from .offline_agent import OfflineAgent, TransitionBatch
from .unit_conversions import Observations

#: Probabilities of the current state, a future one and a random one as the goal; see `GoalDistribution`.
GoalShares = Annotated[tuple[float, float, float], Range(0, 1)]
#: Factor of the initial weights of an actor's last layer, whose variance is 1 % of that of other layers.
_ACTOR_SCALE = 0.1
#: Maximum weight of a log likelihood.
MAX_WEIGHT = 100.0
_SMALL = np.float32(1e-6)


class UnitGaussianActor(GaussianActor):
    """A Gaussian actor with the network's output as its mean and a standard deviation of 1, as in OGBench."""

    def mode(self, observation: tf.Tensor, *, dropout: Dropout | None = None) -> tf.Tensor:
        """Returns the means, float32 [B, A]; the policy clips them to [-1, 1]."""
        return self.network(observation, dropout=dropout)


class GoalAgent(OfflineAgent):
    """The base class of agents that learn to reach goals, after OGBench (Park et al. 2025, arXiv:2410.20092).

    Observations are dicts of the state, 'observation', and the 'goal' to reach. Batches contain transitions whose goals
    `GoalSampling` has drawn; those of actors are in the policy info of the experience. As in the authors' code, all
    networks are updated at once, with the gradients of their losses at the weights before the update, which are also
    those that target networks track.

    Networks are OGBench's, with GELU and the initialisation of Glorot & Bengio (2010); those of values have layer
    normalisation as well.

    Attributes:
      goal_sampling: the goals that batches must contain.
      learning_rate: Adam's learning rate.
      discount: parameter gamma of geometric goals, and the discount factor of agents that learn values.
      actor_goals: probabilities of the current state, a future one and a random one as the goal of the actor (OGBench's
        actor_p_curgoal, actor_p_trajgoal and actor_p_randomgoal).
      actor_geometric: whether the number of steps to its future goals is geometric rather than uniform.
    """

    _network_options: ClassVar[dict[str, Any]] = {"activation": "gelu", "init": "glorot"}
    goal_sampling: GoalSampling
    #: Pairs of a target network and its online network.
    targets: Sequence[tuple[Network, Network]]
    #: Share of the online weights in a target update.
    target_update_rate: ClassVar[float] = 1.0

    hidden_sizes: LayerSizes = (512, 512, 512)
    learning_rate: Positive = 3e-4
    discount: Fraction = 0.99
    actor_goals: GoalShares = (0.0, 1.0, 0.0)
    actor_geometric: bool = False

    def _create(self) -> Any:
        """Sets the goals; a subclass then creates its networks and optimisers, and returns the actor.

        Raises:
          SpecMismatchError: If observations are not dicts of 'observation' and 'goal'.
          ValueError: If the shares of goals do not add up to 1.
        """
        require_goals(self.observations.spec)
        self.goal_sampling, self.targets = self._make_goal_sampling(), []

    def _make_goal_sampling(self) -> GoalSampling:
        """Returns the goals that batches must contain."""
        return GoalSampling(GoalDistribution(*self.actor_goals, self.actor_geometric), gamma=self.discount)

    def _make_actor(
        self, factory: NetworkFactory | None = None, *, size: int | None = None, name: str = "actor", **options: Any
    ) -> UnitGaussianActor:
        """Returns an actor with `size` outputs, by default one for each element of an action; see `_make_network`."""
        size = size or self.actions.size
        sizes = [*self.hidden_sizes, size]
        network = self._make_network(factory, sizes, final_scale=_ACTOR_SCALE, name=name, **options)
        return UnitGaussianActor(network, size)

    def _create_optimizers(self, **networks: Sequence[Network]) -> None:
        """Creates the optimiser for each of the `losses`, by its name, of the weights of some networks."""
        self.optimizers = {
            name: Adam([variable for network in trained for variable in network.trained_variables], self.learning_rate)
            for name, trained in networks.items()
        }

    def batch(self, experience: Any, weights: Any = None) -> TransitionBatch:
        """Converts experience to the networks' units, with an entry of `goals` for each that `see_goals` returns.

        Args:
          experience: `Transition` [B, ...] whose policy info contains the goals of `GoalSampling`.
          weights: float32 [B] or []; None for 1.

        Raises:
          SpecMismatchError: If it contains other experience.
        """
        if getattr(experience, "action_step", None) is None:
            raise SpecMismatchError(
                "agents with goals learn from transitions with the goals of GoalSampling, got "
                f"{type(experience).__name__}; train on a dataset"
            )
        states = experience.time_step.observation[STATE], experience.next_time_step.observation[STATE]
        pairs = self.see_goals(*states, experience.action_step.info)
        goals = {name: self.observations({STATE: state, GOAL: goal}) for name, (state, goal) in pairs.items()}
        return super().batch(experience, weights)._replace(goals=goals)

    def see_goals(self, state: Any, next_state: Any, goals: Any) -> dict[str, tuple[Any, Any]]:
        """Returns the pairs of states and goals besides the observations that the losses use, by name.

        Args:
          state: nest of states [B, ...] in the environment's units.
          next_state: nest of the next states.
          goals: policy info of the experience.
        """
        actor_goal = goals[ACTOR_GOAL]
        return {"actor": (state, actor_goal), "next_actor": (next_state, actor_goal)}

    def losses(self, batch: TransitionBatch) -> dict[str, tf.Tensor]:
        """Returns the loss of each optimiser, float32 [], by its name."""
        raise NotImplementedError

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        with tf.GradientTape(persistent=True) as tape:
            losses = self.losses(batch)
        gradients = {name: optimizer.gradients(losses[name], tape) for name, optimizer in self.optimizers.items()}
        for target, online in self.targets:
            target.track(online, self.target_update_rate)
        for name, optimizer in self.optimizers.items():
            optimizer.apply(gradients[name])
        return tf.add_n([*losses.values()]), losses


class GoalValueAgent(GoalAgent):
    """The base class of agents with goals that learn values from the rewards of goals.

    Attributes:
      target_update_rate: share of the online weights in a target update.
      expectile: expectile of the values.
      value_goals: probabilities of the current state, a future one and a random one as the goal of a value (OGBench's
        value_p_curgoal, value_p_trajgoal and value_p_randomgoal).
      value_geometric: whether the number of steps to its future goals is geometric rather than uniform.
      negative_rewards: whether rewards are -1 and, at the goal, 0, rather than 0 and 1.
    """

    target_update_rate: PositiveFraction = 0.005  # type: ignore[misc]
    expectile: Expectile = 0.9
    value_goals: GoalShares = (0.2, 0.5, 0.3)
    value_geometric: bool = True
    negative_rewards: bool = True

    def _make_goal_sampling(self) -> GoalSampling:
        value = GoalDistribution(*self.value_goals, self.value_geometric)
        actor = GoalDistribution(*self.actor_goals, self.actor_geometric)
        return GoalSampling(value, actor, gamma=self.discount, is_negative=self.negative_rewards)


class Parts:
    """The state and the goal in the vectors of `Observations`, whose fields are in the order of their names."""

    def __init__(self, spec: Any) -> None:
        """Reads the sizes.

        Args:
          spec: spec of the observation.

        Raises:
          SpecMismatchError: If it is not a dict of 'observation' and 'goal'.
        """
        require_goals(spec)
        self.state, self.goal = Observations(spec[STATE]), Observations(spec[GOAL])

    def split(self, vectors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the states [B, S] and the goals [B, G] of observations [B, G + S]."""
        goal, state = tf.split(vectors, [self.goal.size, self.state.size], axis=-1)
        return state, goal


def require_goals(observation_spec: Any) -> None:
    """Raises `SpecMismatchError` unless observations are dicts of a state and a goal."""
    if not isinstance(observation_spec, Mapping) or set(observation_spec) != {GOAL, STATE}:
        raise SpecMismatchError(
            f"agents with goals require observations that are dicts of '{STATE}' and '{GOAL}', got "
            f"{observation_spec}; wrap the environment in GoalTasks"
        )


def expectile_loss(advantage: tf.Tensor, difference: tf.Tensor, expectile: float) -> tf.Tensor:
    """Returns |expectile - 1(advantage < 0)| * difference^2 of each element; Kostrikov et al. (2021), eq. 5."""
    return tf.where(advantage < 0, 1.0 - expectile, expectile) * tf.square(difference)


def implicit_value_loss(
    batch: TransitionBatch, values: tf.Tensor, old_values: tf.Tensor, old_next_values: tf.Tensor, gamma: float,
    expectile: float,
) -> tf.Tensor:  # fmt: skip
    """Returns the loss of two goal-conditioned value functions, float32 [].

        q_i = r + gamma * discount * V'_i(s', g)
        loss = sum_i mean(|expectile - 1(A < 0)| * (q_i - V_i(s, g))^2),   A = min_i q_i - mean_i V'_i(s, g)

    Park et al. (2023), "HIQL", arXiv:2307.11949, with the two functions and the separate weights of their code.

    Args:
      batch: transitions with goals.
      values: float32 [2, B], V_i(s, g).
      old_values: float32 [2, B], those of the target networks, V'_i(s, g), which get no gradient.
      old_next_values: float32 [2, B], V'_i(s', g).
      gamma: discount factor.
      expectile: expectile in (0, 1).
    """
    old_values, old_next_values = tf.stop_gradient(old_values), tf.stop_gradient(old_next_values)
    q = batch.reward + gamma * batch.discount * old_next_values
    advantage = tf.reduce_min(q, axis=0) - tf.reduce_mean(old_values, axis=0)
    return tf.reduce_mean(batch.weights * tf.reduce_sum(expectile_loss(advantage, q - values, expectile), axis=0))


def value_advantage(value: Network, inputs: tf.Tensor, later_inputs: tf.Tensor) -> tf.Tensor:
    """Returns mean_i V_i(later) - mean_i V_i, float32 [B], for the inputs [B, D] of value networks with two copies."""
    both = tf.reduce_mean(critic_values(value, tf.concat([inputs, later_inputs], axis=0)), axis=0)
    now, later = tf.split(both, 2)
    return later - now


def weighted_likelihood_loss(advantage: tf.Tensor, log_prob: tf.Tensor, temperature: float) -> tf.Tensor:
    """Returns -mean(min(exp(temperature * A), 100) * log pi), float32 [], for A and log pi [B].

    Advantage-weighted regression (Peng et al. 2019, arXiv:1910.00177); Kostrikov et al. (2021), eq. 7.
    """
    return -tf.reduce_mean(tf.minimum(tf.exp(temperature * advantage), MAX_WEIGHT) * log_prob)


def ddpg_bc_loss(q: tf.Tensor, log_prob: tf.Tensor, alpha: float) -> tf.Tensor:
    """Returns the loss of an actor that maximises Q close to the data, float32 [].

        -mean(Q(s, pi(s), g)) / mean|Q| - alpha * mean(log pi(a | s, g))

    DDPG+BC (Fujimoto & Gu 2021, eqs. 3 and 5), with the likelihood of OGBench (Park et al. 2025).

    Args:
      q: float32 [B], Q of the actor's actions.
      log_prob: float32 [B], log likelihoods of the data's actions.
      alpha: weight of cloning.
    """
    scale = tf.stop_gradient(tf.reduce_mean(tf.abs(q)) + _SMALL)
    return -tf.reduce_mean(q) / scale - alpha * tf.reduce_mean(log_prob)
