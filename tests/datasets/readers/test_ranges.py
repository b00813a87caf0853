"""Tests of random access to episodes, of pickled sources, and of several datasets read as one."""

import shutil

import cloudpickle
import h5py
import numpy as np
import pytest
from reference_impls import assert_equal_nests
from robot_files import write_aloha, write_isaac_lab, write_maniskill, write_replay_buffer

from rlds2reverb.datasets import load
from rlds2reverb.datasets.transforms import CutAtTerminal, ScaleRewards, apply_transforms
from rlds2reverb.errors import SourceError

SOURCES = (
    "d4rl/hopper_medium-v2.hdf5",
    "tfds_fake/robomimic_ph/lift_low_dim.hdf5",
    "rlds/physics_rlds/pendulum_dict/1.0.0",
    "minari/classic/pendulum-dict/dev-v0",
    "formats/lerobot/v3.0/c3",
)


def assert_equal_episodes(got, expected):
    got, expected = list(got), list(expected)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert_equal_nests(one.steps, other.steps)
        for name in ("index", "unterminated", "dropped_last_transition", "discontinuities", "seed"):
            assert getattr(one, name) == getattr(other, name)


#: Functions that write a dataset, by the name of its path.
WRITTEN = {
    "aloha": write_aloha,
    "maniskill.h5": write_maniskill,
    "isaac_lab.hdf5": write_isaac_lab,
    "replay_buffer.zarr": write_replay_buffer,
}


@pytest.fixture(params=[*SOURCES, *WRITTEN], scope="module")
def source(request, data, tmp_path_factory):
    if request.param in WRITTEN:
        return load(WRITTEN[request.param](tmp_path_factory.mktemp("written") / request.param))
    return load(data / request.param)


@pytest.fixture(scope="module")
def episodes(source):
    return list(source)


def test_every_range_has_the_episodes_of_an_iteration(source, episodes):
    count = source.count()
    assert count == len(episodes)
    for first, stop in ((0, count), (1, 2), (count - 1, count), (1, 1), (count // 2, count)):
        assert_equal_episodes(source.read(first, stop), episodes[first:stop])


@pytest.mark.slow
def test_chunks_are_read_by_two_threads_without_a_crash(data):
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    counts = {sum(episode.num_transitions for episode in source) for _ in range(200)}
    assert counts == {10_202}


def test_pickled_source_reads_the_same_episodes(source, episodes):
    restored = cloudpickle.loads(cloudpickle.dumps(source))
    assert_equal_episodes(restored, episodes)
    assert_equal_episodes(restored.read(1, 2), episodes[1:2])


def test_transforms_apply_to_ranges(data):
    source, _ = apply_transforms(load(data / SOURCES[0]), [ScaleRewards(scale=3.0), CutAtTerminal()])
    assert source.count() == 32
    assert_equal_episodes(source.read(3, 9), list(source)[3:9])


def make_rows(num_rows, terminals=(), timeouts=(), jumps=()):
    """Returns rows whose observations count up, except at `jumps`."""
    observations = np.arange(num_rows, dtype=np.float32)
    next_observations = observations + 1
    next_observations[list(jumps)] += 100
    flags = np.zeros((2, num_rows), bool)
    flags[0, list(terminals)] = flags[1, list(timeouts)] = True
    return {
        "observations": observations[:, None],
        "actions": np.zeros((num_rows, 1), np.float32),
        "rewards": observations,
        "terminals": flags[0],
        "timeouts": flags[1],
        "next_observations": next_observations[:, None],
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_episode_steps": 700},
        {"split_at_discontinuity": True},
        {"independent_rows": True},
        {"max_episode_steps": 333, "split_at_discontinuity": True},
    ],
)
def test_rows_are_divided_by_every_rule(options):
    # Blocks have 2,048, 4,096, ... rows, so that episodes extend over their bounds.
    rows = make_rows(9000, terminals=[10, 2047, 5000], timeouts=[2048, 7000], jumps=[3000, 6143])
    source = load(rows, **options)
    episodes = list(source)
    count = source.count()
    assert count == len(episodes)
    for first, stop in ((0, count), (1, 3), (count - 2, count)):
        assert_equal_episodes(source.read(first, stop), episodes[first:stop])


def test_listed_episodes_have_ranges():
    logs = [{"observations": np.full((3, 1), n, np.float32), "actions": np.zeros((2, 1)), "rewards": np.zeros(2),
             "terminated": True} for n in range(4)]  # fmt: skip
    source = load(logs)
    assert source.count() == 4
    assert_equal_episodes(source.read(1, 3), list(source)[1:3])


def test_split_of_a_prepared_dataset_has_ranges(data):
    source = load(data / SOURCES[2], split="train[3:9]")
    assert source.count() == 6
    assert_equal_episodes(source.read(2, 5), list(source)[2:5])


def test_joined_splits_have_no_ranges(data):
    source = load(data / SOURCES[2], split="train[:2]+train[4:5]")
    assert source.count is None and source.num_episodes == 3


@pytest.fixture
def two_files(tmp_path, data):
    for number, name in enumerate(("hopper_medium-v2", "hopper_medium-v2")):
        shutil.copy(data / f"d4rl/{name}.hdf5", tmp_path / f"part-{number}.hdf5")
    return tmp_path


@pytest.mark.parametrize("as_list", [False, True])
def test_several_datasets_are_read_as_one(two_files, as_list):
    paths = [two_files / "part-0.hdf5", str(two_files / "part-1.hdf5")]
    source = load(paths if as_list else str(two_files / "part-*.hdf5"))
    first = list(load(paths[0]))
    episodes = list(source)
    assert [episode.index for episode in episodes] == list(range(64))
    assert source.name == "part-0.hdf5 and 1 more"
    assert source.num_rows == 2 * load(paths[0]).num_rows
    assert_equal_nests(episodes[35].steps, first[3].steps)
    assert source.count() == 64
    assert_equal_episodes(source.read(30, 36), episodes[30:36])


def test_pattern_without_matches_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file matches"):
        load(str(tmp_path / "*.hdf5"))


def test_datasets_of_different_kinds_raise(data):
    with pytest.raises(SourceError, match="mixes datasets of the kinds d4rl and minari"):
        load([data / SOURCES[0], data / SOURCES[3]])


def test_damage_is_reported_from_a_range(tmp_path, data):
    path = tmp_path / "damaged.hdf5"
    shutil.copy(data / SOURCES[0], path)
    source = load(path)
    with h5py.File(path, "r+") as file:
        file["terminals"][0] = 1
        del file["rewards"]
    with pytest.raises(SourceError, match="has no 'rewards'"):
        next(iter(source.read(1, 2)))
