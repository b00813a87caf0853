"""Films of a policy in its environment, as MP4 or GIF files; they need no display."""

from __future__ import annotations

import base64
import contextlib
import ctypes.util
import html
import importlib
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.system.installation import install_command
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.locations import expand_path
from rlds2reverb.types.short_repr import short_repr

from .batched_environment import BatchedEnvironment
from .creation import make_environment
from .environment import Environment
from .evaluation import name_environment
from .goal_tasks import expects_goals
from .policy_actions import PolicyActor, require_number_rewards
from .rollout import Rollout
from .time_steps import LAST

SUFFIXES = (".mp4", ".gif")
_RGB = "rgb_array"
_DEFAULT_RATE = 30.0
#: Maximum number of images per second by format; faster environments show only some of their steps.
_MAX_RATES = {".mp4": 50.0, ".gif": 34.0}
#: Maximum width and height of the images by format, in pixels.
_MAX_EDGES = {".mp4": 1280, ".gif": 320}
_INSTALL_PACKAGES = "install the packages that it needs for rendering, such as pygame"
_INSTALL_MESA = "run apt-get install libosmesa6, which renders MuJoCo without a display or a GPU"


@dataclass(frozen=True)
class Film:
    """A film that was recorded; notebooks show it.

    Attributes:
      path: path of the file.
      returns: float64 [N], undiscounted return of each episode.
      lengths: int64 [N], number of steps of each episode.
      num_images: number of images.
      images_per_sec: rate at which the film plays in real time.
      size: width and height in pixels.
    """

    path: Path
    returns: np.ndarray
    lengths: np.ndarray
    num_images: int
    images_per_sec: float
    size: tuple[int, int]

    __repr__ = short_repr

    def to_html(self) -> str:
        """Returns an HTML element that contains the film."""
        content = base64.b64encode(self.path.read_bytes()).decode()
        label = html.escape(f"film of {len(self.returns)} episodes", quote=True)
        if self.path.suffix.lower() == ".gif":
            return f'<img src="data:image/gif;base64,{content}" alt="{label}" style="max-width: 100%">'
        source = f"data:video/mp4;base64,{content}"
        return f'<video src="{source}" aria-label="{label}" controls muted loop style="max-width: 100%"></video>'

    def as_dict(self) -> dict[str, Any]:
        """Returns the attributes as JSON values."""
        arrays = {"returns": self.returns.tolist(), "lengths": self.lengths.tolist()}
        return {**vars(self), **arrays, "path": str(self.path), "size": list(self.size)}

    def __str__(self) -> str:
        secs = self.num_images / self.images_per_sec
        returns = ", ".join(f"{value:,.1f}" for value in self.returns)
        return f"{self.path}: {secs:.1f} s, {self.size[0]}x{self.size[1]} pixels, return {returns}"

    def _repr_html_(self) -> str:
        return self.to_html()


def record_film(
    env: Any,
    policy: Any,
    path: str | Path,
    *,
    num_episodes: int = 1,
    seed: int = 0,
    max_episode_steps: int | None = None,
    images_per_sec: float | None = None,
    progress: Callable[[int], None] = lambda step: None,
) -> Film:
    """Films a policy in its environment.

        record_film("Pendulum-v1", load_run("runs/iql").policy, "pendulum.mp4")

    Without a display, MuJoCo renders with Mesa's software renderer if it is installed and `MUJOCO_GL` is not set.

    Args:
      env: an environment: an id such as 'Hopper-v5', a `gymnasium.EnvSpec`, a `gymnasium.Env` with a `spec`, or a
        function that returns a `gymnasium.Env` with render_mode='rgb_array' or an `Environment` that renders.
      policy: see `record_episodes`.
      path: file to write, in a format according to its name: .mp4, which requires imageio-ffmpeg, or .gif.
      num_episodes: number of episodes, one after the other.
      seed: seed of the first episode, and of random actions; each further episode uses the next seed.
      max_episode_steps: number of steps after which episodes are truncated, in place of the environment's own time
        limit; None for that limit.
      images_per_sec: number of steps that the film shows per second; None for real time.
      progress: function called with the number of steps up to now.

    Raises:
      ImportError: If a package or library for rendering or writing is not installed; the message says what to install.
      ValueError: If the file has another suffix, an argument is out of range, or the environment cannot be rendered.
      TypeError, SpecMismatchError: As `record_episodes`.
    """
    path = expand_path(path, "path")
    require_film_path(path)
    suffix = path.suffix.lower()
    require_count("num_episodes", num_episodes)
    require_count("seed", seed, 0)
    if images_per_sec is not None:
        require_number("images_per_sec", images_per_sec, 0.1, 1000)
    name, make = name_environment(env)
    with _headless_rendering(), _make_environment(name, make, policy, max_episode_steps) as environment:
        require_number_rewards(environment, name)
        rate = images_per_sec or _find_rate(environment)
        stride = math.ceil(rate / _MAX_RATES[suffix] - 1e-6)
        totals: list[tuple[float, int]] = []
        images = _iterate_images(name, environment, policy, range(seed, seed + num_episodes), stride, totals, progress)
        sizes: Counter[tuple[int, int]] = Counter()
        temporary = path.with_name(f".{os.getpid()}-{path.name}")  # The film appears when it is complete.
        try:
            _write(temporary, _scale(images, _MAX_EDGES[suffix], sizes), rate / stride)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    returns, lengths = zip(*totals, strict=True)
    ((size, num_images),) = sizes.items()
    return Film(path, np.array(returns), np.array(lengths, np.int64), num_images, rate / stride, size)


