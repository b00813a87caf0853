"""Wrappers on time steps; `test_contract.py` checks that they keep the contract."""

import numpy as np
import pytest
from counting import Counting
from goal_reaching import LineWithLives, TwoRewards
from hypothesis import given, strategies as st
from properties import examples

from rlds2reverb.envs import (
    ActionObservation,
    ActionRepeat,
    AtariTerminalOnLifeLoss,
    BatchDimension,
    BatchedEnvironment,
    BoundedArraySpec,
    DiscreteAction,
    GymnasiumEnvironment,
    NonEpisodicAgent,
    PerformanceProfile,
    PerformanceProfiler,
    RandomFirstEpisodeLength,
    ScalarReward,
    TemporallyCorrelatedNoise,
    TimeLimit,
    Wrapper,
    suite_gym,
)
from rlds2reverb.envs.time_limit import find_time_limit, set_time_limit


def make_counting(length=5, *, terminates=True):
    return GymnasiumEnvironment(Counting(length, terminates=terminates))


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


def test_lengths_of_first_episodes_reach_both_ends():
    episodes = [play(RandomFirstEpisodeLength(make_counting(5), 3, seed=seed), 5) for seed in range(20)]
    assert {next(n for n, step in enumerate(steps) if step.step_type == 2) for steps in episodes} == {1, 2, 3}


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


def test_discrete_actions_of_a_batch_and_their_number():
    env = DiscreteAction(BatchedEnvironment([suite_gym.load("Pendulum-v1") for _ in range(2)]), 3)
    assert env.reset().prev_action.tolist() == [0, 0]
    assert env.step(np.array([0, 2])).prev_action.tolist() == [0, 2]
    many = BoundedArraySpec((17,), np.dtype(np.float32), -1, 1)
    wide = Wrapper(suite_gym.load("Pendulum-v1"))
    wide.action_spec = lambda: many
    with pytest.raises(
        ValueError, match=r"num_bins \*\* A must be at most 1,000,000 actions, got 3 \*\* 17; use fewer"
    ):
        DiscreteAction(wide, 3)


def test_scalar_reward_is_the_first_one_by_default():
    assert [float(step.reward) for step in play(ScalarReward(TwoRewards()), 3)] == [0, 1, 1]


@given(st.integers(1, 8), st.integers(1, 8), st.booleans(), st.sampled_from([1.0, 0.5]), st.booleans())
@examples(25)
def test_time_limit_changes_only_the_step_type_of_its_last_step(length, duration, terminates, discount, is_wrapper):
    """A termination in the step of the time limit stays one, and a truncation keeps the discount."""
    inner = Counting(length, terminates=terminates)
    if is_wrapper:
        env = TimeLimit(GymnasiumEnvironment(inner, discount=discount), duration)
    else:
        env = GymnasiumEnvironment(inner, discount=discount, duration=duration)
    steps = play(env, duration + 1)
    last = steps[min(length, duration)]
    assert last.step_type == 2 and [int(step.step_type) for step in steps[1 : min(length, duration)]] == [1] * (
        min(length, duration) - 1
    )
    assert last.discount == (0 if terminates and length <= duration else np.float32(discount))
    assert last.reward == 9 + min(length, duration)
    assert find_time_limit(env) == duration and find_time_limit(set_time_limit(env, 9)) == 9


def test_noise_is_that_of_the_last_two_steps_and_is_clipped():
    env = TemporallyCorrelatedNoise(suite_gym.load("Pendulum-v1"), sigma=0.3, past_noise_weight=0.5)
    env.seed(4)
    noise = np.random.default_rng(4).normal(scale=0.3, size=(4, 1))
    first = env.reset()
    assert first.env_info["executed_action"].tolist() == [0]
    actions = np.array([[0.1], [-0.2], [2.0]], np.float32)
    steps = [env.step(action) for action in actions]
    assert [step.prev_action.tolist() for step in steps] == actions.tolist()
    expected = np.clip(actions + 0.5 * noise[:3] + noise[1:], -2, 2)
    np.testing.assert_allclose([step.env_info["executed_action"] for step in steps], expected, rtol=1e-6)
    again = suite_gym.load("Pendulum-v1")
    again.seed(4)
    again.reset()
    observation = again.step(steps[0].env_info["executed_action"]).observation
    assert np.array_equal(observation, steps[0].observation)
    with pytest.raises(TypeError, match="TemporallyCorrelatedNoise requires floats, but action is int64"):
        TemporallyCorrelatedNoise(make_counting())
    with pytest.raises(ValueError, match="env_info must not have the field 'executed_action'"):
        TemporallyCorrelatedNoise(env)


