"""Small specs and batches for the tests of the agents."""

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step, trajectory

OBSERVATION, ACTION = 3, 2
TIME_STEP_SPEC = time_step.time_step_spec(tf.TensorSpec([OBSERVATION], tf.float32, "observation"))
ACTION_SPEC = tensor_spec.BoundedTensorSpec([ACTION], tf.float32, [-2.0, 0.0], [2.0, 1.0], "action")
CENTRE, HALF_WIDTH = np.array([0.0, 0.5]), np.array([2.0, 0.5])


def columns(size, seed=0):
    """Returns observation, action, reward, discount, next_observation of `size` items; the first is terminal."""
    rng = np.random.default_rng(seed)
    discount = np.full(size, 0.9)
    discount[0] = 0
    return {
        "observation": rng.normal(size=(size, OBSERVATION)).astype(np.float32),
        "action": rng.uniform([-2, 0], [2, 1], size=(size, ACTION)).astype(np.float32),
        "reward": rng.normal(size=size).astype(np.float32),
        "discount": discount.astype(np.float32),
        "next_observation": rng.normal(size=(size, OBSERVATION)).astype(np.float32),
        "next_action": rng.uniform([-2, 0], [2, 1], size=(size, ACTION)).astype(np.float32),
    }


def transition(data):
    """Returns TF-Agents' Transition [B, ...]."""
    size = len(data["reward"])
    first = time_step.TimeStep(tf.ones([size], tf.int32), tf.zeros([size]), tf.ones([size]), data["observation"])
    kind = np.where(data["discount"] == 0, time_step.StepType.LAST, time_step.StepType.MID).astype(np.int32)
    end = time_step.TimeStep(kind, data["reward"], data["discount"], data["next_observation"])
    return tf.nest.map_structure(
        tf.convert_to_tensor, trajectory.Transition(first, policy_step.PolicyStep(data["action"], (), ()), end)
    )


def two_steps(data):
    """Returns TF-Agents' Trajectory [B, 2, ...] of the same items."""
    size = len(data["reward"])
    last = data["discount"] == 0
    kinds = np.stack([np.ones(size), np.where(last, 2, 1)], axis=1).astype(np.int32)
    ends = np.stack([np.where(last, 2, 1), np.where(last, 0, 1)], axis=1).astype(np.int32)

    def both(one, two):
        return np.stack([one, two], axis=1)

    return tf.nest.map_structure(
        tf.convert_to_tensor,
        trajectory.Trajectory(
            step_type=kinds,
            observation=both(data["observation"], data["next_observation"]),
            action=both(data["action"], data["next_action"]),
            policy_info=(),
            next_step_type=ends,
            reward=both(data["reward"], np.zeros(size, np.float32)),
            discount=both(data["discount"], np.ones(size, np.float32)),
        ),
    )