def require_film_path(path: Path) -> None:
    """Raises `ValueError` unless the file has the suffix of a film, and a directory; `ImportError` without a writer."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"the file of a film must end with .mp4 or .gif, got '{path}'")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the directory '{path.parent}' does not exist; create it first")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"the directory '{path.parent}' is not writable; choose another, or change its permissions")
    try:
        importlib.import_module("imageio.v2" if path.suffix.lower() == ".gif" else "imageio_ffmpeg")
    except ImportError as error:
        raise ImportError(
            f"films require imageio, and MP4 files require imageio-ffmpeg ({error}); run {install_command('film')}, or "
            "write a .gif"
        ) from error


def _iterate_images(
    name: str,
    env: Environment,
    policy: Any,
    seeds: range,
    stride: int,
    totals: list[tuple[float, int]],
    progress: Callable[[int], None],
) -> Iterator[np.ndarray]:
    """Yields the images of an episode for each seed, and appends the return and the length of each to `totals`."""
    batch = BatchedEnvironment([env])
    act = PolicyActor(policy, batch, name, 0.0, seeds[0])
    num_steps = 0
    for episode, seed in enumerate(seeds):
        with contextlib.suppress(NotImplementedError):
            env.seed(seed)
        rollout = Rollout(batch, act, name=name, place=f"episode {episode}, step {{step}}")
        for time_step in rollout:
            length, is_last = int(rollout.lengths[0]), time_step.step_type[0] == LAST
            if length:
                progress(num_steps + length)
            if length % stride == 0 or is_last:
                yield _render(name, env)
            if is_last:
                break
        num_steps += length
        totals.append((float(rollout.returns[0]), length))


def _render(name: str, env: Environment) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The first image imports pygame or OpenGL, which warn.
            image = env.render(_RGB)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be rendered: {error}") from error
    except Exception as error:  # Each library for rendering has its own errors.
        raise make_render_error(name, env, error) from error
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
        raise ValueError(
            f"{name} must render images uint8 [H, W, 3], got {image.dtype} {list(image.shape)}; create it "
            "with render_mode='rgb_array'"
        )
    return image


def _scale(images: Iterable[np.ndarray], max_edge: int, sizes: Counter[tuple[int, int]]) -> Iterator[Any]:
    """Yields images for Pillow, scaled down if they are too large, and counts them by size, of which there is one."""
    from PIL import Image

    for image in images:
        picture = Image.fromarray(np.ascontiguousarray(image))
        picture.thumbnail((max_edge, max_edge))
        # Players of MP4 require even numbers.
        size = (picture.width - picture.width % 2, picture.height - picture.height % 2)
        sizes[size] += 1
        if len(sizes) > 1:
            first, second = sizes
            raise ValueError(f"the images of a film must have one size, got {first} and {second}")
        yield picture.crop((0, 0, *size))


def _make_environment(name: str, make: Any, policy: Any, max_episode_steps: int | None) -> Environment:
    from gymnasium.error import Error

    options: dict[str, Any] = {"max_episode_steps": max_episode_steps, "with_goals": expects_goals(policy)}
    try:
        return make_environment(make, **options, render_mode=_RGB)
    except Error as error:
        raise ValueError(f"{name} cannot be rendered: {error}") from error


def _find_rate(env: Environment) -> float:
    gym = getattr(env, "gym", None)
    rate = (getattr(gym, "metadata", None) or {}).get("render_fps")
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else _DEFAULT_RATE


@contextlib.contextmanager
def _headless_rendering() -> Iterator[None]:
    """Selects renderers that need no display while the body runs, if no display exists and no other choice was made."""
    choices = {}
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        choices = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}  # For pygame.
        if ctypes.util.find_library("OSMesa") is not None:
            choices["MUJOCO_GL"] = "osmesa"
    choices = {name: value for name, value in choices.items() if name not in os.environ}
    os.environ.update(choices)
    try:
        yield
    finally:
        for name in choices:
            del os.environ[name]


def make_render_error(name: str, env: Environment, error: Exception) -> ImportError:
    """Returns an error that says what is needed to render an environment whose library raised another one."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    classes = type(getattr(getattr(env, "gym", None), "unwrapped", None)).__mro__
    if not any("mujoco" in base.__module__ for base in classes):
        advice = _INSTALL_PACKAGES
    elif ctypes.util.find_library("OSMesa") is None:
        advice = _INSTALL_MESA
    else:
        advice = "set MUJOCO_GL=osmesa before Python starts"
    return ImportError(f"{name} cannot be rendered here ({reason}); {advice}")


def _write(path: Path, pictures: Iterable[Any], images_per_sec: float) -> None:
    import imageio.v2

    # Browsers start an MP4 file before it is complete only with its index at the front.
    mp4: dict[str, Any] = {"fps": images_per_sec, "macro_block_size": 2, "output_params": ["-movflags", "+faststart"]}
    gif: dict[str, Any] = {"duration": 1000 / images_per_sec, "loop": 0}
    options = gif if path.suffix.lower() == ".gif" else {**mp4, "ffmpeg_log_level": "error"}
    writer: Any = imageio.v2.get_writer(path, **options)
    with writer:
        for picture in pictures:
            writer.append_data(np.asarray(picture))
