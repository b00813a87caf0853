"""Decision Transformer: loss and update against NumPy, and the state of its policy against whole windows."""

import numpy as np
import pytest
import tensorflow as tf
from agent_data import ACTION_SPEC, CENTRE, HALF_WIDTH, TIME_STEP_SPEC, make_windows, small_networks
from agent_reference_impls import Adam
from tf_agents.trajectories import time_step

from rlds2reverb.learners.agents import make_agent
from rlds2reverb.learners.agents.decision_transformer import Window
from rlds2reverb.learners.policy_export import export_policy
from rlds2reverb.policies.saved_policies import load_policy

NAME = "decision_transformer"
MEAN, STD = np.array([0.1, 0.0, -0.3]), np.array([1.0, 2.0, 0.5])
SIZES = {"width": 6, "num_layers": 2, "num_heads": 2}


def make(**overrides):
    options = {**small_networks(NAME), "observation_mean": MEAN, "observation_std": STD, "return_scale": 10.0}
    return make_agent(NAME, TIME_STEP_SPEC, ACTION_SPEC, **{**options, **overrides})


def linear(layer, x):
    return x @ layer.weights.numpy().astype(float) + layer.bias.numpy()


def norm(layer, x):
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * layer.scale.numpy() + layer.offset.numpy()


def attend(block, x, valid, num_heads):
    """Returns the attention of the tokens of one window, [T, W], token by token and head by head."""
    query, key, value = np.split(linear(block.layers["attention"], x), 3, axis=1)
    size, out = x.shape[1] // num_heads, np.zeros_like(x)
    for token in range(len(x)):
        seen = [other for other in range(token + 1) if valid[other]]
        for part in (slice(head * size, (head + 1) * size) for head in range(num_heads)):
            if seen:
                logits = key[seen, part] @ query[token, part] / np.sqrt(size)
                weights = np.exp(logits - logits.max())
                out[token, part] = weights / weights.sum() @ value[seen, part]
    return linear(block.layers["mixing"], out)


def predict(model, num_heads, observation, action, return_to_go, times, mask):
    """Returns the actions of one window, [K, A]: Chen et al. (2021), algorithm 1, with the blocks of GPT-2."""
    inputs = return_to_go[:, None], observation, action
    embedded = [linear(layer, x) + model.times.numpy()[times] for layer, x in zip(model.embeddings, inputs)]  # noqa: B905
    x = norm(model.norms[0], np.stack(embedded, axis=1).reshape(3 * len(times), -1))
    for block in model.blocks:
        x = x + attend(block, norm(block.norms[0], x), np.repeat(mask, 3), num_heads)
        hidden = np.maximum(linear(block.layers["hidden"], norm(block.norms[1], x)), 0)
        x = x + linear(block.layers["output"], hidden)
    return np.tanh(linear(model.head, norm(model.norms[1], x)[1::3]))


def test_loss_matches_numpy():
    agent, data = make(**SIZES), make_windows(5, 3)
    info, errors = data.policy_info, []
    times = np.minimum(info["time_step"], agent.actor.times.shape[0] - 1)
    assert times.max() < np.max(info["time_step"]), "some time steps must have no embedding of their own"
    for row, mask in enumerate(info["mask"].numpy()):
        unit = (data.action[row].numpy() - CENTRE) / HALF_WIDTH
        inputs = (data.observation[row].numpy() - MEAN) / STD, unit, info["return_to_go"][row].numpy() / 10, times[row]
        errors += list(((predict(agent.actor, 2, *inputs, mask) - unit)[mask] ** 2).mean(axis=1))
    assert len(errors) == info["mask"].numpy().sum() < info["mask"].numpy().size
    np.testing.assert_allclose(agent.loss(agent.batch(data)), np.mean(errors), rtol=1e-5)


def test_loss_ignores_padding_and_counts_weights():
    agent, data = make(**SIZES), make_windows(5, 3)
    batch = agent.batch(data)
    changed = [tf.where(tf.reshape(batch.mask, [5, 3] + [1] * (x.shape.rank - 2)), x, x * 0 + 2) for x in batch[:4]]
    np.testing.assert_allclose(agent.loss(Window(*changed, *batch[4:])), agent.loss(batch), rtol=1e-6)
    np.testing.assert_allclose(agent.loss(agent.batch(data, 3.0)), 3 * agent.loss(batch), rtol=1e-6)


def test_predictions_depend_on_the_past_only():
    agent, data = make(**SIZES), make_windows(1, 3)
    batch = agent.batch(data)
    before = agent.actor(batch)[0, 1]
    for name, place, changes in (("action", 0, True), ("action", 1, False), ("observation", 2, False)):
        added = np.zeros(getattr(batch, name).shape, np.float32)
        added[0, place] = 0.5
        after = agent.actor(batch._replace(**{name: getattr(batch, name) + added}))[0, 1]
        assert np.allclose(before, after, atol=1e-6) != changes


