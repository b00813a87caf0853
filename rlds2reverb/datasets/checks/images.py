"""Checks of images: black or of a single colour, standing still while the state changes, and their range."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.types import fields

from ..source import Source
from .actions import find_runs
from .findings import CHECKS, Finding, Tallies, Tally
from .transition_blocks import Block, Field

#: Highest value of a black image, of 255, and largest difference within an image of a single colour. Encoded videos
#: reproduce them only to a few units; the darkest clean sample has maxima of 143.
BLACK_LEVEL, _COLOUR_RANGE = 8, 2
#: Floats above this are those of images from 0 to 255. Every n-th row and column of an image is looked at first.
_MAX_UNIT, _THINNING = 1.5, 5
#: Minimum number of repeated images in a row. If there is neither a state nor another camera, they count only if at
#: most this share of the other images repeats the one before: in games and simulations, images often stand still.
_MIN_FROZEN, _MAX_REPEATED_SHARE = 5, 0.01
#: Minimum change of the state while the images stand still, as a share of its range up to then: a pendulum at rest
#: moves a little without changing an image of 48 pixels.
_MIN_MOTION = 0.2


def find_odd_images(block: Block, tallies: Tallies) -> None:
    """Finds images that are black or of a single colour, and floats from 0 to 255."""
    for field in block.fields:
        if field.is_image and len(field.rows):
            for check, is_found in _find_odd_images(block, field).items():
                tallies[check, field.name, CHECKS[check][1]].add(block, is_found)


def _find_odd_images(block: Block, field: Field) -> dict[str, np.ndarray]:
    """Returns which images of a field each check finds, bool `[M]`; their range is that of the images of an episode."""
    if field.is_depth:
        return {"black-images": ~field.flat.any(axis=1)}
    is_bytes = field.rows.dtype == np.uint8
    few = field.rows[:, ::_THINNING, ::_THINNING]
    highest = few.max(axis=tuple(range(1, few.ndim)))
    is_large = np.zeros(len(few), bool) if is_bytes else highest > _MAX_UNIT
    has_large = np.logical_or.reduceat(is_large, block.starts)[block.numbers]
    unit = np.where(is_bytes | has_large, 1.0, 1 / 255)
    # Only images that are uniform in a few of their pixels are looked at completely.
    is_uniform = _find_uniform(few, unit)
    is_uniform[is_uniform] = _find_uniform(field.rows[is_uniform], unit[is_uniform])
    limits = (BLACK_LEVEL * unit).astype(few.dtype)
    is_dark = highest <= limits
    is_dark[is_dark] = field.flat[is_dark].max(axis=1) <= limits[is_dark]
    return {"black-images": is_dark, "uniform-images": is_uniform & ~is_dark, "float-images": is_large}


def _find_uniform(images: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Returns which images have pixels of a single colour, bool `[M]`; the channels are on the shortest axis."""
    axes = {1, 2} if images.ndim == 3 else {1, 2, 3} - {1 + int(np.argmin(images.shape[1:]))}
    high, low = images.max(axis=tuple(axes)), images.min(axis=tuple(axes))
    ranges = (high.astype(np.float64) - low).reshape(len(images), math.prod(high.shape[1:]))
    return np.asarray((ranges <= _COLOUR_RANGE * unit[:, None]).all(axis=1))


class FrozenCameras:
    """Images that stand still while the state, or another camera, changes."""

    def __init__(self, source: Source):
        self._tallies: dict[str, Tally] = defaultdict(Tally)
        self._limits: dict[Any, np.ndarray] = {}
        self._num_rows = self._num_repeated = 0
        self._is_alone = False

    def add(self, block: Block) -> None:
        """Adds a block."""
        observations = block.select(fields.OBSERVATION)
        cameras = {field.name: field.repeats for field in observations if field.is_image}
        if not cameras or not len(block.positions):
            return
        vectors = [field for field in observations if field.is_float]
        for field in vectors:
            extremes = np.stack([-field.flat.min(axis=0), field.flat.max(axis=0)])
            self._limits[field.path] = np.fmax(self._limits.get(field.path, extremes), extremes)
        for name, repeats in cameras.items():
            others = [other for camera, other in cameras.items() if camera != name]
            self._is_alone = not vectors and not others
            is_frozen = np.zeros(len(repeats), bool)
            runs = find_runs(repeats, _MIN_FROZEN)
            for start, stop in runs:
                is_frozen[start:stop] = self._is_alone or self._moves(vectors, others, start - 1, stop - 1)
            self._tallies[name].add(block, is_frozen)
            self._num_rows += len(repeats)
            self._num_repeated += int(repeats.sum()) - sum(stop - start for start, stop in runs)

    def _moves(self, vectors: list[Field], others: list[np.ndarray], first: int, last: int) -> bool:
        """Returns whether the state or another camera changes from one transition to another."""
        if any(np.mean(repeats[first + 1 : last + 1]) < 0.5 for repeats in others):
            return True
        for field in vectors:
            change = np.abs(field.flat[last].astype(np.float64) - field.flat[first])
            if (change > _MIN_MOTION * self._limits[field.path].sum(axis=0)).any():
                return True
        return False

    def finish(self) -> Iterator[Finding]:
        """Yields what was found."""
        if self._is_alone and self._num_repeated > _MAX_REPEATED_SHARE * self._num_rows:
            return
        for name, tally in self._tallies.items():
            message = f"the same image as in the step before, {_MIN_FROZEN} times or more in a row"
            yield from tally.report("frozen-camera", name, message)
