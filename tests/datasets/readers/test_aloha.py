"""Tests of ALOHA's episodes; the expectations come from h5py and Pillow."""

import io

import h5py
import numpy as np
import pytest
from PIL import Image
from robot_files import encode_image, make_images, write_aloha

from rlds2reverb import load, write_dataset
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.errors import SourceError


def test_folder_is_read_in_the_order_of_numbers(tmp_path):
    source = load(write_aloha(tmp_path / "x", lengths=[2] * 11))
    assert source.count() == source.num_episodes == 11
    assert [episode.steps["action"][0, 0] for episode in source] == [10 * number + 1 for number in range(11)]


@pytest.mark.parametrize("is_file", [False, True])
def test_rows_match_h5py(tmp_path, is_file):
    folder = write_aloha(tmp_path / "x", lengths=(4,))
    path = folder / "episode_0.hdf5"
    (episode,) = load(path if is_file else folder)
    with h5py.File(path) as file:
        for name in ("qpos", "qvel"):
            assert (episode.steps["observation"][name] == file[f"observations/{name}"]).all()
        for camera in ("cam_high", "cam_low"):
            assert (episode.steps["observation"]["images"][camera] == file[f"observations/images/{camera}"]).all()
        assert (episode.steps["action"] == file["action"]).all()
        assert (episode.steps["base_action"] == file["base_action"]).all()
    assert (episode.metadata["sim"], episode.metadata["compress"]) == (False, False)


def test_end_is_truncated_and_every_action_is_kept(tmp_path):
    source = load(write_aloha(tmp_path / "x", lengths=(4, 1)))
    long, short = source
    assert (long.num_steps, long.num_transitions, long.dropped_last_transition) == (4, 3, True)
    assert long.unterminated and not long.is_terminal and long.steps["action"][-1].tolist() == [4, 4.5]
    assert (short.num_steps, short.num_transitions) == (1, 0)
    assert source.assumed_fields == ("reward",)
    assert "x records neither rewards nor how its episodes end" in source.warnings[0]


def test_compressed_images_are_decoded_without_their_padding(tmp_path):
    folder = write_aloha(tmp_path / "x", is_compressed=True)
    for number, episode in enumerate(load(folder)):
        with h5py.File(folder / f"episode_{number}.hdf5") as file:
            for camera, images in episode.steps["observation"]["images"].items():
                stored = file[f"observations/images/{camera}"]
                expected = [np.asarray(Image.open(io.BytesIO(row.tobytes()))) for row in stored]
                assert (images == expected).all() and images.dtype == np.uint8


@pytest.mark.parametrize("dtype", ["bytes", "variable"])
def test_images_in_strings_and_in_rows_of_different_lengths_are_decoded(tmp_path, dtype):
    path = write_aloha(tmp_path / "x", lengths=(4,)) / "episode_0.hdf5"
    expected = make_images(4)
    files = [encode_image(image, "PNG") for image in expected]
    with h5py.File(path, "a") as file:
        del file["observations/images/cam_high"]
        if dtype == "bytes":
            file["observations/images/cam_high"] = np.array(files)
        else:
            stored = file.create_dataset("observations/images/cam_high", (4,), h5py.vlen_dtype(np.uint8))
            for row, content in enumerate(files):
                stored[row] = np.frombuffer(content, np.uint8)
    (episode,) = load(path)
    assert (episode.steps["observation"]["images"]["cam_high"] == expected).all()


def test_cameras_selects_images(tmp_path):
    folder = write_aloha(tmp_path / "x")
    assert list(load(folder, cameras=["cam_low"]).step_spec["observation"]["images"]) == ["cam_low"]
    assert "images" not in load(folder, cameras=[]).step_spec["observation"]
    with pytest.raises(SourceError, match="x must have one camera 'front', got 0; its cameras are images.cam_high, im"):
        load(folder, cameras=["front"])


def test_cameras_that_the_first_episode_lacks_are_left_out(tmp_path):
    folder = write_aloha(tmp_path / "x")
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        del file["observations/images/cam_high"]
    drop = [DropFields(("observation/images/cam_high",))]
    for source in (load(folder, cameras=["cam_low"]), apply_transforms(load(folder), drop)[0]):
        assert [list(episode.steps["observation"]["images"]) for episode in source] == [["cam_low"]] * 2


def test_damaged_image_names_file_column_and_step(tmp_path):
    folder = write_aloha(tmp_path / "x", is_compressed=True)
    with h5py.File(folder / "episode_1.hdf5", "a") as file:
        file["observations/images/cam_low"][2, 20:] = 0
    with pytest.raises(SourceError, match=r"x/episode_1.hdf5: 'observations/images/cam_low', step 2: .*damaged"):
        list(load(folder))
    with h5py.File(folder / "episode_1.hdf5", "a") as file:
        file["observations/images/cam_low"][2] = 0
    with pytest.raises(SourceError, match=r"step 2: the image must be a PNG, JPEG, WEBP or TIFF file, got b'\\x00'"):
        list(load(folder))


@pytest.mark.parametrize("size", [0, 100, 3000, None])
def test_other_episodes_are_read_when_the_first_one_is_damaged(tmp_path, size):
    folder = write_aloha(tmp_path / "x", lengths=(4, 3, 2))
    first = folder / "episode_0.hdf5"
    if size is None:
        with h5py.File(first, "a") as file:
            del file["action"]
    else:
        first.write_bytes(first.read_bytes()[:size])
    source = load(folder, on_invalid="skip_episode")
    assert [episode.num_steps for episode in source] == [3, 2] and list(source.skipped) == [0]
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(SourceError, match="episode_0.hdf5 is empty"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("action", np.zeros((2, 2)), "all columns must have the same number of rows >= 1, got .*'action': 2"),
        ("action", np.zeros((0, 2)), "all columns must have the same number of rows >= 1"),
        ("observations/qpos", h5py.SoftLink("/action"), "is a soft link; copy the data"),
        ("observations/images/cam_low", np.zeros(4), "step 0: the image must be a PNG, JPEG, WEBP or TIFF file"),
        ("observations/images/cam_low", np.zeros((0, 9)), "step 0: the image must be a PNG, JPEG, WEBP or TIFF file"),
    ],
)
def test_malformed_file_raises(tmp_path, name, column, message):
    folder = write_aloha(tmp_path / "x")
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        del file[name]
        file[name] = column
    with pytest.raises(SourceError, match=f"episode_0.hdf5.*{message}"):
        list(load(folder))


def test_folder_converts_to_lerobot_and_keeps_every_action(tmp_path):
    write_dataset(write_aloha(tmp_path / "x"), tmp_path / "out", format="lerobot", fps=50)
    written = list(load(tmp_path / "out"))
    assert [episode.steps["action"][-1].tolist() for episode in written] == [[4, 4.5], [13, 13.5]]
    assert (written[0].steps["observation"]["images"]["cam_high"] == make_images(4)).all()
