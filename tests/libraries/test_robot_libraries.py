"""`lerobot` and `robomimic` as readers of what is written, and as references of what is read.

`make test-lerobot` installs them, beside the light installation; elsewhere, these tests are skipped.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb import StepOffsets, batches, load, write_dataset

torch = pytest.importorskip("torch")
if not (Path(torch.__file__).parents[1] / "lerobot").is_dir():
    pytest.skip("requires lerobot", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")

# torchvision on PyPI is built for GPUs. With PyTorch for CPUs, its operators, of which lerobot needs none, are missing.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets import lerobot_dataset  # noqa: E402
from robomimic.utils.dataset import SequenceDataset  # noqa: E402

DATA = Path(__file__).parents[1] / "data/formats"
LIFT = {
    "join": {"observation.state": ["observation.robot0_eef_pos", "observation.robot0_eef_quat"]},
    "constant": {"task": "lift the cube"},
}


def decode(path, timestamps, tolerance_s, backend):
    """Returns frames in LeRobot's form. Its own decoders need FFmpeg, or classes that torchvision has removed."""
    import av

    with av.open(str(path)) as container:
        frames = {float(frame.time): frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)}
    found = [min(frames, key=lambda time: abs(time - wanted)) for wanted in timestamps]
    np.testing.assert_allclose(found, timestamps, atol=tolerance_s)
    return to_tensor(np.stack([frames[time] for time in found]))


def to_tensor(images):
    """Returns uint8 images [..., H, W, C] as floats [..., C, H, W] in [0, 1], as LeRobot does."""
    return torch.from_numpy(np.moveaxis(images, -1, -3).astype(np.float32) / np.float32(255))


def open_lerobot(path, monkeypatch, **options):
    monkeypatch.setattr(lerobot_dataset, "decode_video_frames", decode)
    return lerobot_dataset.LeRobotDataset("local/sample", root=path, video_backend="pyav", **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("robomimic/d2_image_no_next_obs.hdf5", {"mapping": LIFT, "fps": 20}),
        ("lerobot/v2.1/c2", {}),
        ("lerobot/v3.0/c3", {}),
    ],
)
def test_lerobot_reads_equal_values_tasks_and_frames_of_written_datasets(name, options, tmp_path, monkeypatch):
    mapping = options.pop("mapping", None)
    source = load(DATA / name, mapping=mapping)
    write_dataset(source, tmp_path / "written", format="lerobot", **options)
    read = open_lerobot(tmp_path / "written", monkeypatch)
    row = 0
    for number, episode in enumerate(source):
        num_rows = episode.num_steps - (not episode.dropped_last_transition)
        for step in range(num_rows):
            item = read[row]
            assert (item["index"], item["episode_index"], item["frame_index"]) == (row, number, step)
            assert item["timestamp"] == np.float32(step / read.fps)
            assert item["task"].encode() == episode.steps["task"][step]
            for path, column in episode.columns:
                if path[0] in ("observation", "action", "reward"):
                    found = item["next.reward" if path == ("reward",) else ".".join(path)]
                    is_image = column.dtype == np.uint8 and column.ndim == 4
                    wanted = to_tensor(column[step]) if is_image else torch.tensor(column[step], dtype=torch.float32)
                    torch.testing.assert_close(found.reshape(wanted.shape), wanted, rtol=0, atol=0)
            row += 1
    assert row == len(read)


@pytest.mark.parametrize("name", ["v3.0/c2", "v3.0/c3"])
def test_items_match_delta_timestamps(name, tmp_path, monkeypatch):
    folder = shutil.copytree(DATA / "lerobot" / name, tmp_path / "sample")  # LeRobot creates files there.
    fps = json.loads((folder / "meta/info.json").read_text())["fps"]
    seconds = {"observation.state": [-2, 0, 1], "action": range(-1, 4)}
    if "c2" in name:
        seconds |= {"observation.images.front": [-2, 0, 1], "observation.images.wrist": [-1, 0]}
    seconds = {field: [steps / fps for steps in given] for field, given in seconds.items()}
    wanted = open_lerobot(folder, monkeypatch, delta_timestamps=seconds)
    items = StepOffsets.from_seconds({**seconds, "index": 0}, fps)
    seen = []
    for batch in batches(load(folder, extra_fields=["index"]), 16, items=items, epochs=1):
        for place, index in enumerate(batch["index"].tolist()):
            item = wanted[index]
            for field in seconds:
                found = batch
                for part in field.split("."):
                    found = found[part]
                found = to_tensor(found[place]) if "images" in field else torch.from_numpy(found[place])
                torch.testing.assert_close(found, item[field], rtol=0, atol=0)
                assert item[f"{field}_is_pad"].tolist() == (~batch["mask"][field][place]).tolist()
            seen.append(index)
    assert sorted(seen) == list(range(len(wanted)))


@pytest.mark.parametrize("name", ["lerobot/v3.0/c3", "robomimic/d1_low_dim.hdf5"])
def test_robomimic_reads_every_action_of_written_files(name, tmp_path):
    source = load(DATA / name)
    path = tmp_path / "written.hdf5"
    write_dataset(source, path, format="robomimic")
    keys = sorted(source.first_episode.steps["observation"])
    read = SequenceDataset(
        str(path), keys, ("actions", "rewards", "dones"), seq_length=4, get_pad_mask=True, load_next_obs=False
    )
    start = 0
    for episode in source:
        num_rows = episode.num_steps - (not episode.dropped_last_transition)
        for step in range(num_rows):
            item = read[start + step]
            at = np.minimum(np.arange(step, step + 4), num_rows - 1)
            np.testing.assert_array_equal(item["actions"], episode.steps["action"][at])
            np.testing.assert_array_equal(item["pad_mask"].ravel(), np.arange(step, step + 4) < num_rows)
            for key in keys:
                np.testing.assert_array_equal(item["obs"][key], episode.steps["observation"][key][at])
        start += num_rows
    assert start == len(read)
