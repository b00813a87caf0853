"""The agents' policies, which use the environment's own units."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step, time_step


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
          actor: a tf.Module that selects actions in the networks' units for normalised observations [B, D]: the best or
            most likely ones in `mode(observation)`, and random ones in `sample(observation, seed)` with a seed of [2]
            integers.
          greedy: whether to take the actor's mode instead of sampling.
        """
        super().__init__(time_step_spec, action_spec, clip=False, name="policy" if greedy else "collect_policy")
        self._observations, self._actions, self._actor, self._greedy = observations, actions, actor, greedy

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

    def log_prob(self, observation: Any, action: Any) -> tf.Tensor:
        """Returns the log probabilities of discrete actions, or log densities of continuous ones, float32 [B].

        Densities are per unit of the environment's actions, and those of a Gaussian actor before actions are clipped.

        Args:
          observation: nest of observations [B, ...] in the environment's units.
          action: actions [B, ...] in the environment's units.

        Raises:
          ValueError: If the policy has no densities: one action per observation, or actions with clipped noise.
        """
        inputs, unit = self._observations(observation), self._actions.to_unit(tf.nest.flatten(action)[0])
        if self._greedy and not unit.dtype.is_floating:
            return tf.where(tf.equal(unit, self._actor.mode(inputs)), 0.0, -np.inf)
        if self._greedy or not hasattr(self._actor, "log_prob"):
            raise ValueError(
                "log_prob requires a policy with a density, but this one takes a single action, or adds clipped noise "
                "to it; use the collect_policy of an agent with a stochastic actor, such as iql, awac, sac or cql"
            )
        return self._actor.log_prob(inputs, unit) - self._actions.log_scale

    def _distribution(self, time_step: time_step.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        raise NotImplementedError("these policies do not support distribution(); use action() or log_prob()")


class WrappedPolicy(tf_policy.TFPolicy):
    """A policy with a state that calls another policy. It resets the state itself in the first step of an episode.

    Attributes:
      wrapped: the other policy.
    """

    def __init__(self, policy: tf_policy.TFPolicy, time_step_spec: Any, action_spec: Any, state_spec: Any) -> None:
        """Sets the other policy, and the specs of this one."""
        super().__init__(
            time_step_spec,
            action_spec,
            policy_state_spec=state_spec,
            clip=False,
            automatic_state_reset=False,
            name=policy.name,
        )
        self.wrapped = policy

    def _variables(self) -> list[tf.Variable]:
        return list(self.wrapped.variables())

    def _distribution(self, time_step: time_step.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        raise NotImplementedError(
            "policies of chunks, of histories and of relative actions do not support distribution(); use action()"
        )


def unwrap_policy(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """Returns the policy that all `WrappedPolicy`s around it call."""
    while isinstance(policy, WrappedPolicy):
        policy = policy.wrapped
    return policy
