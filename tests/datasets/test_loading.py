"""Tests of `load`: detection of formats, errors and special cases of each format, and `to_rlds`."""

import copy
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from compression_bombs import write_zeros
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode, rlds_dataset

from rlds2reverb import write_dataset
from rlds2reverb.datasets import Source, load
from rlds2reverb.datasets.concatenation import concatenate_sources
from rlds2reverb.datasets.readers import minari
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import find_errors

#: For each path: kind, and the numbers of episodes, steps and terminals.
DATA = {
    "d4rl/pendulum_mixed-v2.hdf5": ("d4rl", 80, 16080, 0),
    "tfds_fake/robomimic_ph/lift_low_dim.hdf5": ("robomimic", 2, 119, 2),
    "rlds/physics_rlds/hopper_flat/1.0.0": ("rlds", 9, 6038, 4),
    "rlds/physics_rlds/pendulum_dict/1.0.0": ("rlds", 15, 3015, 0),
    "rlds/physics_rlds/pendulum_pixels/1.0.0": ("rlds", 8, 808, 0),
    "rlds_prepared/rlu_control_suite/cartpole_swingup/1.0.0": ("rlds", 1, 1001, 0),
    "rlds_prepared/d4rl_adroit_door/v0-human/1.1.0": ("rlds", 2, 301, 1),
    "minari/mujoco/hopper/dev-v0": ("minari", 8, 4078, 4),
    "minari/classic/pendulum-dict/dev-v0": ("minari", 8, 1608, 0),
}


#: Of each kind of source, the larger ones are read by the slow tests.
SLOW = ("rlds/physics_rlds/hopper_flat", "rlds/physics_rlds/pendulum_pixels", "rlds_prepared", "minari/mujoco")
FAST = [name for name in DATA if not name.startswith(SLOW)]


@pytest.mark.parametrize("name", mark_slow_except(FAST, DATA))
def test_each_format_is_detected_and_valid(data, name):
    source = load(data / name)
    episodes = list(source)
    num_steps, num_terminals = sum(e.num_steps for e in episodes), sum(e.is_terminal for e in episodes)
    assert (source.kind, len(episodes), num_steps, num_terminals) == DATA[name]
    assert source.num_episodes in (None, len(episodes))
    assert [error for e in episodes for error in find_errors(e, source.step_spec)] == []


@pytest.mark.parametrize("name", mark_slow_except(FAST, [name for name in DATA if "pixels" not in name]))
def test_to_rlds_has_the_same_steps(data, name):
    source = load(data / name)
    for got, expected in zip(source.to_rlds().take(3), source, strict=False):
        columns = next(got["steps"].batch(10_000).as_numpy_iterator())
        assert_equal_nests(columns, expected.steps)


def test_directory_above_a_single_dataset_is_accepted(data):
    assert load(data / "rlds/physics_rlds/hopper_flat").name == "physics_rlds/hopper_flat"
    with pytest.raises(
        SourceError, match=r"contains 3 datasets; specify one of them: hopper_flat/1.0.0, pendulum_dict"
    ):
        load(data / "rlds/physics_rlds")
    match = r"contains 7 datasets; specify one of them: atari/replay_logs, .*v3.0/c3, ... and 2 more$"
    with pytest.raises(SourceError, match=match):
        load(data / "formats")


def test_folders_of_files_name_the_files(data):
    match = r"robomimic is a folder of files; pass one of them, or a pattern: d1_low_dim.hdf5, d2_\w+.hdf5, d3_"
    with pytest.raises(SourceError, match=match):
        load(data / "formats/robomimic")


def test_missing_files_and_unsupported_objects_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file 'nothing.hdf5'"):
        load("nothing.hdf5")
    with pytest.raises(TypeError, match="source must be .*an OGBench file, .* a D4RL file, .*; got a int"):
        load(3)
    with pytest.raises(SourceError, match="contains no dataset"):
        load(tmp_path)
    source = load([episode(2, terminal=True)])
    assert isinstance(source, Source) and load(source) is source


