"""Safe reading of the videos of LeRobot datasets: the frames of an episode's rows, from within its span."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.text import format_bytes
from rlds2reverb.types.episodes import Contradiction

from .lerobot_files import ADVICE, MAX_ROW_BYTES
from .lerobot_meta import Feature, Span

#: Difference between the time of a row and that of its frame from which it is reported: LeRobot's `tolerance_s`.
REPORTED_SECS = 1e-4
#: Maximum difference by default, in intervals between rows.
_MAX_DRIFT = 0.25
#: Maximum deviation of the bounds of a span in intervals: of its first frame and of the next span; and of
#: `to_timestamp`, for which some writers use the time of the last frame.
_MAX_OVERLAP, _MAX_END = 0.5, 1.5
#: A keyframe is sought so many seconds earlier if decoding begins after a row: in open groups of pictures, frames just
#: before a keyframe can only be decoded from the one before it.
_GROUP_SECS = 10.0
#: LeRobot's default quantisation of depth in metres.
_DEPTH = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5}
_DEPTH_BITS = 12
_SPAN_ADVICE = Message("convert the dataset again, or leave out the camera", cameras=...)


def read_camera(
    feature: Feature, span: Span, timestamps: np.ndarray, where: str, tolerance_s: float | None = None
) -> tuple[np.ndarray, list[Contradiction]]:
    """Returns the frames of the rows of an episode, and what is odd about them.

    Args:
      feature: the camera.
      span: the place of the episode in a video.
      timestamps: times of the rows in the episode, in seconds, ascending: `[T]`.
      where: name of the episode, for error messages.
      tolerance_s: maximum difference between the time of a row and that of its frame, in seconds; None for a quarter of
        the interval between rows.

    Returns:
      Frames `[T, height, width, channels]`: uint8; or depth, as uint16 in millimetres or float32 in metres.

    Raises:
      SourceError: If the file is missing or damaged, its frames have a different size, no frame is close enough to a
        row, or rows require frames outside of the span.
    """
    where, times = f"{where}: '{feature.name}'", span.start + timestamps.astype(np.float64)
    if len(times) > 1:
        interval = float(np.median(np.diff(times)))
    else:
        interval = 0.0 if span.stop is None else span.stop - span.start
    found = [*_check_span(span, times, interval, where, feature.name)]
    tolerance = max(_MAX_DRIFT * interval, REPORTED_SECS) if tolerance_s is None else tolerance_s
    frames, errors = read_frames(span.path, times, feature.shape, where, tolerance, is_depth=feature.depth is not None)
    is_off = errors > REPORTED_SECS
    if is_off.any():
        message = f"{is_off.sum():,} rows of the episode have the nearest frame, up to {errors.max():.4f} s off"
        found.append(Contradiction(int(np.argmax(is_off)), feature.name, message, "video-drift"))
    return frames if feature.depth is None else _decode_depth(frames, feature.depth), found


def _check_span(span: Span, times: np.ndarray, interval: float, where: str, camera: str) -> Iterator[Contradiction]:
    """Yields what is odd about a span; raises `SourceError` if rows require frames outside of it."""
    first, last, name = float(times[0]), float(times[-1]) + interval, span.path.name
    overlap, deviation = _MAX_OVERLAP * interval, _MAX_END * interval
    problems: list[str] = []
    if first < span.start - overlap:
        problems.append(f"its span begins at {span.start:.4f} s")
    if span.stop is not None and abs(last - span.stop) > deviation:
        problems.append(f"its span ends at {span.stop:.4f} s")
    if span.before is not None and span.start < span.before - overlap:
        problems.append(f"the span of the episode before it ends at {span.before:.4f} s")
    if span.after is not None and last > span.after + overlap:
        problems.append(f"the span of the next episode begins at {span.after:.4f} s")
    if problems:
        raise SourceError(
            f"{where}: the timestamps of its rows require the frames from {first:.4f} s to {last:.4f} s of {name}, but "
            f"{' and '.join(problems)}; {_SPAN_ADVICE}"
        )
    if first > span.start + overlap:
        message = f"the first timestamp is {first - span.start:.4f}, so that the span begins with unused frames"
        yield Contradiction(0, camera, message, "video-span")
    if span.before is not None and span.start > span.before + deviation:
        message = f"no episode has the frames before its span, from {span.before:.4f} s to {span.start:.4f} s of {name}"
        yield Contradiction(None, camera, message, "video-span")


def import_av() -> Any:
    """Returns the module `av`.

    Raises:
      ImportError: If PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError(
            f"the videos of LeRobot datasets require PyAV ({error}); run {install_command('lerobot')}"
        ) from error
    return av


