"""Tests of `record_episodes`: episodes with both ends, their seeds, actions, info, and errors."""

import json

import gymnasium
import numpy as np
import pytest
from policies import LinearPolicy

from rlds2reverb import load, write_dataset
from rlds2reverb.envs import BatchedEnvironment, Environment, record_episodes, suite_gym, to_py_environment
from rlds2reverb.envs.env_specs import BoundedArraySpec
from rlds2reverb.envs.time_steps import restart, termination, to_rlds_step, transition, truncation
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.episodes import find_errors
from rlds2reverb.types.specs import ArraySpec

ACTION = BoundedArraySpec((), np.dtype(np.int32), 0, 9)


class Counting(Environment):
    """Episodes of `lengths` steps in turn, which end in a terminal state if their length is odd; they count from 10."""

    def __init__(self, *lengths):
        super().__init__()
        self._lengths, self._episode, self.time_steps = lengths, -1, []

    def observation_spec(self):
        return {"count": ArraySpec((), np.dtype(np.int64))}

    def action_spec(self):
        return ACTION

    def env_info_spec(self):
        return {"half": ArraySpec((), np.dtype(np.float32))}

    def _make(self, make, *arguments):
        content = {"count": np.int64(10 + self._step_number)}
        info = {"half": np.float32(self._step_number / 2)}
        self.time_steps.append(make(content, *arguments, env_info=info))
        return self.time_steps[-1]

    def _reset(self):
        self._episode, self._step_number = self._episode + 1, 0
        return self._make(restart, ACTION)

    def _step(self, action):
        self._step_number += 1
        length = self._lengths[self._episode % len(self._lengths)]
        end = termination if length % 2 else truncation
        return self._make(end if self._step_number == length else transition, action, np.float32(self._step_number))


def test_episodes_have_both_ends_and_the_steps_of_their_time_steps():
    env = Counting(3, 2)
    source = record_episodes(env, num_episodes=2, env_info=True)
    first, second = source
    ends = [(episode.is_terminal, episode.unterminated, episode.seed) for episode in source]
    assert ends == [(True, False, None), (False, False, None)]
    assert first.steps["observation"]["count"].tolist() == [10, 11, 12, 13]
    assert first.steps["reward"].tolist() == [1, 2, 3, 0] and first.steps["discount"].tolist() == [1, 1, 0, 0]
    assert second.steps["discount"].tolist() == [1, 1, 1]
    assert second.steps["env_info"]["half"].tolist() == [0, 0.5, 1]
    for row, (now, after) in enumerate(zip(env.time_steps[:4], [*env.time_steps[1:4], None], strict=True)):
        expected = to_rlds_step(now, after)
        for name in ("action", "reward", "discount", "is_first", "is_last", "is_terminal"):
            assert first.steps[name][row] == expected[name], (name, row)
    assert not [error for episode in source for error in find_errors(episode, source.step_spec)]


def test_num_steps_is_exact_and_the_last_episodes_are_unterminated():
    source = record_episodes("CartPole-v1", num_steps=100, num_envs=1)
    *others, last = source
    assert sum(episode.num_transitions for episode in source) == 100 and source.num_rows == 100 + len(list(source))
    assert all(episode.is_terminal for episode in others) and last.unterminated and not last.is_terminal
    assert record_episodes(Counting(3), num_steps=3).num_episodes == 1


def test_a_batch_records_every_episode_that_starts():
    """Two environments run 5 episodes, of which the long ones are as frequent as in one environment."""
    source = record_episodes("CartPole-v1", num_episodes=5, num_envs=2, max_episode_steps=12)
    lengths = [episode.num_transitions for episode in source]
    assert len(lengths) == 5 and max(lengths) <= 12
    assert json.loads(source.env_spec)["max_episode_steps"] == 12
    assert [episode.index for episode in source] == list(range(5))
    batch = BatchedEnvironment([Counting(2), Counting(7)])
    assert [episode.num_transitions for episode in record_episodes(batch, num_episodes=2)] == [2, 7]


