"""The rule: a step in which the environment was lost never happened, so nothing records, learns or evaluates it."""

import functools
import warnings

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import Counting
from policies import FunctionPolicy
from tf_agents.specs import tensor_spec

from rlds2reverb.adders import NStep
from rlds2reverb.envs import (
    EnvironmentFailedError,
    GymnasiumEnvironment,
    ParallelEnvironment,
    TimeLimit,
    Wrapper,
    evaluate,
    record_episodes,
    record_film,
)
from rlds2reverb.training.collected_pieces import PieceConverter
from rlds2reverb.training.collector import Collector

POLICY = FunctionPolicy(
    tf.TensorSpec([2], tf.float32),
    tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2),
    lambda observation: tf.cast(observation[:, 0] * 0, tf.int64),
)


@pytest.fixture(autouse=True)
def parallel_environments_in_this_process(monkeypatch):
    parallel = functools.partial(ParallelEnvironment, num_workers=0)
    monkeypatch.setattr("rlds2reverb.training.collector.ParallelEnvironment", parallel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Restarted environments are reported.
        yield


def make_failing():
    """Episodes of 5 steps, of which the fourth fails."""
    return GymnasiumEnvironment(Counting(5, failure="raise", fails_at=4))


def record(num_steps):
    with ParallelEnvironment([make_failing] * 2, num_workers=0) as env:
        return [episode.steps for episode in record_episodes(env, num_steps=num_steps)]


def collect(num_steps):
    collector = Collector(make_failing, POLICY, num_envs=2)
    pieces = collector.collect(num_steps + 1)  # The episodes end in the step that fails.
    collector.close()
    assert collector.num_collected == num_steps + 2 and collector.returns == []
    return [piece.episode.steps for piece in pieces if piece.is_complete]


@pytest.mark.parametrize("get_episodes", [record, collect])
def test_episodes_end_truncated_at_their_last_real_observation(get_episodes):
    episodes = get_episodes(12)
    assert [len(steps["reward"]) - 1 for steps in episodes] == [3] * 4
    for steps in episodes:
        assert steps["observation"][:, 0].tolist() == [0, 1, 2, 3] and steps["reward"].tolist() == [10, 11, 12, 0]
        assert steps["discount"].all() and steps["is_last"].tolist() == [False] * 3 + [True]
        assert not steps["is_terminal"].any()


@pytest.mark.parametrize("n", [1, 3])
def test_items_of_failed_episodes_are_those_of_truncated_ones(n):
    convert = PieceConverter(NStep(n, 0.5))
    collector = Collector(make_failing, POLICY, num_envs=2, num_kept=convert.num_kept)
    items = [convert(piece) for _ in range(7) for piece in collector.collect(2)]
    collector.close()
    columns = [
        (int(converted.columns["observation"][k, 0]), int(converted.columns["next_observation"][k, 0]))
        for converted in items
        for k in converted.starts
    ]
    running = [(0, 1)] * 2 if n == 1 else []
    assert sorted(columns) == sorted([(k, min(k + n, 3)) for k in range(3)] * 4 + running)


class Lost(Wrapper):
    """An environment that reports the loss of its simulator in the third step."""

    num_steps = 0

    def _step(self, action):
        self.num_steps += 1
        time_step = self.env.advance(action)
        is_lost = np.bool_(self.num_steps == 3)
        return time_step._replace(step_type=np.int32(2) if is_lost else time_step.step_type, has_failed=is_lost)


def test_evaluations_and_films_of_failed_environments_raise(tmp_path):
    def make_lost():
        return Lost(GymnasiumEnvironment(Rendered(5)))

    with pytest.raises(
        EnvironmentFailedError, match=r"make_lost has failed \(episode 0, step 2\); fix the environment"
    ):
        evaluate(make_lost, POLICY, 1)
    with pytest.raises(EnvironmentFailedError, match=r"make_lost has failed \(episode 0, step 2\)"):
        record_film(make_lost, "random", tmp_path / "film.gif")
    assert not list(tmp_path.iterdir())


class Rendered(Counting):
    """An environment with images."""

    render_mode = "rgb_array"

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


class Started(Counting):
    """Observes the number of the step, and a start of the episode that is drawn with its seed, or always differs."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float64)
    fails, is_seeded, num_made = False, True, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = (self.np_random if Started.is_seeded else np.random).uniform()
        return np.array([0, self.start]), {}

    def step(self, action):
        if Started.fails and self.num_steps == 3:
            raise RuntimeError("lost")
        _, *rest = super().step(action)
        return np.array([self.num_steps, self.start]), *rest


@pytest.mark.parametrize("case", ["lost after the resume", "lost before the checkpoint", "not repeated"])
def test_resumed_episodes_begin_at_a_reset(tmp_path, monkeypatch, case):
    def make_collector():
        return Collector(lambda: TimeLimit(GymnasiumEnvironment(Started(20)), 6), POLICY, num_envs=2, seed=3)

    first, second = make_collector(), make_collector()
    monkeypatch.setattr(Started, "fails", case == "lost before the checkpoint")
    monkeypatch.setattr(Started, "is_seeded", case != "not repeated")
    pieces = first.collect(7)  # Three or four steps of each environment.
    first.save_data(tmp_path)
    first.close()
    monkeypatch.setattr(Started, "fails", case == "lost after the resume")
    second.load_data(tmp_path)
    pieces += second.collect(20)
    second.close()
    starts = [piece.episode.steps["observation"][0] for piece in pieces if piece.episode.steps["is_first"][0]]
    assert len(starts) >= 6 and all(number == 0 for number, _ in starts)
    assert len({start for _, start in starts}) == len(starts)  # No seed is used twice.
