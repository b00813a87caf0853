"""Gymnasium's environments as environments that return time steps."""

import gymnasium
import numpy as np
import pytest
import tree
from counting import Counting
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from rlds2reverb.envs import BoundedArraySpec, GymnasiumEnvironment, ParallelEnvironment, suite_gym
from rlds2reverb.envs.spaces import make_converter, make_space, make_spec

from rlds2reverb import SpecMismatchError

NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 3, 1), np.uint8),
        "parts": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 5])]),
        "joints": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    }
)


class Fixed(gymnasium.Env):
    """Returns fixed values."""

    def __init__(self, space=None, *, observation=None, result=None, action_space=None):
        self.observation_space = space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)
        self.observation = np.zeros(2, np.float32) if observation is None else observation
        self.result, self.actions = result, []

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, action):
        self.actions.append(action)
        return self.result or (self.observation, 1.0, False, False, {})


def test_spaces_become_specs_with_their_bounds():
    spec = make_spec(NESTED)
    assert spec["image"] == BoundedArraySpec((4, 3, 1), np.dtype(np.uint8), 0, 255)
    assert spec["parts"][0] == BoundedArraySpec((), np.dtype(np.int64), 1, 3)
    assert spec["parts"][1] == BoundedArraySpec((2,), np.dtype(np.int8), 0, 1)
    assert spec["parts"][2] == BoundedArraySpec((2,), np.dtype(np.int64), 0, [1, 4])
    assert spec["joints"] == BoundedArraySpec((2,), np.dtype(np.float32), -np.inf, np.inf)
    assert make_spec(make_space(spec)) == spec
    with pytest.raises(TypeError, match=r"the observation\['a'\]\[0\] space .* Text.*; Box, Discrete"):
        make_spec(spaces.Dict({"a": spaces.Tuple([spaces.Text(3)])}))


SPACES = st.recursive(
    st.sampled_from(
        [
            spaces.Discrete(4, start=-1),
            spaces.MultiDiscrete([2, 3]),
            spaces.MultiBinary(3),
            spaces.Box(-2, 3, (2, 2), np.float32),
            spaces.Box(0, 255, (3,), np.uint8),
        ]
    ),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict)
        | st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
    ),
    max_leaves=6,
)


@given(SPACES, SPACES, st.integers(0, 100))
@examples(25)
def test_any_tree_of_spaces_can_be_observed_and_acted_on(observation_space, action_space, seed):
    observation_space.seed(seed)
    action_space.seed(seed)
    inner = Fixed(observation_space, observation=observation_space.sample(), action_space=action_space)
    env = GymnasiumEnvironment(inner)
    step = env.reset()
    assert observation_space.contains(make_converter(make_spec(observation_space))(inner.observation))
    action = make_converter(env.action_spec())(action_space.sample())
    step = env.step(action)
    assert int(step.step_type) == 1 and action_space.contains(inner.actions[-1])


@given(SPACES, SPACES, st.integers(0, 100))
@examples(25)
def test_any_tree_of_spaces_keeps_its_values_in_a_batch(observation_space, action_space, seed):
    observation_space.seed(seed)
    action_space.seed(seed)
    inner = [Fixed(observation_space, observation=observation_space.sample(), action_space=action_space) for _ in "ab"]
    samples = [make_converter(make_spec(action_space))(action_space.sample()) for _ in inner]
    actions = tree.map_structure(lambda *rows: np.stack(rows), *samples)
    with ParallelEnvironment([lambda each=each: GymnasiumEnvironment(each) for each in inner], num_workers=0) as env:
        env.reset()
        step = env.step(actions)
    tree.map_structure(np.testing.assert_array_equal, step.prev_action, actions)
    for row, (each, sample) in enumerate(zip(inner, samples, strict=True)):
        observation = make_converter(make_spec(observation_space))(each.observation)
        tree.map_structure(
            lambda batch, value, row=row: np.testing.assert_array_equal(batch[row], value),
            step.observation,
            observation,
        )
        tree.map_structure(
            np.testing.assert_array_equal, make_converter(make_spec(action_space))(each.actions[0]), sample
        )


def test_action_is_ignored_where_an_episode_starts():
    env = GymnasiumEnvironment(Counting(1))
    assert [int(env.step(action).step_type) for action in (None, 0, "anything", 1, 99)] == [0, 2, 0, 2, 0]


@pytest.mark.drill("F12")
def test_actions_are_checked_before_they_reach_the_environment():
    inner = Fixed(action_space=spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)}))
    env = GymnasiumEnvironment(inner)
    env.reset()
    for action, error, message in [
        (
            {"arm": np.zeros(2)},
            SpecMismatchError,
            r"action must be a dict with the keys \['arm', 'grip'\], got \['arm'\]",
        ),
        (
            {"arm": np.zeros(3), "grip": 0},
            SpecMismatchError,
            r"action\['arm'\] must be float32 \[2\], got float64 \[3\]",
        ),
        ({"arm": np.zeros(2), "grip": 0.5}, SpecMismatchError, r"action\['grip'\] must be int64 \[\], got float64"),
        ({"arm": [0, 2], "grip": 0}, ValueError, r"action\['arm'\]\[1\] must be in \[-1, 1\], got 2"),
        ({"arm": [0, np.nan], "grip": 0}, ValueError, r"action\['arm'\]\[1\] must be in \[-1, 1\], got nan"),
    ]:
        with pytest.raises(error, match=message):
            env.step(action)
    assert inner.actions == []