def test_server_address_raises_unless_it_is_a_path(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(data / "malformed/hdf5/ok_control.hdf5", "localhost:8000")
    with pytest.raises(SourceError, match=r"cannot read the server 'localhost:8000'; .*Path\('localhost:8000'\)"):
        load("localhost:8000")
    assert load(Path("localhost:8000")).kind == "d4rl"


def test_path_is_never_the_name_of_a_dataset():
    with pytest.raises(
        FileNotFoundError, match="no file or directory 'mujoco/hopper/dev-v0'; pass a string to look up"
    ):
        load(Path("mujoco/hopper/dev-v0"))


def test_source_without_steps_raises():
    with pytest.raises(SourceError, match="has no episode with steps; there is nothing to convert"):
        load([]).step_spec  # noqa: B018


# --- TFDS


def test_final_observation_shared_by_tfds_episodes_has_a_warning(data):
    (warning,) = load(data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0").warnings
    assert (
        "all of the first 2 episodes end in the same observation" in warning
        and "load the D4RL HDF5 file instead" in warning
    )
    assert load(data / "rlds_prepared/d4rl_mujoco_hopper/v0-medium/1.2.0").warnings == ()


def test_hdf5_file_keeps_the_final_observations_that_tfds_loses(data):
    from_hdf5 = list(load(data / "tfds_fake/d4rl_mujoco_hopper/hopper_random-v1.hdf5"))
    from_tfds = {len(e.steps["reward"]): e for e in load(data / "rlds_prepared/d4rl_mujoco_hopper/v1-random/1.2.0")}
    assert len(from_hdf5) == len(from_tfds) == 2
    for index, got in enumerate(from_hdf5):
        built = from_tfds[got.num_steps]
        np.testing.assert_array_equal(got.steps["observation"][:-1], built.steps["observation"][:-1])
        is_same = np.array_equal(got.steps["observation"][-1], built.steps["observation"][-1])
        assert is_same == (index == len(from_hdf5) - 1)
        for name in ("reward", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(got.steps[name], built.steps[name])


def test_builder_is_found_by_name_and_prepares_its_data(data, tmp_path, monkeypatch):
    file = data / "tfds_fake/d4rl_mujoco_hopper/hopper_medium.hdf5"
    monkeypatch.setattr(
        tfds.download.DownloadManager, "download_and_extract", lambda self, urls: {"file_path": str(file)}
    )
    source = load("d4rl_mujoco_hopper/v0-medium", data_dir=tmp_path, download=True)
    assert (source.name, source.num_episodes) == ("d4rl_mujoco_hopper/v0-medium", 2)
    built = {e.num_steps: e.steps for e in source}
    for got in load(file):
        for name in ("observation", "action", "reward", "discount", "is_terminal"):
            np.testing.assert_array_equal(got.steps[name], built[got.num_steps][name])


@pytest.mark.drill("F22")
def test_prepared_dataset_found_by_name_is_checked(data, tmp_path, monkeypatch):
    path = tmp_path / "physics_rlds/hopper_flat/1.0.0"
    shutil.copytree(data / "rlds/physics_rlds/hopper_flat/1.0.0", path)
    assert load("physics_rlds/hopper_flat", data_dir=tmp_path).num_episodes == 9
    features = (path / "features.json").read_text()
    (path / "features.json").write_text(features.replace("tensorflow_datasets.core.features.", "os.path."))
    monkeypatch.setattr(tfds, "builder", lambda *arguments, **options: pytest.fail("TFDS was called"))
    with pytest.raises(SourceError, match="not a TFDS feature; refused"):
        load("physics_rlds/hopper_flat", data_dir=tmp_path)


def test_unknown_builder_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="TFDS can neither find nor prepare 'no_such_data'"):
        load("no_such_data", data_dir=tmp_path, download=True)


def test_splits_can_be_sliced_and_must_exist(data):
    path = data / "rlds/physics_rlds/hopper_flat/1.0.0"
    assert len(list(load(path, split="train[:3]"))) == 3
    with pytest.raises(SourceError, match="has no split 'test'; use one of: train"):
        load(path, split="test")
    with pytest.raises(SourceError, match="split must be a name such as .*, got '../train'"):
        load(path, split="../train")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dataset_info.json", '"{DATASET}-{SPLIT}', '"../../{DATASET}-{SPLIT}', "leaves the directory; refused"),
        ("features.json", "tensorflow_datasets.core.features.", "os.path.", "not a TFDS feature; refused"),
        ("dataset_info.json", '"physics_rlds"', '"/etc/x"', "must be a plain name, got '/etc/x'; refused"),
        # Protobuf also accepts this spelling of the field.
        (
            "dataset_info.json",
            '"filepathTemplate": "{',
            '"filepath_template": "../x/{',
            "leaves the directory; refused",
        ),
        ("dataset_info.json", '"{DATASET}-', '"{DATASET.__class__}-', "leaves the directory; refused"),
        ("dataset_info.json", '"{DATASET}-', '"{FOO}-', "leaves the directory; refused"),
        (
            "features.json",
            '"pythonClassName": "tensorflow_datasets.core',
            '"python_class_name": "os.x',
            "not a TFDS feature",
        ),
        # Other formats name classes in other fields.
        ("features.json", '"pythonClassName": "tensorflow_datasets.core', '"type": "os.x', "not a TFDS feature"),
        ("features.json", '"pythonClassName"', '"python_class"', "is not in the format of TFDS 4.9"),
        (
            "features.json",
            '"featuresDict": {',
            '"jsonFeature": {"json": "{}"}, "featuresDict": {',
            "is not in the format|free-form JSON",
        ),
        # These values have unexpected types.
        ("dataset_info.json", '"splits": [', '"splits": ["train", ', "is not in the format of TFDS 4.9"),
        (
            "dataset_info.json",
            '"shardLengths": [',
            '"shardLengths": 5, "x": [',
            "is not in the format of TFDS 4.9",
        ),
        ("dataset_info.json", '"train"', "5", "is not in the format of TFDS 4.9"),
        ("dataset_info.json", '{\n  "configName"', "[" * 100_000 + '{\n  "configName"', "cannot be read as JSON"),
    ],
)
@pytest.mark.drill("F22")
def test_hostile_metadata_raises_before_tfds_reads_it(data, tmp_path, monkeypatch, file, old, new, message):
    path = tmp_path / "1.0.0"
    shutil.copytree(data / "rlds/physics_rlds/hopper_flat/1.0.0", path)
    text = (path / file).read_text()
    assert old in text
    (path / file).write_text(text.replace(old, new))
    monkeypatch.setattr(tfds, "builder_from_directory", lambda path: pytest.fail("TFDS was called"))
    with pytest.raises(SourceError, match=message):
        load(path)


