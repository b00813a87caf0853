"""Time steps: the table of step types and discounts, from Gymnasium to TF-Agents and RLDS."""

import numpy as np
import pytest
from counting import Counting
from hypothesis import given, strategies as st
from properties import examples

from rlds2reverb.envs import (
    BatchedEnvironment,
    BoundedArraySpec,
    GymnasiumEnvironment,
    ParallelEnvironment,
    TimeLimit,
    TimeStep,
    from_tf_agents,
    restart,
    termination,
    to_rlds_step,
    to_tf_agents,
    transition,
    truncation,
)

ACTION = BoundedArraySpec((2,), np.dtype(np.float32), [1.0, -1.0], [2.0, 1.0])
OBSERVATION = np.arange(3, dtype=np.float32)
DONE = np.float32([1.5, 0.5])


def test_constructors_have_the_step_types_and_discounts_of_the_table():
    first = restart(OBSERVATION, ACTION)
    middle = transition(OBSERVATION, DONE, 10.0)
    terminated = termination(OBSERVATION, DONE, 11.0)
    truncated = truncation(OBSERVATION, DONE, 12.0, discount=0.9)
    table = [
        (int(step.step_type), float(step.discount), bool(step.bootstraps()), bool(step.is_learned()))
        for step in (first, middle, terminated, truncated)
    ]
    assert table == [
        (0, 1.0, False, True),
        (1, 1.0, True, True),
        (2, 0.0, False, False),
        (2, pytest.approx(0.9), True, False),
    ]
    assert bool(terminated.is_terminated()) and not terminated.is_truncated()
    assert bool(truncated.is_truncated()) and not truncated.is_terminated()
    assert [float(step.reward) for step in (first, middle)] == [0, 10] and middle.reward.dtype == np.float32
    np.testing.assert_array_equal(first.prev_action, [1, 0])  # The closest values to zero within the bounds.


def test_batches_have_a_leading_axis():
    ids = np.arange(2, dtype=np.int32)
    first = restart(np.zeros((2, 3), np.float32), ACTION, env_id=ids, batch_size=2)
    assert first.step_type.tolist() == [0, 0] and first.prev_action.shape == (2, 2) and first.reward.shape == (2,)
    last = truncation(np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float32), [10, 11], env_id=ids)
    assert last.step_type.tolist() == [2, 2] and last.discount.tolist() == [1, 1] and last.reward.tolist() == [10, 11]


@pytest.mark.parametrize(
    ("length", "duration", "terminates", "discounts"),
    [
        (3, None, True, [1, 1, 1, 0]),
        (3, None, False, [1, 1, 1, 1]),
        (9, 3, True, [1, 1, 1, 1]),
        (3, 3, True, [1, 1, 1, 0]),  # Terminated in the step of the time limit.
        (3, 3, False, [1, 1, 1, 1]),
    ],
)
def test_ends_of_episodes_reach_tf_agents_and_rlds(length, duration, terminates, discounts):
    env = GymnasiumEnvironment(Counting(length, terminates=terminates))
    env = TimeLimit(env, duration) if duration else env
    time_steps = [env.reset(), *(env.step(2) for _ in range(3))]
    assert [int(step.step_type) for step in time_steps] == [0, 1, 1, 2]
    assert [float(step.discount) for step in time_steps] == discounts
    assert [float(step.reward) for step in time_steps] == [0, 10, 11, 12]
    for step in time_steps:
        agents_step = to_tf_agents(step)
        assert (agents_step.step_type, agents_step.discount) == (step.step_type, step.discount)
        assert from_tf_agents(agents_step, step.prev_action) == step
    rlds = [to_rlds_step(*pair) for pair in zip(time_steps, [*time_steps[1:], None], strict=True)]
    assert [step["is_last"] for step in rlds] == [False, False, False, True]
    assert [step["is_terminal"] for step in rlds] == [False, False, False, discounts[-1] == 0]
    assert [float(step["reward"]) for step in rlds] == [10, 11, 12, 0]
    assert [int(step["action"]) for step in rlds] == [2, 2, 2, 0]
    following = env.step(1)
    assert int(following.step_type) == 0 and float(following.reward) == 0 and int(following.prev_action) == 0


def expected_rows(length, terminates, duration, discount):
    """Yields the step type, discount, whether it bootstraps, whether it is learned, and the count of each step."""
    end = min(length, duration or length)
    while True:
        yield 0, 1.0, False, True, 0
        for count in range(1, end):
            yield 1, discount, discount > 0, True, count
        is_terminated = terminates and length == end
        yield 2, 0.0 if is_terminated else discount, not is_terminated and discount > 0, False, end


EPISODES = st.tuples(st.integers(1, 6), st.booleans(), st.none() | st.integers(1, 6), st.sampled_from([1.0, 0.5]))


@given(st.lists(EPISODES, min_size=1, max_size=3), st.booleans())
@examples(30)
def test_every_step_of_any_episodes_follows_the_table(episodes, is_parallel):
    def make(length, terminates, duration, discount):
        env = GymnasiumEnvironment(Counting(length, terminates=terminates), discount=discount)
        return TimeLimit(env, duration) if duration else env

    if is_parallel:
        env = ParallelEnvironment([lambda episode=episode: make(*episode) for episode in episodes], num_workers=0)
    else:
        env = BatchedEnvironment([make(*episode) for episode in episodes])
    rows = [expected_rows(*episode) for episode in episodes]
    with env:
        for _ in range(20):
            step = env.step(np.zeros(len(episodes), int))
            expected = [np.array(column) for column in zip(*map(next, rows), strict=True)]
            got = step.step_type, step.discount, step.bootstraps(), step.is_learned(), step.observation[:, 0]
            for values, others in zip(got, expected, strict=True):
                np.testing.assert_array_equal(values, others)
            np.testing.assert_array_equal(step.is_terminated(), (expected[0] == 2) & (expected[1] == 0))
            np.testing.assert_array_equal(step.is_truncated(), (expected[0] == 2) & (expected[1] > 0))
            np.testing.assert_array_equal(step.reward, np.where(expected[0] == 0, 0, 9 + expected[4]))


def test_rlds_step_requires_the_next_time_step():
    env = GymnasiumEnvironment(Counting(3))
    first = env.reset()
    with pytest.raises(ValueError, match="next_time_step must be the next step of the episode"):
        to_rlds_step(first, None)
    with pytest.raises(ValueError, match="next_time_step must be the next step of the episode"):
        to_rlds_step(first, env.reset())


def test_time_step_spec_describes_the_time_steps():
    env = GymnasiumEnvironment(Counting(3), info_fields=["count"])
    spec, step = env.time_step_spec(), env.reset()
    assert isinstance(spec, TimeStep) and spec.env_info["count"].dtype == np.float64
    for name in ("step_type", "reward", "discount", "observation", "prev_action", "env_id"):
        assert np.asarray(getattr(step, name)).dtype == getattr(spec, name).dtype, name
        assert np.shape(getattr(step, name)) == getattr(spec, name).shape, name