def test_updates_match_adamw_with_warmup_and_clipped_gradients():
    options = {"learning_rate": 0.01, "weight_decay": 0.5, "num_warmup_updates": 4, "clip_norm": 0.01, "dropout": 0.0}
    agent, adam = make(**options), Adam(None)
    variables = agent.optimizer.trained_variables
    for step in range(2):
        data, values = agent.batch(make_windows(5, 3, seed=step)), [variable.numpy() for variable in variables]
        with tf.GradientTape() as tape:
            loss = agent.loss(data)
        gradients = [tf.convert_to_tensor(part).numpy().ravel() for part in tape.gradient(loss, variables)]
        flat, rate = np.concatenate(gradients).astype(float), 0.01 * (step + 1) / 4
        assert np.linalg.norm(flat) > 0.01
        before = np.concatenate([value.ravel() for value in values]) * (1 - rate * 0.5)
        expected = adam(before, flat * 0.01 / np.linalg.norm(flat), rate)
        np.testing.assert_allclose(agent.train(make_windows(5, 3, seed=step)).loss, loss, rtol=1e-5)
        np.testing.assert_allclose(np.concatenate([v.numpy().ravel() for v in variables]), expected, atol=5e-6)


def test_restored_agent_continues_bit_for_bit_with_the_same_dropout(tmp_path):
    agent, restored = make(dropout=0.5), make(dropout=0.5)
    agent.train(make_windows(5, 3))
    path = tf.train.Checkpoint(agent=agent).write(str(tmp_path / "half"))
    tf.train.Checkpoint(agent=restored).read(path).assert_consumed()
    losses = [trained.train(make_windows(5, 3, seed=1)).loss.numpy() for trained in (agent, restored)]
    assert losses[0] == losses[1] != agent.loss(agent.batch(make_windows(5, 3, seed=1))).numpy()
    for one, two in zip(agent.variables, restored.variables, strict=True):
        np.testing.assert_array_equal(one, two)


def act(policy, state, rewards):
    """Returns the actions of the steps of an episode, [T, A], and the last policy state."""
    actions = []
    for number, reward in enumerate(rewards):
        observation = tf.fill([1, 3], 0.1 * number)
        step_type = tf.constant([time_step.StepType.FIRST if number == 0 else time_step.StepType.MID])
        step = time_step.TimeStep(step_type, tf.constant([reward]), tf.ones([1]), observation)
        result = policy.action(step, state)
        state = result.state
        actions.append(result.action.numpy()[0])
    return np.array(actions), state


REWARDS = [7.0, 1.0, 2.0, 4.0, 8.0]  # The first one is of the step before the episode.


@pytest.mark.parametrize("is_saved", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_policy_predicts_from_the_last_steps_and_the_rest_of_its_target(is_saved, tmp_path):
    agent = make(**SIZES, target_return=20.0)
    policy = load_policy(export_policy(agent.policy, tmp_path / "policy")) if is_saved else agent.policy
    actions, state = act(policy, policy.get_initial_state(1), REWARDS)
    returns = 20.0 - np.cumsum([0.0, *REWARDS[1:]])
    observation = (np.full([5, 3], 0.1) * np.arange(5)[:, None] - MEAN) / STD
    unit, times = (actions - CENTRE) / HALF_WIDTH, np.minimum(np.arange(5), agent.actor.times.shape[0] - 1)
    for now in range(5):
        seen = slice(max(now - 2, 0), now + 1)
        window = observation[seen], unit[seen], returns[seen] / 10, times[seen]
        expected = predict(agent.actor, 2, *window, np.ones(len(times[seen]), bool))[-1]
        np.testing.assert_allclose(unit[now], expected, atol=5e-6)
    again, _ = act(policy, state, REWARDS)  # The first step of an episode ignores the episode before.
    np.testing.assert_allclose(again, actions, atol=1e-6)


def test_target_return_can_be_replaced_in_the_initial_state():
    agent = make(**SIZES, target_return=20.0)
    original, _ = act(agent.policy, agent.policy.get_initial_state(1), REWARDS)
    state = {**agent.policy.get_initial_state(1), "target_return": tf.constant([-5.0])}
    replaced, _ = act(agent.policy, state, REWARDS)
    agent.policy.target_return = -5.0
    expected, _ = act(agent.policy, agent.policy.get_initial_state(1), REWARDS)
    np.testing.assert_array_equal(replaced, expected)
    assert not np.allclose(expected, original, atol=1e-3)


def test_unusable_arguments_raise():
    with pytest.raises(ValueError, match="width must be a multiple of num_heads, which is 3, got 4"):
        make(num_heads=3)
    with pytest.raises(ValueError, match="target_return must be a number outside training runs, got None"):
        make(target_return=None)
    images = time_step.time_step_spec({"camera": tf.TensorSpec([8, 8, 3], tf.uint8)})
    with pytest.raises(ValueError, match=r"observation\['camera'\] must not be an image, got uint8 \[8, 8, 3\]"):
        make_agent(NAME, images, ACTION_SPEC, target_return=0.0)
