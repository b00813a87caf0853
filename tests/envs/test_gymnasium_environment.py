"""Gymnasium's environments as environments that return time steps."""

import re
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
import tree
from counting import Counting
from gymnasium import spaces
from hypothesis import given, strategies as st
from properties import examples

from rlds2reverb import SpecMismatchError
from rlds2reverb.envs import (
    BatchedEnvironment,
    BoundedArraySpec,
    GymnasiumEnvironment,
    ParallelEnvironment,
    TimeLimit,
    create_environment,
    suite_gym,
    to_py_environment,
)
from rlds2reverb.envs.gymnasium_spaces import make_converter, make_space, make_spec

# Workers would take seconds to import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

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
    with ParallelEnvironment([lambda gym=gym: GymnasiumEnvironment(gym) for gym in inner], num_workers=0) as env:
        env.reset()
        step = env.step(actions)
    tree.map_structure(np.testing.assert_array_equal, step.prev_action, actions)
    for row, (gym, sample) in enumerate(zip(inner, samples, strict=True)):
        observation = make_converter(make_spec(observation_space))(gym.observation)
        tree.map_structure(
            lambda batch, value, row=row: np.testing.assert_array_equal(batch[row], value),
            step.observation,
            observation,
        )
        tree.map_structure(
            np.testing.assert_array_equal, make_converter(make_spec(action_space))(gym.actions[0]), sample
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
        ([0.5, "text"], SpecMismatchError, "the observation does not match its space"),
        ([0.5, None], SpecMismatchError, "object is not float32"),
        (["1", "2"], SpecMismatchError, "<U1 is not float32"),
    ]:
        with pytest.raises(error, match=message):
            GymnasiumEnvironment(Fixed(observation=observation)).reset()
    for reward in (np.nan, 1e300):
        env = GymnasiumEnvironment(Fixed(result=(np.zeros(2, np.float32), reward, False, False, {})))
        env.reset()
        with pytest.raises(ValueError, match=f"the reward must be finite in float32, got {re.escape(str(reward))}"):
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
        assert order == ["PendulumEnv", "GymnasiumEnvironment"]
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
    with pytest.raises(ValueError, match="info_fields contains 'value', whose values must be arrays, got None"):
        GymnasiumEnvironment(Telling([None]), info_fields=["value"])


@pytest.mark.parametrize("value", [np.array([300, 0]), [300, 0], [1.5, 0], np.array([1.0, 0])])
def test_values_that_an_integer_space_cannot_represent_raise(value):
    space = spaces.Box(-128, 127, (2,), np.int8)
    with pytest.raises(
        SpecMismatchError, match=r"the observation does not match its space .*(not representable|is not)"
    ):
        GymnasiumEnvironment(Fixed(space, observation=value)).reset()
    observation = GymnasiumEnvironment(Fixed(space, observation=np.array([-128, 127]))).reset().observation
    assert observation.dtype == np.int8 and observation.tolist() == [-128, 127]


@pytest.mark.parametrize("reward", [2, 2.0, True, np.float32(2), np.array(2.0), np.array([2.0]), [2.0], [[2.0]]])
def test_reward_of_one_element_is_a_number_everywhere(reward):
    def make():
        return GymnasiumEnvironment(Fixed(result=(np.zeros(2, np.float32), reward, False, False, {})))

    for env in (make(), to_py_environment(make())):
        env.reset()
        assert (
            env.step(np.int64(0)).reward == float(np.ravel(reward)[0]) and np.shape(env.step(np.int64(0)).reward) == ()
        )
    for batch in (BatchedEnvironment([make(), make()]), ParallelEnvironment([make, make], num_workers=0)):
        with batch:
            batch.reset()
            step = batch.step(np.zeros(2, int))
            assert step.reward.tolist() == [float(np.ravel(reward)[0])] * 2 and step.reward.dtype == np.float32


@pytest.mark.parametrize("reward", [None, "2", [1.0, 2.0], np.zeros(0), 2j])
def test_other_rewards_raise_with_the_name_of_the_environment(reward):
    env = GymnasiumEnvironment(Fixed(result=(np.zeros(2, np.float32), reward, False, False, {})))
    env.reset()
    with pytest.raises(SpecMismatchError, match="the reward of Fixed must be a number, got"):
        env.step(0)


