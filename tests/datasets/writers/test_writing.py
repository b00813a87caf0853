"""Tests of `write_dataset`: every format is read back equal, also by other libraries, and nothing partial is visible."""

import contextlib
import operator
import tempfile

import h5py
import minari
import numpy as np
import pytest
import tensorflow_datasets as tfds
from faults import kill_while_writing, process, receive, skip_unless_mounted, write_on_full_disk
from gymnasium import spaces
from hypothesis import given
from properties import examples
from reference_impls import assert_equal_nests, episode, episodes

from rlds2reverb import load, write_dataset
from rlds2reverb.datasets.transforms import CastFloats, NormalizeObservations, apply_transforms
from rlds2reverb.datasets.writers.writing import WRITTEN_FORMATS
from rlds2reverb.errors import InvalidEpisodeError, SourceError, StorageFullError
from rlds2reverb.types.episodes import Episode

NAMES = {"d4rl": "out.hdf5", "rlds": "out/1.0.0", "minari": "out-v0", "lerobot": "out", "robomimic": "demo.hdf5"}
LOG = {
    "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
    "actions": np.array([3, 4, 5], np.int32),
    "rewards": np.array([0.5, 1.5, 2.5]),
    "terminated": False,
    "phase": np.array([7, 8, 9], np.uint8),
}
LOGS = [LOG, {**LOG, "terminated": True}]
D4RL_FILES = [
    "tfds_fake/d4rl_mujoco_hopper/hopper_medium-v2.hdf5",
    "tfds_fake/d4rl_mujoco_hopper/hopper_medium_replay-v1.hdf5",
]


def assert_same_episodes(got, expected):
    """Asserts that two sources have equal steps, dtypes and ends, episode for episode; strings may be str or bytes."""
    for have, want in zip(got, expected, strict=True):
        assert [path for path, _ in have.columns] == [path for path, _ in want.columns]
        for (_, column), (_, other) in zip(have.columns, want.columns, strict=True):
            if column.dtype == other.dtype == object:
                assert column.tolist() == other.tolist()
            else:
                assert_equal_nests(column, other)
        assert (have.unterminated, have.seed) == (want.unterminated, want.seed)


def write(source, tmp_path, format, **options):
    """Writes a source in a format, and returns the path."""
    path = tmp_path / NAMES[format]
    write_dataset(source, path, format=format, **options)
    return path


def make_rich_steps(length=4):
    """Returns steps with nested observations, images of all kinds, strings, and every dtype."""
    random = np.random.default_rng(0)

    def fill(dtype, *shape):
        values = random.integers(0, 256, (length, *shape))
        return (values / 7).astype(dtype) if np.dtype(dtype).kind == "f" else values.astype(dtype)

    steps = episode(length, terminal=True)
    return {
        **steps,
        "observation": {
            "images": {name: fill(np.uint8, 32, 40, *channels) for name, channels in
                       {"grey": (), "one": (1,), "two": (2,), "rgb": (3,), "five": (5,)}.items()},
            "small": fill(np.uint8, 3, 2, 1),
            "mission": np.array([b"go", "größer".encode(), b"", b"stop"], object),
            "numbers": {np.dtype(dtype).name: fill(dtype, 2) for dtype in
                        (bool, np.int8, np.int64, np.uint16, np.uint64, np.float16, np.float64)},
            "empty": fill(np.float32, 0),
        },
        "action": np.array([1, -3, 2**40, 0]),
        "reward": np.array([0.1, 1e300, -2, 0]),
        "discount": np.array([1, 1, 0, 0], np.float32),
        "info": {"note": np.array([b"a", b"", b"\xc3\xbc", b"d"], object), "inner": {"x": fill(np.float32, 3)}},
    }  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(D4RL_FILES[0], marks=pytest.mark.slow), D4RL_FILES[1]])
def test_d4rl_file_is_read_back_equal_from_every_format_in_turn(data, tmp_path, name):
    source = written = load(data / name)
    for format in ("d4rl", "rlds", "minari"):
        written = load(write(written, tmp_path, format))
        assert_same_episodes(written, source)
        assert written.metadata == source.metadata
    again = write_dataset(written, tmp_path / "again.hdf5", format="d4rl")
    assert_same_episodes(load(tmp_path / "again.hdf5"), source)
    assert again.episodes == len(list(source))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.hdf5", "out", "out-v0", "out.hdf5"]


