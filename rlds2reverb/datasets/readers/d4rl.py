"""D4RL: rows of transitions with flags for the ends of episodes, in an HDF5 file or in arrays.

Format: Fu et al. 2020, arXiv:2004.07219, and D4RL's own files. `terminals[t]` is set if the action of row `t` led into
a terminal state, `timeouts[t]` if the episode was truncated after row `t`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from rlds2reverb.errors import ArgumentError, Message, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.episodes import Episode, SplitEpisodes, join_transitions
from rlds2reverb.types.ownership import copy_arrays
from rlds2reverb.types.specs import Nest

from ..formats import Format
from ..source import Source, split_metadata
from . import hdf5, npz
from .columns import as_columns, as_flags
from .continuity import INDEPENDENT_ROWS_ADVICE, ContinuityCheck, find_differing_rows
from .hdf5_blocks import read_blocks

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
TERMINALS, TIMEOUTS, NEXT_OBSERVATIONS = "terminals", "timeouts", "next_observations"
REQUIRED = (OBSERVATIONS, ACTIONS, REWARDS, TERMINALS)
KEYS = (*REQUIRED, TIMEOUTS, NEXT_OBSERVATIONS)
#: Names of the same flags in Gymnasium and Minari.
ALIASES = {TERMINALS: ("terminated", "terminations", "terminal"), TIMEOUTS: ("truncated", "truncations", "timeout")}
#: Gym's flag, which is set at terminal and at truncated ends and cannot tell them apart.
DONES = ("dones", "done")
#: Final observations among the `infos` of a vector environment that resets itself in the step of an end.
FINAL_OBSERVATIONS, FINAL_NAMES = "final_observations", ("final_obs", "final_observation")

#: What users can do about too many discontinuities.
CONTINUITY_ADVICE = Message(
    f"{INDEPENDENT_ROWS_ADVICE.sentence}; if some episodes end without a flag, split them there",
    independent_rows=True,
    split_at_discontinuity=True,
)

BLOCK_BYTES = 4 << 20
MAX_BLOCK_ROWS = 1 << 16
_FIRST_BLOCK_ROWS = 1 << 11


@dataclass(frozen=True)
class EpisodeEnds:
    """Rules that end episodes in addition to the rows flagged as ends.

    Attributes:
      max_episode_steps: maximum number of rows in an episode; longer ones are truncated there.
      split_at_discontinuity: whether an episode ends wherever `next_observations[t]` is not `observations[t + 1]`.
      independent_rows: whether each row is an episode of one transition; for rows that were shuffled or relabelled.
    """

    max_episode_steps: int | None = None
    split_at_discontinuity: bool = False
    independent_rows: bool = False

    def __post_init__(self) -> None:
        if self.max_episode_steps is not None:
            require_count("max_episode_steps", self.max_episode_steps, 1)
        if self.independent_rows and (self.max_episode_steps is not None or self.split_at_discontinuity):
            sentence = "already ends an episode after each row; leave out other rules"
            others: dict[str, Any] = {"max_episode_steps": ..., "split_at_discontinuity": ...}
            raise ArgumentError(sentence, about="independent_rows", value=True, **others)

    def __bool__(self) -> bool:
        return self.max_episode_steps is not None or self.split_at_discontinuity or self.independent_rows


def open_d4rl(path: Path, *, extra_fields: Sequence[str] = (), **ends: Any) -> Source:
    """Opens a D4RL HDF5 file, or an npz file of the same columns; neither d4rl nor mujoco is needed.

    Flags may also have their Gymnasium or Minari names (`ALIASES`).

    Both ends of an episode: with `next_observations`, every episode keeps its own final observation. Without them, a
    terminal episode ends in an observation of zeros, and a truncated one ends at its last observation: it loses its
    last transition and has `dropped_last_transition` set. Rows after the last flagged end form a truncated episode
    with `unterminated` set.

    Rows inside an episode whose `next_observations` is not the observation of the next row are its `discontinuities`.

    Args:
      path: the file. Rewards may be `[N]` or `[N, 1]`, and flags bool, integer or float; dtypes are kept.
      extra_fields: names of `infos/*` columns to read as additional step fields; a group becomes a nested dict.
      **ends: attributes of `EpisodeEnds`; required if the file has no `timeouts`.

    Raises:
      SourceError: If the file is refused (see `hdf5`), a column is missing, columns differ in length, there are no
        rows, or flags are not 0 or 1; while iterating, if a compressed block is damaged, or if more than 1 % of the
        rows are discontinuities.
    """
    rules = EpisodeEnds(**ends)

    is_npz = npz.is_npz(path)

    @contextlib.contextmanager
    def open_rows() -> Iterator[TransitionRows]:
        with npz.open_npz(path) if is_npz else hdf5.open_hdf5(path) as file:
            select = _select_arrays if is_npz else _open_columns
            yield check_columns(path.name, select(file, extra_fields), extra_fields, rules)

    described: dict[str, Any] = {}
    if not is_npz:
        with hdf5.open_hdf5(path) as file:
            described, available = split_metadata(hdf5.read_scalars(file, "metadata")), _list_keys(file)
    else:
        available = [*npz.list_arrays(path)]
    unread = _list_unread(available, extra_fields, path.name)
    return make_source(path.name, "d4rl", open_rows, **described, unread=unread)


def from_rows(columns: Mapping[str, Any], *, extra_fields: Sequence[str] = (), **ends: Any) -> Source:
    """Returns a source for arrays in memory under D4RL's names, as returned by `env.get_dataset()`.

    Columns under other names, including `metadata/*` and any `infos/*` that are not in `extra_fields`, are ignored.
    """
    name = "rows in memory"
    keys = _find_keys(columns, extra_fields, name)
    arrays = {field: as_columns(columns[key], f"{name}: '{key}'") for field, key in keys.items() if key in columns}
    nests = [field for field, column in arrays.items() if not isinstance(column, np.ndarray)]
    if nests:
        raise SourceError(f"{name}: '{nests[0]}' must be an array, got a nest; pass nests in a list of episodes")
    rows = check_columns(name, copy_arrays(arrays), extra_fields, EpisodeEnds(**ends))
    unread = _list_unread(columns, extra_fields, name)
    return make_source(name, "memory", lambda: contextlib.nullcontext(rows), unread=unread)


def make_source(
    name: str, kind: str, open_rows: Callable[[], contextlib.AbstractContextManager[TransitionRows]], **attributes: Any
) -> Source:
    """Returns a source of the episodes of the rows that a function opens, with further attributes of `Source`."""
    ranges = _RowRanges(open_rows)
    with open_rows() as rows:
        return Source(name, kind, ranges.read, num_rows=rows.num_rows, count=ranges.count, **attributes)


class _RowRanges:
    """Random access to the episodes of some rows."""

    def __init__(self, open_rows: Callable[[], contextlib.AbstractContextManager[TransitionRows]]):
        self._open_rows = open_rows

    @functools.cached_property
    def _bounds(self) -> EpisodeBounds:
        """The bounds of all episodes."""
        with self._open_rows() as rows:
            return rows.find_episodes()

    def count(self) -> int:
        """Returns the number of episodes."""
        return len(self._bounds.starts) - 1

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        """Yields the episodes of a range; if it has no end, they are found again."""
        with self._open_rows() as rows:
            bounds = rows.find_episodes() if stop is None else self._bounds
            check = ContinuityCheck(rows.name, rows.num_rows, CONTINUITY_ADVICE)
            for episode in _read_episodes(rows, bounds, first, len(bounds.starts) - 1 if stop is None else stop):
                check.add(episode)
                yield episode


class EpisodeBounds(NamedTuple):
    """The first row of each episode, and the number of rows, int64 `[E + 1]`; whether the last one has no flag."""

    starts: np.ndarray
    is_unterminated: bool


@dataclass(frozen=True)
class TransitionRows:
    """Checked columns of `num_rows` rows each: arrays, or datasets of an open HDF5 file.

    Attributes:
      name: name of the source.
      num_rows: number of rows of each column.
      columns: the columns.
      ends: rules that end episodes in addition to the flagged rows.
    """

    name: str
    num_rows: int
    columns: dict[str, Any] = field(repr=False)
    ends: EpisodeEnds = EpisodeEnds()

    @property
    def block_rows(self) -> int:
        """The number of rows of a block of bounded size."""
        row_bytes = sum(column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in self.columns.values())
        return int(np.clip(BLOCK_BYTES // max(row_bytes, 1), 1, MAX_BLOCK_ROWS))

    def read_blocks(self, bounds: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        """Yields blocks of rows with their bounds; flags are bool and rewards `[n]`."""
        for start, stop, block in read_blocks(self.columns, bounds):
            yield start, stop, self._check_block(block, start)

    def find_episodes(self) -> EpisodeBounds:
        """Returns the bounds of the episodes, for which only the flags are read if these determine them."""
        names = (TERMINALS, TIMEOUTS, *((OBSERVATIONS, NEXT_OBSERVATIONS) if self.ends.split_at_discontinuity else ()))
        rows = replace(self, columns={name: column for name, column in self.columns.items() if name in names})
        steps = range(0, self.num_rows, rows.block_rows)
        found: list[np.ndarray] = [np.zeros(1, np.int64)]
        for start, stop, block in rows.read_blocks((row, min(row + steps.step, self.num_rows)) for row in steps):
            found.append(start + 1 + np.flatnonzero(_mark_ends(rows, block, stop)))
        starts: np.ndarray = np.concatenate(found)
        is_unterminated = bool(starts[-1] < self.num_rows)
        starts = np.append(starts, self.num_rows) if is_unterminated else starts
        if limit := self.ends.max_episode_steps:
            starts = np.append(np.concatenate([np.arange(*pair, limit) for pair in pairwise(starts)]), self.num_rows)
            is_unterminated &= bool(starts[-1] - starts[-2] < limit)
        return EpisodeBounds(starts, is_unterminated)

    def _check_block(self, columns: dict[str, np.ndarray], start: int) -> dict[str, np.ndarray]:
        block = {name: as_columns(column, f"{self.name}: '{name}'") for name, column in columns.items()}
        if REWARDS in block and block[REWARDS].ndim == 2:
            block[REWARDS] = block[REWARDS][:, 0]
        for name in (TERMINALS, TIMEOUTS):
            if name in block:
                block[name] = as_flags(block[name], f"{self.name}: {name}", first_row=start)
        return block


def _find_keys(available: Iterable[str], extra_fields: Sequence[str], where: str) -> dict[str, str]:
    """Returns the data's own key for each of `KEYS` that it contains, and `infos/NAME` for each extra field.

    Raises:
      SourceError: If there are `dones` instead of `terminals`, or an extra field has the name of a step field.
    """
    require_new_names(extra_fields, where)
    available = set(available)
    found = {name: find_key(available, name, where) for name in KEYS}
    keys = {name: key for name, key in found.items() if key is not None}
    if TERMINALS not in keys:
        refuse_dones(available, where)
    for final in (key for name in FINAL_NAMES for key in (f"infos/{name}", name) if key in available):
        keys.setdefault(FINAL_OBSERVATIONS, final)
    return {**keys, **{name: f"infos/{name}" for name in extra_fields}}


def find_key(available: Collection[str], name: str, where: str) -> str | None:
    """Returns the data's own key for one of `KEYS`, or None; raises `SourceError` for several."""
    keys = [key for key in (name, *ALIASES.get(name, ())) if key in available]
    if len(keys) > 1:
        raise SourceError(f"{where} has {' and '.join(keys)}, which mean the same; pass one of them")
    return keys[0] if keys else None


