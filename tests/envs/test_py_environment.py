"""Environments as TF-Agents' `PyEnvironment`: its validation, policies and drivers accept them unchanged."""

import numpy as np
import pytest
import tensorflow as tf
from counting import Counting
from installed import find_installed
from properties import mark_slow_except
from tf_agents.drivers import dynamic_step_driver, py_driver
from tf_agents.environments import tf_py_environment, utils
from tf_agents.policies import random_py_policy, random_tf_policy

from rlds2reverb.envs import BatchedEnvironment, GymnasiumEnvironment, load, to_py_environment


@pytest.mark.parametrize("name", mark_slow_except({"CartPole-v1", "Pendulum-v1", "FrozenLake-v1"}, find_installed()))
def test_tf_agents_validates_installed_environments(name):
    with load(name, seed=0) as env:
        utils.validate_py_environment(env, episodes=2)


@pytest.mark.parametrize("num_parallel", [None, 2])
def test_drivers_of_tf_agents_run_unchanged(num_parallel):
    with load("CartPole-v1", num_parallel=num_parallel, seed=0) as env:
        assert env.batched == (num_parallel is not None) and env.batch_size == num_parallel
        seen = []
        policy = random_py_policy.RandomPyPolicy(env.time_step_spec(), env.action_spec(), seed=1)
        driver = py_driver.PyDriver(env, policy, [seen.append], max_steps=60)
        driver.run(env.reset())
        ends = [
            np.atleast_1d(trajectory.next_step_type == 2) & np.atleast_1d(trajectory.discount == 0)
            for trajectory in seen
        ]
        assert sum(int(end.sum()) for end in ends) >= 1

        tf_env = tf_py_environment.TFPyEnvironment(env)
        tf_policy = random_tf_policy.RandomTFPolicy(tf_env.time_step_spec(), tf_env.action_spec())
        count = tf.Variable(0)

        def observe(trajectory):
            count.assign_add(tf.size(trajectory.step_type))

        time_step, _ = dynamic_step_driver.DynamicStepDriver(tf_env, tf_policy, [observe], num_steps=6).run()
        assert int(count) >= 6 and time_step.observation.shape == (num_parallel or 1, 4)
        tf_env.close()  # Ends its thread.


def test_time_limits_keep_the_discount_and_info_is_returned():
    envs = [GymnasiumEnvironment(Counting(3, terminates=index == 0), info_fields=["count"]) for index in range(2)]
    with to_py_environment(BatchedEnvironment(envs)) as env:
        assert env.get_info() == ()
        env.reset()
        steps = [env.step(np.ones(2, int)) for _ in range(4)]
        assert [step.step_type.tolist() for step in steps] == [[1, 1], [1, 1], [2, 2], [0, 0]]
        assert [step.discount.tolist() for step in steps] == [[1, 1], [1, 1], [0, 1], [1, 1]]
        assert env.get_info()["count"].tolist() == [0, 0]
        assert env.action_spec().maximum == 2 and env.observation_spec().minimum.tolist() == [-100, -100]
        env.step(np.ones(2, int))
        assert env.env.current_time_step().prev_action.tolist() == [1, 1]
