"""Goals set on the environment side, and observations normalised with the statistics of a dataset."""

import functools
import pickle

import internals
import numpy as np
import pytest
from counting import Counting
from goal_reaching import Nested, TwoRewards
from hypothesis import assume, given, strategies as st
from hypothesis.extra import numpy as hnp
from properties import examples

from rlds2reverb import load
from rlds2reverb.envs import (
    BoundedArraySpec,
    Environment,
    GoalConditioning,
    GymnasiumEnvironment,
    ObservationNormalizer,
    check_wrapper,
    restart,
    suite_gym,
    transition,
    truncation,
)
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.nest_paths import find_leaves, format_path, get_part
from rlds2reverb.types.specs import ArraySpec, leaves, map_structure


def counting(length=5, *, terminates=True):
    return GymnasiumEnvironment(Counting(length, terminates=terminates))


def sparse_reward(achieved, desired, transitions):
    return -(np.abs(achieved - desired).max(-1) > 0.5).astype(np.float32)


def is_reached(achieved, desired, transitions):
    return np.abs(achieved - desired).max(-1) <= 0.5


def set_goal(env, goal=3, **options):
    options = {"get_achieved_goal": lambda observation: observation[:1], "reward_fn": sparse_reward, **options}
    return GoalConditioning(env, lambda time_step, random: [goal], **options)


def play(env, num_steps):
    return [env.step(1) for _ in range(num_steps)]


def test_goals_are_observed_and_rewarded():
    env = set_goal(counting())
    assert env.observation_spec()["desired_goal"] == ArraySpec((1,), np.dtype(np.float32))
    steps = play(env, 7)
    assert [(int(step.step_type), float(step.reward), float(step.discount)) for step in steps] == [
        (0, 0, 1), (1, -1, 1), (1, -1, 1), (1, 0, 1), (1, -1, 1), (2, -1, 0), (0, 0, 1),
    ]  # fmt: skip
    assert [float(step.observation["achieved_goal"][0]) for step in steps] == [0, 1, 2, 3, 4, 5, 0]
    assert all(step.observation["desired_goal"] == [3] for step in steps)
    assert steps[1].untransformed.reward == 10 and steps[1].untransformed.observation.tolist() == [1, 1]


def test_reached_goals_terminate_episodes_and_the_environment_is_reset():
    steps = play(set_goal(counting(terminates=False), terminal_fn=is_reached), 5)
    assert [(int(step.step_type), float(step.discount)) for step in steps] == [(0, 1), (1, 1), (1, 1), (2, 0), (0, 1)]


def test_functions_receive_the_transition_before_the_change():
    seen = []

    def reward_fn(achieved, desired, transitions):
        seen.append(transitions)
        return [7]

    steps = play(set_goal(counting(2), reward_fn=reward_fn), 3)
    assert steps[1].reward == 7 and steps[1].reward.dtype == np.float32
    assert seen[1]["observation"].tolist() == [[1, 1]] and seen[1]["next_observation"].tolist() == [[2, 2]]
    assert (seen[1]["action"].tolist(), seen[1]["reward"].tolist(), seen[1]["is_terminal"].tolist()) == (
        [1],
        [11],
        [True],
    )


