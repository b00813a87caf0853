"""The episodes of the viewer in a report: which ones are shown, and their observations, actions, rewards and images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.specs import Nest, leaves, path_name

from .page import escape_label, show_controls
from .source_statistics import EMPTY, SourceStatistics, is_image, name_column

#: Maximum number of episodes, of values in all of them, of steps in each, and of curves per group.
_MAX_EPISODES, _MAX_VALUES, _MAX_STEPS, _MAX_CURVES = 12, 240_000, 2000, 32
_MAX_INVALID = 4
_MAX_CHARS = 300
#: Limits of the images: number in an episode and of a camera, and size of all in bytes.
_MAX_FRAMES, _MAX_IMAGE_BYTES = 80, 1_200_000
_MAX_EDGE, _MIN_SHOWN_EDGE = 160, 160


def select_episodes(statistics: SourceStatistics) -> dict[int, str]:
    """Returns the positions of episodes worth looking at, each with the reason: by return, by length, or invalid."""
    returns, lengths = np.asarray(statistics.returns), np.asarray(statistics.lengths)
    usable = np.flatnonzero(np.asarray(statistics.ends) != EMPTY)
    reasons: dict[int, str] = {}
    for position in statistics.invalid[:_MAX_INVALID]:
        if statistics.ends[position] != EMPTY:
            reasons.setdefault(int(position), "has problems")
    ranked = usable[np.isfinite(returns[usable])]
    ranked = ranked[np.argsort(returns[ranked], kind="stable")]
    for share, reason in _RANKS:
        if len(ranked):
            reasons.setdefault(int(ranked[round(share * (len(ranked) - 1))]), reason)
    if len(usable):
        reasons.setdefault(int(usable[np.argmax(lengths[usable])]), "longest")
        reasons.setdefault(int(usable[np.argmin(lengths[usable])]), "shortest")
        reasons.setdefault(int(usable[0]), "first")
        reasons.setdefault(int(usable[-1]), "last")
    return dict(list(reasons.items())[:_MAX_EPISODES])


#: Ranks by return that are shown, in this order.
_RANKS = (
    (1.0, "best return"),
    (0.5, "median return"),
    (0.0, "lowest return"),
    (0.9, "90th percentile of returns"),
    (0.75, "75th percentile of returns"),
    (0.25, "25th percentile of returns"),
    (0.1, "10th percentile of returns"),
)


def make_viewer_episodes(
    episodes: Iterator[Episode], reasons: dict[int, str], statistics: SourceStatistics
) -> list[dict[str, Any]]:
    """Returns the selected episodes for `Page.add_viewer`, in the order of their selection.

    Args:
      episodes: all episodes; reading stops at the last selected one.
      reasons: result of `select_episodes`.
      statistics: statistics of the same episodes.
    """
    found = {}
    for position, episode in enumerate(episodes):
        if position in reasons:
            found[position] = make_viewer_episode(
                episode, f"{reasons[position]}, {statistics.ends[position]}", num_episodes=len(reasons)
            )
        if len(found) == len(reasons):
            break
    return [found[position] for position in reasons if position in found]


def make_viewer_episode(episode: Episode, description: str, *, num_episodes: int = 1) -> dict[str, Any]:
    """Returns an episode as JSON values: curves by group, and the images and texts of all fields that have some.

    Args:
      episode: the episode, with at least one step.
      description: a few words for the list of episodes.
      num_episodes: number of episodes that share the limits on the size of the page.
    """
    num_steps = min(len(column) for _, column in episode.columns)
    groups = [_select_group(episode.steps, name) for name in (fields.OBSERVATION, fields.ACTION, fields.REWARD)]
    num_values = sum(len(curves) for curves, _ in groups)
    limit = max(2, min(_MAX_STEPS, _MAX_VALUES // max(1, num_values * num_episodes)))
    stride = -(-num_steps // limit)
    steps = np.arange(0, num_steps, stride)
    words = [description, f"{episode.num_transitions:,} transitions"]
    if np.isfinite(episode.total_reward):
        words.insert(1, f"return {episode.total_reward:,.4g}")
    notes = [f"every {_ordinal(stride)} step is shown"] if stride > 1 else []
    notes += [note for _, note in groups if note]
    return {
        "label": f"{episode.index}: {words[0]}",
        "facts": "; ".join([", ".join(words[1:]), *notes]) + ".",
        "length": max(num_steps - 1, 0),
        "steps": steps,
        "groups": [group for group in _make_groups([curves for curves, _ in groups], steps, num_steps) if group],
        "frames": _make_frames(episode, num_steps, num_episodes),
        "texts": _make_texts(episode, steps),
    }


def _select_group(steps: Nest, name: str) -> tuple[list[tuple[str, np.ndarray]], str]:
    """Returns the curves of a field as (name, numbers [T]), and a note if there are too many."""
    curves: list[tuple[str, np.ndarray]] = []
    num_hidden = 0
    for path, column in leaves(steps[name]):
        if column.dtype.kind not in "biuf" or is_image(_RowSpec(column)):
            continue
        flat = column.reshape(len(column), int(np.prod(column.shape[1:])))
        shown = max(0, min(flat.shape[1], _MAX_CURVES - len(curves)))
        num_hidden += flat.shape[1] - shown
        names = (name_column(name, path, index, flat.shape[1]) for index in range(shown))
        curves += [(each, flat[:, index]) for index, each in enumerate(names)]
    return curves, f"{num_hidden} more columns of {name}s are not shown" if num_hidden else ""


class _RowSpec:
    """The shape and dtype of a row of a column."""

    def __init__(self, column: np.ndarray):
        self.shape, self.dtype = column.shape[1:], column.dtype


def _make_groups(
    groups: Sequence[list[tuple[str, np.ndarray]]], steps: np.ndarray, num_steps: int
) -> Iterator[dict[str, Any]]:
    """Yields the groups of curves; the meaningless action and reward of the last step are left out."""
    observations, actions, rewards = groups
    for title, curves, is_step in (("observations", observations, False), ("actions", actions, True)):
        if curves:
            traces = [_make_trace(name, column, steps, num_steps, is_step=is_step) for name, column in curves]
            yield {"title": title, "traces": traces, "stepped": is_step}
    for name, column in rewards:
        trace = _make_trace(name, column, steps, num_steps, is_step=True)
        until = np.concatenate([[0.0], np.cumsum(np.asarray(column[: num_steps - 1], np.float64))])[steps]
        readout = [trace, {"name": "return up to here", "y": until}]
        yield {"title": "reward", "traces": [trace], "stepped": True, "colour": 1, "readout": readout}


def _make_trace(name: str, column: np.ndarray, steps: np.ndarray, num_steps: int, *, is_step: bool) -> dict[str, Any]:
    values = column[steps].astype(np.float64)
    if is_step and num_steps > 1:
        values[steps == num_steps - 1] = np.nan
    return {"name": escape_label(name), "y": values}


def _make_frames(episode: Episode, num_steps: int, num_episodes: int) -> list[dict[str, Any]]:
    """Returns the images of each field that has some, as JPEG files."""
    cameras = [(path, column) for path, column in episode.columns if is_image(_RowSpec(column))]
    frames = []
    for path, column in cameras:
        limit = _MAX_IMAGE_BYTES // (num_episodes * len(cameras))
        steps = np.unique(np.linspace(0, num_steps - 1, min(_MAX_FRAMES, num_steps)).astype(int))
        steps = steps[:: -(-len(_encode_image(column[0])) * len(steps) // limit) or 1]
        height, width = _as_channels_last(column[0]).shape[:2]
        shown_width = min(width, _MAX_EDGE) * max(1, _MIN_SHOWN_EDGE // max(height, width))
        images = [_encode_image(column[step]) for step in steps]
        frames.append({"name": _name_field(path), "steps": steps, "images": images, "width": shown_width})
    return frames


def _make_texts(episode: Episode, steps: np.ndarray) -> list[dict[str, Any]]:
    """Returns the texts of each field of strings: one for each of the steps, or a single one if all are equal."""
    texts = []
    for path, column in episode.columns:
        if column.dtype.kind in "OSU":
            rows = [_format_text(value) for value in column[steps]]
            texts.append({"name": _name_field(path), "values": rows[:1] if len(set(rows)) == 1 else rows})
    return texts


def _format_text(value: Any) -> str:
    parts = [part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in np.ravel(value)]
    text = show_controls(", ".join(parts))
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"


def _name_field(path: tuple[Any, ...]) -> str:
    return show_controls(path_name(path[1:], path[0]))


def _as_channels_last(image: np.ndarray) -> np.ndarray:
    if image.ndim == 3 and image.shape[0] in (1, 3, 4) and image.shape[-1] not in (1, 3, 4):
        image = np.moveaxis(image, 0, -1)
    return image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image[..., :3] if image.ndim == 3 else image


def _encode_image(image: np.ndarray) -> str:
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(_as_channels_last(image)))
    picture.thumbnail((_MAX_EDGE, _MAX_EDGE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
