"""Tests of the videos of LeRobot datasets: spans that contradict the rows, drift, and depth."""

import numpy as np
import pytest
from lerobot_samples import CAMERA, SIZE, make_frames, write_sample, write_video

from rlds2reverb import check_dataset, load
from rlds2reverb.errors import SourceError

LENGTHS = (6, 7, 5)
TIMES = np.concatenate([np.arange(length) for length in LENGTHS]).astype(np.float32) / 10


def read_levels(source):
    """Returns the number of the frame that each row shows, by episode."""
    for episode in source:
        frames = episode.steps["observation"]["images"]["top"]
        yield np.rint(frames.mean(axis=(1, 2, 3)) / 10).astype(int).tolist()


def list_videos(source):
    """Returns the findings about videos, as names, first places and messages."""
    found = [one for one in check_dataset(source) if one.check.startswith("video")]
    return [(one.check, one.episode, one.step, one.message) for one in found]


def test_rows_show_the_frames_of_their_span(tmp_path):
    source = load(write_sample(tmp_path / "x", LENGTHS))
    assert list(read_levels(source)) == [[*range(6)], [*range(6, 13)], [*range(13, 18)]]
    assert not list_videos(source)


@pytest.mark.parametrize("group", [3, 5, 7])
def test_frames_before_the_keyframe_of_an_open_group_are_found(tmp_path, group):
    path = write_sample(tmp_path / "x", LENGTHS)
    params = f"open-gop=1:b-adapt=0:keyint={group}:min-keyint={group}:scenecut=0"
    video = path / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    write_video(video, make_frames(sum(LENGTHS)), 10, options={"bf": "4", "x264-params": params})
    read = load(path).read
    for index, start in enumerate((0, 6, 13)):
        levels = next(read_levels(read(index, index + 1)))
        assert levels == [*range(start, start + LENGTHS[index])]


@pytest.mark.parametrize(
    ("starts", "stops", "shift", "episode", "message"),
    [
        ([0, 0.8, 1.3], None, 0, 1, r"frames from 0\.8000 s to 1\.5000 s of file-000\.mp4, but the span of the next episode begins at 1\.3"),
        ([0, 0.4, 1.3], None, 0, 0, r"from 0\.0000 s to 0\.6000 s .*, but the span of the next episode begins at 0\.4"),
        ([0, 0.4, 1.3], [0.4, 1.3, 1.8], 0, 0, r"but its span ends at 0\.4000 s and the span of the next"),
        ([0, 0.6, 1.1], [0.6, 1.3, 1.8], 0, 1, r"to 1\.3000 s .*, but the span of the next episode begins at 1\.1"),
        (None, [0.6, 1.0, 1.8], 0, 1, r"but its span ends at 1\.0000 s"),
        (None, [0.6, 1.6, 1.8], 0, 1, r"but its span ends at 1\.6000 s; convert"),
        (None, None, 0.2, 0, r"from 0\.2000 s to 0\.8000 s .*, but its span ends at 0\.6000 s and the span of the next .* 0\.6"),
        (None, None, -0.2, 0, r"from -0\.2000 s to 0\.4000 s .*, but its span begins at 0\.0000 s and its span ends at 0\.6"),
    ],
)  # fmt: skip
def test_frames_outside_of_the_span_raise_with_both_values(tmp_path, starts, stops, shift, episode, message):
    path = write_sample(
        tmp_path / "x", LENGTHS, starts=starts, stops=stops, columns={"timestamp": TIMES + np.float32(shift)}
    )
    read = load(path).read
    assert len(list(read(0, episode))) == episode
    with pytest.raises(SourceError, match=rf"episode {episode}: 'observation.images.top': .*{message}"):
        list(read(episode, episode + 1))
    with pytest.raises(SourceError, match="convert the dataset again, or leave out the camera"):
        list(load(path))
    assert len(list(load(path, cameras=[]))) == 3