class OwnRewards(GymnasiumEnvironment):
    """An `Environment` whose rewards have a shape of their own."""

    def __init__(self, shape):
        super().__init__(Counting(9))
        self.shape = shape

    def _step(self, action):
        return super()._step(action)._replace(reward=np.full(self.shape, 3, np.float32))


def test_rewards_of_custom_environments_are_numbers_as_well():
    for make in (
        BatchedEnvironment,
        lambda envs: ParallelEnvironment([lambda: envs[0], lambda: envs[1]], num_workers=0),
    ):
        with make([OwnRewards((1,)), OwnRewards(())]) as env:
            env.reset()
            assert env.step(np.zeros(2, int)).reward.tolist() == [3, 3]
    env = to_py_environment(OwnRewards((1,)))
    env.reset()
    assert env.step(np.int64(0)).reward.shape == ()
    env = BatchedEnvironment([OwnRewards(()), OwnRewards((2,))])
    env.reset()
    with pytest.raises(SpecMismatchError, match="the reward of environment 1 must be a number"):
        env.step(np.zeros(2, int))


def test_actions_stay_in_boxes_of_any_float_dtype():
    for dtype in (np.float16, np.float32, np.float64):
        low, high = np.array([[-0.1, 0.3], [0.1, 0.7]], dtype)
        inner = Fixed(action_space=spaces.Box(low, high, (2,), dtype))
        env = GymnasiumEnvironment(inner)
        env.reset()
        for bound in (env.action_spec().minimum, env.action_spec().maximum):
            env.step(bound)
            assert inner.action_space.contains(inner.actions[-1])


class Telling(Counting):
    """Returns the next of some values in its `info`."""

    def __init__(self, values):
        super().__init__(100)
        self.values = values

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return np.full(2, self.np_random.uniform(), np.float32) + 0 * observation, {"value": self.values[0]}

    def step(self, action):
        observation, *rest, _ = super().step(action)
        return observation, *rest, {"value": self.values[min(self.num_steps, len(self.values) - 1)]}


@pytest.mark.parametrize(
    "values",
    [[0, 0, 1.5], [False, False, 7], [1.5, 1.5, 2**24 + 1], ["go", "go", "stopping"], [[1, 2], [1, 2], [3, 4]]],
)
def test_later_values_of_info_are_not_truncated(values):
    env = GymnasiumEnvironment(Telling(values), info_fields=["value"])
    steps = [env.reset(), env.step(0), env.step(0)]
    for step, value in zip(steps, values, strict=True):
        np.testing.assert_array_equal(step.env_info["value"], value)
        assert step.env_info["value"].dtype == env.env_info_spec()["value"].dtype


@pytest.mark.parametrize("later", [np.array([0, 1.5]), np.array([0, 300]), np.zeros(3, np.int8), ["a", "b"], "x" * 65])
def test_values_of_info_that_do_not_fit_raise(later):
    first = "x" if isinstance(later, str) else np.zeros(2, np.int8)
    env = GymnasiumEnvironment(Telling([first, first, later]), info_fields=["value"])
    env.reset()
    env.step(0)
    with pytest.raises(SpecMismatchError, match=r"info\['value'\] of Telling must be .*; pass info_fields as a dict"):
        env.step(0)


def test_selected_info_does_not_change_the_episodes():
    def observe(inner, **options):
        return GymnasiumEnvironment(inner, **options).reset().observation[0]

    assert len({observe(Telling([0]), info_fields=["value"]) for _ in range(3)}) == 3
    envs = [Telling([0]) for _ in range(2)]
    for env in envs:
        env.reset(seed=3)
    assert observe(envs[0], info_fields=["value"]) == observe(envs[1])


class NoSeed(Counting):
    def reset(self):
        return super().reset()


class NoSeedAndNoInfo(NoSeed):
    def reset(self):
        return super().reset()[0]


class OldSeed(NoSeed):
    def seed(self, seed):
        self.seeds = [seed]