def refuse_dones(available: Collection[str], where: str) -> None:
    """Raises `SourceError` if a flag does not tell terminal from truncated ends."""
    if dones := next((key for key in DONES if key in available), None):
        raise SourceError(
            f"{where} has '{dones}', which does not say whether an episode ended in a terminal state or was truncated; "
            f"pass '{TERMINALS}' for terminal ends and '{TIMEOUTS}' for truncated ones"
        )


def _list_unread(available: Iterable[str], extra_fields: Sequence[str], where: str) -> tuple[str, ...]:
    """Returns the keys that are neither read nor metadata."""
    used = {*_find_keys(available, extra_fields, where).values(), "infos", "metadata"}
    return tuple(sorted(key for key in available if key not in used and not key.startswith("metadata/")))


def _list_keys(file: h5py.File) -> list[str]:
    """Returns the names of the members of a file, and of those of its group `infos`, such as 'infos/qpos'."""
    keys = [key for key in file if isinstance(key, str)]  # Other keys are not UTF-8.
    is_own = isinstance(file.get("infos", getlink=True), h5py.HardLink)
    infos = file["infos"] if is_own else None
    return keys + [f"infos/{key}" for key in infos if isinstance(key, str)] if isinstance(infos, h5py.Group) else keys


def _open_columns(file: h5py.File, extra_fields: Sequence[str]) -> dict[str, Any]:
    where = Path(file.filename).name
    keys = _find_keys(_list_keys(file), extra_fields, where)
    opened: dict[Any, Any] = {}
    for name, key in keys.items():
        members = hdf5.list_columns(file, key) if name in extra_fields else []
        opened.update({(name, *path): hdf5.open_column(file, "/".join((key, *path))) for path in members})
        if not members:
            opened[name] = hdf5.open_column(file, key)
    columns = {name: dataset for name, dataset in opened.items() if dataset is not None}
    hdf5.require_safe(columns.values(), f"{where}: all columns together")
    return columns