def test_frames_that_no_row_uses_are_a_finding(tmp_path):
    later = write_sample(tmp_path / "later", LENGTHS[:2], starts=[0, 0.9], columns={"timestamp": TIMES[:13]})
    write_video(later / f"videos/{CAMERA}/chunk-000/file-000.mp4", np.zeros((18, SIZE, SIZE, 3), np.uint8), 10)
    message = "no episode has the frames before its span, from 0.6000 s to 0.9000 s of file-000.mp4"
    assert list_videos(load(later)) == [("video-span", 1, None, message)]
    times = TIMES[:13] + np.repeat(np.float32([0.3, 0]), LENGTHS[:2])
    longer = write_sample(tmp_path / "x", LENGTHS[:2], starts=[0, 0.9], stops=[0.9, 1.6], columns={"timestamp": times})
    write_video(longer / f"videos/{CAMERA}/chunk-000/file-000.mp4", np.zeros((16, SIZE, SIZE, 3), np.uint8), 10)
    message = "the first timestamp is 0.3000, so that the span begins with unused frames"
    assert list_videos(load(longer)) == [("video-span", 0, 0, message)]


def test_nearest_frames_are_read_and_counted_far_below_half_an_interval(tmp_path):
    drifted = [0, 0.601, 1.302]
    source = load(write_sample(tmp_path / "x", LENGTHS, starts=drifted))
    assert list(read_levels(source)) == [[*range(6)], [*range(6, 13)], [*range(13, 18)]]
    message = "7 rows of the episode have the nearest frame, up to 0.0010 s off"
    assert list_videos(source) == [("video-drift", 1, 0, message)]
    with pytest.raises(SourceError, match=r"episode 1: .*step 0: .* has no frame within 0\.0001 s of 0\.6010 s"):
        list(load(tmp_path / "x", tolerance_s=1e-4))
    far = write_sample(tmp_path / "far", LENGTHS, starts=[0, 0.64, 1.34])
    with pytest.raises(
        SourceError, match=r"has no frame within 0\.025 s of .*leave out the camera, or accept .*tolerance_s"
    ):
        list(load(far))
    assert [*read_levels(load(far, tolerance_s=0.05))][1] == [*range(6, 13)]
    with pytest.raises(ValueError, match="tolerance_s must be a number >= 0, got -1"):
        load(far, tolerance_s=-1)


@pytest.mark.parametrize(("unit", "dtype", "scale"), [("mm", np.uint16, 1), ("m", np.float32, 1000)])
@pytest.mark.parametrize("is_log", [True, False])
def test_depth_is_read_within_its_quantisation(tmp_path, unit, dtype, scale, is_log):
    random = np.random.default_rng(0)
    codes = random.integers(0, 4096, (5, SIZE, SIZE + 8)).astype(np.uint16)
    low, high, shift = 0.1, 5.0, 2.0
    name = "observation.images.depth"
    parameters = {"video.depth_min": low, "video.depth_max": high, "video.shift": shift, "video.use_log": is_log}
    described = {"is_depth_map": True, "depth_unit": unit, **parameters}
    features = {
        name: {
            "dtype": "video",
            "shape": [SIZE, SIZE + 8, 1],
            "names": ["height", "width", "channels"],
            "info": described,
        }
    }
    path = write_sample(tmp_path / "x", [5], features=features)
    options = {"x265-params": "lossless=1:log-level=none"}
    write_video(
        path / f"videos/{name}/chunk-000/file-000.mp4", codes, 10, codec="libx265", pix_fmt="gray12le", options=options
    )
    (episode,) = load(path)
    depth = episode.steps["observation"]["images"]["depth"]
    assert (depth.dtype, depth.shape[1:]) == (dtype, (SIZE, SIZE + 8, 1))
    ends = np.log([low + shift, high + shift])
    metres = (
        np.exp(ends[0] + codes / 4095 * (ends[1] - ends[0])) - shift if is_log else low + codes / 4095 * (high - low)
    )
    assert np.abs(scale * depth[..., 0].astype(float) - 1000 * metres[: len(depth)]).max() <= 0.51
    eight_bits = write_video(
        path / f"videos/{name}/chunk-000/file-000.mp4", codes.astype(np.uint8)[..., None].repeat(3, -1), 10
    )
    assert eight_bits is None
    with pytest.raises(SourceError, match="the frames of depth must have 12 bits, got yuv420p"):
        list(load(path))
    features[name]["shape"][2] = 3
    with pytest.raises(SourceError, match="the depth video .* must have one channel"):
        load(write_sample(tmp_path / "y", [5], features=features))
