"""A small TF-Agents agent that traces quickly, and its data, for tests of code that trains agents."""

import functools

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import PolicyStep, TimeStep, Transition, time_step_spec

from rlds2reverb.types.items import Items

TIME_STEP_SPEC = time_step_spec(tf.TensorSpec([2], tf.float32))
ACTION_SPEC = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)


class MeanPolicy(tf_policy.TFPolicy):
    """A policy whose action is the agent's estimate, whatever the observation."""

    def __init__(self, estimate):
        super().__init__(TIME_STEP_SPEC, ACTION_SPEC)
        self.estimate = estimate

    def _action(self, time_step, policy_state, seed):
        return PolicyStep(tf.zeros_like(time_step.observation[:, :1]) + self.estimate, policy_state, ())


class MeanAgent(tf_agent.TFAgent):
    """An estimator of the mean reward: td_error = reward - estimate, estimate += rate * mean(weights * td_error)."""

    def __init__(self, rate=0.5, *, has_td_errors=True):
        self.estimate = tf.Variable(0.0, name="estimate")
        self.rate, self.has_td_errors, self.num_traces = rate, has_td_errors, 0
        policy = MeanPolicy(self.estimate)
        super().__init__(
            TIME_STEP_SPEC, ACTION_SPEC, policy, policy, 2, train_step_counter=tf.Variable(0, dtype=tf.int64)
        )

    def _train(self, experience, weights):
        self.num_traces += 1
        errors = experience.next_time_step.reward - self.estimate
        self.train_step_counter.assign_add(1)
        self.estimate.assign_add(self.rate * tf.reduce_mean(errors * (1.0 if weights is None else weights)))
        extra = {"estimate": self.estimate + 0.0, **({"td_error": errors} if self.has_td_errors else {})}
        return tf_agent.LossInfo(tf.reduce_mean(errors**2), extra)


def transitions(rewards):
    """Returns a batch `[B, ...]` of transitions with the given rewards."""
    rewards = tf.convert_to_tensor(rewards, tf.float32)
    size = tf.shape(rewards)[0]
    observation, zeros = tf.zeros([size, 2]), tf.zeros([size])
    return Transition(
        TimeStep(tf.ones([size], tf.int32), zeros, zeros, observation),
        PolicyStep(tf.zeros([size, 1]), (), ()),
        TimeStep(tf.ones([size], tf.int32), rewards, zeros + 1, observation),
    )


@functools.cache  # A dataset can be iterated any number of times, and is traced only once.
def batches(num=1000, size=4, *, first=0.0):
    """Returns an endless dataset whose n-th batch has the rewards n, n + 1, ..."""
    numbers = tf.data.Dataset.range(num).repeat()
    return numbers.map(lambda n: transitions(first + tf.cast(n, tf.float32) + tf.range(size, dtype=tf.float32)))


def items(rewards):
    """Returns items of one row each, as an adder does, with the given rewards."""
    rewards = np.asarray(rewards, np.float32)
    return Items({"reward": rewards}, np.arange(len(rewards)), np.ones(len(rewards), np.int64), squeeze=True)
