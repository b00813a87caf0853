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
from rlds2reverb._arguments import require_count
from rlds2reverb.episodes import Episode, joined_transitions, one_step_episodes
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import concatenate

from . import hdf5
from .columns import as_columns, as_flags
from .continuity import ONE_STEP, SPLIT, ContinuityCheck, differing_rows
from .hdf5_blocks import read_blocks
from .source import Source

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
TERMINALS, TIMEOUTS, NEXT_OBSERVATIONS = "terminals", "timeouts", "next_observations"
REQUIRED = (OBSERVATIONS, ACTIONS, REWARDS, TERMINALS)
KEYS = (*REQUIRED, TIMEOUTS, NEXT_OBSERVATIONS)
#: The names under which Gymnasium and Minari know the same flags.
OTHER_NAMES = {
    TERMINALS: ("terminated", "terminations", "terminal"),
    TIMEOUTS: ("truncated", "truncations", "timeout"),
}
#: Gym's, True at either end of an episode, so that it does not say which one it is.
DONES = ("dones", "done")

_BLOCK_BYTES = 4 << 20
_MAX_BLOCK_ROWS = 1 << 16
_FIRST_BLOCK_ROWS = 1 << 11


@dataclass(frozen=True)
class EpisodeEnds:
    """Says where episodes end, besides where the flags of the rows say so.

    Attributes:
      max_episode_steps: an episode is cut off after this many rows.
      at_discontinuity: an episode is cut off where `next_observations[t]` is not `observations[t + 1]`.
      at_every_row: each row is an episode of one transition; for rows that are shuffled, or relabelled.
    """

    max_episode_steps: int | None = None
    at_discontinuity: bool = False
    at_every_row: bool = False

    def __post_init__(self) -> None:
        if self.max_episode_steps is not None:
            require_count("max_episode_steps", self.max_episode_steps, 1)
        if self.at_every_row and (self.max_episode_steps is not None or self.at_discontinuity):
            raise ValueError(
                "independent_rows=True ends an episode after each row; leave out max_episode_steps and split_at_discontinuity"
            )

    def __bool__(self) -> bool:
        return self.max_episode_steps is not None or self.at_discontinuity or self.at_every_row


def open_d4rl(
    path: Path,
    *,
    extra_fields: Sequence[str] = (),
    ends: EpisodeEnds = EpisodeEnds(),
    limits: hdf5.Limits = hdf5.Limits(),  # noqa: B008
) -> Source:
    """Opens a D4RL HDF5 file; neither d4rl nor mujoco is needed.

    Flags may also have the names that Gymnasium and Minari give them (`OTHER_NAMES`).

    Both ends of an episode: with `next_observations` every episode gets its own final observation. Without them a
    truncated episode ends at its last observation and a terminal one gets a final observation of zeros. Rows after the
    last flag are an episode of their own, closed as truncated, with `unterminated` set. A truncated episode without a final
    observation loses its last transition, and has `dropped_last_transition` set.

    Rows inside an episode whose `next_observations` is not the next row's observation are its `discontinuities`.

    Args:
      path: the file. Rewards may be `[N]` or `[N, 1]`, flags bool, integer or float; dtypes are kept.
      extra_fields: names below `infos/` to read as well, each an extra step field.
      ends: how to find truncated episodes; needed where the file has no `timeouts`.
      limits: how much a column may hold.

    Raises:
      SourceError: if the file is refused (see `hdf5`), a key is missing, columns differ in length, there are no
        rows, or flags are not 0 and 1; while iterating, if a compressed block is damaged, or if more than 1 % of the
        rows are discontinuities.
    """
    asked = {f"infos/{name}": name for name in extra_fields}
    with hdf5.open_hdf5(path) as file:
        num_rows = _checked(path.name, _columns(file, asked, limits), ends).num_rows
        metadata = hdf5.scalars(file, "metadata")

    def read() -> Iterator[Episode]:
        with hdf5.open_hdf5(path) as file:
            yield from cut_episodes(_checked(path.name, _columns(file, asked, limits), ends))

    return Source(path.name, "d4rl", read, num_rows=num_rows, metadata=metadata)


