"""The rule: recordings, collected steps, evaluations and films share no arrays with policies and environments."""

import functools

import numpy as np
import pytest
import tree
from policies import LinearPolicy

from rlds2reverb.envs import (
    BoundedArraySpec,
    Environment,
    ParallelEnvironment,
    TimeStep,
    evaluate,
    record_episodes,
    record_film,
)
from rlds2reverb.training.collector import Collector
from rlds2reverb.types.specs import ArraySpec

SIZE = 2


class Walk(Environment):
    """Adds half of the action to a position for 4 steps; a hostile one reuses its arrays and scales actions in place."""

    def __init__(self, batch_size=None, *, is_hostile):
        super().__init__()
        self._size, self._is_hostile = batch_size, is_hostile
        leading = () if batch_size is None else (batch_size,)
        self._position, self._info = np.zeros((*leading, SIZE), np.float32), np.zeros((*leading, SIZE), np.float32)
        self._image, self._t = np.zeros((8, 8, 3), np.uint8), 0
        self._reused = {}

    batched = property(lambda self: self._size is not None)
    batch_size = property(lambda self: self._size)

    def observation_spec(self):
        return ArraySpec((SIZE,), np.dtype(np.float32))

    def action_spec(self):
        return BoundedArraySpec((SIZE,), np.dtype(np.float32), -1.0, 1.0)

    def env_info_spec(self):
        return {"twice": ArraySpec((SIZE,), np.dtype(np.float32))}

    def render(self, mode="rgb_array"):
        self._image[:] = 20 * self._t
        return self._image if self._is_hostile else self._image.copy()

    def _reset(self):
        self._t = 0
        self._position[:] = 1
        return self._make(np.zeros_like(self._position), 0)

    def _step(self, action):
        if self.batched and self._t == 4:
            return self._reset()
        self._t += 1
        if self._is_hostile:
            action *= 0.5
            self._position += action
        else:
            self._position += 0.5 * action
        return self._make(action, 2 if self._t == 4 else 1)

    def _make(self, action, step_type):
        self._info[:] = 2 * self._position
        observation, info = self._position, self._info
        if not self._is_hostile:
            observation, info = observation.copy(), info.copy()
        leading = observation.shape[:-1]
        reward = observation.sum(-1) if step_type else np.zeros(leading, np.float32)
        types, discounts = np.full(leading, step_type, np.int32)[()], np.ones(leading, np.float32)[()]
        ids = np.zeros(leading, np.int32)[()]
        if self._is_hostile and self.batched:
            for name, values in {"types": types, "reward": reward, "discounts": discounts}.items():
                self._reused.setdefault(name, np.empty_like(values))[:] = values
            types, reward, discounts = (self._reused[name] for name in ("types", "reward", "discounts"))
        return TimeStep(types, reward, discounts, observation, action, ids, (), {"twice": info})


def decide(observation):
    return np.tanh(observation / 7)


def make_hostile_policy():
    """Returns a function that normalises observations in place, and returns the same array in each call."""
    buffer = {}

    def act(observation):
        observation /= 7
        actions = buffer.setdefault("actions", np.empty_like(observation))
        np.tanh(observation, out=actions)
        return actions

    return act


def record(make, policy, **options):
    env = make() if options.pop("is_object", False) else make
    return [episode.steps for episode in record_episodes(env, policy, num_steps=11, env_info=True, **options)]


def record_with_callback(make, policy):
    def spoil(episode):
        for array in tree.flatten(episode.steps):
            array[:] = 0

    return record(make, policy, progress=spoil)


def film(make, policy, tmp_path):
    result = record_film(make, policy, tmp_path / "film.gif")
    return result.path.read_bytes(), result.returns


RECORDINGS = {
    "made here": record,
    "object": functools.partial(record, is_object=True),
    "parallel": functools.partial(record, num_envs=2),
    "random": lambda make, policy: record(make, policy, epsilon=0.5),
    "callback": record_with_callback,
}


@pytest.fixture(autouse=True)
def parallel_environments_in_this_process(monkeypatch):
    def make(constructors, **options):
        return ParallelEnvironment(constructors, num_workers=0)

    monkeypatch.setattr("rlds2reverb.envs.recording.ParallelEnvironment", make)


def assert_equal(one, other):
    tree.map_structure(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("hostile", ["policy", "environment"])
@pytest.mark.parametrize("place", list(RECORDINGS))
def test_recordings_do_not_depend_on_who_reuses_arrays(place, hostile):
    make, hostile_make = (functools.partial(Walk, is_hostile=is_hostile) for is_hostile in (False, True))
    expected = record(make, decide) if place == "callback" else RECORDINGS[place](make, decide)
    policy, made = (make_hostile_policy(), make) if hostile == "policy" else (decide, hostile_make)
    assert_equal(RECORDINGS[place](made, policy), expected)
    steps = expected[0]
    assert steps["reward"].any() and (
        place == "random" or np.array_equal(steps["action"][0], decide(np.ones(SIZE, "f")))
    )


@pytest.mark.parametrize("hostile", ["policy", "environment"])
def test_recording_of_a_batch_does_not_depend_on_who_reuses_arrays(hostile):
    def run(policy, *, is_hostile):
        return record(functools.partial(Walk, 3, is_hostile=is_hostile), policy, is_object=True)

    got = run(make_hostile_policy(), is_hostile=False) if hostile == "policy" else run(decide, is_hostile=True)
    assert_equal(got, run(decide, is_hostile=False))


def test_iterated_recordings_are_copies():
    source = record_episodes(functools.partial(Walk, is_hostile=False), decide, num_steps=11)
    expected = [tree.map_structure(np.copy, episode.steps) for episode in source]
    for episode in source:
        for array in tree.flatten(episode.steps):
            array[:] = 0
    assert_equal([episode.steps for episode in source], expected)


def test_films_do_not_depend_on_who_reuses_arrays(tmp_path):
    expected = film(functools.partial(Walk, is_hostile=False), decide, tmp_path)
    assert film(functools.partial(Walk, is_hostile=True), make_hostile_policy(), tmp_path) == expected


@pytest.mark.parametrize("is_random", [True, False])
def test_collected_steps_and_evaluations_do_not_depend_on_an_environment_that_reuses_arrays(is_random):
    policy = LinearPolicy(0.1 * np.eye(SIZE), bound=1)
    results = []
    for is_hostile in (False, True):
        make = functools.partial(Walk, is_hostile=is_hostile)
        collector = Collector(make, policy, num_kept=1)
        pieces = [piece.episode.steps for _ in range(3) for piece in collector.collect(3, is_random=is_random)]
        collector.close()
        results.append((pieces, evaluate(make, policy, 2).returns))
    assert_equal(*results)
