"""Writing of D4RL HDF5 files, compressed with LZF, h5py's own filter.

The format is that of `d4rl.py`. `next_observations` is written, so that each episode keeps its own final observation,
unless that of any episode is unknown. The last row of an episode is then its last action, in all episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.specs import ArraySpec, Nest, leaves, path_name

from ..readers import d4rl
from ..source import Source
from .hdf5_output import create_hdf5
from .written_episodes import WrittenEpisodes, require_log_fields, require_numbers, select_extras

_CHUNK_BYTES = 256 << 10
_MAX_CHUNK_ROWS = 1 << 16


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
        for batch in batches:
            for name, rows in _make_rows(batch, batches.has_final_steps).items():
                _append_rows(file, name, rows)
            raise_error()
        if batch.episodes[-1].unterminated:
            file[d4rl.TIMEOUTS][-1] = False


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


def _append_rows(file: h5py.File, name: str, rows: np.ndarray) -> None:
    """Appends rows to a dataset of the file, which the first ones create."""
    if name not in file:
        row_shape = rows.shape[1:]
        num_rows = int(np.clip(_CHUNK_BYTES // max(rows.dtype.itemsize * math.prod(row_shape), 1), 1, _MAX_CHUNK_ROWS))
        layout: dict[str, Any] = {"maxshape": (None, *row_shape), "chunks": (num_rows, *(max(n, 1) for n in row_shape))}
        if math.prod(row_shape):  # HDF5 cannot compress rows without elements.
            layout["compression"] = "lzf"
        file.create_dataset(name, (0, *row_shape), rows.dtype, **layout)
    column = file[name]
    start = len(column)
    column.resize(start + len(rows), axis=0)
    column[start:] = rows


def _as_scalar(value: Any) -> Any:
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return value
    return np.bytes_((value if isinstance(value, str) else json.dumps(value, default=str)).encode())
