"""Tests of dataset names: D4RL names have a URL, and nothing is downloaded without permission."""

import shutil
import socket
from unittest import mock

import minari as minari_package
import pytest
import tensorflow_datasets as tfds

from rlds2reverb.datasets import load
from rlds2reverb.datasets.readers import d4rl_names
from rlds2reverb.errors import SourceError


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Blocks network access and makes the home directory empty."""

    def refuse(*arguments, **options):
        raise OSError("there is no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("D4RL_DATASET_DIR", "MINARI_DATASETS_PATH", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


#: Some dataset names for each pattern in d4rl/infos.py, with the path in their URL.
FILES = {
    "hopper-medium-v2": "gym_mujoco_v2/hopper_medium-v2.hdf5",
    "halfcheetah-medium-expert-v2": "gym_mujoco_v2/halfcheetah_medium_expert-v2.hdf5",
    "ant-full-replay-v1": "gym_mujoco_v1/ant_full_replay-v1.hdf5",
    "hopper-medium-replay-v0": "gym_mujoco/hopper_mixed.hdf5",
    "walker2d-medium-replay-v0": "gym_mujoco/walker_mixed.hdf5",
    "walker2d-medium-expert-v0": "gym_mujoco/walker2d_medium_expert.hdf5",
    "antmaze-umaze-v2": "ant_maze_v2/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5",
    "antmaze-large-diverse-v0": "ant_maze_new/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse.hdf5",
    "pen-human-v1": "hand_dapg_v1/pen-human-v1.hdf5",
    "door-cloned-v0": "hand_dapg/door-demos-v0-bc-combined.hdf5",
    "hammer-expert-v0": "hand_dapg/hammer-v0_expert_clipped.hdf5",
    "kitchen-complete-v0": "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5",
    "maze2d-umaze-v1": "maze2d/maze2d-umaze-sparse-v1.hdf5",
    "maze2d-eval-large-dense-v1": "maze2d/maze2d-eval-large-dense-v1.hdf5",
    "bullet-walker2d-medium-replay-v0": "bullet/bullet-walker2d_medium_replay.hdf5",
    "bullet-maze2d-open-v0": "bullet/bullet-maze2d-open-sparse.hdf5",
    "carla-town-v0": "carla/carla_town_subsamp_flat-v0.hdf5",
    "flow-ring-controller-v0": "flow/flow-ring-v0-idm.hdf5",
    "minigrid-fourrooms-v0": "minigrid/minigrid4rooms.hdf5",
}


@pytest.mark.parametrize("name", FILES)
def test_missing_d4rl_dataset_raises_with_its_url(name, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load(name)
    url = f"http://rail.eecs.berkeley.edu/datasets/offline_rl/{FILES[name]}"
    assert str(caught.value) == (
        f"D4RL's {name} is not on this machine; download {url} to {tmp_path}/.d4rl/datasets, or download it "
        "anywhere and pass the path of the file"
    )


def test_names_that_d4rl_does_not_define_have_no_url():
    for name in ("hopper-medium-v9", "hopper-v2", "swimmer-medium-v2", "hopper-full-replay-v0", "mujoco/hopper/x-v0"):
        assert d4rl_names.file_url(name) is None


def test_file_in_the_d4rl_directory_is_opened_by_name(data, tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    (tmp_path / "d4rl").mkdir()
    shutil.copy(data / "d4rl/hopper_medium-v2.hdf5", tmp_path / "d4rl")
    assert (load("hopper-medium-v2").kind, load("hopper-medium-v2").name) == ("d4rl", "hopper_medium-v2.hdf5")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("d4rl_mujoco_hopper/v2-medium", "TFDS has not prepared a dataset of that name in .*/tensorflow_datasets;"),
        ("d4rl_mujoco_hopper/v2-medium:1.0.0", "TFDS has not prepared"),
        ("no_such_data", "there is no path 'no_such_data', and TFDS has not prepared"),
        ("mujoco/hopper/expert-v0", "Minari has no dataset of that name in .*/.minari/datasets;"),
        ("hopper-v5", "there is no path 'hopper-v5', and Minari has no dataset of that name"),
    ],
)
def test_missing_dataset_raises_without_a_download(name, message, monkeypatch, capfd):
    monkeypatch.setattr(tfds, "builder", lambda *arguments, **options: pytest.fail("TFDS was called"))
    monkeypatch.setattr(minari_package, "download_dataset", lambda *arguments: pytest.fail("Minari was called"))
    with pytest.raises(FileNotFoundError, match=message + r".*allow the download \(download=True\)"):
        load(name)
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")
def test_failed_tfds_download_raises_a_one_line_error(capfd):
    with pytest.raises(
        FileNotFoundError, match="TFDS can neither find nor prepare 'd4rl_mujoco_hopper/v2-medium' "
    ) as caught:
        load("d4rl_mujoco_hopper/v2-medium", download=True)
    assert "\n" not in str(caught.value)
    out, err = capfd.readouterr()
    assert "%" not in out + err and "Retry" not in out + err  # There are no progress bars.


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            OSError("no network\nat all"),
            FileNotFoundError,
            r"cannot download 'hopper/x-v0' to .* \(no network\); check",
        ),
        (ImportError("minari[hf]"), SourceError, r"downloads require huggingface_hub .*; run .*pip install"),
    ],
)
def test_failed_minari_download_raises(error, kind, message, monkeypatch):
    monkeypatch.setattr(minari_package, "download_dataset", mock.Mock(side_effect=error))
    with pytest.raises(kind, match=message):
        load("hopper/x-v0", download=True)


def test_minari_dataset_is_downloaded_if_allowed(data, tmp_path, monkeypatch):
    def download(name):
        print("Downloading")
        shutil.copytree(data / "minari" / "mujoco/hopper/dev-v0", tmp_path / ".minari/datasets" / name)

    monkeypatch.setattr(minari_package, "download_dataset", download)
    assert load("mujoco/hopper/dev-v0", download=True).num_episodes == 8
    assert load("mujoco/hopper/dev-v0").num_episodes == 8


def test_newest_version_prepared_by_tfds_is_opened(data, tmp_path):
    prepared = data / "rlds/physics_rlds/hopper_flat/1.0.0"
    for version in ("1.0.0", "1.9.0", "1.10.0"):
        copy = tmp_path / "physics_rlds/hopper_flat" / version
        shutil.copytree(prepared, copy)
        info = copy / "dataset_info.json"
        info.write_text(info.read_text().replace('"1.0.0"', f'"{version}"'))
    for shard in (tmp_path / "physics_rlds/hopper_flat/1.9.0").glob("*.tfrecord*"):
        shard.unlink()
    for name in ("physics_rlds/hopper_flat", "physics_rlds", "physics_rlds/hopper_flat:1.0.0"):
        assert load(name, data_dir=tmp_path).num_episodes == 9
    with pytest.raises(SourceError, match="1.9.0 is missing the shard"):
        load("physics_rlds/hopper_flat:1.9.0", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="TFDS has not prepared"):
        load("physics_rlds/hopper_flat:2.0.0", data_dir=tmp_path)
    shutil.copytree(data / "rlds/physics_rlds/pendulum_dict/1.0.0", tmp_path / "physics_rlds/pendulum_dict/1.0.0")
    with pytest.raises(
        SourceError, match="contains 2 datasets; specify one of them: physics_rlds/hopper_flat, physics_rl"
    ):
        load("physics_rlds", data_dir=tmp_path)
