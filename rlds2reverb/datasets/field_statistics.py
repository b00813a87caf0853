"""Statistics of the fields of steps, and the normalisation of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlds2reverb.types import fields
from rlds2reverb.types.episodes import FinalRow
from rlds2reverb.types.nest_paths import find_leaves, format_path, get_part
from rlds2reverb.types.short_repr import short_repr

from .moments import LeafMoments

if TYPE_CHECKING:
    from .steps.step_columns import StepColumns

#: By mean and standard deviation; or the 1% and 99% quantiles to -1 and 1.
Normalization = Literal["mean_std", "quantiles"]
#: Maximum number of rows that quantiles are computed from, which are then evenly spaced.
_MAX_ROWS = 1 << 20


@dataclass(frozen=True)
class FieldStatistics:
    """Statistics of one field of the steps, element by element, and its normalisation.

        mean_std:   (x - mean) / std
        quantiles:  2 (x - q01) / (q99 - q01) - 1

    The first is LeRobot's MEAN_STD; the second its QUANTILES, which openpi uses as well. Values beyond the quantiles
    are not clipped. Elements that are constant become 0.

    Attributes:
      mean: float64, of the shape of one step.
      std: standard deviation.
      min: minimum.
      max: maximum.
      q01: the quantile below which 1% of the values are; exact for up to 1,048,576 steps, else of as many of them.
      q99: the quantile below which 99% of the values are.
      normalization: how `normalize` normalises.
    """

    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray
    normalization: Normalization = "mean_std"

    __repr__ = short_repr

    def normalize(self, column: np.ndarray) -> np.ndarray:
        """Returns values of the field, `[..., *shape]`, normalised, as float32."""
        middle, half = self._range
        scale = np.where(half > 0, half, np.inf)
        return ((column - middle) / scale).astype(np.float32)

    def unnormalize(self, column: np.ndarray) -> np.ndarray:
        """Returns the values that `normalize` normalised, such as actions that a policy has predicted."""
        middle, half = self._range
        return (np.asarray(column, np.float64) * half + middle).astype(np.float32)

    @property
    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """What becomes 0, and its distance to what becomes 1."""
        if self.normalization == "mean_std":
            return self.mean, self.std
        return (self.q99 + self.q01) / 2, (self.q99 - self.q01) / 2


def read_statistics(steps: StepColumns, path: str, normalization: Normalization) -> FieldStatistics:
    """Reads the statistics of a field, without the rows that hold no value of it at the ends of episodes.

    Args:
      steps: the steps.
      path: dotted path of an array of numbers, such as 'observation.state'.
      normalization: see `FieldStatistics`.

    Raises:
      ValueError: If there is no such field, it is not an array of floats, or it contains NaN or Inf.
    """
    (keys, is_leaf), *others = find_leaves(steps.layout.step_spec, path)
    spec = get_part(steps.layout.step_spec, keys)
    if others or not is_leaf or spec.dtype.kind != "f":
        raise ValueError(f"only arrays of floats can be normalised, got {path!r}; name one of them")
    moments, parts, stride = LeafMoments(spec.shape), [np.zeros((0, *spec.shape))], -(-len(steps) // _MAX_ROWS)
    low, high = np.full(spec.shape, np.inf), np.full(spec.shape, -np.inf)
    is_used, first = _mark_values(steps, is_state=keys[0] == fields.OBSERVATION), 0
    for columns, num_steps in steps.read_batches([format_path(keys)]):
        count = int(num_steps.sum())
        rows = get_part(columns, keys)[is_used[first : first + count]]
        first += count
        moments.add(rows)
        parts.append(rows[::stride])
        low, high = np.minimum(low, rows.min(0, initial=np.inf)), np.maximum(high, rows.max(0, initial=-np.inf))
    values = np.concatenate(parts)
    if not len(values) or not moments.is_finite:
        raise ValueError(f"{path!r} has no values, or NaN or Inf among them; validate the data first")
    q01, q99 = np.quantile(values, [0.01, 0.99], axis=0)
    return FieldStatistics(moments.mean, moments.std, low, high, q01, q99, normalization)


def _mark_values(steps: StepColumns, *, is_state: bool) -> np.ndarray:
    """Returns which rows hold an observation, or an action and what belongs to it, bool `[R]`."""
    is_used, last = np.ones(len(steps), bool), np.cumsum(steps.num_steps) - 1
    missing: Sequence[FinalRow] = (FinalRow.PLACEHOLDER,) if is_state else (FinalRow.PLACEHOLDER, FinalRow.OBSERVATION)
    is_used[last[np.isin(steps.final_rows, missing) & (steps.num_steps > 0)]] = False
    return is_used