def from_rows(name: str, columns: Mapping[str, Any], *, extra_fields: Sequence[str] = (), ends: EpisodeEnds) -> Source:
    """Returns arrays in memory under D4RL's names, such as `env.get_dataset()` gives them, as a source.

    Columns under other names, `metadata/*` and the `infos/*` that are not asked for included, are left out.
    """
    require_free_names(extra_fields, name)
    places = own_names(columns, name)
    for info in extra_fields:
        if f"infos/{info}" not in columns:
            raise SourceError(f"{name} has no 'infos/{info}'")
        places[info] = f"infos/{info}"
    arrays = {key: as_columns(columns[place], f"{name}: '{place}'") for key, place in places.items()}
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
        """Yields at most `num_rows` rows at a time, with the row where they stop; flags are bool, rewards `[n]`."""
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


def own_names(available: Iterable[str], where: str) -> dict[str, str]:
    """Returns the name that each of `KEYS` has in the data; keys that they lack are left out.

    Raises:
      SourceError: if there are `dones` in the place of `terminals`.
    """
    names = set(available)
    found = {}
    for key in KEYS:
        name = next((name for name in (key, *OTHER_NAMES.get(key, ())) if name in names), None)
        if name is not None:
            found[key] = name
    dones = next((name for name in DONES if name in names), None)
    if dones and TERMINALS not in found:
        raise SourceError(
            f"{where} has '{dones}', which does not say whether an episode ended in a terminal state or was cut off; "
            f"give '{TERMINALS}' for the former and '{TIMEOUTS}' for the latter"
        )
    return found


