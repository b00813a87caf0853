"""Small TF-Agents policies, for tests of code that runs policies."""

import numpy as np
import tensorflow as tf
from tf_agents.policies import policy_saver, tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step_spec


class LinearPolicy(tf_policy.TFPolicy):
    """A policy with action = observation @ weights + bias, at most `bound`; `num_traces` counts how often it was traced."""

    def __init__(self, weights, bias=0.0, *, action_dtype=tf.float32, bound=1e6):
        weights = np.asarray(weights, np.float32)
        action_spec = tensor_spec.BoundedTensorSpec([weights.shape[1]], action_dtype, -bound, bound)
        super().__init__(time_step_spec(tf.TensorSpec([weights.shape[0]], tf.float32)), action_spec)
        self.weights, self.bias = tf.Variable(weights), tf.Variable(np.float32(bias))
        self.num_traces = 0

    def _action(self, time_step, policy_state, seed):
        self.num_traces += 1
        action = tf.cast(time_step.observation @ self.weights + self.bias, self.action_spec.dtype)
        return policy_step.PolicyStep(action, policy_state, ())


class FunctionPolicy(tf_policy.TFPolicy):
    """A policy with action = function(observation), for any specs; TF-Agents clips it to its bounds unless `clip` is False."""

    def __init__(self, observation_spec, action_spec, function, *, clip=True):
        super().__init__(time_step_spec(observation_spec), action_spec, clip=clip)
        self.function = function

    def _action(self, time_step, policy_state, seed):
        return policy_step.PolicyStep(self.function(time_step.observation), policy_state, ())


class CountingPolicy(tf_policy.TFPolicy):
    """A stateful policy whose action is the number of its earlier calls in the episode."""

    def __init__(self):
        super().__init__(
            time_step_spec(tf.TensorSpec([1], tf.float32)),
            tensor_spec.BoundedTensorSpec([1], tf.float32, -1e6, 1e6),
            policy_state_spec=tf.TensorSpec([1], tf.float32),
        )

    def _action(self, time_step, policy_state, seed):
        return policy_step.PolicyStep(policy_state, policy_state + 1, ())


class TargetPolicy(tf_policy.TFPolicy):
    """A policy for Pendulum-v1 that subtracts its rewards from a target return, which it keeps for all episodes."""

    def __init__(self):
        state = {name: tf.TensorSpec([], tf.float32, name) for name in ("left", "target_return")}
        super().__init__(
            time_step_spec(tf.TensorSpec([3], tf.float32)),
            tensor_spec.BoundedTensorSpec([1], tf.float32, -2, 2),
            policy_state_spec=state,
            automatic_state_reset=False,
        )

    def _get_initial_state(self, batch_size):
        return {name: leaf + 1 for name, leaf in super()._get_initial_state(batch_size).items()}

    def _action(self, time_step, policy_state, seed):
        target = policy_state["target_return"]
        left = tf.where(time_step.is_first(), target, policy_state["left"] - time_step.reward)
        action = tf.tanh(0.1 * left[:, None] + time_step.observation[:, 2:])
        return policy_step.PolicyStep(action, {"left": left, "target_return": target}, ())


def save_policy(policy, path, *, step=None, batch_size=None):
    """Saves a policy as training does, optionally with the number of training steps."""
    train_step = None if step is None else tf.Variable(step, dtype=tf.int64)
    policy_saver.PolicySaver(policy, batch_size=batch_size, train_step=train_step).save(str(path))


#: A policy for Pendulum-v1 that depends on the observation and is sometimes out of bounds; it does not solve the task.
PENDULUM = LinearPolicy([[0.5], [1.0], [0.6]])