def test_steps_of_old_gym_environments_tell_truncations_apart():
    for done, info, step_type, discount in [
        (True, {}, 2, 0.0),
        (True, {"TimeLimit.truncated": True}, 2, 1.0),
        (True, {"TimeLimit.truncated": False}, 2, 0.0),
        (False, {}, 1, 1.0),
    ]:
        env = GymnasiumEnvironment(Fixed(result=(np.zeros(2, np.float32), 1.0, done, info)))
        env.reset()
        step = env.step(0)
        assert (int(step.step_type), float(step.discount)) == (step_type, discount)


def test_terminated_and_truncated_at_once_is_terminated():
    env = GymnasiumEnvironment(Fixed(result=(np.zeros(2, np.float32), 1.0, True, True, {})), discount=0.5)
    assert float(env.reset().discount) == 1 and float(env.step(0).discount) == 0


def test_values_that_do_not_match_the_space_raise():
    for observation, error, message in [
        (np.array([0, np.nan], np.float32), ValueError, r"observation must be finite, got \[ 0\. nan\]; fix the env"),
        (np.zeros(3, np.float32), SpecMismatchError, r"observation is float32 \[3\], but its space is float32 \[2\]"),
        ("text", SpecMismatchError, "the observation does not match its space"),
    ]:
        with pytest.raises(error, match=message):
            GymnasiumEnvironment(Fixed(observation=observation)).reset()
    env = GymnasiumEnvironment(Fixed(result=(np.zeros(2, np.float32), np.nan, False, False, {})))
    env.reset()
    with pytest.raises(ValueError, match="the reward must be finite, got nan"):
        env.step(0)
    nan = np.array([0, np.nan], np.float32)
    assert np.isnan(GymnasiumEnvironment(Fixed(observation=nan), allow_non_finite=True).reset().observation[1])
    large = np.full(2, 3e38, np.float32)  # Only the sum is infinite.
    np.testing.assert_array_equal(GymnasiumEnvironment(Fixed(observation=large)).reset().observation, large)


def test_step_without_a_running_episode_resets_or_raises():
    env = GymnasiumEnvironment(Counting(1))
    assert env.current_time_step() is None
    assert [int(env.step(0).step_type) for _ in range(4)] == [0, 2, 0, 2]
    env = GymnasiumEnvironment(Counting(1), auto_reset=False)
    with pytest.raises(RuntimeError, match=r"the episode has not started; call reset\(\)"):
        env.step(0)
    env.reset()
    env.step(0)
    with pytest.raises(RuntimeError, match=r"the episode has ended; call reset\(\)"):
        env.step(0)


def test_time_steps_do_not_change_when_the_environment_reuses_its_array():
    inner = Fixed()
    env = GymnasiumEnvironment(inner)
    first = env.reset()
    inner.observation[:] = 1
    assert first.observation.tolist() == [0, 0]


def test_suite_keeps_the_order_of_wrappers_and_the_registered_time_limit():
    order = []

    def wrap_gym(env):
        order.append(type(env).__name__)
        return gymnasium.wrappers.ClipReward(env, 0, 0.25)

    def wrap_env(env):
        order.append(type(env).__name__)
        return env

    with suite_gym.load("Pendulum-v1", gym_wrappers=[wrap_gym], env_wrappers=[wrap_env]) as env:
        assert order == ["PendulumEnv", "TimeLimit"]
        env.seed(1)
        steps = [env.reset(), *(env.step([0.0]) for _ in range(200))]
    assert int(steps[-1].step_type) == 2 and float(steps[-1].discount) == 1 and int(steps[-2].step_type) == 1
    assert all(0 <= float(step.reward) <= 0.25 for step in steps)
    with suite_gym.load("Pendulum-v1", max_episode_steps=3) as env:
        assert [int(env.step([0.0]).step_type) for _ in range(5)] == [0, 1, 1, 2, 0]
    with suite_gym.load("Pendulum-v1", max_episode_steps=0) as env:
        assert 2 not in [int(env.step([0.0]).step_type) for _ in range(250)]


def test_equal_seeds_give_equal_episodes():
    def play(seed):
        with suite_gym.load("CartPole-v1") as env:
            env.seed(seed)
            return np.stack([env.step(index % 2).observation for index in range(40)])

    np.testing.assert_array_equal(play(3), play(3))
    assert not np.array_equal(play(3), play(4))


def test_unknown_names_raise_with_the_nearest_one():
    with pytest.raises(ValueError, match="no environment 'CartPol-v1'.*CartPole-v1"):
        suite_gym.load("CartPol-v1")
    with pytest.raises(ValueError, match="No module named 'missing_module'.*check the name of the module"):
        suite_gym.load("missing_module:Env-v0")


def test_missing_fields_of_info_raise():
    with pytest.raises(ValueError, match=r"info_fields contains 'lives', but the environment's info has \['count'\]"):
        GymnasiumEnvironment(Counting(3), info_fields=["lives"])