def test_goal_of_a_goal_environment_is_replaced():
    def make(wrap=True):
        env = set_goal(counting(), goal=9, get_achieved_goal=lambda observation: observation[:1])
        return GoalConditioning(env, lambda time_step, random: random.integers(1, 4, 1), sparse_reward) if wrap else env

    env = make()
    assert env.observation_spec() == make(wrap=False).observation_spec()
    env.seed(0)
    goals = [float(env.reset().observation["desired_goal"][0]) for _ in range(20)]
    assert set(goals) == {1, 2, 3}
    env.seed(0)
    assert [float(env.reset().observation["desired_goal"][0]) for _ in range(20)] == goals
    check_wrapper(make, num_steps=20)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: set_goal(TwoRewards()), TypeError, "GoalConditioning requires scalar rewards"),
        (
            lambda: set_goal(counting(), get_achieved_goal=None),
            ValueError,
            "observations must have the fields 'achieved_goal' and 'desired_goal', got .*; or pass get_achieved_goal",
        ),
        (
            lambda: set_goal(counting(), goal=[1, 2]).reset(),
            SpecMismatchError,
            r"choose_goal must return a goal float32 \[1\], got float32 \[1, 2\]",
        ),
        (lambda: play(set_goal(counting(), reward_fn=lambda *_: [1, 2]), 2), ValueError, r"reward_fn must return one value"),
    ],
)  # fmt: skip
def test_invalid_goals_raise(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_observations_are_normalised_with_the_moments_of_the_dataset():
    observations = np.random.default_rng(0).normal([1, 2, 3], [1, 0, 5], (50, 3)).astype(np.float32)
    log = {"observations": observations, "actions": np.zeros((49, 1)), "rewards": np.zeros(49), "terminated": False}
    env = ObservationNormalizer.from_source(suite_gym.load("Pendulum-v1"), load([log]), eps=0.5)
    env.seed(0)
    for step in (env.reset(), env.step([0.5])):
        expected = (step.untransformed.observation - observations[:-1].mean(0)) / (observations[:-1].std(0) + 0.5)
        expected[1] = 0  # This element is constant in the dataset.
        np.testing.assert_allclose(step.observation, expected, rtol=1e-4, atol=1e-6)
        assert step.observation.dtype == np.float32
    spec = env.observation_spec()
    assert spec.minimum[1] == spec.maximum[1] == 0 and spec.maximum[0] < 1
    pickle.dumps(internals.get_statistics(env))
    with pytest.raises(
        SpecMismatchError, match=r"the observations of .* have the fields \[\(\)\], but those of the env"
    ):
        ObservationNormalizer.from_source(GymnasiumEnvironment(Nested()), load([log]))
    short = {**log, "observations": observations[:, :2]}
    with pytest.raises(SpecMismatchError, match=r"mean must have the shape of the observation, .* got float64 \[2\]"):
        ObservationNormalizer.from_source(suite_gym.load("Pendulum-v1"), load([short]))


def test_statistics_keep_their_precision():
    spec = BoundedArraySpec((1,), np.dtype(np.float32), -np.inf, np.inf)
    env = ObservationNormalizer(Replay(spec, [np.array([3e5 + 1], np.float32)] * 2), [3e5 + 0.013], [0.1])
    assert env.reset().observation.tolist() == [np.float32((1 - 0.013) / 0.1)]


def test_integers_and_other_fields_are_not_normalised():
    env = GymnasiumEnvironment(Nested())
    statistics = [
        {"robot": ({"joints": np.full(2, value, np.float32)}, 5), "image": np.full((2, 2, 1), 5)} for value in (1, 2)
    ]
    first, second = play(ObservationNormalizer(env, *statistics), 2)
    assert second.observation["robot"][0]["joints"].tolist() == [0, -1]
    assert second.observation["robot"][1] == 1 and second.observation["image"].tolist() == [[[1], [1]]] * 2
    assert first.untransformed.observation["robot"][0]["joints"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fields": "image"}, TypeError, "only floats can be normalised, but the observation 'image' is uint8"),
        ({"fields": "robot.1"}, TypeError, "only floats can be normalised, but the observation 'robot.1' is int64"),
        ({"fields": "robt"}, ValueError, r"there is no path 'robt' .* 'robot.0.joints', .*; did you mean 'robot'\?"),
        ({"mean": {}}, SpecMismatchError, r"mean must have the structure of the observations, got no .*joints"),
        ({"mean": {"robot": ({"joints": [0, np.nan]},)}}, ValueError, r"mean\['robot'\]\[0\]\['joints'\] must not contain"),
        ({"divisor": {"robot": ({"joints": [0, 1]},)}}, ValueError, r"divisor\['robot'\]\[0\]\['joints'\] must be above 0"),
    ],
)  # fmt: skip
def test_invalid_statistics_raise(options, error, message):
    joints = {"robot": ({"joints": [1, 1]},)}
    with pytest.raises(error, match=message):
        ObservationNormalizer(GymnasiumEnvironment(Nested()), **{"mean": joints, "divisor": joints, **options})


