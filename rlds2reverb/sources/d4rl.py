"""D4RL: rows of transitions with flags where episodes end, in an HDF5 file or in arrays.

Format: Fu et al. 2020, arXiv:2004.07219, and the files themselves. `terminals[t]` says that the action of row `t` led
into a terminal state, `timeouts[t]` that the episode was cut off after row `t`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, from_transitions
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import concatenated

from . import hdf5
from .columns import as_columns, as_flags
from .hdf5_blocks import read_blocks
from .source import Source

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
TERMINALS, TIMEOUTS, NEXT_OBSERVATIONS = "terminals", "timeouts", "next_observations"
REQUIRED = (OBSERVATIONS, ACTIONS, REWARDS, TERMINALS)
KEYS = (*REQUIRED, TIMEOUTS, NEXT_OBSERVATIONS)

_BLOCK_BYTES = 8 << 20
_MAX_BLOCK_ROWS = 1 << 16
_FIRST_BLOCK_ROWS = 1 << 11


@dataclass(frozen=True)
class EpisodeEnds:
    """How to find truncated episodes where the rows have no `timeouts`.

    Attributes:
      max_episode_steps: an episode is cut off after so many rows.
      at_discontinuity: an episode is cut off where `next_observations[t]` is not `observations[t + 1]`.
    """

    max_episode_steps: int | None = None
    at_discontinuity: bool = False

    def __post_init__(self) -> None:
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ValueError(f"max_episode_steps is {self.max_episode_steps}, expected at least 1")

    def __bool__(self) -> bool:
        return self.max_episode_steps is not None or self.at_discontinuity


def open_d4rl(
    path: Path,
    *,
    infos: Sequence[str] = (),
    ends: EpisodeEnds = EpisodeEnds(),
    limits: hdf5.Limits = hdf5.Limits(),  # noqa: B008
) -> Source:
    """A D4RL HDF5 file as a source; neither d4rl nor mujoco is needed.

    Both ends of an episode: with `next_observations` every episode gets its own final observation. Without them a
    truncated episode ends at its last observation and a terminal one gets a final observation of zeros. Rows after the
    last flag are an episode of their own, closed as truncated, with `open_end` set.

    Args:
      path: the file. Rewards may be `[N]` or `[N, 1]`, flags bool, integer or float; dtypes are kept.
      infos: names below `infos/` to read as well, each an extra step field.
      ends: how to find truncated episodes; needed where the file has no `timeouts`.
      limits: how much a column may hold.

    Raises:
      SourceError: if the file is refused (see `hdf5`), a key is missing, columns differ in length, there are no
        rows, or flags are not 0 and 1; while iterating, if a compressed block is damaged.
    """
    wanted = {f"infos/{name}": name for name in infos}
    with hdf5.open_hdf5(path) as file:
        num_rows = _checked(path.name, _columns(file, wanted, limits), ends).num_rows
        metadata = hdf5.scalars(file, "metadata")

    def read() -> Iterator[Episode]:
        with hdf5.open_hdf5(path) as file:
            yield from cut_episodes(_checked(path.name, _columns(file, wanted, limits), ends))

    return Source(path.name, "d4rl", read, num_rows=num_rows, metadata=metadata)


def from_rows(name: str, columns: Mapping[str, Any], *, infos: Sequence[str] = (), ends: EpisodeEnds) -> Source:
    """The same for arrays in memory under D4RL's names, such as `env.get_dataset()` gives them.

    Columns under other names, `metadata/*` and the `infos/*` that are not asked for among them, are left out.
    """
    require_free_names(infos, name)
    wanted = [key for key in KEYS if key in columns] + [f"infos/{info}" for info in infos]
    missing = [key for key in wanted if key not in columns]
    if missing:
        raise SourceError(f"{name} has no '{missing[0]}'")
    arrays = {key.removeprefix("infos/"): as_columns(columns[key], f"{name}: '{key}'") for key in wanted}
    nests = [key for key, column in arrays.items() if not isinstance(column, np.ndarray)]
    if nests:
        raise SourceError(
            f"{name}: '{nests[0]}' is a nest; D4RL's columns are arrays, nests go into a list of episodes"
        )
    rows = _checked(name, arrays, ends)
    return Source(name, "memory", lambda: cut_episodes(rows), num_rows=rows.num_rows)


@dataclass(frozen=True)
class TransitionRows:
    """Checked columns of rows, all `num_rows` long: arrays, or data sets of an open file."""

    name: str
    num_rows: int
    columns: dict[str, Any] = field(repr=False)
    extras: dict[str, Any] = field(repr=False)
    ends: EpisodeEnds = EpisodeEnds()

    def blocks(self, num_rows: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Up to so many rows at a time in memory, each time with where they stop; flags as bool, rewards `[n]`."""
        columns = {**self.columns, **self.extras}
        for start, stop, block in read_blocks(columns, _block_bounds(self.num_rows, num_rows)):
            yield stop, self._checked_block(block, start)

    def _checked_block(self, columns: dict[str, np.ndarray], start: int) -> dict[str, np.ndarray]:
        block = {name: as_columns(column, f"{self.name}: '{name}'") for name, column in columns.items()}
        if block[REWARDS].ndim == 2:
            block[REWARDS] = block[REWARDS][:, 0]
        for name in (TERMINALS, TIMEOUTS):
            if name in block:
                block[name] = as_flags(block[name], f"{self.name}: {name}", first_row=start)
        return block


