"""What evaluations, recordings and films have in common: the policy's time steps, and one meaning of time limits."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import Counting
from policies import FunctionPolicy, save_policy
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, time_step_spec

from rlds2reverb import load_policy
from rlds2reverb.envs import (
    Environment,
    Evaluator,
    GymnasiumEnvironment,
    TimeLimit,
    evaluate,
    record_episodes,
    record_film,
)
from rlds2reverb.envs.creation import make_environment
from rlds2reverb.envs.env_specs import BoundedArraySpec
from rlds2reverb.envs.time_limit import find_time_limit
from rlds2reverb.envs.time_steps import restart, transition
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.training.collector import Collector
from rlds2reverb.types.specs import ArraySpec


class Echo(gymnasium.Env):
    """Rewards the action itself, in episodes of 4 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._num_steps += 1
        return np.zeros(1, np.float32), float(action[0]), False, self._num_steps == 4, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


class ReadingPolicy(tf_policy.TFPolicy):
    """A policy with the action reward / 2 + discount / 4, plus 1 / 8 in the first step."""

    def __init__(self, reward_shape=()):
        reward = tf.TensorSpec(reward_shape, tf.float32, "reward")
        action = tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
        super().__init__(time_step_spec(tf.TensorSpec([1], tf.float32), reward_spec=reward), action)

    def _action(self, time_step, policy_state, seed):
        is_first = tf.cast(time_step.is_first(), tf.float32)
        action = time_step.reward / 2 + time_step.discount / 4 + is_first / 8
        return policy_step.PolicyStep(action[:, None], policy_state, ())


@pytest.mark.parametrize("is_saved", [False, True])
def test_policies_read_real_rewards_discounts_and_step_types(tmp_path, is_saved):
    policy = ReadingPolicy()
    if is_saved:
        save_policy(policy, tmp_path / "policy")
        policy = load_policy(tmp_path / "policy")
    actions = [0.375, 0.4375, 0.46875, 0.484375]
    assert evaluate(Echo, policy, 2).returns.tolist() == [sum(actions)] * 2
    assert record_film(Echo, policy, tmp_path / "a.gif", num_episodes=2).returns.tolist() == [sum(actions)] * 2
    for episode in record_episodes(Echo, policy, num_episodes=2):
        assert episode.steps["action"][:, 0].tolist() == [*actions, 0]
    if not is_saved:
        collector = Collector(Echo, policy)
        assert [piece.episode.steps["reward"].tolist() for piece in collector.collect(8)] == [[*actions, 0]] * 2
        collector.close()


def test_policy_with_rewards_of_a_different_shape_raises():
    for use in (lambda policy: evaluate(Echo, policy, 1), lambda policy: record_episodes(Echo, policy, num_steps=1)):
        with pytest.raises(
            SpecMismatchError, match=r"policy expects reward as float32 \[2\], but Echo returns float32 \["
        ):
            use(ReadingPolicy((2,)))


def make_limited():
    return gymnasium.make("Echoes-v0", max_episode_steps=3)


@pytest.fixture
def environments(monkeypatch):
    """Kinds of environments whose episodes of 20 steps are limited to 3, and one that is not limited."""
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gymnasium.registry))
    gymnasium.register("Counting-v0", lambda render_mode=None: Images(20), max_episode_steps=3)
    gymnasium.register("Echoes-v0", lambda render_mode=None: Images(20))
    return {
        "id": "Counting-v0",
        "spec": gymnasium.spec("Counting-v0"),
        "function": lambda: gymnasium.make("Counting-v0"),
        "wrapped": lambda: gymnasium.wrappers.TransformReward(gymnasium.make("Counting-v0"), lambda reward: reward),
        "environment": lambda: TimeLimit(GymnasiumEnvironment(Images(20)), 3),
        "two limits": lambda: TimeLimit(GymnasiumEnvironment(gymnasium.make("Counting-v0")), 4),
        "unlimited": lambda: gymnasium.make("Counting-v0").unwrapped,
    }