def test_observations_without_floats_cannot_be_normalised():
    spec = BoundedArraySpec((), np.dtype(np.int64), 0, 2)
    with pytest.raises(TypeError, match=r"only floats can be normalised, but the observation is int64 \[\]"):
        ObservationNormalizer(Replay(spec, [np.int64(0)]), 0, 1)
    with pytest.raises(TypeError, match="only floats can be normalised, but the observation contains none"):
        ObservationNormalizer(Replay({"a": spec}, [{"a": np.int64(0)}]), 0, 1)


class Replay(Environment):
    """Returns the observations passed to it; episodes have one of each."""

    def __init__(self, spec, observations):
        super().__init__()
        self.spec, self.observations, self.number = spec, observations, 0

    def observation_spec(self):
        return self.spec

    def action_spec(self):
        return BoundedArraySpec((), np.dtype(np.int64), 0, 1)

    def seed(self, seed):
        pass

    def _reset(self):
        self.number = 0
        return restart(self.observations[0], self.action_spec())

    def _step(self, action):
        self.number += 1
        make = truncation if self.number == len(self.observations) - 1 else transition
        return make(self.observations[self.number], action, 1.0)


@st.composite
def nested_specs(draw, depth=2):
    """Generates trees of dicts and tuples of bounded floats and integers."""
    kind = draw(st.sampled_from(["float", "float", "integer", *["dict", "tuple"] * (depth > 0)]))
    if kind == "dict":
        return {name: draw(nested_specs(depth - 1)) for name in draw(st.sets(st.sampled_from("abc"), min_size=1))}
    if kind == "tuple":
        return tuple(draw(nested_specs(depth - 1)) for _ in range(draw(st.integers(1, 2))))
    shape = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    if kind == "integer":
        return BoundedArraySpec(shape, np.dtype(np.int32), 0, 9)
    high = draw(st.sampled_from([5.0, np.inf]))
    return BoundedArraySpec(shape, np.dtype(np.float32), -5.0, high)


@examples(60)
@given(nested_specs(), st.data(), st.integers(2, 5))
def test_normalised_observations_stay_in_their_specs_and_can_be_inverted(spec, data, length):
    """Only the chosen floats change, whatever the structure, the statistics and the length of episodes."""
    floats = [keys for keys, _ in find_leaves(spec, None) if get_part(spec, keys).dtype.kind == "f"]
    assume(floats and () not in floats)
    chosen = data.draw(st.lists(st.sampled_from(floats), unique=True, min_size=1))

    def draw(leaf, low, high):
        elements = st.floats(low, high, width=32) if leaf.dtype.kind == "f" else st.integers(0, 9)
        return data.draw(hnp.arrays(leaf.dtype, leaf.shape, elements=elements))

    observations = [map_structure(functools.partial(draw, low=-5, high=5), spec) for _ in range(length)]
    mean = map_structure(functools.partial(draw, low=-100, high=100), spec)
    divisor = map_structure(
        lambda leaf: draw(leaf, 0.0009765625, 1000) if leaf.dtype.kind == "f" else np.int32(1), spec
    )
    make = functools.partial(
        ObservationNormalizer, mean=mean, divisor=divisor, fields=[format_path(keys) for keys in chosen]
    )
    check_wrapper(lambda: make(Replay(spec, observations)), num_steps=2 * length)
    env = make(Replay(spec, observations))
    for step, observation in zip(play(env, length), observations, strict=True):
        for keys, before in leaves(observation):
            after = get_part(step.observation, keys)
            if keys in chosen:
                mean_leaf, divisor_leaf = (get_part(nest, keys).astype(np.float64) for nest in (mean, divisor))
                np.testing.assert_array_equal(after, ((before - mean_leaf) / divisor_leaf).astype(np.float32))
            else:
                assert after is before