@pytest.fixture
def legacy_copy(data, tmp_path):
    """Provides a directory with features.json in the format from before 2022: type, content, proto_cls."""
    path = tmp_path / "1.0.0"
    shutil.copytree(data / "rlds/physics_rlds/hopper_flat/1.0.0", path)
    features = tfds.builder_from_directory(path).info.features.to_json()
    (path / "features.json").write_text(json.dumps(features))
    return path


def test_legacy_features_are_read(legacy_copy):
    assert '"proto_cls"' in (legacy_copy / "features.json").read_text()
    assert len(list(load(legacy_copy))) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda old: {**old, "type": "os.path.X"}, "names the class 'os.path.X', which is not a TFDS feature"),
        (lambda old: {**old, "proto_cls": "google.protobuf.Any"}, "not a TFDS message"),
        (
            lambda old: {**old, "content": json.dumps({"features": {"x": {"python_class_name": "os.path.X"}}})},
            "names the class 'os.path.X', which is not a TFDS feature",
        ),
        (
            lambda old: {**old, "content": {"x": [{"type": "os.path.X"}]}},
            "names the class 'os.path.X', which is not a TFDS feature",
        ),
        (lambda old: {**old, "content": "{"}, "'content' contains invalid JSON"),
    ],
)
@pytest.mark.drill("F22")
def test_hostile_legacy_features_raise(legacy_copy, monkeypatch, change, message):
    file = legacy_copy / "features.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    monkeypatch.setattr(tfds, "builder_from_directory", lambda path: pytest.fail("TFDS was called"))
    with pytest.raises(SourceError, match=message):
        load(legacy_copy)


