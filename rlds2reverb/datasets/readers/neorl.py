"""NeoRL: complete transitions in an npz file, with the ends of the trajectories in `index`.

Format: Qin et al. 2022, arXiv:2102.00714. In the file, `index` contains the row after each trajectory; NeoRL's reader
inserts a leading 0. `done` is set in the last row of each trajectory, whether it was terminated or truncated. NeoRL-2
(Gao et al. 2025, arXiv:2503.19267) also has `truncated`, and `done` there tells terminal states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.ownership import copy_arrays

from ..formats import Format
from ..source import Source
from . import d4rl, npz
from .agreement import require_agreement
from .columns import as_columns, as_flags

_NAMES = {d4rl.OBSERVATIONS: "obs", d4rl.NEXT_OBSERVATIONS: "next_obs", d4rl.ACTIONS: "action", d4rl.REWARDS: "reward"}
_DONE, _INDEX, _TRUNCATED = "done", "index", "truncated"


def open_neorl(path: Path, *, max_episode_steps: int | None = None) -> Source:
    """Opens an npz file of NeoRL.

    If `done` is set in the last row of every trajectory, it does not tell terminal states from time limits. Then a
    trajectory is truncated if it has `max_episode_steps` rows, and terminal if it has fewer. Without this limit, the
    longest trajectories are truncated if several have the same length.

    Args:
      path: the file.
      max_episode_steps: time limit of the environment, or None if it is unknown.

    Raises:
      SourceError: If the file is refused (see `npz`), a column is missing, or `index` does not contain the ends.
    """
    return _open_rows(path.name, lambda: npz.open_npz(path), max_episode_steps)


def from_columns(columns: Mapping[str, Any], *, max_episode_steps: int | None = None) -> Source:
    """Returns a source for the arrays of such a file, or those that NeoRL's `get_dataset` returns."""
    arrays = copy_arrays({name: as_columns(column, f"rows in memory: '{name}'") for name, column in columns.items()})
    return _open_rows("rows in memory", lambda: contextlib.nullcontext(arrays), max_episode_steps)


def _open_rows(name: str, open_columns: Any, max_episode_steps: int | None) -> Source:
    if max_episode_steps is not None:
        require_count("max_episode_steps", max_episode_steps, 1)
    with open_columns() as columns:
        required = (*_NAMES.values(), _DONE, _TRUNCATED if _TRUNCATED in columns else _INDEX)
        for key in required:
            if key not in columns:
                raise SourceError(f"{name} has no '{key}'; NeoRL data have {', '.join(required)}")
        flags, warnings = _find_ends(name, columns, max_episode_steps)
        unread = tuple(sorted({*columns} - {*required, _INDEX}))

    @contextlib.contextmanager
    def open_rows() -> Iterator[d4rl.TransitionRows]:
        with open_columns() as columns:
            named = {key: columns[stored] for key, stored in _NAMES.items()}
            yield d4rl.check_columns(name, {**named, **flags}, (), d4rl.EpisodeEnds())

    return d4rl.make_source(name, "neorl", open_rows, warnings=warnings, unread=unread)


def _find_ends(
    name: str, columns: Mapping[str, Any], max_episode_steps: int | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Returns D4RL's flags of all rows, and what was assumed about them."""
    done = as_flags(as_columns(columns[_DONE][:], f"{name}: '{_DONE}'"), f"{name}: {_DONE}")
    truncated = None
    if _TRUNCATED in columns:
        truncated = as_flags(as_columns(columns[_TRUNCATED][:], f"{name}: '{_TRUNCATED}'"), f"{name}: {_TRUNCATED}")
    if truncated is not None and _INDEX not in columns:
        index = np.union1d(np.flatnonzero(done | truncated) + 1, [len(done)])
    else:
        index = as_columns(columns[_INDEX][:], f"{name}: '{_INDEX}'").reshape(-1)
    ends = index[index != 0]
    if len(ends) < len(index) and (not len(ends) or ends[-1] != len(done)):
        ends = np.append(ends, len(done))  # Beginnings, as NeoRL's reader returns them.
    lengths = np.diff(ends, prepend=0)
    if not len(ends) or ends[-1] != len(done) or (lengths < 1).any() or (ends != np.floor(ends)).any():
        raise SourceError(
            f"{name}: '{_INDEX}' must contain the ascending ends of the trajectories, the last one {len(done)}, the "
            f"number of rows; got {index[:5].tolist()} to {index[-1:].tolist()}"
        )
    last = ends.astype(np.int64) - 1
    is_last = np.isin(np.arange(len(done)), last)
    stated = {_DONE: done & ~is_last, "inside the trajectories of index, it must be": False}
    require_agreement(name, {_DONE: stated})
    if truncated is not None:
        rule = "inside the trajectories of index, it must be"
        require_agreement(name, {_TRUNCATED: {_TRUNCATED: truncated & ~is_last, rule: False}})
    is_terminal = done[last]
    warnings: tuple[str, ...] = ()
    if truncated is None and is_terminal.all():
        is_longest = lengths == lengths.max()
        if max_episode_steps is not None:
            is_terminal = lengths < max_episode_steps
        elif is_longest.sum() > 1 or len(lengths) == 1:  # By chance, terminal states hardly come at the same step.
            is_terminal = ~is_longest
        if max_episode_steps is None:
            sentence = (
                f"{name}: done does not tell terminal states from time limits; {int((~is_terminal).sum())} "
                f"trajectories of {int(lengths.max())} rows are taken as truncated and {int(is_terminal.sum())} as "
                "terminal; set the time limit of the environment"
            )
            warnings = (Message(sentence, max_episode_steps=...),)
    flags = {key: np.zeros(len(done), bool) for key in (d4rl.TERMINALS, d4rl.TIMEOUTS)}
    flags[d4rl.TERMINALS][last], flags[d4rl.TIMEOUTS][last] = is_terminal, ~is_terminal
    return flags, warnings


def _has_columns(names: Collection[str]) -> bool:
    return all(name in names for name in (*_NAMES.values(), _DONE))


def _is_file(location: Any) -> bool:
    return isinstance(location, Path) and _has_columns(npz.list_arrays(location))


def _is_dict(source: Any) -> bool:
    return isinstance(source, Mapping) and _has_columns(source)


FILE = Format("a NeoRL file", _is_file, open_neorl, ("max_episode_steps",), "NeoRL")
COLUMNS = Format("a dict of NeoRL columns", _is_dict, from_columns, ("max_episode_steps",))