@pytest.mark.parametrize("format", ["rlds", "minari"])
def test_nests_images_strings_and_all_dtypes_are_read_back_equal(tmp_path, format):
    steps = [make_rich_steps(), make_rich_steps()]
    for rows in steps:
        rows["observation"]["goal"] = np.zeros((len(rows["reward"]), 1, 2), np.float32)
    path = write(steps, tmp_path, format)
    assert_same_episodes(load(path, extra_fields=["info"] if format == "minari" else ()), load(steps))


@pytest.mark.slow
@examples(8)
@given(episodes())
def test_random_episodes_are_read_back_equal(steps):
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(steps, f"{folder}/x", format="rlds")
        assert_same_episodes(load(f"{folder}/x"), load(steps))
        options = {"recompute_discounts": True, "on_invalid": "skip_episode"}
        with contextlib.suppress(SourceError):  # All episodes may have a single step.
            write_dataset(steps, f"{folder}/x-v0", format="minari", **options)
            expected = [episode for episode in load(steps) if episode.num_transitions]
            for got, want in zip(load(f"{folder}/x-v0"), expected, strict=True):
                assert_equal_nests(got.steps["observation"], want.steps["observation"])
                assert_equal_nests(got.steps["reward"][:-1], want.steps["reward"][:-1])
                assert got.is_terminal == want.is_terminal


def test_extra_fields_are_read_back_in_groups_from_d4rl(tmp_path):
    steps = episode(3, terminal=False)
    steps["action"][-1] = steps["reward"][-1] = 0
    steps = {**steps, "info": {"speed": np.array([1.0, 2, 0]), "inner": {"x": np.array([[3], [4], [0]])}}}
    path = write([steps, steps], tmp_path, "d4rl")
    assert_same_episodes(load(path, extra_fields=["info"]), load([steps, steps]))
    (first, _) = load(path, extra_fields=["info/speed"])
    assert first.steps["info/speed"].tolist() == [1, 2, 0]