@pytest.mark.parametrize(
    "split",
    mark_slow_except(["train", "train[:2]+train[2:5]"], ["train", "train[:2]", "train[:2]+train[2:5]", "train[2:5]"]),
)
def test_split_expressions_are_read(data, tmp_path, split):
    path = tmp_path / "1.0.0"
    shutil.copytree(data / "rlds/physics_rlds/hopper_flat/1.0.0", path)
    info = json.loads((path / "dataset_info.json").read_text())
    info["splits"].append({"name": "train-human", "numBytes": "0", "shardLengths": []})
    (path / "dataset_info.json").write_text(json.dumps(info))
    expected = {"train": 9, "train[:2]": 2, "train[:2]+train[2:5]": 5, "train[2:5]": 3}
    assert len(list(load(path, split=split))) == expected[split]


def test_empty_slice_raises(data):
    with pytest.raises(SourceError, match="the split 'train.*' (has no episodes|cannot be read)"):
        load(data / "rlds/physics_rlds/hopper_flat/1.0.0", split="train[5:2]")


# --- Minari


def test_minari_episodes_match_the_file(data):
    path = data / "minari/classic/pendulum-dict/dev-v0"
    with h5py.File(path / "data/main_data.hdf5") as file:
        for index, got in enumerate(load(path)):
            group = file[f"episode_{index}"]
            for name in ("angle", "velocity"):
                np.testing.assert_array_equal(got.steps["observation"][name], group["observations"][name][:])
            np.testing.assert_array_equal(got.steps["action"][:-1], group["actions"][:])
            np.testing.assert_array_equal(got.steps["reward"][:-1], group["rewards"][:])
            assert got.is_terminal == bool(group["terminations"][-1])


def test_minari_names_are_looked_up_in_its_root(data, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(data / "minari"))
    source = load("mujoco/hopper/dev-v0")
    assert (source.kind, source.name) == ("minari", "mujoco/hopper/dev-v0")
    assert "was written by Minari 0.5.4" in source.warnings[0]


def test_minari_file_with_a_link_raises(data, tmp_path):
    shutil.copytree(data / "minari/mujoco/hopper/dev-v0", tmp_path / "dev-v0")
    with h5py.File(tmp_path / "dev-v0/data/main_data.hdf5", "a") as file:
        file["episode_0/infos/x"] = h5py.ExternalLink("/etc/passwd", "/")
    with pytest.raises(SourceError, match="is a link to another file"):
        load(tmp_path / "dev-v0")


def test_missing_minari_package_raises_naming_the_extra(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(SourceError, match=r"run .*pip install .*'minari\["):
        minari.open_minari(data / "minari/mujoco/hopper/dev-v0")


@pytest.fixture
def minari_copy(data, tmp_path):
    shutil.copytree(data / "minari/mujoco/hopper/dev-v0", tmp_path / "dev-v0")
    return tmp_path / "dev-v0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation_space": None}, "observation_space must be a string, got None"),
        ({"action_space": {"type": "Box"}}, "action_space must be a string, got {"),
        ({"total_episodes": "abc"}, "total_episodes must be an integer >= 0, got 'abc'"),
        ({"total_episodes": -1}, "total_episodes must be an integer >= 0, got -1"),
        ({"total_episodes": 1}, "total_episodes in metadata.json is 1, but in the files 8"),
        ({"observation_space": "{"}, "cannot be opened by minari"),
    ],
)
def test_invalid_minari_metadata_raise_before_minari_is_called(minari_copy, change, message):
    """Without the spaces, minari would build the environment and import what `env_spec` names."""
    path = minari_copy / "data/metadata.json"
    env_spec = json.dumps({"id": "x-v0", "entry_point": "rlds2reverb_evil:X"})
    path.write_text(json.dumps({**json.loads(path.read_text()), "env_spec": env_spec, **change}))
    with pytest.raises(SourceError, match=message):
        load(minari_copy)
    path.write_text("[]")
    with pytest.raises(SourceError, match="metadata.json must contain a JSON object"):
        load(minari_copy)


