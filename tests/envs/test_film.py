"""Films of policies: the images of each step, the rate, and errors that say what to install."""

import ctypes.util
import re
import subprocess
import sys

import numpy as np
import pytest
from counting import Counting
from PIL import Image

from rlds2reverb.envs import TimeLimit, film, record_film
from rlds2reverb.envs.gymnasium_environment import GymnasiumEnvironment


class Rendered(Counting):
    """An environment whose images have the brightness of the step, times 10."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length=5, *, render_mode="rgb_array", size=(20, 31), error=None):
        super().__init__(length)
        self.render_mode, self._size, self._error = render_mode, size, error

    def render(self):
        if self._error is not None:
            raise self._error
        return np.full((*self._size, 3), 10 * self.num_steps, np.uint8)


def read_images(path):
    """Returns the brightness and the duration in ms of each image."""
    with Image.open(path) as image:
        frames = []
        for index in range(image.n_frames):
            image.seek(index)
            frames.append((int(np.asarray(image.convert("L")).mean()), image.info["duration"]))
        return image.size, frames


def test_film_shows_every_step_in_real_time(tmp_path):
    seeds = []

    class Seeded(Rendered):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    result = record_film(Seeded, "random", tmp_path / "a.gif", num_episodes=2, seed=3)
    assert seeds == [3, 4]
    size, frames = read_images(tmp_path / "a.gif")
    assert size == (30, 20)  # Even numbers, for players.
    assert frames == [(brightness, 100) for brightness in (0, 10, 20, 30, 40, 50)] * 2
    assert result.returns.tolist() == [60, 60] and result.lengths.tolist() == [5, 5] and result.num_images == 12
    assert str(result) == f"{tmp_path / 'a.gif'}: 1.2 s, 30x20 pixels, return 60.0, 60.0"
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]
    assert re.fullmatch(r'<img src="data:image/gif;base64,[^"]+" alt="film of 2 episodes" .*>', result._repr_html_())
    assert result.as_dict()["size"] == [30, 20]


def test_fast_environments_show_some_of_their_steps(tmp_path):
    result = record_film(lambda: Rendered(7), "random", tmp_path / "a.gif", images_per_sec=75, max_episode_steps=7)
    assert read_images(tmp_path / "a.gif")[1] == [
        (0, 40),
        (30, 40),
        (60, 40),
        (70, 40),
    ]  # The last one is always shown.
    assert result.images_per_sec == 25


@pytest.mark.parametrize("metadata", [{}, {"render_fps": 0}, {"render_fps": -5}, {"render_fps": None}])
def test_environments_without_a_rate_are_filmed_at_about_30_images_per_second(tmp_path, monkeypatch, metadata):
    monkeypatch.setattr(Rendered, "metadata", {"render_modes": ["rgb_array"], **metadata})
    result = record_film(lambda: Rendered(2), "random", tmp_path / "a.gif")
    assert 25 <= result.images_per_sec <= 34


def test_environments_of_other_kinds_and_large_images_are_filmed(tmp_path):
    def make():
        return TimeLimit(GymnasiumEnvironment(Rendered(9, size=(640, 320))), 2)

    result = record_film(make, "random", tmp_path / "a.gif")
    assert result.size == (160, 320) and result.lengths.tolist() == [2]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((Rendered, "random", "a.avi"), {}, ValueError, "must end with .mp4 or .gif, got 'a.avi'"),
        ((Rendered, "random", "no/a.gif"), {}, ValueError, "directory 'no' does not exist"),
        ((Rendered, "random", "a.gif"), {"num_episodes": 0}, ValueError, "num_episodes must be an integer >= 1"),
        ((Rendered, "random", "a.gif"), {"images_per_sec": 0}, ValueError, "images_per_sec must be"),
        ((Rendered, "fast", "a.gif"), {}, ValueError, "policy must be 'random'"),
        ((lambda: Rendered(render_mode=None), "random", "a.gif"), {}, ValueError, "cannot be rendered: .*render_mode='rgb_array'"),
        ((lambda: GymnasiumEnvironment(Counting()), "random", "a.gif"), {}, ValueError, "render_mode=None"),
        ((lambda: Rendered(error=NotImplementedError("no"))), {}, ValueError, "cannot be rendered: no"),
        ((lambda: Rendered(error=OSError("no GL"))), {}, ImportError, r"cannot be rendered here \(no GL\); install the pack"),
        ((lambda: Rendered(size=(2, 2, 2))), {}, ValueError, r"images uint8 \[H, W, 3\], got uint8 \[2, 2, 2, 3\]"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise_and_leave_no_file(tmp_path, monkeypatch, arguments, options, error, message):
    monkeypatch.chdir(tmp_path)
    arguments = arguments if isinstance(arguments, tuple) else (arguments, "random", "a.gif")
    with pytest.raises(error, match=message):
        record_film(*arguments, **options)
    assert list(tmp_path.iterdir()) == []


def test_missing_libraries_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(
        ImportError, match=r"MP4 files require imageio-ffmpeg .*pip install .*imageio-ffmpeg.*or write a .gif"
    ):
        record_film(Rendered, "random", tmp_path / "a.mp4")
    mujoco = type("Hopper", (), {"__module__": "gymnasium.envs.mujoco.hopper_v5"})
    env = type("Env", (), {"gym": type("Gym", (), {"unwrapped": mujoco()})()})()
    monkeypatch.setattr(film.ctypes.util, "find_library", lambda name: None)
    assert "apt-get install libosmesa6" in str(film.make_render_error("Hopper-v5", env, OSError("no display")))
    monkeypatch.setattr(film.ctypes.util, "find_library", lambda name: name)
    assert "MUJOCO_GL=osmesa" in str(film.make_render_error("Hopper-v5", env, OSError()))


@pytest.mark.slow
def test_mp4_of_pendulum_has_its_length_and_rate(tmp_path):
    import imageio_ffmpeg

    result = record_film("Pendulum-v1", "random", tmp_path / "a.mp4", max_episode_steps=45)
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4")) == (46, pytest.approx(46 / 30, abs=0.05))
    assert result.size == (500, 500)


@pytest.mark.slow
@pytest.mark.skipif(
    ctypes.util.find_library("OSMesa") is None, reason="requires libosmesa6: apt-get install libosmesa6"
)
def test_mujoco_is_filmed_without_a_display(tmp_path, monkeypatch):
    """Films in a separate process, because MuJoCo's renderer is chosen once per process."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-m", "rlds2reverb.cli", "record", "Hopper-v5", "--film", str(tmp_path / "a.gif")]
    finished = subprocess.run([*command, "--max-episode-steps", "6"], capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0 and finished.stderr == "" and "480" not in finished.stdout
    size, frames = read_images(tmp_path / "a.gif")
    assert size == (320, 320) and len(frames) == 3 and all(10 < brightness < 245 for brightness, _ in frames)
