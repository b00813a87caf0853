"""Statistics of the columns of LeRobot datasets, per episode and over all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
#: Images are summarised by at most this many frames of about this many pixels in height, as in LeRobot.
_MAX_FRAMES, _IMAGE_HEIGHT = 100, 150

ColumnStatistics = dict[str, list[Any]]


def summarize_columns(columns: Mapping[str, np.ndarray], images: Collection[str]) -> dict[str, ColumnStatistics]:
    """Returns minimum, maximum, mean, standard deviation, count and quantiles of the columns of an episode.

    Args:
      columns: numbers `[T, ...]`, which are summarised over their first axis.
      images: names of columns of images `[T, height, width, channels]`, of which a sample is summarised per channel, in
        units of 255, with shape `[channels, 1, 1]`.
    """
    return {name: _summarize(_sample_pixels(column) if name in images else column, is_image=name in images)
            for name, column in columns.items()}  # fmt: skip


def _sample_pixels(images: np.ndarray) -> np.ndarray:
    rows = np.linspace(0, len(images) - 1, min(len(images), _MAX_FRAMES)).round().astype(int)
    step = max(images.shape[1] // _IMAGE_HEIGHT, 1)
    return images[rows, ::step, ::step]


def _summarize(values: np.ndarray, *, is_image: bool) -> ColumnStatistics:
    count = len(values)
    if is_image:
        values = np.moveaxis(values, 3, 0).reshape(values.shape[3], -1).T / 255
        values = values[:, :, None, None]
    elif values.ndim == 1:
        values = values[:, None]
    numbers = values.astype(np.float64)
    quantiles = np.quantile(numbers, list(_QUANTILES.values()), axis=0)
    return {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": numbers.mean(axis=0).tolist(),
        "std": numbers.std(axis=0).tolist(),
        "count": [count],
        **{name: quantile.tolist() for name, quantile in zip(_QUANTILES, quantiles, strict=True)},
    }


class Statistics:
    """The statistics of all episodes, from those of each; as in LeRobot, quantiles are means of theirs."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Any]] = defaultdict(dict)

    def add(self, episode: Mapping[str, ColumnStatistics]) -> None:
        """Adds the statistics of an episode."""
        for name, stats in episode.items():
            sums, count, mean = self._sums[name], stats["count"][0], np.asarray(stats["mean"])
            added = {key: np.asarray(stats[key]) * count for key in ("mean", *_QUANTILES)}
            added |= {"square": (np.square(stats["std"]) + mean**2) * count, "count": count}
            sums |= {key: sums.get(key, 0) + value for key, value in added.items()}
            sums["min"] = np.minimum(stats["min"], sums.get("min", stats["min"]))
            sums["max"] = np.maximum(stats["max"], sums.get("max", stats["max"]))

    def as_dict(self) -> dict[str, ColumnStatistics]:
        """Returns the statistics of all episodes that were added."""
        return {name: _finish(sums) for name, sums in self._sums.items()}


def _finish(sums: Mapping[str, Any]) -> ColumnStatistics:
    count = int(sums["count"])
    means = {key: sums[key] / count for key in ("mean", *_QUANTILES)}
    deviation = np.sqrt(np.maximum(sums["square"] / count - means["mean"] ** 2, 0))
    extremes = {key: sums[key].tolist() for key in ("min", "max")}
    rest = {key: mean.tolist() for key, mean in means.items()}
    return {**extremes, **rest, "std": deviation.tolist(), "count": [count]}
