"""What all agents have in common: batches in, one update, losses and TD errors out."""

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.agents import data_converter, tf_agent
from tf_agents.trajectories import time_step, trajectory

from .policies import ActorPolicy
from .replicas import assign_alike, replica_id
from .spaces import BoundedActions, DiscreteActions, Observations

#: Seeds of different draws of one train step differ by their index, those of different agents by this.
_DRAWS = 1024
#: Seeds of different replicas differ by this.
_REPLICAS = 2**40


class Batch(NamedTuple):
    """Transitions as networks see them.

    Attributes:
      observation: float32 [B, D], normalised.
      action: float32 [B, A] in [-1, 1], or int32 [B].
      reward: float32 [B].
      discount: float32 [B], 0 where the transition ends in a terminal state; of n-step transitions the product without
        the agent's own gamma of the bootstrap.
      next_observation: float32 [B, D], normalised.
      weights: float32 [B], what each item's loss is multiplied by.
      next_action: like `action`, what the data did at `next_observation`; None where the experience does not have it.
      next_action_mask: float32 [B], 0 where the episode ends at `next_observation`, so that `next_action` has no
        meaning; None with `next_action`.
    """

    observation: tf.Tensor
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    next_observation: tf.Tensor
    weights: tf.Tensor
    next_action: tf.Tensor | None = None
    next_action_mask: tf.Tensor | None = None


class OfflineAgent(tf_agent.TFAgent):
    """Base of the agents; a subclass makes its networks, then calls `__init__`, and has `_update`.

    Nothing in a train step is Python state or a global generator: a restored checkpoint goes on bit for bit, and the
    step compiles under XLA.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        observations: Observations,
        actions: BoundedActions | DiscreteActions,
        actor: Any,
        *,
        seed: int,
    ) -> None:
        """Makes the policies.

        Args:
          time_step_spec: of the data and the environment.
          action_spec: of the data and the environment.
          observations: the normalisation.
          actions: the action scale.
          actor: what the policies ask, an `Actor` and tf.Module.
          seed: of the noise of the train steps.
        """
        self._observations = observations
        self._actions = actions
        self._actor = actor
        self._seed = int(seed)

        def policy(greedy: bool) -> ActorPolicy:
            return ActorPolicy(time_step_spec, action_spec, observations, actions, actor, greedy=greedy)

        super().__init__(
            time_step_spec,
            action_spec,
            policy(greedy=True),
            policy(greedy=False),
            train_sequence_length=2,
            enable_summaries=False,
            train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step"),
        )
        self._as_transition = data_converter.AsTransition(self.data_context, squeeze_time_dim=True)

    def _initialize(self) -> None:
        """Does nothing: networks and targets are made with the agent."""

    def _train(self, experience: Any, weights: Any = None) -> tf_agent.LossInfo:
        batch = self.batch(experience, weights)
        loss, extra = self._update(batch)
        assign_alike(self.train_step_counter, self.train_step_counter + 1)
        return tf_agent.LossInfo(loss, extra)

    def _update(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Makes one update of everything; returns the loss, float32 [], and metrics, with `td_error` float32 [B]."""
        raise NotImplementedError

    def batch(self, experience: Any, weights: Any = None) -> Batch:
        """Returns what `_update` gets.

        Args:
          experience: `Transition` [B, ...] or `Trajectory` [B, 2, ...] in the environment's units.
          weights: float32 [B] or [], or None for 1.
        """
        next_action = mask = None
        if isinstance(experience, trajectory.Trajectory):
            next_action = self._unit_action(tf.nest.map_structure(lambda action: action[:, 1], experience.action))
            mask = 1.0 - tf.cast(tf.equal(experience.step_type[:, 1], time_step.StepType.LAST), tf.float32)
            experience = self._as_transition(experience)
        end = experience.next_time_step
        reward = tf.cast(end.reward, tf.float32)
        weights = tf.ones_like(reward) if weights is None else tf.cast(weights, tf.float32) + tf.zeros_like(reward)
        return Batch(
            observation=self._observations(experience.time_step.observation),
            action=self._unit_action(experience.action_step.action),
            reward=reward,
            discount=tf.cast(end.discount, tf.float32),
            next_observation=self._observations(end.observation),
            weights=weights,
            next_action=next_action,
            next_action_mask=mask,
        )

    def _unit_action(self, action: Any) -> tf.Tensor:
        return self._actions.to_unit(tf.nest.flatten(action)[0])

    def noise_seed(self, draw: int) -> tf.Tensor:
        """Returns int64 [2], a seed that no other draw, train step, replica or agent seed has."""
        of_replica = tf.cast(replica_id(), tf.int64) * _REPLICAS
        return tf.stack([of_replica + (self._seed * _DRAWS + draw), self.train_step_counter.read_value()])