def change_minari_file(path, name, value):
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        if name in file:
            del file[name]
        if isinstance(value, np.ndarray):
            file.create_dataset(name, data=value, compression="gzip", chunks=True)
        else:
            value(file)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("episode_0/loop", lambda file: file["episode_0"].__setitem__("loop", file["/"]), "has several paths"),
        (
            "episode_0/infos/zeros",
            lambda file: write_zeros(file, "episode_0/infos/zeros", 40_000_000, "f8"),
            "it looks like a compression bomb",
        ),
        ("episode_1/terminations", np.arange(11) == 3, r"continues after terminations\[3\] is True"),
        ("episode_1/terminations", np.full(11, np.nan), r"\['terminations'\]\[0\] must be 0 or 1, got nan"),
        ("episode_0", lambda file: None, "total_episodes in metadata.json is 8, but in the files 7"),
        ("episode_0/rewards", lambda file: None, "is damaged at episode 0"),
    ],
)
@pytest.mark.drill("F21")
def test_hostile_or_damaged_minari_file_raises(minari_copy, name, value, message):
    change_minari_file(minari_copy, name, value)
    with pytest.raises(SourceError, match=message):
        list(load(minari_copy))


@pytest.mark.filterwarnings("ignore")
def test_minari_with_nested_spaces_is_read(tmp_path, monkeypatch):
    """The actions are dicts with a discrete part, and the observations are tuples."""
    import gymnasium as gym
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = [
        EpisodeBuffer(
            id=index,
            observations=(list(np.arange(length + 1)), [np.full(2, row, np.float32) for row in range(length + 1)]),
            actions={"jump": list(np.arange(length)), "move": [np.full(3, row, np.float32) for row in range(length)]},
            rewards=list(np.arange(float(length))),
            terminations=[False] * (length - 1) + [index == 0],
            truncations=[False] * (length - 1) + [index != 0],
        )
        for index, length in enumerate((3, 2))
    ]
    minari.create_dataset_from_buffers(
        "nested/spaces-v0",
        buffers,
        observation_space=gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.Box(-9, 9, (2,), np.float32)]),
        action_space=gym.spaces.Dict(jump=gym.spaces.Discrete(9), move=gym.spaces.Box(-9, 9, (3,), np.float32)),
        data_format="hdf5",
    )
    first, second = load("nested/spaces-v0")
    numbers, vectors = first.steps["observation"]
    assert numbers.tolist() == vectors[:, 1].tolist() == [0, 1, 2, 3]
    assert first.steps["action"]["jump"].tolist() == [0, 1, 2, 0] and first.is_terminal and not second.is_terminal
    assert second.steps["action"]["move"].tolist() == [[0] * 3, [1] * 3, [0] * 3]


def test_damage_blocks_one_episode_of_minari_and_none_without_the_field(tmp_path):
    images = np.zeros((4, 32, 32, 3), np.uint8)
    observations = {"front": images, "wrist": {"left": images}, "state": np.zeros((4, 2), np.float32)}
    log = {"observations": observations, "actions": np.zeros((3, 1)), "rewards": np.zeros(3), "terminated": True}
    write_dataset([log] * 4, tmp_path / "x-v0", format="minari")
    with h5py.File(tmp_path / "x-v0/data/main_data.hdf5", "a") as file:
        file["episode_1/observations/front"][2] = np.zeros(9, np.uint8)
        del file["episode_2/observations/wrist/left"]
        file.create_dataset("episode_2/observations/wrist/left", (4,), h5py.vlen_dtype(np.uint8), chunks=(4,))
        file.create_dataset("episode_0/infos/unread", (4, 2), "f4", chunks=(1, 2))
    source = load(tmp_path / "x-v0")
    with pytest.raises(SourceError, match="episode 1: .*front': the image must be a PNG.* leave it out"):
        list(source)
    assert [episode.index for episode in load(source, on_invalid="skip_episode")] == [0, 3]
    for paths, kept in (("observation/front",), [0, 1, 3]), (("observation/wrist", "observation/front"), [0, 1, 2, 3]):
        dropped, _ = apply_transforms(load(source, on_invalid="skip_episode"), [DropFields(paths)])
        assert [episode.index for episode in dropped] == kept
        names = {*observations} - {path.partition("/")[2] for path in paths}
        assert all(episode.steps["observation"].keys() == names for episode in dropped)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_damage_blocks_one_episode_of_minari_in_arrow(tmp_path, monkeypatch, data_format):
    import gymnasium as gym
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    image = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    buffers = [
        EpisodeBuffer(
            id=index,
            observations={"front": [np.zeros((32, 32, 3), np.uint8)] * 3, "state": [np.full(2, index, np.float32)] * 3},
            actions=[np.zeros(1, np.float32)] * 2,
            rewards=[0.0, 1.0],
            terminations=[False, True],
            truncations=[False, False],
        )
        for index in range(4)
    ]
    minari.create_dataset_from_buffers(
        "x-v0",
        buffers,
        observation_space=gym.spaces.Dict(front=image, state=gym.spaces.Box(-9, 9, (2,), np.float32)),
        action_space=gym.spaces.Box(-1, 1, (1,), np.float32),
        data_format=data_format,
    )
    (file,) = (tmp_path / "x-v0/data/2").glob(f"*.{data_format}")
    file.write_bytes(file.read_bytes()[:100])
    source = load("x-v0", on_invalid="skip_episode")
    for kept in source, apply_transforms(source, [DropFields(("observation/front",))])[0]:
        assert [int(episode.steps["observation"]["state"][0, 0]) for episode in kept] == [0, 1, 3]
    assert [*source.skipped] == [2]