def _select_arrays(arrays: Mapping[str, npz.NpzColumn], extra_fields: Sequence[str]) -> dict[str, Any]:
    """Returns the columns of an npz archive; raises `SourceError` if it has none of D4RL's observations."""
    if OBSERVATIONS not in arrays:
        raise SourceError(
            f"the arrays of an npz file must be named as those of D4RL ({', '.join(KEYS)}), OGBench or NeoRL, got "
            f"{', '.join(sorted(arrays)[:10]) or 'none'}; rename them, or pass a list of episodes"
        )
    keys = _find_keys(arrays, extra_fields, "the npz file")
    return {name: arrays[key] for name, key in keys.items() if key in arrays}


def require_new_names(extra_fields: Iterable[str], where: str) -> None:
    """Raises `SourceError` if an extra field has the name of a field that every step has."""
    collisions = [name for name in extra_fields if name in (*fields.STEP_FIELDS, *KEYS)]
    if collisions:
        raise SourceError(f"{where}: an extra field named {collisions[0]!r} would replace the step's own; rename it")


def check_columns(
    name: str, columns: Mapping[str, Any], extra_fields: Sequence[str], ends: EpisodeEnds
) -> TransitionRows:
    """Returns columns under D4RL's names as rows; raises `SourceError` if one is missing or does not fit the others."""
    for key in REQUIRED:
        if key not in columns:
            raise SourceError(f"{name} has no '{key}'; D4RL data have {', '.join(REQUIRED)}, and usually {TIMEOUTS}")
    names = {key[0] if isinstance(key, tuple) else key for key in columns}
    for key in extra_fields:
        if key not in names:
            raise SourceError(f"{name} has no 'infos/{key}'; fix the name", extra_fields=...)
    for key, column in columns.items():
        if column.dtype.kind not in "biuf":
            dtype = "strings" if column.dtype.kind == "O" else column.dtype
            raise SourceError(f"{name}: '{key}' must contain numbers, got {dtype}")
        if not column.shape:
            raise SourceError(f"{name}: '{key}' must have one row per transition, got a single number")
    num_rows = len(columns[REWARDS])
    for key, column in columns.items():
        if len(column) != num_rows:
            raise SourceError(f"{name}: '{key}' must have as many rows as '{REWARDS}' ({num_rows}), got {len(column)}")
    for key in (REWARDS, TERMINALS, TIMEOUTS):
        if key in columns and columns[key].shape[1:] not in ((), (1,)):
            raise SourceError(f"{name}: '{key}' must have shape (N,) or (N, 1), got {columns[key].shape}")
    _require_ends(name, columns, ends)
    if not num_rows:
        raise SourceError(f"{name} has no rows; there is nothing to convert")
    expected = _describe_row(columns[OBSERVATIONS])
    for key in (NEXT_OBSERVATIONS, FINAL_OBSERVATIONS):
        if key in columns and _describe_row(columns[key]) != expected:
            raise SourceError(
                f"{name}: rows of '{key}' must be {expected} like those of '{OBSERVATIONS}', got "
                f"{_describe_row(columns[key])}"
            )
    return TransitionRows(name, num_rows, dict(columns), ends)


