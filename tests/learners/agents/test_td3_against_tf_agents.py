"""TD3 against TF-Agents' Td3Agent: starting from equal weights, the losses and the final weights are equal.

Importance weights are not used because TF-Agents also applies them to the actor.
"""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION, OBSERVATION, TIME_STEP_SPEC, make_columns, to_transition
from tf_agents.agents.ddpg import actor_network, critic_network
from tf_agents.agents.td3 import td3_agent
from tf_agents.specs import tensor_spec
from tf_agents.utils import common

from rlds2reverb.learners.agents import make_agent

SIZE, HIDDEN = 6, (8, 7)
ACTION_SPEC = tensor_spec.BoundedTensorSpec([ACTION], tf.float32, -1.0, 1.0, "action")

#: What Keras adds before the correction of the bias; in the first updates about as much as 1e-8 after it.
_EPSILON = 5e-10


def make_baseline(agent):
    """Returns TF-Agents' agent with the same weights.

    It updates actor and targets in every step, because with a longer period its first update would be at step 0.
    """
    observation = TIME_STEP_SPEC.observation
    baseline = td3_agent.Td3Agent(
        TIME_STEP_SPEC,
        ACTION_SPEC,
        actor_network.ActorNetwork(observation, ACTION_SPEC, fc_layer_params=HIDDEN),
        critic_network.CriticNetwork((observation, ACTION_SPEC), joint_fc_layer_params=HIDDEN),
        actor_optimizer=tf.keras.optimizers.Adam(3e-4, epsilon=_EPSILON),
        critic_optimizer=tf.keras.optimizers.Adam(3e-4, epsilon=_EPSILON),
        target_update_tau=0.005,
        actor_update_period=1,
        target_update_period=1,
        td_errors_loss_fn=common.element_wise_squared_loss,
        gamma=0.99,
        target_policy_noise=0.0,
        target_policy_noise_clip=0.0,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )
    baseline.initialize()
    (actor,) = agent.actor.network.layers()
    for networks, layers in (
        ([baseline._actor_network, baseline._target_actor_network], actor),
        ([baseline._critic_network_1, baseline._target_critic_network_1], agent.critic.layers()[0]),
        ([baseline._critic_network_2, baseline._target_critic_network_2], agent.critic.layers()[1]),
    ):
        for network in networks:
            network.set_weights([variable.numpy() for layer in layers for variable in layer])
    return baseline


def flat(*networks):
    return np.concatenate([array.ravel() for network in networks for array in network.get_weights()])


@pytest.mark.slow
def test_updates_match_tf_agents():
    agent = make_agent(
        "td3", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=HIDDEN, policy_noise=0.0, policy_delay=1, seed=3
    )
    baseline = make_baseline(agent)
    for step in range(4):
        data = make_columns(SIZE, seed=step)
        data["action"] = np.random.default_rng(step).uniform(-1, 1, (SIZE, ACTION)).astype(np.float32)
        actual = agent.train(to_transition(data))
        expected = baseline.train(to_transition(data))
        np.testing.assert_allclose(actual.extra["critic_loss"], expected.extra.critic_loss, rtol=1e-5)
    np.testing.assert_allclose(
        agent.critic.flat, flat(baseline._critic_network_1, baseline._critic_network_2), atol=3e-6
    )
    np.testing.assert_allclose(agent.actor.network.flat, flat(baseline._actor_network), atol=3e-6)
    np.testing.assert_allclose(
        agent.target_critic.flat, flat(baseline._target_critic_network_1, baseline._target_critic_network_2), atol=3e-6
    )
    np.testing.assert_allclose(agent.target_actor.network.flat, flat(baseline._target_actor_network), atol=3e-6)
    assert OBSERVATION == 3 and ACTION == 2  # With two actions, the actor's gradients are equal rather than multiples.