def read_frames(
    path: Path, times: np.ndarray, shape: tuple[int, ...], where: str, tolerance: float, *, is_depth: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the frames of a video that are closest to the given times, and their distances in seconds.

    Args:
      path: the MP4 file.
      times: times in seconds, ascending: float64 `[T]`.
      shape: height, width, and number of channels.
      where: name of the camera and the episode, for error messages.
      tolerance: maximum distance in seconds.
      is_depth: whether the frames are the 12-bit codes of depth.

    Returns:
      The frames `[T, height, width, channels]`, uint8 or uint16, and the distances, float64 `[T]`.

    Raises:
      SourceError: If the file is missing or damaged, its frames have a different size, or no frame is close enough.
    """
    try:
        av = import_av()
    except ImportError as error:
        raise SourceError(str(error)) from error
    if math.prod(shape) > MAX_ROW_BYTES or (np.diff(times) <= 0).any():
        message = f"{where}: timestamps must increase, and frames have at most {format_bytes(MAX_ROW_BYTES)}"
        raise SourceError(f"{message}; sort the rows, or leave out the camera", cameras=...)
    frames = np.empty((len(times), *shape), np.uint16 if is_depth else np.uint8)
    errors, row = np.zeros(len(times)), 0
    try:
        # Neither a URL nor a playlist, which FFmpeg would follow.
        with path.open("rb") as file, av.open(file, format="mp4") as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            _require_size((stream.codec_context.width, stream.codec_context.height), shape, where)
            for start in (times[0] - tolerance, max(times[0] - _GROUP_SECS, 0), 0):
                container.seek(int(start / stream.time_base), stream=stream)
                decoded = ((float(frame.pts * stream.time_base), frame) for frame in container.decode(stream))
                first = list(itertools.islice(decoded, 1))
                if not first or first[0][0] <= times[0] + REPORTED_SECS:
                    break
            for row, (errors[row], frame) in enumerate(_find_nearest(itertools.chain(first, decoded), times)):
                if errors[row] > tolerance:
                    break
                _require_size((frame.width, frame.height), shape, f"{where}, step {row}")
                frames[row] = _read_codes(frame) if is_depth else _read_pixels(frame, shape)
            else:
                return frames, errors
    except FileNotFoundError as error:
        raise SourceError(f"{where}: {path} is missing; {ADVICE}") from error
    except (av.error.FFmpegError, IndexError, OSError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{where}: {path} is damaged at step {row} ({error}); {ADVICE}") from error
    raise SourceError(
        f"{where}, step {row}: {path} has no frame within {tolerance:.4g} s of {times[row]:.4f} s; if the video is "
        "complete, its timestamps are wrong: convert the dataset again, leave out the camera, or accept other frames",
        cameras=...,
        tolerance_s=...,
    )


def _find_nearest(frames: Iterable[tuple[float, Any]], times: np.ndarray) -> Iterator[tuple[float, Any]]:
    """Yields the distance in seconds of the frame that is closest to each time, and the frame."""
    before, row = (-math.inf, None), 0
    for following in itertools.chain(frames, [(math.inf, None)]):
        while times[row] <= following[0]:
            distances = [(abs(time - times[row]), frame) for time, frame in (before, following)]
            yield min(distances, key=lambda pair: pair[0])
            row += 1
            if row == len(times):
                return
        before = following


def _require_size(size: tuple[int, int], shape: tuple[int, ...], where: str) -> None:
    if size != (shape[1], shape[0]):
        raise SourceError(f"{where}: the image must be {shape[1]}x{shape[0]} as in meta/info.json, got "
                          f"{size[0]}x{size[1]}; {ADVICE}")  # fmt: skip


def _read_pixels(frame: Any, shape: tuple[int, ...]) -> np.ndarray:
    pixels = frame.to_ndarray(format="rgb24" if shape[2] == 3 else "gray")
    return np.asarray(pixels).reshape(shape)


def _read_codes(frame: Any) -> np.ndarray:
    """Returns the numbers of a frame of depth, uint16 `[height, width, 1]`, which conversions would scale."""
    bits = frame.format.components[0].bits
    if bits != _DEPTH_BITS:
        raise SourceError(f"the frames of depth must have {_DEPTH_BITS} bits, got {frame.format.name}; {ADVICE}")
    plane = frame.planes[0]
    rows = np.frombuffer(plane, "<u2").reshape(plane.height, plane.line_size // 2)
    return rows[:, : plane.width, None]


def _decode_depth(codes: np.ndarray, description: Mapping[str, Any]) -> np.ndarray:
    """Returns depth from 12-bit codes as LeRobot quantises it: linear between two depths, or in the logarithm.

        depth = exp(code / 4095 * (log(max + shift) - log(min + shift)) + log(min + shift)) - shift

    Args:
      codes: uint16 array.
      description: `info` of the camera in `info.json`.

    Returns:
      uint16, rounded millimetres, or float32, metres if `depth_unit` is 'm'.
    """
    low, high, shift = (float(description.get(f"video.{name}", default)) for name, default in _DEPTH.items())
    is_log = bool(description.get("video.use_log", True))
    scaled = np.arange(1 << _DEPTH_BITS) / ((1 << _DEPTH_BITS) - 1)
    if is_log:
        metres = np.exp(np.log(low + shift) + scaled * np.log((high + shift) / (low + shift))) - shift
    else:
        metres = low + scaled * (high - low)
    metres = np.clip(metres, low, high)
    values = metres.astype(np.float32) if description.get("depth_unit") == "m" else np.rint(metres * 1000)
    return (values if values.dtype == np.float32 else np.clip(values, 0, 65_535).astype(np.uint16))[codes]
