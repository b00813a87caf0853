"""The policies of the agents: observations and actions in the environment's own units."""

from typing import Any, Protocol

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step, time_step


class Actor(Protocol):
    """What a policy asks: actions for normalised observations [B, D]."""

    def mode(self, observation: tf.Tensor) -> tf.Tensor:
        """Returns the action that is best or most likely."""

    def sample(self, observation: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns an action with noise; `seed` is [2] integers."""


class ActorPolicy(tf_policy.TFPolicy):
    """Acts as an actor does; normalisation and action scale are inside."""

    def __init__(
        self, time_step_spec: Any, action_spec: Any, observations: Any, actions: Any, actor: Any, *, greedy: bool
    ) -> None:
        """Keeps the parts.

        Args:
          time_step_spec: of the environment.
          action_spec: of the environment.
          observations: `Observations`, from a nest to [B, D].
          actions: `BoundedActions` or `DiscreteActions`, for its `to_environment`.
          actor: an `Actor`, a tf.Module.
          greedy: whether to take the mode; otherwise actions are sampled.
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
        raise NotImplementedError("expected action(), got distribution(); these policies give actions alone")
