"""Writing of D4RL HDF5 files, in gzip chunks that libdeflate compresses.

The format is that of `d4rl.py`. `next_observations` is written, so that each episode keeps its own final observation,
unless that of any episode is unknown. The last row of an episode is then its last action, in all episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deflate
import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import ArraySpec, Nest, concatenate, leaves, path_name

from ..readers import d4rl
from ..readers.hdf5 import EXPANSION_FREE_BYTES, MAX_EXPANSION
from ..source import Source
from .hdf5_output import create_hdf5
from .written_episodes import WrittenEpisodes, require_log_fields, require_numbers, select_extras

_CHUNK_BYTES = 256 << 10
_MAX_CHUNK_ROWS = 1 << 16
#: Compression level of libdeflate: the size of zlib's level 4 in a third of the time.
_LEVEL = 3
#: The share of the reader's maximum expansion at which chunks are stored uncompressed.
_MARGIN = 0.5


def _require_d4rl_spec(step_spec: Mapping[str, Nest]) -> None:
    """Raises `SourceError` if the columns of a D4RL file cannot contain steps of this spec."""
    for name in (fields.OBSERVATION, fields.ACTION):
        if not isinstance(step_spec[name], ArraySpec):
            paths = ", ".join(path_name((name, *path)) for path, _ in leaves(step_spec[name])[:3])
            raise SourceError(
                f"step[{name!r}] must be a single array for D4RL, got a nest ({paths}); use format 'rlds' or 'minari'"
            )
    require_numbers(step_spec, "D4RL")
    require_log_fields(step_spec, "D4RL")


def write_d4rl(path: Path, batches: WrittenEpisodes, step_spec: Nest, source: Source, *, location: Path) -> None:
    """Writes episodes with the flags and discounts of `d4rl.py` to a new file; all have at least one transition.

    Args:
      path: path of the file.
      batches: the episodes.
      step_spec: spec of a step; numbers, with a single array as observation and as action.
      source: the source of the episodes, which provides the values for the group `metadata`.
      location: final path of the file, which it does not contain.

    Raises:
      SourceError: If D4RL cannot represent the spec.
      OSError: If the file cannot be written; with `ENOSPC` if the disk is full.
    """
    _require_d4rl_spec(step_spec)
    with create_hdf5(path) as (file, raise_error):
        for name, value in source.full_metadata.items():
            file[f"metadata/{name.replace('/', '_')}"] = _as_scalar(value)
        columns: dict[str, _ColumnWriter] = {}
        for batch in batches:
            for name, rows in _make_rows(batch, batches.has_final_steps).items():
                if name not in columns:
                    columns[name] = _ColumnWriter(file, name, rows)
                columns[name].append(rows)
            raise_error()
        if batch.episodes[-1].unterminated:
            columns[d4rl.TIMEOUTS].replace_last(False)
        for column in columns.values():
            column.finish()


def _make_rows(batch: EpisodeBatch, has_final_steps: bool) -> dict[str, np.ndarray]:
    """Returns the columns `[T, ...]` of a batch by their names in the file."""
    steps = batch.steps
    starts = follows = slice(None)
    if has_final_steps:
        starts, follows = ~steps[fields.IS_LAST], ~steps[fields.IS_FIRST]  # Both ends of the transitions.
    is_terminal = steps[fields.IS_TERMINAL]
    rows = {
        d4rl.OBSERVATIONS: steps[fields.OBSERVATION][starts],
        d4rl.ACTIONS: steps[fields.ACTION][starts],
        d4rl.REWARDS: steps[fields.REWARD][starts],
        d4rl.TERMINALS: is_terminal[follows],
        d4rl.TIMEOUTS: (steps[fields.IS_LAST] & ~is_terminal)[follows],
    }
    if has_final_steps:
        rows[d4rl.NEXT_OBSERVATIONS] = steps[fields.OBSERVATION][follows]
    return rows | {"/".join(("infos", *path)): column[starts] for path, column in leaves(select_extras(steps))}


class _ColumnWriter:
    """A writer of one growing dataset of an HDF5 file, in chunks."""

    def __init__(self, file: h5py.File, name: str, rows: np.ndarray):
        row_shape = rows.shape[1:]
        row_bytes = max(rows.dtype.itemsize * math.prod(row_shape), 1)
        self._chunk_rows = int(np.clip(_CHUNK_BYTES // row_bytes, 1, _MAX_CHUNK_ROWS))
        is_empty = not math.prod(row_shape)  # HDF5 cannot divide rows without elements into chunks.
        chunks = (self._chunk_rows, *(max(size, 1) for size in row_shape))
        layout = {"maxshape": (None, *row_shape), "chunks": chunks, "compression": None if is_empty else "gzip"}
        self._dataset = file.create_dataset(name, (0, *row_shape), rows.dtype, **layout)
        self._is_empty = is_empty
        self._pending: list[np.ndarray] = []
        self._num_raw_bytes = self._num_stored_bytes = 0

    def append(self, rows: np.ndarray) -> None:
        """Adds rows, and writes the chunks that are complete."""
        self._pending.append(rows)
        if sum(map(len, self._pending)) <= self._chunk_rows:
            return
        pending = concatenate(self._pending)
        num_full = (len(pending) - 1) // self._chunk_rows * self._chunk_rows  # At least one row remains.
        for start in range(0, num_full, self._chunk_rows):
            self._write_chunk(pending[start : start + self._chunk_rows])
        self._pending = [pending[num_full:].copy()]

    def replace_last(self, value: bool) -> None:
        """Changes the last row, which is never in a chunk before `finish`."""
        self._pending = [concatenate(self._pending).copy()]
        self._pending[0][-1] = value

    def finish(self) -> None:
        """Writes the remaining rows."""
        self._write_chunk(concatenate(self._pending))

    def _write_chunk(self, rows: np.ndarray) -> None:
        start = len(self._dataset)
        self._dataset.resize(start + len(rows), axis=0)
        if self._is_empty:
            return
        missing = self._chunk_rows - len(rows)
        if missing:  # Chunks have one size, also those that extend past the last row.
            rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
        raw = np.ascontiguousarray(rows).data.cast("B")
        stored, skipped_filters = bytes(deflate.zlib_compress(raw, _LEVEL)), 0
        self._num_raw_bytes += len(raw)
        looks_like_bomb = self._num_raw_bytes > _MARGIN * max(
            EXPANSION_FREE_BYTES, MAX_EXPANSION * (self._num_stored_bytes + len(stored))
        )
        if looks_like_bomb:
            stored, skipped_filters = bytes(raw), 1
        self._num_stored_bytes += len(stored)
        corner = (start, *(0 for _ in rows.shape[1:]))
        self._dataset.id.write_direct_chunk(corner, stored, skipped_filters)


def _as_scalar(value: Any) -> Any:
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return value
    return np.bytes_((value if isinstance(value, str) else json.dumps(value, default=str)).encode())
