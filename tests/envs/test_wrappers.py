"""Wrappers on time steps, and the check that users can run on their own."""

import numpy as np
import pytest
from counting import Counting
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from rlds2reverb.envs import (
    BatchedEnvironment,
    Environment,
    GymnasiumEnvironment,
    TimeLimit,
    TimeStep,
    Wrapper,
    check_wrapper,
    restart,
    suite_gym,
    transition,
)
from rlds2reverb.envs.wrappers import (
    ActionObservation,
    ActionRepeat,
    DiscreteAction,
    NonEpisodicAgent,
    RandomFirstEpisodeLength,
    ScalarReward,
)

from rlds2reverb.specs import ArraySpec


def make_counting(length=5, *, terminates=True):
    return GymnasiumEnvironment(Counting(length, terminates=terminates))


class TwoRewards(Environment):
    """Endless; the rewards are 1 and the number of the step."""

    def __init__(self):
        super().__init__()
        self.num_steps = 0

    def observation_spec(self):
        return ArraySpec((1,), np.dtype(np.float32))

    def action_spec(self):
        return make_counting().action_spec()

    def reward_spec(self):
        return ArraySpec((2,), np.dtype(np.float32))

    def seed(self, seed):
        pass

    def _reset(self):
        return restart(np.zeros(1, np.float32), self.action_spec(), reward_spec=self.reward_spec())

    def _step(self, action):
        self.num_steps += 1
        return transition(np.ones(1, np.float32), action, [1.0, self.num_steps])


def play(env, num_steps):
    return [env.step(1) for _ in range(num_steps)]


def describe(time_steps):
    return [(int(step.step_type), float(step.reward), float(step.discount)) for step in time_steps]


def test_action_repeat_sums_the_rewards_until_the_episode_ends():
    steps = play(ActionRepeat(make_counting(5), 2), 5)
    assert describe(steps) == [(0, 0, 1), (1, 10 + 11, 1), (1, 12 + 13, 1), (2, 14, 0), (0, 0, 1)]
    steps = play(ActionRepeat(make_counting(5, terminates=False), 2), 4)
    assert describe(steps)[-1] == (2, 14, 1)


def test_non_episodic_agent_bootstraps_from_terminal_steps():
    assert describe(play(NonEpisodicAgent(make_counting(2), 0.5), 4)) == [
        (0, 0, 1),
        (1, 10, 1),
        (2, 11, 0.5),
        (0, 0, 1),
    ]
    batch = NonEpisodicAgent(BatchedEnvironment([make_counting(1), make_counting(2)]))
    batch.reset()
    assert batch.step(np.ones(2, int)).discount.tolist() == [1, 1]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
@examples(25)
def test_random_first_episode_length_truncates_only_the_first_episodes(length, max_length, seed):
    env = RandomFirstEpisodeLength(make_counting(length), max_length, num_episodes=2, seed=seed)
    steps = play(env, 3 * (length + 1))
    starts = [number for number, step in enumerate(steps) if step.step_type == 0]
    lengths = np.diff(starts) - 1
    assert all(lengths[:2] <= min(length, max_length)) and all(lengths[2:] == length)
    for step in steps:
        assert step.step_type != 2 or bool(step.discount == 0) == (step.observation[0] == length)


def test_scalar_reward_is_the_weighted_sum():
    steps = play(ScalarReward(TwoRewards(), [2.0, 0.5]), 3)
    assert [float(step.reward) for step in steps] == [0, 2.5, 3]
    assert steps[-1].untransformed.reward.tolist() == [1, 2]
    with pytest.raises(
        ValueError, match=r"weights must have one number for each reward, shape \(2,\), got shape \(3,\)"
    ):
        ScalarReward(TwoRewards(), [1, 2, 3])


def test_action_observation_contains_the_previous_action():
    steps = play(ActionObservation(make_counting(2)), 4)
    assert [int(step.observation["prev_action"]) for step in steps] == [0, 1, 1, 0]
    assert steps[1].untransformed.observation.tolist() == [1, 1]


def test_discrete_actions_are_combinations_of_evenly_spaced_values():
    executed = []

    class Recorder(Wrapper):
        def _step(self, action):
            executed.append(action.tolist())
            return super()._step(action)

    env = DiscreteAction(Recorder(suite_gym.load("Pendulum-v1")), 5)
    assert (int(env.action_spec().minimum), int(env.action_spec().maximum)) == (0, 4)
    env.reset()
    assert [int(env.step(action).prev_action) for action in range(5)] == [0, 1, 2, 3, 4]
    assert executed == [[-2], [-1], [0], [1], [2]]
    with pytest.raises(TypeError, match=r"requires actions that are floats \[A\], got int64"):
        DiscreteAction(make_counting(), 3)


@pytest.mark.parametrize(
    "wrap",
    [
        Wrapper,
        lambda env: TimeLimit(env, 7),
        lambda env: ActionRepeat(env, 3),
        NonEpisodicAgent,
        lambda env: RandomFirstEpisodeLength(env, 9, num_episodes=3),
        ActionObservation,
        lambda env: DiscreteAction(env, 3),
        lambda env: ActionObservation(DiscreteAction(TimeLimit(ActionRepeat(env, 2), 5), 3)),
    ],
)
def test_wrappers_keep_the_contract(wrap):
    check_wrapper(lambda: wrap(suite_gym.load("Pendulum-v1", max_episode_steps=20)), num_steps=60)


def test_scalar_reward_keeps_the_contract():
    check_wrapper(lambda: ScalarReward(TwoRewards(), [1.0, 2.0]), num_steps=10)


class WithoutSpec(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return step._replace(observation=step.observation[:2], untransformed=step)


class HidesStarts(Wrapper):
    def _reset(self):
        return super()._reset()._replace(step_type=np.int32(1))


class HidesEnds(Wrapper):
    def _step(self, action):
        return super()._step(action)._replace(step_type=np.int32(1))


class TransformsSilently(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return step._replace(observation=step.observation * np.float32(0.5))


class Unseeded(Wrapper):
    def _step(self, action):
        return super()._step(action)._replace(reward=np.float32(np.random.default_rng().uniform()))


class TerminalMid(Wrapper):
    def _step(self, action) -> TimeStep:
        return super()._step(action)._replace(discount=np.float32(0))


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (WithoutSpec, r"observation of step 1 is float32 \[2\], its spec is float32 \[3\]"),
        (HidesEnds, "prev_action of step 7 is not the action"),
        (HidesStarts, "step_type of step 0 must be FIRST"),
        (
            TransformsSilently,
            r"observation of step 1 was transformed, but untransformed is \(\); use keep_untransformed",
        ),
        (Unseeded, "reward of step 1 differs between two environments with the same seed"),
        (TerminalMid, "discount of step 1 is 0, which only LAST steps may have"),
    ],
)
def test_check_wrapper_finds_violations(wrapper, message):
    with pytest.raises(AssertionError, match=message):
        check_wrapper(lambda: wrapper(suite_gym.load("Pendulum-v1", max_episode_steps=6)), num_steps=20)


def test_wrappers_of_single_environments_reject_batches():
    batch = BatchedEnvironment([make_counting()])
    for wrap in (
        lambda env: ActionRepeat(env, 2),
        lambda env: RandomFirstEpisodeLength(env, 2),
        lambda env: TimeLimit(env, 2),
    ):
        with pytest.raises(TypeError, match="requires an environment that is not batched"):
            wrap(batch)