def test_seed_covers_resets_that_draw_from_numpys_global_generator():
    """OGBench's mazes add such noise to the start and the goal."""

    class Maze(Fixed):
        def reset(self, *, seed=None, options=None):
            return np.random.uniform(size=3).astype(np.float32), {}

    env = GymnasiumEnvironment(Maze(gymnasium.spaces.Box(0, 1, (3,))))
    np.random.seed(7)
    expected = np.random.uniform(size=2)
    np.random.seed(7)
    observations = []
    for seed, following in zip((3, 3), expected, strict=True):
        env.seed(seed)
        observations.append(env.reset().observation)
        assert np.random.uniform() == following
    np.testing.assert_array_equal(*observations)


def test_environments_without_seeds_can_be_used():
    for kind in (NoSeed, NoSeedAndNoInfo):
        env = GymnasiumEnvironment(kind())
        with pytest.raises(NotImplementedError, match=f"{kind.__name__} cannot be seeded; add the argument seed"):
            env.seed(1)
        assert [int(env.step(0).step_type) for _ in range(3)] == [0, 1, 1]
    env = GymnasiumEnvironment(OldSeed())
    env.seed(4)
    assert env.reset().step_type == 0 and env.gym.seeds == [4]
    for num_workers in (0, 1):
        constructors = [lambda: GymnasiumEnvironment(NoSeed())]
        with (
            ParallelEnvironment(constructors, num_workers=num_workers, caller_steps=not num_workers) as env,
            pytest.raises(NotImplementedError, match="NoSeed cannot be seeded"),
        ):
            env.seed(1)


def test_errors_in_reset_are_those_of_the_environment():
    class Broken(Counting):
        def reset(self, *, seed=None, options=None):
            return None + 1

    env = GymnasiumEnvironment(Broken())
    env.seed(1)
    with pytest.raises(TypeError, match="unsupported operand"):
        env.reset()


def test_unsupported_parts_of_observations_are_left_out_with_a_warning():
    text = spaces.Text(9)
    space = spaces.Dict({"mission": text, "robot": spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "name": text})})
    inner = Fixed(space, observation={"mission": "go", "robot": {"arm": np.zeros(2, np.float32), "name": "a"}})
    with pytest.warns(UserWarning, match=r"observations of Fixed is left out: .*\['robot'\]\['name'\].*\['mission'\]"):
        env = GymnasiumEnvironment(inner)
    assert list(env.observation_spec()) == ["robot"] and env.reset().observation["robot"]["arm"].tolist() == [0, 0]
    for observation_space, action_space in (
        (spaces.Dict({"mission": text}), spaces.Discrete(2)),
        (spaces.Tuple([spaces.Discrete(2), text]), spaces.Discrete(2)),
        (spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2), "b": text})),
    ):
        with pytest.raises(TypeError, match="must be one of the supported kinds, got Text"):
            GymnasiumEnvironment(Fixed(observation_space, action_space=action_space))


def test_environments_of_another_kind_raise_with_what_to_do():
    gym, env = Counting(), GymnasiumEnvironment(Counting())
    wrapped = gymnasium.wrappers.TimeLimit(gym, 5)
    for function, message in [
        (lambda: TimeLimit(wrapped, 5), "TimeLimit requires an Environment, got a TimeLimit; wrap it in GymnasiumEnv"),
        (lambda: BatchedEnvironment([wrapped]), "BatchedEnvironment requires an Environment, got a TimeLimit; wrap it"),
        (lambda: to_py_environment(wrapped), "to_py_environment requires an Environment, got a TimeLimit; wrap it"),
        (lambda: BatchedEnvironment([lambda: env]), "BatchedEnvironment requires an Environment, got a function"),
        (lambda: GymnasiumEnvironment(env), r"env must be a gymnasium\.Env, got a GymnasiumEnvironment"),
        (
            lambda: ParallelEnvironment([env]),
            r"constructors\[0\] must be a function .*, got a GymnasiumEnvironment; pass",
        ),
    ]:
        with pytest.raises(TypeError, match=message):
            function()


@pytest.mark.slow
def test_environments_that_are_registered_here_are_known_to_workers():
    class Registered(Counting):
        pass

    gymnasium.register("Registered-v0", entry_point=Registered, max_episode_steps=2)
    try:
        with create_environment("Registered-v0", 2, parallel_options={"caller_steps": False}) as env:
            assert [env.step(np.zeros(2, int)).step_type.tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]
    finally:
        del gymnasium.registry["Registered-v0"]