# --- in memory


def test_log_and_steps_make_the_same_episode():
    steps = episode(4, terminal=True)
    log = {
        "observations": steps["observation"],
        "actions": steps["action"][:-1],
        "rewards": steps["reward"][:-1],
        "terminated": True,
    }
    (from_log,) = load([log])
    (from_steps,) = load([steps])
    for name in ("observation", "is_first", "is_last", "is_terminal"):
        np.testing.assert_array_equal(from_log.steps[name], from_steps.steps[name])
    pairs = {**log, "observations": steps["observation"][:-1], "next_observations": steps["observation"][1:]}
    assert_equal_nests(next(iter(load([pairs]))).steps, from_log.steps)


def test_logs_keep_extra_fields():
    log = {"observations": np.zeros((3, 2)), "actions": np.zeros(3), "rewards": np.zeros(3), "terminated": [0, 0, 1]}
    (got,) = load([{**log, "qpos": np.arange(3)}])
    assert got.is_terminal and got.steps["qpos"].tolist() == [0, 1, 2, 0]


LOG = {"observations": np.zeros((3, 2)), "actions": np.zeros(3), "rewards": [1.0, 2.0, 3.0], "terminated": True}


def test_logs_accept_lists_tuples_and_truncated_flags():
    for more in (
        {"truncated": False},
        {"rewards": (1.0, 2.0, 3.0)},
        {"rewards": np.ones((3, 1))},
        {"terminated": [0, 0, 1]},
    ):
        (got,) = load([{**LOG, **more}])
        assert got.num_transitions == 3 and got.is_terminal and got.steps["reward"].shape == (4,)


