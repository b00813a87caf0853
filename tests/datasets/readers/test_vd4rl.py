"""Tests of V-D4RL's and DrQ-v2's episodes, whose actions and rewards belong to the transitions before their rows."""

import h5py
import numpy as np
import pytest
from expected_formats import FORMATS, describe_field, read_expected

from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import hdf5
from rlds2reverb.errors import SourceError

FOLDERS = ["cartpole_swingup/64px", "drqv2_cartpole_swingup/buffer"]


def make_rows(length, *, discount=1.0):
    """Returns the rows of an episode: the action, reward and discount that led to row t are t, 10 t and 1 - t / 64."""
    rows = np.arange(length, dtype=np.float32)
    discounts = 1 - rows / 64
    discounts[-1] = discount
    images = np.broadcast_to(np.arange(length, dtype=np.uint8)[:, None, None, None], (length, 3, 2, 2))
    step_type = np.full(length, 1.0)
    step_type[-1], step_type[0] = 2, 0
    return {
        "observation": images,
        "action": rows[:, None],
        "reward": 10 * rows,
        "discount": discounts,
        "step_type": step_type,
    }


def write_file(path, *episodes, **changes):
    with h5py.File(path, "w") as file:
        for name in episodes[0]:
            file[name] = changes.get(name, np.concatenate([rows[name] for rows in episodes]))
    return path


@pytest.mark.parametrize("name", FOLDERS)
def test_published_folder_is_read_as_expected(name):
    expected = read_expected(f"vd4rl/{name}")
    source = load(FORMATS / "vd4rl" / name)
    assert source.count() == len(expected)
    for episode, row in zip(source, expected, strict=True):
        assert (episode.num_steps, episode.is_terminal) == (row["rows"], row["ends"] == "terminated")
        assert episode.total_reward == pytest.approx(row["sum_reward"])
        steps, fields = episode.steps, row["fields"]
        assert describe_field(steps["observation"]) == (fields.get("image") or fields["observation"])
        with_reset = {field: np.roll(steps[field], 1, axis=0) for field in ("action", "reward", "discount")}
        for field, first in (("action", 0), ("reward", 0), ("discount", 1)):
            column = with_reset[field]
            column[0] = first
            assert describe_field(column.reshape(fields[field][1])) == fields[field]


@pytest.mark.parametrize("discount", [1.0, 0.0])
def test_file_of_all_episodes_is_shifted_and_split(tmp_path, discount):
    path = write_file(tmp_path / "x.hdf5", make_rows(3, discount=discount), make_rows(1), make_rows(2))
    source = load(path)
    assert [episode.num_transitions for episode in source] == [2, 0, 1]
    steps = source.first_episode.steps
    assert steps["action"].tolist() == [[1], [2], [0]] and steps["reward"].tolist() == [10, 20, 0]
    assert steps["discount"].tolist() == [1 - 1 / 64, discount, discount]
    assert source.first_episode.is_terminal == (discount == 0)
    assert [episode.index for episode in source.read(1, 3)] == [1, 2]


@pytest.mark.parametrize("place", [0, 1])
def test_episode_without_an_end_is_unterminated(tmp_path, place):
    episodes = [make_rows(2), make_rows(3)]
    episodes[place]["step_type"][-1] = 1
    source = load(write_file(tmp_path / "x.hdf5", *episodes))
    assert [episode.unterminated for episode in source] == [place == 0, place == 1]


@pytest.mark.parametrize("name", FOLDERS)
def test_one_file_of_a_folder_is_one_episode(name):
    expected = load(FORMATS / "vd4rl" / name).first_episode
    path = min((FORMATS / "vd4rl" / name).glob("*.npz"))
    (episode,) = load(path)
    assert describe_field(episode.steps["observation"]) == describe_field(expected.steps["observation"])
    assert episode.total_reward == expected.total_reward


def test_buffer_is_read_in_the_order_of_its_episodes(tmp_path):
    for number in (0, 2, 10):
        rows = make_rows(2 + number)
        rows.pop("step_type")
        np.savez(tmp_path / f"20260101T000000_{number}_{1 + number}.npz", **rows)
    source = load(tmp_path)
    assert [episode.num_transitions for episode in source] == [1, 3, 11]
    assert "DrQ-v2 stores the discount 0 of terminal states as 1" in source.warnings[0]
    (tmp_path / "20260101T000000_0_1.npz").write_bytes(b"damaged")
    source = load(tmp_path, on_invalid="skip_episode")
    assert [episode.num_transitions for episode in source] == [3, 11] and list(source.skipped) == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": np.zeros(2)}, "all columns must have the same number of rows"),
        ({"step_type": np.ones(3)}, "step_type must be 0 in the first one"),
        ({"reward": np.zeros((3, 2))}, "rewards and discounts must be one number per row"),
    ],
)
def test_invalid_file_raises(tmp_path, changes, message):
    with pytest.raises(SourceError, match=message):
        list(load(write_file(tmp_path / "x.hdf5", make_rows(3), **changes)))


def test_columns_are_measured_together(tmp_path, data, monkeypatch):
    sizes = {}
    monkeypatch.setattr(hdf5, "require_plausible_size", lambda where, stored, declared: sizes.update({where: declared}))
    for path in (write_file(tmp_path / "x.hdf5", make_rows(3)), data / "minari/classic/pendulum-dict/dev-v0"):
        sizes.clear()
        list(load(path))
        assert max(sizes, key=sizes.get).endswith(": all columns together")


def test_file_of_an_episode_without_a_column_raises(tmp_path):
    rows = make_rows(3)
    np.savez(tmp_path / "20260101T000000_0_2.npz", **rows)
    np.savez(tmp_path / "20260101T000000_1_2.npz", **{name: rows[name] for name in ("observation", "action")})
    with pytest.raises(SourceError, match="20260101T000000_1_2.npz must contain action, reward, discount, and image"):
        list(load(tmp_path))


def test_shards_of_a_folder_are_read_in_the_order_of_their_numbers(tmp_path):
    for number, lengths in ((10, (3,)), (2, (2, 4)), (1, (5,))):
        write_file(tmp_path / f"expert_{number}.hdf5", *map(make_rows, lengths))
    source = load(tmp_path)
    assert (source.name, source.count()) == (tmp_path.name, 4)
    assert [episode.num_steps for episode in source] == [5, 2, 4, 3]
    assert [episode.num_steps for episode in source.read(2, 4)] == [4, 3]
    with h5py.File(tmp_path / "other.hdf5", "w"):
        pass
    with pytest.raises(SourceError):
        load(tmp_path)