def _columns(file: Any, extra_fields: Mapping[str, str], limits: hdf5.Limits) -> dict[str, Any]:
    where = Path(file.filename).name
    require_free_names(extra_fields.values(), where)
    places = own_names((name for name in file if isinstance(name, str)), where)  # others are not UTF-8
    found = {name: hdf5.column(file, place, limits) for name, place in places.items()}
    for place, name in extra_fields.items():
        found[name] = hdf5.column(file, place, limits)
        if found[name] is None:
            raise SourceError(f"{where} has no '{place}'")
    columns = {name: dataset for name, dataset in found.items() if dataset is not None}
    hdf5.require_within(list(columns.values()), f"{where}: all columns together", limits)
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
    if NEXT_OBSERVATIONS not in columns:
        if ends.at_discontinuity:
            raise SourceError(f"{name} has no '{NEXT_OBSERVATIONS}', which splitting at a discontinuity compares")
        if ends.at_every_row:
            raise SourceError(f"{name} has no '{NEXT_OBSERVATIONS}', which transitions of one step need")
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
    blocks = rows.blocks(int(np.clip(_BLOCK_BYTES // max(row_bytes, 1), 1, _MAX_BLOCK_ROWS)))
    if rows.ends.at_every_row:
        for stop, block in blocks:
            yield from _one_step_episodes(block, stop - len(block[REWARDS]))
        return
    check = ContinuityCheck(rows.name, rows.num_rows, f"{ONE_STEP}; {SPLIT}")
    for episode, num_rows in _whole_episodes(rows, blocks):
        check.add(episode, num_rows)
        yield episode


def _whole_episodes(
    rows: TransitionRows, blocks: Iterator[tuple[int, dict[str, np.ndarray]]]
) -> Iterator[tuple[Episode, int]]:
    """Yields each episode, and how many rows it has in the source."""
    held: list[dict[str, np.ndarray]] = []  # the rows of an episode that goes on in the next block
    num_held = index = 0
    jumps: list[int] = []
    for stop, block in blocks:
        num_rows = len(block[REWARDS])
        start = stop - num_rows
        ends = list(_ends(rows, block, stop, num_held))
        jumps += [start + jump for jump in _jumps(block, ends, held[-1] if held else None)]
        begin = 0
        if ends:
            begin = ends[-1] + 1
            lengths = np.diff(ends, prepend=-1 - num_held)
            whole = _join([*held, {name: values[:begin] for name, values in block.items()}])
            episodes = _episodes(whole, lengths, index, first_row=start - num_held, jumps=jumps)
            del whole  # they have copies of what they need of it
            yield from episodes
            jumps = [jump for jump in jumps if jump >= start + begin]
            index, held, num_held = index + len(lengths), [], 0
        if begin < num_rows:
            held.append({name: values[begin:] for name, values in block.items()})
            num_held += num_rows - begin
    if held:
        lengths = np.array([num_held])
        yield from _episodes(_join(held), lengths, index, first_row=stop - num_held, jumps=jumps, unterminated=True)


def _jumps(block: dict[str, np.ndarray], ends: list[int], before: dict[str, np.ndarray] | None) -> list[int]:
    """Returns the discontinuities of a block, counted from its first row; -1 is the last row of the block before."""
    if NEXT_OBSERVATIONS not in block:
        return []
    jumps = differing_rows(block[NEXT_OBSERVATIONS][:-1], block[OBSERVATIONS][1:], but=ends).tolist()
    if before is not None and len(differing_rows(before[NEXT_OBSERVATIONS][-1:], block[OBSERVATIONS][:1])):
        jumps.insert(0, -1)
    return list(jumps)


def _block_bounds(num_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """Yields blocks that grow to their size, so that the first episode does not wait for a large one."""
    start, size = 0, min(_FIRST_BLOCK_ROWS, block_rows)
    while start < num_rows:
        stop = min(start + size, num_rows)
        yield start, stop
        start, size = stop, min(2 * size, block_rows)


def _ends(rows: TransitionRows, block: dict[str, np.ndarray], stop: int, length: int) -> Iterator[int]:
    """Yields the rows of a block after which an episode ends; `length` rows of the running one came before."""
    ended = block[TERMINALS].copy()
    if TIMEOUTS in block:
        ended |= block[TIMEOUTS]
    if rows.ends.at_discontinuity:
        following = np.concatenate([block[OBSERVATIONS][1:], rows.columns[OBSERVATIONS][stop : stop + 1]])
        ended[differing_rows(block[NEXT_OBSERVATIONS][: len(following)], following)] = True
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
    return {name: concatenate([part[name] for part in parts]) for name in parts[0]}


def _episodes(
    part: dict[str, np.ndarray],
    lengths: np.ndarray,
    first_index: int,
    *,
    first_row: int,
    jumps: list[int],
    unterminated: bool = False,
) -> Iterator[tuple[Episode, int]]:
    """Yields the episodes of rows that are whole ones, and how many rows each has.

    Args:
      part: columns of the rows.
      lengths: int64 `[E]`, the rows of each episode.
      first_index: of the first episode.
      first_row: of the first row in the source.
      jumps: discontinuities, rows of the source.
      unterminated: whether the rows just stop in the last episode.
    """
    ends = np.cumsum(lengths)
    following = part.get(NEXT_OBSERVATIONS)
    steps, num_steps = joined_transitions(
        part[OBSERVATIONS],
        part[ACTIONS],
        rewards=part[REWARDS],
        num_transitions=lengths,
        terminated=part[TERMINALS][ends - 1],
        final_observations=None if following is None else following[ends - 1],
        extras=_extras(part),
    )
    del part, following  # they are as large as the steps, which are copies
    row = step = 0
    for number, (length, count) in enumerate(zip(lengths.tolist(), num_steps.tolist(), strict=True)):
        cut = slice(step, step + count)
        inside = [jump for jump in jumps if row <= jump - first_row < row + length] if jumps else ()
        own = {name: column[cut] for name, column in steps.items()}
        yield Episode(own, first_index + number, unterminated, count == length, tuple(inside)), length
        row, step = row + length, step + count


def _one_step_episodes(block: dict[str, np.ndarray], first_row: int) -> Iterator[Episode]:
    return one_step_episodes(
        block[OBSERVATIONS],
        block[ACTIONS],
        rewards=block[REWARDS],
        terminated=block[TERMINALS],
        next_observations=block[NEXT_OBSERVATIONS],
        extras=_extras(block),
        first_index=first_row,
    )


def _extras(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in part.items() if name not in KEYS}