def test_seed_of_an_episode_repeats_it_in_gymnasium():
    source = record_episodes("CartPole-v1", num_episodes=2, seed=3)
    with gymnasium.make("CartPole-v1") as env:
        for episode in source:
            observation, _ = env.reset(seed=episode.seed)
            for row in range(episode.num_transitions):
                assert np.array_equal(observation, episode.steps["observation"][row])
                observation, _, is_terminal, _, _ = env.step(int(episode.steps["action"][row]))
            assert is_terminal and np.array_equal(observation, episode.steps["observation"][-1])
    again = record_episodes("CartPole-v1", num_episodes=2, seed=3)
    for episode, other in zip(source, again, strict=True):
        assert np.array_equal(episode.steps["action"], other.steps["action"])


def test_policies_of_every_kind_act():
    strong = record_episodes("Pendulum-v1", LinearPolicy(np.zeros((3, 1)), bias=3), num_steps=3)
    assert np.abs(next(iter(strong)).steps["action"]).max() == 2 and "were clipped" in strong.warnings[0]
    with to_py_environment(suite_gym.load("Pendulum-v1")) as env:
        mixed = record_episodes(env, lambda observation: np.full((len(observation), 1), 1.5), num_steps=50, epsilon=0.5)
    actions = next(iter(mixed)).steps["action"][:-1]
    assert 5 < (actions == 1.5).sum() < 45
    assert mixed.action_space == gymnasium.spaces.Box(-2, 2, (1,), np.float32)


def test_info_fields_are_recorded_by_name():
    source = record_episodes("HalfCheetah-v5", num_steps=2, env_info=["x_position"])
    assert next(iter(source)).steps["env_info"]["x_position"].shape == (3,)


def test_recorded_episodes_are_written_and_read_back(tmp_path):
    source = record_episodes("Pendulum-v1", num_episodes=1, max_episode_steps=5)
    write_dataset(source, tmp_path / "out-v0", format="minari")
    (written,), (episode,) = load(tmp_path / "out-v0"), source
    assert np.array_equal(written.steps["observation"], episode.steps["observation"])
    assert written.seed == episode.seed and load(tmp_path / "out-v0").env_spec == source.env_spec


class Hanging(Counting):
    """An environment whose second step hangs."""

    def _step(self, action):
        import time

        if self._step_number:
            time.sleep(3)
        return super()._step(action)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((Counting(2),), {}, ValueError, "exactly one of num_episodes and num_steps"),
        ((Counting(2),), {"num_steps": 0}, ValueError, "num_steps must be an integer >= 1, got 0"),
        ((Counting(2),), {"num_steps": 1, "num_envs": 2}, ValueError, "num_envs, .* instead of a Counting"),
        ((Counting(2), "expert"), {"num_steps": 1}, ValueError, "policy must be 'random', .* got 'expert'"),
        ((Counting(2), 3), {"num_steps": 1}, TypeError, "policy must be 'random', a policy or a function, got a int"),
        ((Counting(2), lambda _: np.array([10])), {"num_steps": 1}, ValueError, r"action.*10"),
        ((Counting(2), lambda _: np.zeros((1, 2), int)), {"num_steps": 1}, SpecMismatchError, "action"),
        ((Hanging(4),), {"num_steps": 3, "timeout_secs": 0.2}, TimeoutError, "did not answer within 0.2 s"),
        (("Pendulum-v1",), {"num_steps": 1, "env_info": True}, ValueError, "has no env_info; pass names"),
        (("Pendulum-v1",), {"num_steps": 1, "env_info": ["x"]}, ValueError, "info_fields contains 'x'"),
        ((lambda: Counting(2),), {"num_steps": 1, "env_info": ["x"]}, ValueError, "env_info must be True"),
        (("CartPole-v1", LinearPolicy(np.zeros((3, 1)))), {"num_steps": 1}, SpecMismatchError, "policy expects"),
        (("Pendulumm-v1",), {"num_steps": 1}, ValueError, "did you mean 'Pendulum-v1'"),
    ],
)
def test_invalid_arguments_raise(arguments, options, error, message):
    with pytest.raises(error, match=message):
        record_episodes(*arguments, **options)
