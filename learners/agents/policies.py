"""The agents' policies, which use the environment's own units."""

from typing import Any, Protocol

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step, time_step


class Actor(Protocol):
    """A model that selects actions, in the networks' units, for normalised observations [B, D]."""

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the best or most likely actions."""

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns random actions; `seed` is [2] integers."""


class ActorPolicy(tf_policy.TFPolicy):
    """An actor as a TF-Agents policy, including the normalisation of observations and the scaling of actions."""

    def __init__(
        self, time_step_spec: Any, action_spec: Any, observations: Any, actions: Any, actor: Any, *, greedy: bool
    ) -> None:
        """Sets the components of the policy.

        Args:
          time_step_spec: spec of the environment's time steps.
          action_spec: spec of the environment's actions.
          observations: `Observations`, which convert a nest to [B, D].
          actions: `BoundedActions` or `DiscreteActions`, whose `to_environment` is used.
          actor: `Actor` that is also a tf.Module.
          greedy: whether to take the actor's mode instead of sampling.
        """
        super().__init__(time_step_spec, action_spec, clip=False, name="policy" if greedy else "collect_policy")
        self._observations = observations
        self._actions = actions
        self._actor = actor
        self._greedy = greedy

    def _variables(self) -> list[tf.Variable]:
        return list(self._actor.variables)

    def _action(self, time_step: time_step.TimeStep, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        observation = self._observations(time_step.observation)
        if self._greedy:
            unit = self._actor.mode(observation)
        else:
            unit = self._actor.sample(observation, tfp.random.sanitize_seed(seed))
        action = tf.nest.pack_sequence_as(self.action_spec, [self._actions.to_environment(unit)])
        return policy_step.PolicyStep(action, policy_state, ())

    def _distribution(self, time_step: time_step.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        raise NotImplementedError("these policies do not support distribution(); use action()")