def _columns(file: Any, infos: Mapping[str, str], limits: hdf5.Limits) -> dict[str, Any]:
    names = {name: name for name in KEYS}
    require_free_names(infos.values(), Path(file.filename).name)
    found = {name: hdf5.column(file, place, limits) for place, name in {**names, **infos}.items()}
    for place, name in infos.items():
        if found[name] is None:
            raise SourceError(f"{Path(file.filename).name} has no '{place}'")
    columns = {name: dataset for name, dataset in found.items() if dataset is not None}
    hdf5.require_within(list(columns.values()), f"{Path(file.filename).name}: all columns together", limits)
    return columns


def require_free_names(names: Iterable[str], where: str) -> None:
    """Raises `SourceError` if a further step field has the name of one that every step has."""
    taken = [name for name in names if name in (*fields.STEP_FIELDS, *KEYS)]
    if taken:
        raise SourceError(f"{where}: a further field named {taken[0]!r} would hide the step's own; rename it")


def _checked(name: str, columns: Mapping[str, Any], ends: EpisodeEnds) -> TransitionRows:
    for key in REQUIRED:
        if key not in columns:
            raise SourceError(f"{name} has no '{key}'; D4RL data have {', '.join(REQUIRED)}, and mostly {TIMEOUTS}")
    for key, values in columns.items():
        if values.dtype.kind not in "biuf":
            kind = "strings" if values.dtype.kind == "O" else values.dtype
            raise SourceError(f"{name}: '{key}' holds {kind}, expected numbers")
        if not values.shape:
            raise SourceError(f"{name}: '{key}' is a single number, expected one row for each step")
    for key, values in columns.items():
        if len(values) != len(columns[REWARDS]):
            raise SourceError(
                f"{name}: '{key}' has {len(values)} rows, '{REWARDS}' has {len(columns[REWARDS])}; expected equal"
            )
    for key in (REWARDS, TERMINALS, TIMEOUTS):
        if key in columns and columns[key].shape[1:] not in ((), (1,)):
            raise SourceError(f"{name}: '{key}' has shape {columns[key].shape}, expected (N,) or (N, 1)")
    _require_ends(name, columns, ends)
    if not len(columns[REWARDS]):
        raise SourceError(f"{name} holds no rows; there is nothing to convert")
    following = columns.get(NEXT_OBSERVATIONS)
    if following is not None and _row_spec(following) != _row_spec(columns[OBSERVATIONS]):
        raise SourceError(
            f"{name}: '{NEXT_OBSERVATIONS}' has rows of {_row_spec(following)}, "
            f"'{OBSERVATIONS}' of {_row_spec(columns[OBSERVATIONS])}; expected equal"
        )
    return TransitionRows(
        name,
        len(columns[REWARDS]),
        {key: values for key, values in columns.items() if key in KEYS},
        {key: values for key, values in columns.items() if key not in KEYS},
        ends,
    )


