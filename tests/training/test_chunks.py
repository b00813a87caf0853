"""Action chunks: items against a naive loop, policies that execute them, and what single actions cannot clone."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step

from rlds2reverb import TrainingConfig, load_policy, train
from rlds2reverb.adders import check_adder
from rlds2reverb.cli.main import run
from rlds2reverb.envs import evaluate, record_episodes
from rlds2reverb.learners import collect_items
from rlds2reverb.learners.agents import ActorPolicy, BoundedActions, ChunkPolicy, Observations, make_chunk_spec
from rlds2reverb.learners.policy_export import export_policy
from rlds2reverb.training.sources import open_data
from rlds2reverb.training.training import make_run_agent

GAMMA = 0.9


def make_episode(first, num_actions, is_terminated):
    """Returns steps whose numbers reveal their position: observations 10, 11, ..; actions 0.10, 0.11, .."""
    place = first + np.arange(num_actions + 1, dtype=np.float32)
    actions = np.stack([place[:-1], -place[:-1]], axis=1) / 100
    return {"observations": place[:, None], "actions": actions, "rewards": place[:-1], "terminated": is_terminated}


EPISODES = [make_episode(10, 5, True), make_episode(20, 4, False), make_episode(30, 2, True)]


def make_items(length, *, repeats_last):
    """Yields observation, chunk, reward, discount and next observation of each item."""
    for episode in EPISODES:
        observations, actions, rewards = (episode[name] for name in ("observations", "actions", "rewards"))
        for start in range(len(actions)):
            end = min(start + length, len(actions))
            if end < start + length and not repeats_last:
                continue
            chunk = [actions[min(start + index, len(actions) - 1)] for index in range(length)]
            reward = sum(GAMMA**index * rewards[start + index] for index in range(end - start))
            is_terminal = episode["terminated"] and end == len(actions)
            discount = 0 if is_terminal else GAMMA ** (end - start - 1)
            yield observations[start], np.concatenate(chunk), reward, discount, observations[end]


@pytest.mark.parametrize(("algo", "length"), [("iql", 3), ("bc", 3), ("fql", 3), ("iql", 2)])
def test_items_match_a_naive_loop(algo, length, tmp_path):
    expected = [np.array(column) for column in zip(*make_items(length, repeats_last=algo != "iql"), strict=True)]
    for store_dir in (None, str(tmp_path)):
        config = TrainingConfig(algo, chunk_length=length, gamma=GAMMA, store_dir=store_dir)
        items = open_data(EPISODES, config).items
        got = items.read_items(np.arange(items.num_items))
        names = ["observation", "action", *(["reward", "discount", "next_observation"] if algo != "bc" else [])]
        for name, column in zip(names, expected, strict=False):
            np.testing.assert_allclose(got[name], column, rtol=1e-6, err_msg=name)
        if algo != "iql":
            lengths = [min(length, size - start) for size in (5, 4, 2) for start in range(size)]
            np.testing.assert_array_equal(got["policy_info"]["mask"], [np.arange(length) < n for n in lengths])


@pytest.mark.slow
def test_adder_makes_the_items_of_the_dataset():
    config = TrainingConfig("iql", chunk_length=3, gamma=GAMMA, sampler="prioritized")
    data, cut = open_data(EPISODES, config), open_data(EPISODES, config.replace(sampler="uniform")).items
    made = collect_items(map(data.adder, data.episodes.read()))
    expected = cut.read_items(np.arange(cut.num_items))
    for name, column in expected.items():
        np.testing.assert_array_equal(made.columns[name][made.starts], column, err_msg=name)
    check_adder(data.adder, data.episodes)


OBSERVATION, ACTION = tf.TensorSpec([1]), tensor_spec.BoundedTensorSpec([2], tf.float32, [-1, -2], [1, 2])


class Tens(tf.Module):
    """An actor whose chunk of three actions consists of a tenth of the observation and the numbers 0.00 to 0.05."""

    def mode(self, observation):
        return observation / 10 + np.arange(6, dtype=np.float32) / 100


@pytest.fixture(scope="module")
def chunk_policy():
    specs = time_step.time_step_spec(OBSERVATION), make_chunk_spec(ACTION, 3)
    inner = ActorPolicy(*specs, Observations(OBSERVATION), BoundedActions(specs[1]), Tens(), greedy=True)
    return ChunkPolicy(inner, ACTION, 2)


@pytest.mark.parametrize("is_saved", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_policy_executes_the_first_actions_of_each_chunk(chunk_policy, tmp_path, is_saved):
    """Row 1 begins a new episode in the fourth step, in the middle of a chunk."""
    observations = np.float32([[1, 5], [2, 6], [3, 7], [4, 8], [5, 9]])
    types = np.int32([[0, 0], [1, 1], [1, 1], [1, 0], [1, 1]])
    expected = [  # Observation in which the action was predicted, and place in the chunk, for each row.
        [(1, 0), (5, 0)],
        [(1, 1), (5, 1)],
        [(3, 0), (7, 0)],
        [(3, 1), (8, 0)],
        [(5, 0), (8, 1)],
    ]
    policy = chunk_policy
    if is_saved:
        policy = load_policy(export_policy(chunk_policy, tmp_path / "policy", estimate_values=lambda *_: {"q": 1.0}))
    state = policy.get_initial_state(2)
    for observation, step_type, rows in zip(observations, types, expected, strict=True):
        step = time_step.TimeStep(step_type, np.zeros(2, np.float32), np.ones(2, np.float32), observation[:, None])
        action, state, _ = policy.action(tf.nest.map_structure(tf.constant, step), state)
        unit = [[seen / 10 + place * 0.02, seen / 10 + place * 0.02 + 0.01] for seen, place in rows]
        np.testing.assert_allclose(action, np.array(unit) * [1, 2], rtol=1e-5)
    if is_saved:
        with pytest.raises(ValueError, match="agents with a chunk_length or observation_offsets evaluate chunks"):
            policy.values([0.0], [0.0, 0.0])
    with pytest.raises(NotImplementedError, match=r"policies of chunks.* do not support distribution\(\)"):
        chunk_policy.distribution(tf.nest.map_structure(tf.constant, step), state)


def test_agents_of_continuous_actions_learn_chunks():
    for algo in ("td3_bc", "iql", "fql"):
        config = TrainingConfig(algo, chunk_length=2, hyperparameters={"hidden_sizes": (4,)})
        data = open_data(EPISODES, config)
        agent = make_run_agent(config, data)
        assert agent.policy.action_spec == data.action_spec == agent.collect_policy.action_spec
        feed = data.items.resize(8)
        batch, _ = feed.read(0, 1)
        experience = feed.to_experience(tf.nest.map_structure(lambda column: tf.constant(column[0]), batch))
        assert np.isfinite(agent.train(experience).loss)


class Signal(gymnasium.Env):
    """Every third observation is 1, the others 0. The demonstrator waits for one step after it, and then acts."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    demonstration = (0.0, 0.0, 0.8)

    def observe(self):
        return np.float32([self.num_steps % 3 == 0])

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return self.observe(), {}

    def step(self, action):
        error = abs(float(action[0]) - self.demonstration[self.num_steps % 3])
        self.num_steps += 1
        return self.observe(), -error, False, self.num_steps == 9, {}


