"""Comparison of a written dataset, read back, with the episodes that were to be written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import ArraySpec, describe, leaves, path_name

from ..loading import load
from ..steps.image_files import decode_images
from .written_episodes import FormatLimits, WrittenEpisodes, drop_final_step, select_extras

#: Fields of a step that has no row in formats which do not store it.
_ROWLESS = (fields.ACTION, fields.REWARD)
_Path = tuple[Any, ...]


def require_same_episodes(
    path: Path, expected: WrittenEpisodes, limits: FormatLimits, lossy: Sequence[_Path], source_metadata: Any
) -> str:
    """Reads a written dataset, and compares every field of every episode with what was to be written.

    Args:
      path: the dataset.
      expected: the episodes, in the layout of the dataset.
      limits: limits of the format.
      lossy: paths of images that are stored with loss, whose largest difference is returned instead.
      source_metadata: spec of the metadata of the source's episodes.

    Returns:
      A sentence about what was compared.

    Raises:
      SourceError: If an episode or a field is missing or differs.
    """
    names = list(select_extras(expected.step_spec)) if limits.reads_extras_by_name else ()
    try:
        written = load(path, extra_fields=names)
        errors: dict[str, int] = {}
        count, paths = 0, [leaf_path for leaf_path, _ in leaves(expected.step_spec)]
        originals = itertools.chain.from_iterable(batch.episodes for batch in expected)
        for original, got in itertools.zip_longest(originals, written.read()):
            if original is None or got is None:
                raise SourceError(f"it has {'more' if original is None else 'fewer'} episodes than {count}")
            rows = _Rows(original, got, limits, count, has_final_steps=expected.has_final_steps)
            for leaf_path in paths:
                error = rows.compare(leaf_path, is_lossy=leaf_path in lossy)
                errors[path_name(leaf_path)] = max(errors.get(path_name(leaf_path), 0), error)
            rows.compare_episodes(has_metadata=limits.has_episodes and bool(source_metadata))
            count += 1
    except SourceError as error:
        raise SourceError(f"{path} is not equal to its source: {error}; convert it again, to a new path") from error
    inexact = [f"{name} up to {error}" for name, error in errors.items() if error]
    exceptions = f", apart from lossy images ({', '.join(inexact)} of 255)" if inexact else ""
    return f"read back: all {len(paths)} fields of {count:,} episodes are equal{exceptions}"


class _Rows:
    """An episode and what was read back of it, which has `where` in messages."""

    def __init__(self, original: Episode, got: Episode, limits: FormatLimits, number: int, *, has_final_steps: bool):
        got = got if has_final_steps else drop_final_step(got)
        self._original, self._got, self._limits = original, got, limits
        self._columns, self._where, self._has_final_steps = dict(got.columns), f"episode {number}", has_final_steps

    def compare(self, path: _Path, *, is_lossy: bool) -> int:
        """Compares the rows of a field that the format stores, and returns the largest difference of lossy images.

        Raises:
          SourceError: If they differ.
        """
        column = dict(self._original.columns)[path]
        found = self._columns.get(path)
        if found is None:  # Formats that name observations put a single one into a dict.
            found = next((other for key, other in self._columns.items() if key[:-1] == path == key[:1]), None)
        if found is None:
            raise SourceError(f"{self._where} has no {path_name(path)}")
        num_rows = len(column)
        if path[0] == fields.DISCOUNT and not self._limits.has_discounts:
            return 0
        if self._has_final_steps and not self._limits.has_discounts:
            is_unknown = self._got.unknown_final_observation  # The observation is a copy, which is marked.
            num_rows -= path[0] in _ROWLESS or (path[0] == fields.OBSERVATION and is_unknown)
        column, found = column[:num_rows], found[:num_rows]
        if column.dtype == object and found.dtype == np.uint8:
            column = decode_images(list(column), ArraySpec(found.shape[1:], found.dtype))
        if column.shape != found.shape or (column.dtype != found.dtype and not _is_label(column, found)):
            raise SourceError(f"{self._where}: {path_name(path)} is {describe(found)} instead of {describe(column)}")
        differs = _find_differences(column, found)
        if not differs.any():
            return 0
        if is_lossy:
            return int(np.abs(column.astype(int) - found).max())
        step = int(np.argmax(differs))
        got, expected = (array[step : step + 1].tolist()[0] for array in (found, column))
        raise SourceError(f"{self._where}, step {step}: {path_name(path)} is {got!r:.80} instead of {expected!r:.80}")

    def compare_episodes(self, *, has_metadata: bool) -> None:
        """Compares how the episode ends, and its metadata; raises `SourceError` if they differ."""
        names = ["is_terminal", "unterminated"] if self._limits.has_episodes else ["is_terminal"]
        pairs = {name: (getattr(self._original, name), getattr(self._got, name)) for name in names}
        if has_metadata:
            known = dict(leaves(self._got.metadata))
            pairs |= {"/".join(path): (value, known.get(path)) for path, value in leaves(self._original.metadata)}
        for name, (expected, found) in pairs.items():
            if found is None or not np.array_equal(expected, found):
                got, wanted = (np.asarray(value).tolist() for value in (found, expected))
                raise SourceError(f"{self._where}: {name!r} is {got!r:.80} instead of {wanted!r:.80}")


def _is_label(column: np.ndarray, found: np.ndarray) -> bool:
    """Returns whether integers were read back as TFDS's labels, which are int64."""
    return column.dtype.kind in "iu" and found.dtype == np.int64


def _find_differences(column: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns which rows differ, bool `[T]`; NaN equals NaN, and a text its UTF-8."""
    if column.dtype == object:
        column, found = _encode(column), _encode(found)
    is_different = column != found
    if column.dtype.kind == "f":
        is_different &= ~(np.isnan(column) & np.isnan(found))
    return np.asarray(is_different.reshape(len(column), -1).any(axis=1))


def _encode(column: np.ndarray) -> np.ndarray:
    texts = [text if isinstance(text, bytes) else str(text).encode() for text in column.ravel().tolist()]
    return np.array(texts, object).reshape(column.shape)


def find_lossy(step_spec: Mapping[str, Any], descriptions: Mapping[str, Any], *, video: bool) -> list[_Path]:
    """Returns the paths of images that a video or JPEG files store with loss."""

    def is_lossy(path: Iterable[Any], spec: ArraySpec) -> bool:
        described = descriptions.get(".".join(map(str, path)))
        encoding = described.get("encoding") if isinstance(described, Mapping) else described
        is_image = spec.dtype == np.uint8 and len(spec.shape) == 3
        return is_image and (encoding == "jpeg" or (video and spec.shape[2] == 3))

    return [path for path, spec in leaves(dict(step_spec)) if is_lossy(path, spec)]