def _describe_row(column: Any) -> str:
    return f"{column.dtype.name} {list(column.shape[1:])}"


def _require_ends(name: str, columns: Mapping[str, Any], ends: EpisodeEnds) -> None:
    for argument in ("split_at_discontinuity", "independent_rows"):
        if getattr(ends, argument) and NEXT_OBSERVATIONS not in columns:
            raise SourceError(
                f"requires '{NEXT_OBSERVATIONS}', which {name} does not contain", about=argument, value=True
            )
    if TIMEOUTS not in columns and not ends:
        sentence = f"{name} has no '{TIMEOUTS}', which mark the ends of truncated episodes; limit or split the episodes"
        raise SourceError(sentence, max_episode_steps=..., split_at_discontinuity=True)


def _mark_ends(rows: TransitionRows, block: dict[str, np.ndarray], stop: int) -> np.ndarray:
    """Returns the rows of a block, up to row `stop`, after which an episode ends, bool `[n]`."""
    is_end = block[TERMINALS] | rows.ends.independent_rows
    if TIMEOUTS in block:
        is_end |= block[TIMEOUTS]
    if rows.ends.split_at_discontinuity:
        following = np.concatenate([block[OBSERVATIONS][1:], rows.columns[OBSERVATIONS][stop : stop + 1]])
        is_end[find_differing_rows(block[NEXT_OBSERVATIONS][: len(following)], following)] = True
    return is_end


