"""Tests that the steps of a dataset are read once, with statistics of all episodes, into memory or a store."""

import itertools

import numpy as np
import pytest

from rlds2reverb.datasets import load
from rlds2reverb.datasets.steps.image_files import decode_images
from rlds2reverb.datasets.steps.loaded_steps import Preparation, compute_fingerprint, read_steps
from rlds2reverb.types import fields

STEP = {
    "observation": np.float64(1 / 3),
    "action": {"b": np.float64([1, 2]), "a": np.float64(1)},
    "reward": np.int64(2),
    "discount": 1.0,
    "is_first": False,
    "is_last": False,
    "is_terminal": False,
}


def make_steps(length):
    """Returns an episode with nested actions and rewards of integers."""
    steps = {name: np.stack([value] * length) for name, value in STEP.items() if name != "action"}
    steps["action"] = {name: np.stack([value] * length) for name, value in STEP["action"].items()}
    steps["is_first"][0] = steps["is_last"][-1] = True
    return steps


def read(source, *, require=lambda step_spec: None, **preparation):
    options = {"require": require, "decode_images": decode_images, "progress": lambda stage, episode: None}
    return read_steps(source, Preparation(**preparation), fields.STEP_FIELDS, **options)


@pytest.mark.parametrize("is_stored", [False, True])
def test_statistics_cover_all_episodes(tmp_path, data, is_stored):
    source = load(data / "d4rl/pendulum_mixed-v2.hdf5")
    episodes = list(source)
    got = read(source, store_dir=str(tmp_path) if is_stored else None)
    assert got.returns.tolist() == [episode.total_reward for episode in episodes]
    columns = {name: [episode.steps[name][:-1] for episode in episodes] for name in ("observation", "action")}
    actions, observations = np.concatenate(columns["action"]), np.concatenate(columns["observation"])
    np.testing.assert_array_equal([got.actions.low, got.actions.high], [actions.min(0), actions.max(0)])
    np.testing.assert_allclose(got.moments.agent_statistics()[0], observations.mean(0, np.float64), rtol=1e-6)
    assert got.fingerprint == compute_fingerprint(source, Preparation())
    rewards = got.steps.take(np.arange(sum(got.steps.num_steps)), ["reward"])["reward"]
    np.testing.assert_array_equal(rewards, np.concatenate([episode.steps["reward"] for episode in episodes]))


def test_nested_actions_are_joined_and_numbers_become_float32():
    got = read(load([make_steps(3), make_steps(1)]))
    assert got.returns.tolist() == [4.0] and got.steps.num_steps.tolist() == [3]
    steps = got.steps.take(np.arange(3), ["action", "reward", "observation"])
    np.testing.assert_array_equal(steps["action"], np.float32([[1, 1, 2]] * 3))
    assert {column.dtype for column in steps.values()} == {np.dtype(np.float32)}
    assert got.step_spec["observation"].dtype == np.float64  # That of the dataset.


@pytest.mark.parametrize(("drop_fields", "texts"), [((), ["observation/text"]), (("observation/text",), [])])
def test_text_is_dropped_once_when_steps_are_stored(tmp_path, drop_fields, texts):
    steps = make_steps(3)
    steps["observation"] = {"x": steps["observation"], "text": np.array([b"push", b"pull", b""], object)}
    in_memory, stored = (read(load([steps]), drop_fields=drop_fields, store_dir=path) for path in (None, str(tmp_path)))
    assert in_memory.texts == stored.texts == texts
    assert in_memory.fingerprint == stored.fingerprint
    assert [*stored.steps.take(np.arange(3), ["observation"])["observation"]] == ["x"]


def test_dataset_of_no_use_is_not_read_to_its_end():
    number_read = itertools.count()

    def make_episodes():
        for _ in range(1000):
            next(number_read)
            yield make_steps(3000)

    def require(step_spec):
        raise ValueError(f"{step_spec['action'].shape} is of no use")

    source = load(make_episodes)
    with pytest.raises(ValueError, match=r"\(3,\) is of no use"):
        read(source, require=require)
    assert next(number_read) < 50