class Images(Counting):
    """A counting environment with images."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


POLICY = FunctionPolicy(
    tf.TensorSpec([2], tf.float32),
    tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2),
    lambda observation: tf.cast(observation[:, 0] * 0, tf.int64),
)


@pytest.mark.parametrize("limit", [None, pytest.param(2, marks=pytest.mark.slow), 8])
def test_max_episode_steps_replaces_the_limits_of_every_kind_of_environment(environments, tmp_path, limit):
    for kind, env in environments.items():
        expected = limit or (20 if kind == "unlimited" else 3)
        with make_environment(env, max_episode_steps=limit) as made:
            assert find_time_limit(made) == (None if kind == "unlimited" and limit is None else expected), kind
        evaluator = Evaluator(env, num_episodes=1, max_episode_steps=limit)
        assert evaluator.is_limited == (limit is not None or kind != "unlimited")
        assert evaluator.evaluate(POLICY).lengths.tolist() == [expected], kind
        (episode,) = record_episodes(env, num_episodes=1, max_episode_steps=limit)
        assert episode.num_transitions == expected and episode.is_terminal == (expected == 20), kind
        film = record_film(env, "random", tmp_path / "a.gif", max_episode_steps=limit)
        assert film.lengths.tolist() == [expected], kind


def test_evaluation_is_stopped_between_two_steps():
    moments = iter([False] * 3 + [True])
    assert Evaluator(Echo, num_episodes=2).evaluate(ReadingPolicy(), should_stop=lambda: next(moments)) is None
    evaluation = Evaluator(Echo, num_episodes=2).evaluate(ReadingPolicy(), should_stop=lambda: False)
    assert evaluation is not None and evaluation.lengths.tolist() == [4, 4]


class Rewards(Environment):
    """Returns rewards as given, in endless episodes."""

    def __init__(self, reward, shape=()):
        super().__init__()
        self._reward, self._shape = reward, shape

    def observation_spec(self):
        return ArraySpec((1,), np.dtype(np.float32))

    def action_spec(self):
        return BoundedArraySpec((1,), np.dtype(np.float32), -1.0, 1.0)

    def reward_spec(self):
        return ArraySpec(self._shape, np.dtype(np.float32))

    def _reset(self):
        return restart(np.zeros(1, np.float32), self.action_spec(), reward_spec=self.reward_spec())

    def _step(self, action):
        time_step = transition(np.zeros(1, np.float32), action, 0.0)
        return time_step._replace(reward=np.asarray(self._reward, np.float32))


def test_rewards_that_are_no_numbers_raise_or_become_numbers():
    def collect(make, policy):
        collector = Collector(make, policy)
        try:
            return [piece.episode.steps["reward"] for piece in collector.collect(2)]
        finally:
            collector.close()

    evaluator = {"num_episodes": 1, "max_episode_steps": 2}
    assert evaluate(lambda: Rewards([3]), ReadingPolicy(), **evaluator).returns.tolist() == [6]
    assert collect(lambda: Rewards([3]), ReadingPolicy())[0].tolist() == [3, 3, 0]
    with pytest.raises(ValueError, match=r"the reward must be finite, got nan \(episode 0, step 0\)"):
        evaluate(lambda: Rewards(np.nan), ReadingPolicy(), **evaluator)
    with pytest.raises(ValueError, match=r"the reward must be finite, got nan \(environment 0, after 0 collected"):
        collect(lambda: Rewards(np.nan), ReadingPolicy())
    for use in (lambda make: evaluate(make, ReadingPolicy(), **evaluator), lambda make: collect(make, ReadingPolicy())):
        with pytest.raises(
            SpecMismatchError, match=r"must be single numbers, got float32 \[2\]; wrap it in ScalarReward"
        ):
            use(lambda: Rewards([1, 2], (2,)))