def test_strings_are_kept_and_padded_with_an_empty_one():
    log = {
        **LOG,
        "observations": {"text": np.array(["a", "b", "c", "d"]), "x": np.zeros(4)},
        "note": np.array(["x"] * 3),
    }
    (got,) = load([log])
    assert got.steps["observation"]["text"].tolist() == ["a", "b", "c", "d"]
    assert got.steps["note"].tolist() == ["x", "x", "x", b""]
    (first,) = load([log]).to_rlds()
    assert [step["note"].numpy() for step in first["steps"]] == [b"x", b"x", b"x", b""]
    without, _ = apply_transforms(load([log]), [DropFields(("observation/text", "note"))])
    assert set(without.step_spec["observation"]) == {"x"} and "note" not in without.step_spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": {"a": np.zeros(3), "b": np.zeros(3)}}, "rewards must be one number per row, got a dict"),
        ({"rewards": np.array(["a", "b", "c"])}, r"rewards must be one number per row, got string \[3\]"),
        ({"rewards": np.zeros((3, 2))}, r"rewards must be one number per row, got float64 \[3, 2\]"),
        ({"observations": {}}, r"observations must have as many rows as rewards \(3\), got \[\]"),
        ({"observations": np.zeros((7, 2))}, r"observations must have as many rows as rewards \(3\), got \[7\]"),
        ({"actions": np.zeros(4)}, r"actions must have as many rows as rewards \(3\), got \[4\]"),
        (
            {"next_observations": np.zeros((2, 2))},
            r"next_observations must have as many rows as rewards \(3\), got \[2\]",
        ),
        (
            {"next_observations": np.zeros((3, 5))},
            r"the final observation must be float64 \[2\] like the others, got float64 \[5\]",
        ),
        ({"next_observations": {"x": np.zeros(3)}}, "episode 0: "),
        ({"terminated": [0, 1, 0]}, "terminated must be one flag, or one per row with only the last set"),
        ({"terminated": [0, 1]}, "terminated must be one flag, or one for each of the 3 rows"),
        ({"terminated": [[0], [1, 1]]}, r"\['terminated'\] is not an array"),
        ({"terminated": None}, r"\['terminated'\] must be a flag, got None"),
    ],
)
@pytest.mark.drill("F11")
def test_invalid_logs_raise(change, message):
    with pytest.raises(SourceError, match=message) as caught:
        load([{**LOG, **change}])
    assert "\n" not in str(caught.value)


def test_dropping_required_or_unknown_fields_raises():
    with pytest.raises(ValueError, match="'reward' cannot be dropped because every step requires it"):
        DropFields(("reward",))
    for path in ("observation/none", "none"):
        with pytest.raises(ValueError, match=f"there is no field '{path}' to drop"):
            list(apply_transforms(load([LOG]), [DropFields((path,))])[0])


def test_incomplete_episode_raises_naming_it():
    with pytest.raises(SourceError, match="episode 1 is missing rewards, terminated; pass RLDS steps"):
        load([episode(2, terminal=True), {"observations": np.zeros((3, 2)), "actions": np.zeros(2)}])
    with pytest.raises(SourceError, match="episode 0 has no rewards"):
        load([{"observations": np.zeros((1, 2)), "actions": np.zeros(0), "rewards": np.zeros(0), "terminated": False}])


def test_rlds_dataset_is_accepted():
    all_steps = [episode(3, terminal=True, nested=True), episode(1, terminal=False, nested=True)]
    for got, expected in zip(load(rlds_dataset(all_steps), last_step="boundary"), all_steps, strict=True):
        assert_equal_nests(got.steps, expected)
    without_action = [{name: column for name, column in all_steps[0].items() if name != "action"}]
    with pytest.raises(SourceError, match="a step is missing action"):
        load(rlds_dataset(without_action))
    with pytest.raises(SourceError, match="No dataset representing RLDS steps exist in the data"):
        load(tf.data.Dataset.range(3))


def test_joined_sources_keep_common_metadata_and_every_task(data, tmp_path):
    parts = [load(data / "formats/robomimic/d1_low_dim.hdf5") for _ in range(2)]
    parts = [
        replace(part, metadata={"fps": 20, "site": text, "language_instruction": text})
        for part, text in zip(parts, ("lift", "place"), strict=True)
    ]
    joined = concatenate_sources(parts)
    assert joined.metadata == {"fps": 20}
    texts = [episode.metadata["language_instruction"].item() for episode in joined.read(5, 7)]
    assert texts == [b"lift", b"place"]
    write_dataset(joined, tmp_path / "out", format="lerobot")
    assert [stored.metadata["language_instruction"].item() for stored in load(tmp_path / "out")][5:7] == texts
    assert concatenate_sources(parts[:1]).metadata["language_instruction"] == "lift"


def test_source_can_be_read_repeatedly_and_copied(data):
    expected = [episode.num_steps for episode in load(data / "d4rl/hopper_medium-v2.hdf5")]
    source = load(data / "d4rl/hopper_medium-v2.hdf5")
    assert source.first_episode.num_steps == expected[0]
    copied = copy.copy(source)
    for episodes in (source, copied, source):
        assert [episode.num_steps for episode in episodes] == expected