def test_lost_lives_end_episodes_and_the_game_continues():
    def observe(step):
        return int(step.observation[0]), int(step.step_type), float(step.discount), float(step.reward)

    env = AtariTerminalOnLifeLoss(GymnasiumEnvironment(LineWithLives(), info_fields=["lives"]))
    lives = [observe(env.step(1)) for _ in range(13)]
    life = [(0, 1, 1, 1), (0, 1, 1, 1), (0, 2, 0, 1)]
    expected = []
    for start in (0, 3, 6):
        expected.append((start, 0, 1, 0))
        expected += [(start + 1 + index, *part[1:]) for index, part in enumerate(life)]
    assert lives == [*expected, (0, 0, 1, 0)]
    assert observe(env.step(1))[:2] == (1, 1) and env.current_time_step().prev_action == 1
    for _ in range(2):
        env.step(1)
    env.seed(0)  # A seed starts a new game.
    assert env.reset().observation == [0]
    with pytest.raises(
        ValueError, match=r"env_info must have the field 'lives', got no fields; .*info_fields=\['lives'\]"
    ):
        AtariTerminalOnLifeLoss(make_counting())


def test_life_lost_at_the_time_limit_is_a_termination_and_resets_the_game():
    inner = TimeLimit(GymnasiumEnvironment(LineWithLives(), info_fields=["lives"]), 3)
    steps = play(AtariTerminalOnLifeLoss(inner), 5)
    assert describe(steps)[3:] == [(2, 1, 0), (0, 0, 1)] and steps[4].observation == [0]


def test_profiler_separates_the_time_in_the_environment_from_that_outside():
    class Slow(Wrapper):
        def _step(self, action):
            now[0] += 3
            return super()._step(action)

    now, profiles = [0.0], []

    def process(profile):
        now[0] += 100  # Not counted.
        profiles.append(profile)

    env = PerformanceProfiler(Slow(make_counting(50)), process, 2, clock=lambda: now[0])
    env.reset()
    for _ in range(5):
        now[0] += 1
        env.step(1)
    assert [(p.num_steps, p.env_secs, p.outside_secs) for p in profiles] == [(2, 6, 2), (2, 6, 2)]
    assert profiles[0].steps_per_sec == 0.25 and str(profiles[0]) == "0 steps/s, 75% of the time in the environment"
    assert (env.profile.num_steps, env.profile.env_secs, profiles[0].calls) == (1, 3, None)
    assert PerformanceProfile(0, 0, 0).steps_per_sec == float("inf") and PerformanceProfile(0, 0, 0).env_share == 0
    envs = BatchedEnvironment([make_counting(), make_counting()])
    batch = PerformanceProfiler(envs, profiles.append, 1, with_calls=True)
    batch.reset()
    batch.step(np.ones(2, int))
    assert profiles[-1].num_steps == 2 and any("step" in str(entry.code) for entry in profiles[-1].calls.getstats())


def test_batch_is_an_environment_with_a_leading_axis():
    env = BatchDimension(suite_gym.load("Pendulum-v1", max_episode_steps=3))
    assert env.batched and env.batch_size == 1 and env.duration == 3
    assert env.reset().observation.shape == (1, 3)
    assert [int(env.step(np.zeros((1, 1))).step_type[0]) for _ in range(4)] == [1, 1, 2, 0]
    with pytest.raises(AttributeError, match="missing"):
        env.missing  # noqa: B018


def test_info_fields_of_loaded_environments_become_env_info():
    env = suite_gym.load("FrozenLake-v1", info_fields=["prob"])
    assert env.reset().env_info == {"prob": 1} and env.env_info_spec()["prob"].shape == ()