def make_demonstration():
    observations = np.float32([place % 3 == 0 for place in range(10)])[:, None]
    actions = np.float32(Signal.demonstration * 3)[:, None]
    return {"observations": observations, "actions": actions, "rewards": np.zeros(9, np.float32), "terminated": False}


def clone(run_dir, steps=150, **options):
    hyperparameters = {"hidden_sizes": (16,), "learning_rate": 1e-2}
    options |= {"batch_size": 32, "eval_episodes": 1, "eval_every": steps, "progress": False, "track": ()}
    return train(
        [make_demonstration()], "bc", run_dir, env=Signal, steps=steps, hyperparameters=hyperparameters, **options
    )


@pytest.mark.slow
def test_chunks_clone_a_pause_that_single_actions_cannot(tmp_path):
    """After the signal, the two observations are equal, so that a single action is the mean of 0 and 0.8 in both."""
    chunks = clone(tmp_path / "chunks", chunk_length=3)
    assert chunks.best_return > -0.2
    assert clone(tmp_path / "single").best_return == pytest.approx(-0.8 * 3, abs=0.2)
    assert evaluate(Signal, chunks.policy, 1).returns.mean() == pytest.approx(chunks.best_return, abs=1e-5)
    (episode,) = record_episodes(Signal, chunks.policy, num_episodes=1).read()
    np.testing.assert_allclose(episode.steps["action"][:9, 0], Signal.demonstration * 3, atol=0.1)
    with pytest.raises(ValueError, match="predict requires a policy without a state"):
        chunks.predict(np.zeros(1))


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["iql", "fql"])
def test_run_with_chunks_resumes_bit_for_bit(algo, data, tmp_path, capsys):
    def learn(name, steps):
        hyperparameters = {
            "hidden_sizes": (8,),
            **({"num_updates": 40} if algo == "iql" else {"flow_steps": 2, "num_samples": 3}),
        }
        options = {"chunk_length": 3, "execution_horizon": 2, "deterministic": True, "progress": False, "track": ()}
        options |= {"eval_every": 10, "eval_episodes": 2, "batch_size": 8, "hyperparameters": hyperparameters}
        return train(data / "d4rl/pendulum_mixed-v2.hdf5", algo, tmp_path / name, steps=steps, **options)

    whole, _, resumed = learn("whole", 20), learn("parts", 10), learn("parts", 20)
    for name, column in whole.evaluations.items():
        np.testing.assert_array_equal(column, resumed.evaluations[name])
    models = [tf.saved_model.load(str(tmp_path / name / "policy")) for name in ("whole", "parts")]
    for one, other in zip(*(model.model_variables for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    assert run(["eval", str(tmp_path / "whole"), "--episodes", "2"]) == 0
    assert "\nbest " in capsys.readouterr().out