def _read_episodes(rows: TransitionRows, bounds: EpisodeBounds, first: int, last: int) -> Iterator[Episode]:
    """Yields the episodes from index `first` to before `last`."""
    starts = bounds.starts
    for start, stop, block in rows.read_blocks(_block_bounds(starts[first : last + 1], rows.block_rows)):
        index, end = (int(np.searchsorted(starts, row)) for row in (start, stop))
        unterminated = bounds.is_unterminated and stop == rows.num_rows
        lengths = np.diff(starts[index : end + 1])
        yield from _build_episodes(block, lengths, index, first_row=start, unterminated=unterminated)


def _block_bounds(starts: np.ndarray, block_rows: int) -> Iterator[tuple[int, int]]:
    """Yields the bounds of blocks of whole episodes, given the first row of each and the row after the last one.

    The blocks grow up to `block_rows` rows, so that the first episode is available early.
    """
    place, size = 0, min(_FIRST_BLOCK_ROWS, block_rows)
    while place < len(starts) - 1:
        end = max(int(np.searchsorted(starts, starts[place] + size, side="right")) - 1, place + 1)
        yield int(starts[place]), int(starts[end])
        place, size = end, min(2 * size, block_rows)


def _build_episodes(
    columns: dict[str, np.ndarray], lengths: np.ndarray, first_index: int, *, first_row: int, unterminated: bool = False
) -> Iterator[Episode]:
    """Yields the episodes made of consecutive rows.

    Args:
      columns: columns of the rows, `[R, ...]`.
      lengths: int64 `[E]`, the number of rows of each episode.
      first_index: index of the first episode.
      first_row: row of the source at which `columns` begin.
      unterminated: whether the last episode ends without a flag.
    """
    ends = np.cumsum(lengths)
    next_observations = columns.get(NEXT_OBSERVATIONS)
    discontinuities: list[int] = []
    if next_observations is not None:
        rows = find_differing_rows(next_observations[:-1], columns[OBSERVATIONS][1:], ignore=ends - 1)
        discontinuities = (first_row + rows).tolist()
    steps, num_steps = join_transitions(
        columns[OBSERVATIONS],
        columns[ACTIONS],
        rewards=columns[REWARDS],
        num_transitions=lengths,
        terminated=columns[TERMINALS][ends - 1],
        final_observations=_select_final_observations(columns, ends - 1),
        extras=_select_extras(columns),
    )
    row = first_row
    for episode, length in zip(SplitEpisodes(steps, num_steps), lengths.tolist(), strict=True):
        inside = tuple([at for at in discontinuities if row <= at < row + length])
        is_open = unterminated and episode.index == len(lengths) - 1
        is_dropped = episode.num_steps == length
        is_unknown = next_observations is None and not is_dropped
        marks: Any = {"unterminated": is_open, "unknown_final_observation": is_unknown, "discontinuities": inside}
        yield Episode(episode.steps, first_index + episode.index, dropped_last_transition=is_dropped, **marks)
        row += length


def _select_final_observations(columns: dict[str, np.ndarray], last: np.ndarray) -> np.ndarray | None:
    """Returns the final observations of episodes with these last rows, from `infos` if they are not zeros or NaN."""
    rows, finals = (columns[key][last] if key in columns else None for key in (NEXT_OBSERVATIONS, FINAL_OBSERVATIONS))
    if finals is None:
        return rows
    flat = finals.reshape(len(last), -1)
    is_stored = np.isfinite(flat).all(axis=1) & flat.any(axis=1)
    if rows is None:
        return finals if is_stored.all() else None
    return np.where(is_stored.reshape(-1, *[1] * (finals.ndim - 1)), finals, rows)


def _select_extras(columns: dict[Any, np.ndarray]) -> dict[str, Nest]:
    """Returns the extra fields; those whose name is a path, because they are in a group, become nested dicts."""
    extras: dict[str, Nest] = {}
    for name, column in columns.items():
        if isinstance(name, tuple):
            *groups, last = name
            functools.reduce(lambda nest, group: nest.setdefault(group, {}), groups, extras)[last] = column
        elif name not in (*KEYS, FINAL_OBSERVATIONS):
            extras[name] = column
    return extras


OPTIONS = ("extra_fields", "max_episode_steps", "split_at_discontinuity", "independent_rows", "autoreset")
FILE = Format(
    "a D4RL file",
    lambda path: isinstance(path, Path) and not path.is_dir(),
    open_d4rl,
    OPTIONS,
    "D4RL",
    suffixes=(".hdf5", ".h5", ".npz", ".npy"),
)
COLUMNS = Format("a dict of D4RL columns", lambda source: isinstance(source, Mapping), from_rows, OPTIONS)