def test_d4rl_file_is_read_by_a_loader_of_d4rl_style(tmp_path):
    """The loop of d4rl's `qlearning_dataset`: it drops the rows of timeouts, whose next observation it ignores."""
    with h5py.File(write(LOGS, tmp_path, "d4rl")) as file:
        rows = {name: file[name][:] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
        assert file["next_observations"][:, 0].tolist() == [2, 4, 6] * 2
        assert file["infos/phase"][:].tolist() == [7, 8, 9] * 2
    transitions = [
        (rows["observations"][t, 0], rows["observations"][t + 1, 0], bool(rows["terminals"][t]))
        for t in range(len(rows["rewards"]) - 1)
        if not rows["timeouts"][t]
    ]
    assert transitions == [(0, 2, False), (2, 4, False), (0, 2, False), (2, 4, False)]
    assert rows["terminals"].tolist() == [False] * 5 + [True] and rows["timeouts"].tolist().index(True) == 2


@pytest.mark.parametrize(
    ("folder", "name", "version"),
    [("My Demos-3", "my_demos_3", "1.0.0"), ("a.b/2.0.1", "a_b", "2.0.1"), ("7/1.0.0", "dataset_7", "1.0.0")],
)
def test_rlds_directory_has_a_name_that_tfds_accepts(tmp_path, folder, name, version):
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    write_dataset([make_rich_steps()], tmp_path / folder, format="rlds")
    info = tfds.builder_from_directory(tmp_path / folder).info
    assert (info.name, str(info.version)) == (name, version)


def test_rlds_directory_is_read_by_tfds_in_order(data, tmp_path):
    """TFDS's own D4RL builder gives all episodes the same final observation; a written dataset keeps each of them."""
    path = write(data / D4RL_FILES[0], tmp_path, "rlds", shard_bytes=20_000)
    builder = tfds.builder_from_directory(path)
    assert (builder.info.name, str(builder.info.version)) == ("out", "1.0.0")
    assert builder.info.splits["train"].num_shards == 2
    source = list(load(data / D4RL_FILES[0]))
    for record, expected in zip(builder.as_dataset(split="train"), source, strict=True):
        steps = next(iter(record["steps"].batch(1000)))
        assert_equal_nests(steps["observation"].numpy(), expected.steps["observation"])
        assert steps["is_terminal"].numpy().tolist() == expected.steps["is_terminal"].tolist()
    assert len({expected.steps["observation"][-1].tobytes() for expected in source}) > 1


def test_minari_dataset_is_read_by_minari_under_its_name(data, tmp_path, monkeypatch):
    root = tmp_path / "root"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    source = load(data / "minari/classic/pendulum-dict/dev-v0")
    write_dataset(source, root / "my/pendulum-v1", format="minari")
    dataset = minari.load_dataset("my/pendulum-v1")
    assert list(minari.list_local_datasets()) == ["my/pendulum-v1"]
    assert (dataset.total_episodes, dataset.total_steps, dataset.env_spec.id) == (8, 1600, "Pendulum-v1")
    assert dataset.action_space == spaces.Box(-2, 2, (1,), np.float32)
    assert dataset.observation_space == source.observation_space
    for got, expected in zip(dataset, source, strict=True):
        assert_equal_nests(got.observations, expected.steps["observation"])
        assert got.truncations.tolist() == [False] * 199 + [True] and not got.terminations.any()
        assert {"id", "total_steps"} <= set(next(iter(dataset.storage.get_episode_metadata([got.id]))))


def test_selected_episodes_of_a_minari_dataset_are_read(tmp_path):
    logs = [{**LOG, "rewards": LOG["rewards"] + number} for number in range(8)]
    dataset = minari.MinariDataset(write(logs, tmp_path, "minari") / "data", [1, 3, 6])
    source = load(dataset)
    assert source.num_episodes == 3
    for first, expected in ((0, [1, 3, 6]), (1, [3, 6])):
        assert [got.steps["reward"][0] - 0.5 for got in source.read(first)] == expected


def test_minari_dataset_describes_images_and_strings(tmp_path):
    path = write([make_rich_steps()], tmp_path, "minari")
    dataset = minari.MinariDataset(path / "data")
    expected = make_rich_steps()["observation"]
    images, got = dataset.observation_space["images"], dataset[0].observations
    assert images["rgb"] == spaces.Box(0, 255, (32, 40, 3), np.uint8)
    assert images["one"] == spaces.Box(0, 255, (32, 40, 1), np.int16)
    assert_equal_nests(got["images"], expected["images"])
    assert got["mission"] == ["go", "größer", "", "stop"]
    assert all(dataset.observation_space["mission"].contains(text) for text in got["mission"])


def test_spaces_survive_only_while_they_describe_the_data(data):
    source = load(data / "minari/classic/pendulum-dict/dev-v0")
    assert apply_transforms(source, [CastFloats()])[0].observation_space == source.observation_space
    assert apply_transforms(source, [NormalizeObservations()])[0].observation_space is None


@pytest.mark.parametrize("format", [name for name in WRITTEN_FORMATS if name != "robomimic"])
def test_environment_and_metadata_are_kept(tmp_path, format):
    source = load(LOGS)
    source.env_spec, source.metadata = '{"id": "Pendulum-v1"}' + " " * 2000, {"algorithm": "SAC", "gamma": 0.5}
    written = load(write(source, tmp_path, format))
    assert (written.env_spec, written.metadata) == (source.env_spec, source.metadata)


@pytest.mark.parametrize("format", ["rlds", "minari"])
def test_unterminated_episodes_and_seeds_are_kept(tmp_path, format):
    logs, source = list(load(LOGS)), load(LOGS)
    source.read = lambda: iter(
        [Episode(log.steps, log.index, unterminated=not log.index, seed=log.index or None) for log in logs]
    )
    extra_fields = ["phase"] if format == "minari" else []
    assert_same_episodes(load(write(source, tmp_path, format), extra_fields=extra_fields), source)


def test_invalid_data_raise_and_leave_nothing(tmp_path):
    nan = {**LOG, "rewards": np.array([0.5, np.nan, 2.5])}
    with pytest.raises(InvalidEpisodeError, match="NaN"):
        write_dataset([LOG, nan], tmp_path / "new" / "out.hdf5", format="d4rl")
    with pytest.raises(SourceError, match=r"step\['discount'\] must be 1 for D4RL.* got 0.5 \(episode 0, step 0\)"):
        write_dataset([episode(3, terminal=False, discount=0.5)], tmp_path / "out.hdf5", format="d4rl")
    assert list(tmp_path.iterdir()) == []
    report = write_dataset([nan, LOG], tmp_path / "out.hdf5", format="d4rl", on_invalid="skip_episode")
    assert operator.attrgetter("episodes", "transitions", "skipped_episodes")(report) == (1, 3, 1)


def test_errors_that_are_kept_are_counted(tmp_path):
    nan = {**LOG, "rewards": np.array([0.5, np.nan, 2.5])}
    report = write_dataset([nan, LOG, nan], tmp_path / "out.hdf5", format="d4rl", on_invalid="keep")
    assert (report.episodes, report.skipped_episodes, report.kept_errors) == (3, 0, 2)
    assert "2 errors in episodes that were written anyway" in str(report)


def add(**columns):
    """Returns the steps of an episode with other columns."""
    return {**episode(3, terminal=False), **columns}


@pytest.mark.parametrize(
    ("format", "steps", "message"),
    [
        ("d4rl", add(observation={"x": np.zeros(3)}), r"step\['observation'\] must be a single array for D4RL"),
        ("d4rl", add(note=np.array([b""] * 3, object)), r"step\['note'\] must contain numbers for D4RL, got string"),
        ("d4rl", add(extra=np.arange(3)), r"step\['extra'\] of the last step must be zeros for D4RL"),
        ("d4rl", add(reward=np.zeros((3, 2))), r"step\['reward'\] must be one number for D4RL, got float64 \[2\]"),
        ("rlds", add(observation=(np.zeros(3),)), r"step\['observation'\]\[0\] is in a tuple"),
        ("rlds", add(**{"a/b": np.zeros(3)}), r"step\['a/b'\] must not have '/' in its name for RLDS"),
        ("rlds", add(x=np.zeros((3, 0), np.uint32)), r"step\['x'\] must not be empty for RLDS, got uint32 \[0\]"),
        ("minari", add(reward=np.zeros((3, 2))), r"step\['reward'\] must be one number for Minari, got float64 \[2\]"),
        ("minari", add(a=(np.zeros(3),)), r"step\['a'\]\[0\] is in a tuple, which Minari's infos cannot represent"),
        ("minari", add(action=np.full((3, 2), b"", object)), r"step\['action'\] must be one string per step"),
        ("minari", add(observation=np.array([b"\xff"] * 3, object)), "strings must be UTF-8 for Minari .episode 0"),
        ("minari", add(note=np.array([b"a\0b"] * 3, object)), "episode 0 cannot be written for Minari .*NULL"),
    ],
)
def test_data_that_a_format_cannot_represent_raise(tmp_path, format, steps, message):
    with pytest.raises(SourceError, match=message):
        write([steps], tmp_path, format)
    assert list(tmp_path.iterdir()) == []


def test_minari_path_without_a_version_raises_with_a_name(tmp_path):
    with pytest.raises(ValueError, match="must end in a name with a version, .* got .hopper.; use .*/hopper-v0"):
        write_dataset(LOGS, tmp_path / "hopper", format="minari")
    with pytest.raises(ValueError, match="letters, digits, '_' and '-', got '日本-v0'; use .*/dataset-v0"):
        write_dataset(LOGS, tmp_path / "日本-v0", format="minari")


def test_existing_path_raises(tmp_path):
    with pytest.raises(FileExistsError, match="exists already; pass a new path"):
        write_dataset(LOGS, tmp_path, format="rlds")


#: Processes that write a dataset take about a second each.
PROCESS_FORMATS = ["minari", *(pytest.param(name, marks=pytest.mark.slow) for name in ("d4rl", "rlds"))]


@pytest.mark.parametrize("format", PROCESS_FORMATS)
@pytest.mark.slow
def test_killed_process_leaves_nothing_under_the_path_and_can_be_repeated(tmp_path, format):
    path = tmp_path / NAMES[format]
    with process(kill_while_writing, path, format) as (_, channel):
        assert receive(channel) == "held"
    assert not path.exists()
    assert [entry.name[0] for entry in path.parent.iterdir()] == ["."] * 2
    write(LOGS, tmp_path, format)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["minari", "d4rl", "rlds"])
@pytest.mark.drill("F9")
def test_full_disk_raises_and_leaves_nothing(tmp_path, format):
    with process(write_on_full_disk, tmp_path, NAMES[format], format) as (_, channel):
        skip_unless_mounted(channel)
        error, names = receive(channel)
    assert isinstance(error, StorageFullError) and "nothing is kept" in str(error) and names == []
