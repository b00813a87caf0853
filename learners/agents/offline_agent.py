"""The base class of the agents: makes one update per batch, and returns the loss and TD errors."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf
from tf_agents.agents import data_converter, tf_agent
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step, trajectory

from rlds2reverb.libraries.tensorflow_internals import without_autograph
from rlds2reverb.types.short_repr import short_repr

from ..option_declarations import NetworkFactory
from .adam import Adam
from .custom_networks import make_network
from .hyperparameters import (
    Fraction,
    ImageEncoderName,
    LayerSizes,
    Positive,
    PositiveFraction,
    Seed,
    resolve_attributes,
)
from .networks import Dropout, Network, critic_values
from .policies import ActorPolicy
from .replicas import assign_on_replica, mean_over_replicas, replica_id
from .unit_conversions import BoundedActions, DiscreteActions, Observations

#: Maximum number of noise seeds in one train step, and distance between the seeds of different agents.
_MAX_DRAWS = 1024
#: Distance between the seeds of different replicas.
_REPLICA_SEED_OFFSET = 2**40


class TransitionBatch(NamedTuple):
    """Transitions in the networks' units.

    Attributes:
      observation: float32 [B, D], normalised.
      action: float32 [B, A] in [-1, 1], or int32 [B] from 0.
      reward: float32 [B].
      discount: float32 [B], 0 where the transition ends in a terminal state; for n-step transitions the product of the
        discounts, without the agent's own gamma for the bootstrap.
      next_observation: float32 [B, D], normalised.
      weights: float32 [B], factors of each item's loss: of critics and value functions, and of the actor in
        behavioural cloning. Actors that maximise or weight Q-values learn from unweighted batches.
      next_action: like `action`, the data's action at `next_observation`; None if the experience does not contain it.
      next_action_mask: float32 [B], 0 where the episode ends at `next_observation` and `next_action` is meaningless;
        None if `next_action` is.
      step_info: float32 or int32 [B] by name, what `Algorithm.step_info` declares; and `mask`, bool [B, length], False
        for the padding of chunks of actions. Empty if the experience has neither.
      goals: float32 [B, D] by name, other normalised observations with goals, see `GoalAgent`; empty without goals.
    """

    observation: tf.Tensor
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    next_observation: tf.Tensor
    weights: tf.Tensor
    next_action: tf.Tensor | None = None
    next_action_mask: tf.Tensor | None = None
    goals: Mapping[str, tf.Tensor] = MappingProxyType({})
    step_info: Mapping[str, tf.Tensor] = MappingProxyType({})

    def __repr__(self) -> str:
        return short_repr(self)

    def real_actions(self) -> tf.Tensor:
        """Returns float32 [B, A], 0 for the elements of actions that are padding of chunks, and 1 for all others."""
        if "mask" not in self.step_info:
            return tf.ones_like(self.action)
        mask = tf.cast(self.step_info["mask"], tf.float32)
        return tf.repeat(mask, self.action.shape[-1] // mask.shape[-1], axis=-1)


class OfflineAgent(tf_agent.TFAgent):
    """The base class of the agents. A subclass declares its hyperparameters, and implements `_create` and `_update`.

    A train step uses no Python state and no global random generator. A restored checkpoint therefore continues bit for
    bit, and the step can be compiled with XLA.

    Networks are fully connected, with convolutions in front for images, unless the user brings others; see
    `make_network`. They and their optimisers are attributes with the names of the papers: `actor`, and, of agents that
    learn them, `critic`, `target_critic`, `value` and so on. `observations` and `actions` are the conversions to the
    networks' units.

    Attributes:
      observation_mean: mean to subtract from observations; None for no normalisation.
      observation_std: divisor of observations; TD3+BC uses their standard deviation + 1e-3.
      seed: random seed for weight initialisation and noise.
      hidden_sizes: sizes of the hidden layers of all networks.
      image_encoder: architecture of the encoder of each image in the default networks; see `ImageEncoder`.
    """

    #: The class that converts actions, `BoundedActions` or `DiscreteActions`.
    _actions_type: ClassVar[Any] = BoundedActions
    #: Arguments of `MLP` for all networks, which subclasses may change.
    _network_options: ClassVar[dict[str, Any]] = {}
    #: Number of steps of the trajectories to train on.
    _num_steps = 2

    observation_mean: Any = None
    observation_std: Any = None
    seed: Seed = 0
    hidden_sizes: LayerSizes = (256, 256)
    image_encoder: ImageEncoderName = "nature"
    action_mask: ClassVar[str | None] = None

    def __init__(self, time_step_spec: Any, action_spec: Any, **hyperparameters: Any) -> None:
        """Creates the networks and policies.

        Args:
          time_step_spec: spec of the time steps of data and environment.
          action_spec: BoundedTensorSpec of the actions of data and environment: float [A], or integer [] for agents
            with discrete actions.
          **hyperparameters: values of the attributes that the class declares; others keep their defaults.

        Raises:
          TypeError: If the class has no such hyperparameter.
          ValueError: If a value is not of the declared type or not in its range, or if a spec does not suit the agent.
        """
        # Not with setattr, because TensorFlow would track them.
        self.__dict__.update(resolve_attributes(type(self), hyperparameters), passed_hyperparameters={*hyperparameters})
        self.actions = self._actions_type(action_spec)
        self.observations = Observations(
            time_step_spec.observation,
            self.observation_mean,
            self.observation_std,
            num_actions=getattr(self.actions, "num_actions", None),
            action_mask=self.action_mask,
        )
        self.actor = self._create()
        policies = [self._make_policy(time_step_spec, action_spec, greedy=greedy) for greedy in (True, False)]
        super().__init__(
            time_step_spec,
            action_spec,
            *policies,
            train_sequence_length=self._num_steps,
            enable_summaries=False,
            train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step"),
        )
        self._as_transition = data_converter.AsTransition(self.data_context, squeeze_time_dim=True)

    def _create(self) -> Any:
        """Creates the networks and their optimisers, and returns the actor of the policies; see `ActorPolicy`."""
        raise NotImplementedError

    def _make_network(self, factory: NetworkFactory | None, sizes: Sequence[int], **options: Any) -> Network:
        """Returns a network of the observations with the agent's seed and options; see `make_network`."""
        options = {"observations": self.observations, **self._network_options, **options}
        return make_network(factory, sizes=sizes, seed=self.seed, image_encoder=self.image_encoder, **options)

    def _make_policy(self, time_step_spec: Any, action_spec: Any, *, greedy: bool) -> tf_policy.TFPolicy:
        return ActorPolicy(time_step_spec, action_spec, self.observations, self.actions, self.actor, greedy=greedy)

    @without_autograph
    def _train(self, experience: Any, weights: Any = None) -> tf_agent.LossInfo:
        batch = self.batch(experience, weights)
        loss, extra = self._update(batch)
        assign_on_replica(self.train_step_counter, self.train_step_counter + 1)
        return tf_agent.LossInfo(loss, extra)

    def _update(self, batch: TransitionBatch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Updates all networks, and returns the loss, float32 [], and metrics.

        Agents with TD errors return `td_error` float32 [B] among the metrics.
        """
        raise NotImplementedError

    def estimate_values(self, observation: Any, action: Any) -> dict[str, tf.Tensor]:
        """Returns what the critics estimate, float32 [B] by name; empty for agents without critics.

        'q' is Q(s, a), the smallest one of the critics; 'v' is V(s), if the agent learns it.

        Args:
          observation: nest of observations [B, ...] in the environment's units.
          action: actions [B, ...] in the environment's units.
        """
        if not hasattr(self, "critic"):
            return {}
        inputs = self.observations(observation)
        q = tf.reduce_min(self._action_values(self.critic, inputs, self._unit_action(action)), axis=0)
        return {"q": q} | ({"v": critic_values(self.value, inputs)} if hasattr(self, "value") else {})

    def _action_values(self, critic: Network, observation: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Returns each critic's Q(s, a), float32 [copies, B], in the networks' units."""
        return critic_values(critic, observation, action)

    def _update_if(
        self,
        is_due: tf.Tensor,
        optimizer: Adam,
        compute: Callable[[], Sequence[tf.Tensor]],
        otherwise: Sequence[tf.Tensor],
        then: Callable[[tf.Tensor], None] = lambda loss: None,
        before: Callable[[], None] = lambda: None,
    ) -> list[tf.Tensor]:
        """Makes an update if it is due, and returns the loss and what was computed with it.

        Args:
          is_due: bool [].
          optimizer: the optimiser.
          compute: function that returns the loss, float32 [], and other tensors.
          otherwise: values to return if no update is due.
          then: function called with the loss after an update.
          before: function called before it.
        """
        variables = optimizer.trained_variables

        def compute_with_gradients() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss, *others = compute()
            return [loss, *map(tf.convert_to_tensor, optimizer.gradients(loss, tape)), *others]

        def update() -> tf.Tensor:
            before()
            optimizer.apply_mean(gradients)
            then(loss)
            return loss

        unchanged = [otherwise[0], *map(tf.zeros_like, variables), *otherwise[1:]]
        results = tf.cond(is_due, compute_with_gradients, lambda: unchanged)
        loss, *gradients = mean_over_replicas(results[: 1 + len(variables)])
        return [tf.cond(is_due, update, lambda: loss), *results[1 + len(variables) :]]

    def batch(self, experience: Any, weights: Any = None) -> TransitionBatch:
        """Converts experience to the networks' units.

        Args:
          experience: `Transition` [B, ...] or `Trajectory` [B, 2, ...] in the environment's units.
          weights: float32 [B] or []; None for 1.
        """
        next_action = mask = None
        if isinstance(experience, trajectory.Trajectory):
            next_action = self._unit_action(tf.nest.map_structure(lambda action: action[:, 1], experience.action))
            mask = 1.0 - tf.cast(tf.equal(experience.step_type[:, 1], time_step.StepType.LAST), tf.float32)
            experience = self._as_transition(experience)
        end = experience.next_time_step
        reward = tf.cast(end.reward, tf.float32)
        weights = tf.ones_like(reward) if weights is None else tf.cast(weights, tf.float32) + tf.zeros_like(reward)
        (action,) = tf.nest.flatten(experience.action_step.action)
        if isinstance(self.actions, DiscreteActions):  # Networks have no output for actions out of bounds.
            action, weights = self.actions.require_valid(action, weights)
        return TransitionBatch(
            observation=self.observations(experience.time_step.observation),
            action=self.actions.to_unit(action),
            reward=reward,
            discount=tf.cast(end.discount, tf.float32),
            next_observation=self.observations(end.observation),
            weights=weights,
            next_action=next_action,
            next_action_mask=mask,
            step_info=experience.action_step.info or {},
        )

    def _unit_action(self, action: Any) -> tf.Tensor:
        return self.actions.to_unit(tf.nest.flatten(action)[0])

    def noise_seed(self, draw: int) -> tf.Tensor:
        """Returns a seed, int64 [2], that is unique to the draw, train step, replica and seed of the agent."""
        replica_offset = tf.cast(replica_id(), tf.int64) * _REPLICA_SEED_OFFSET
        return tf.stack([replica_offset + (self.seed * _MAX_DRAWS + draw), self.train_step_counter.read_value()])

    def make_dropout(self, rate: float, first_draw: int = 0) -> Dropout | None:
        """Returns dropout with a different seed in each of its calls, from that of a draw, and in each train step.

        Args:
          rate: probability of dropping an element; None is returned for 0.
          first_draw: number of the first call's draw; see `noise_seed`.
        """
        draws = itertools.count(first_draw)
        if not rate:
            return None
        return lambda x: tf.nn.experimental.stateless_dropout(x, rate, self.noise_seed(next(draws)))


class DiscreteAgent(OfflineAgent):
    """The base class of agents with discrete actions.

    Attributes:
      action_mask: field of the observation that is not 0 for legal actions; None for 'action_mask', if there is one.
    """

    _actions_type: ClassVar[Any] = DiscreteActions

    action_mask: str | None = None  # type: ignore[misc]


class ActorCriticAgent(OfflineAgent):
    """The base class of agents with an actor, critics of continuous actions, and target networks of the critics.

    Attributes:
      actor_network: function that creates the actor's network, see `CustomNetwork`; None for the default.
      critic_network: function that creates each critic; its input is the pair of observation and action.
      actor_learning_rate: Adam's learning rate for the actor.
      critic_learning_rate: Adam's learning rate for the critics.
      discount: discount factor gamma.
      target_update_rate: share of the online weights in a target update.
    """

    actor_network: NetworkFactory | None = None
    critic_network: NetworkFactory | None = None
    actor_learning_rate: Positive = 3e-4
    critic_learning_rate: Positive = 3e-4
    discount: Fraction = 0.99
    target_update_rate: PositiveFraction = 0.005

    def _create_critics(self, copies: int = 2, **options: Any) -> None:
        """Creates the critics, their target networks and their optimiser; see `_make_network`."""
        sizes, options = (
            [*self.hidden_sizes, self.actions.num_values],
            {"action_size": self.actions.input_size, **options},
        )
        self.critic = self._make_network(self.critic_network, sizes, copies=copies, name="critic", **options)
        self.target_critic = self.critic.copy()
        self.critic_optimizer = Adam(self.critic.trained_variables, self.critic_learning_rate)

    def _update_critic(self, batch: TransitionBatch, targets: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Makes one update of all critics towards targets [B]; returns their loss, TD errors [B], and mean value."""
        with tf.GradientTape() as tape:
            loss, *others = self._critic_terms(batch, targets)
        self.critic_optimizer.minimize(loss, tape)
        return loss, *others

    def _critic_terms(self, batch: TransitionBatch, targets: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the loss of all critics for targets [B], their TD errors [B], and their mean value."""
        td = self._action_values(self.critic, batch.observation, batch.action) - targets
        loss = tf.reduce_mean(batch.weights * tf.reduce_sum(self.td_loss(td), axis=0))
        return loss, tf.reduce_mean(tf.abs(td), axis=0), tf.reduce_mean(targets + td)

    def td_loss(self, td: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each TD error."""
        return tf.square(td)