def _row_spec(column: Any) -> str:
    return f"{column.dtype.name} {list(column.shape[1:])}"


def _require_ends(name: str, columns: Mapping[str, Any], ends: EpisodeEnds) -> None:
    if ends.at_discontinuity and NEXT_OBSERVATIONS not in columns:
        raise SourceError(f"{name} has no '{NEXT_OBSERVATIONS}', which splitting at a discontinuity compares")
    if TIMEOUTS not in columns and not ends:
        raise SourceError(
            f"{name} has no '{TIMEOUTS}', so that nothing says where truncated episodes end; give "
            "max_episode_steps=N (the time limit of the environment) or split_at_discontinuity=True "
            "(on the command line --max-episode-steps N or --split-at-discontinuity)"
        )


def cut_episodes(rows: TransitionRows) -> Iterator[Episode]:
    """Reads rows in blocks of bounded size and yields whole episodes."""
    columns = [*rows.columns.values(), *rows.extras.values()]
    row_bytes = sum(values.dtype.itemsize * int(np.prod(values.shape[1:])) for values in columns)
    block_rows = int(np.clip(_BLOCK_BYTES // max(row_bytes, 1), 1, _MAX_BLOCK_ROWS))
    parts: list[dict[str, np.ndarray]] = []
    length = index = 0
    for stop, block in rows.blocks(block_rows):
        begin = 0
        for end in _ends(rows, block, stop, length):
            parts.append({name: values[begin : end + 1] for name, values in block.items()})
            yield Episode(_steps(_join(parts)), index)
            parts, begin, length, index = [], end + 1, 0, index + 1
        num_left = len(block[REWARDS]) - begin
        if num_left:
            parts.append({name: values[begin:] for name, values in block.items()})
            length += num_left
    if parts:
        yield Episode(_steps(_join(parts)), index, open_end=True)


def _block_bounds(num_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """Blocks that grow to their size: who only wants the first episode does not wait for a large one."""
    start, size = 0, min(_FIRST_BLOCK_ROWS, block_rows)
    while start < num_rows:
        stop = min(start + size, num_rows)
        yield start, stop
        start, size = stop, min(2 * size, block_rows)


def _ends(rows: TransitionRows, block: dict[str, np.ndarray], stop: int, length: int) -> Iterator[int]:
    """TransitionRows of a block after which an episode ends; `length` rows of the running one came before."""
    ended = block[TERMINALS].copy()
    if TIMEOUTS in block:
        ended |= block[TIMEOUTS]
    if rows.ends.at_discontinuity:
        following = np.concatenate([block[OBSERVATIONS][1:], rows.columns[OBSERVATIONS][stop : stop + 1]])
        jump = block[NEXT_OBSERVATIONS][: len(following)] != following
        ended[: len(following)] |= jump.reshape(len(following), -1).any(axis=1)
    flagged = np.flatnonzero(ended).tolist()
    limit = rows.ends.max_episode_steps
    return iter(flagged) if limit is None else _within_limit(flagged, limit, length, len(ended))


def _within_limit(flagged: list[int], limit: int, length: int, num_rows: int) -> Iterator[int]:
    """Cuts the stretches between flagged ends, and the one after the last, into at most `limit` rows each."""
    begin = -length
    for end in flagged:
        yield from range(begin + limit - 1, end, limit)
        yield end
        begin = end + 1
    yield from range(begin + limit - 1, num_rows, limit)


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: concatenated([part[name] for part in parts]) for name in parts[0]}


def _steps(part: dict[str, np.ndarray]) -> dict[str, Any]:
    following = part.get(NEXT_OBSERVATIONS)
    return from_transitions(
        part[OBSERVATIONS],
        part[ACTIONS],
        rewards=part[REWARDS],
        terminated=bool(part[TERMINALS][-1]),
        final_observation=None if following is None else following[-1],
        extras={name: values for name, values in part.items() if name not in KEYS},
    )
