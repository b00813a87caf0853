"""OGBench: trajectories of `T + 1` rows in npz archives, and the dicts that `ogbench.load_dataset` returns.

Format: OGBench 1.2 (Park et al. 2025, arXiv:2410.20092). `terminals` mark the last row of a trajectory, never a
terminal state. In a file (and in its compact form, which has `valids`), this row holds the final observation, and its
action leads nowhere; the regular form has `next_observations` instead, and no such row. The data are free of rewards,
except for the single-task variants, whose `masks` are 0 where the task is solved.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import Message, SourceError
from rlds2reverb.system.installation import install_command
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.ownership import copy_arrays

from ..formats import Format
from ..source import Source, identify_files
from . import d4rl, minari, npz
from .agreement import require_agreement
from .columns import as_columns, as_flags, make_log_episode, require_equal_lengths
from .continuity import ROWS_IN_ORDER_ADVICE, ContinuityCheck

_REQUIRED = (d4rl.OBSERVATIONS, d4rl.ACTIONS, d4rl.TERMINALS)
_MASKS, _VALIDS = "masks", "valids"
_COLUMNS = (*_REQUIRED, d4rl.NEXT_OBSERVATIONS, d4rl.REWARDS, _MASKS, _VALIDS)
#: Columns from which OGBench computes the rewards of a task.
_STATES = ("qpos", "button_states")
_NAME = re.compile(
    r"(?P<env>(?:visual-)?(?:pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)(?:-[a-z0-9]+)*?)"
    r"-(?P<type>navigate|stitch|explore|play|noisy)(?P<task>-singletask(?:-task\d)?)?(?P<version>-v\d+)"
)
_URL = "https://rail.eecs.berkeley.edu/datasets/ogbench/"
#: OGBench's version from which rewards belong to the state before the action.
_MIN_VERSION = (1, 2)

#: Adds `rewards` and `masks` to the columns `_STATES` of some rows.
_Relabel = Callable[[dict[str, np.ndarray]], None]
_OpenColumns = Callable[[], contextlib.AbstractContextManager[Mapping[str, Any]]]


def open_ogbench(path: Path, *, extra_fields: Sequence[str] = ()) -> Source:
    """Opens an npz file of OGBench, whose name tells the environment; see `from_columns`."""
    opened = _open_trajectories(path.name, lambda: npz.open_npz(path), extra_fields)
    name = path.stem.removesuffix("-val")
    return _add_environment(opened, _parse_name(name)) if _NAME.fullmatch(name) else opened


def from_columns(columns: Mapping[str, Any], *, extra_fields: Sequence[str] = ()) -> Source:
    """Returns a source for the arrays that `ogbench.load_dataset` or `make_env_and_datasets` returned.

    Every trajectory is truncated and has a final observation. Where there are `masks`, they are the discounts, and a
    trajectory whose last transition has mask 0 is terminal. Missing rewards are 0.

    Args:
      columns: arrays `[N, ...]`, compact or regular.
      extra_fields: names of other columns, such as `qpos`, to read as additional step fields.

    Raises:
      SourceError: If a column is missing, columns differ in length, or flags are not 0 or 1.
    """
    names = [name for name in (*_COLUMNS, *extra_fields) if name in columns]
    arrays = copy_arrays({name: as_columns(columns[name], f"rows in memory: '{name}'") for name in names})
    opened = _open_trajectories("rows in memory", lambda: contextlib.nullcontext(arrays), extra_fields)
    return replace(opened, unread=tuple(sorted({*columns} - {*names})))


def open_name(
    name: str, *, split: str = "train", data_dir: str | Path | None = None, extra_fields: Sequence[str] = ()
) -> Source:
    """Opens a dataset by its name in OGBench's own directory, with the rewards of a single-task variant.

    Args:
      name: such as `pointmaze-medium-navigate-v0`, or `pointmaze-medium-navigate-singletask-task2-v0`, whose rewards
        and masks the package `ogbench` computes.
      split: `train` or `val`.
      data_dir: directory of the files; None for `~/.ogbench/data`.
      extra_fields: see `from_columns`.

    Raises:
      FileNotFoundError: If the file does not exist.
      SourceError: If the file is refused, or `ogbench` is required and not installed.
      ValueError: If there is no such split.
    """
    if split not in ("train", "val"):
        raise ValueError(f"split must be 'train' or 'val', got {split!r}")
    parts = _parse_name(name)
    directory = Path("~/.ogbench/data" if data_dir is None else data_dir).expanduser()
    path = directory / f"{parts['env']}-{parts['type']}{parts['version']}{'-val' if split == 'val' else ''}.npz"
    if not path.is_file():
        download = f"download {_URL}{path.name} to {directory}, or to another directory and name that"
        raise FileNotFoundError(Message(f"OGBench's {name} is not on this machine; {download}", data_dir=...))
    if not parts["task"]:
        return identify_files(open_ogbench(path, extra_fields=extra_fields), lambda: [path])
    make_relabel = _require_relabel(name, parts["environment"])
    opened = _open_trajectories(name, lambda: npz.open_npz(path), extra_fields, make_relabel)
    return _add_environment(opened, parts)


def _parse_name(name: str) -> dict[str, str]:
    match = _NAME.fullmatch(name)
    assert match is not None
    parts = {key: value or "" for key, value in match.groupdict().items()}
    return {**parts, "environment": f"{parts['env']}{parts['task']}{parts['version']}"}


def _add_environment(source: Source, parts: Mapping[str, str]) -> Source:
    """Returns a source with the description of the environment of a name."""
    description = {"id": parts["environment"], "entry_point": "ogbench", "kwargs": {}}
    return replace(source, env_spec=json.dumps(description))


def _require_relabel(name: str, environment: str) -> Callable[[], _Relabel]:
    """Returns a function that makes the environment and returns OGBench's own function for its rewards.

    Raises:
      SourceError: If `ogbench` is missing or too old.
    """
    version = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("ogbench")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _MIN_VERSION:
        raise SourceError(
            f"the rewards of {name} require ogbench 1.2 or later, got {version or 'no such package'}; run "
            f"{install_command('ogbench')}, or load the dataset without '-singletask'"
        )

    def make_relabel() -> _Relabel:
        import gymnasium
        from ogbench.relabel_utils import relabel_dataset

        def relabel(columns: dict[str, np.ndarray]) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                relabel_dataset(environment, env, columns)

        with warnings.catch_warnings():  # About the precision of its spaces.
            warnings.simplefilter("ignore")
            env = gymnasium.make(environment.removeprefix("visual-"))  # With the same goals, and without a renderer.
        return relabel

    return make_relabel


def _open_trajectories(
    name: str,
    open_columns: _OpenColumns,
    extra_fields: Sequence[str],
    make_relabel: Callable[[], _Relabel] | None = None,
) -> Source:
    d4rl.require_new_names(extra_fields, name)
    with open_columns() as columns:
        selected = (*_COLUMNS, *extra_fields, *(_STATES if make_relabel else ()))
        names = [key for key in selected if key in columns]
        _check_columns(name, columns, names, extra_fields)
        starts, is_unterminated = _find_trajectories(name, columns)
        num_rows = len(columns[d4rl.ACTIONS])
        assumed: dict[str, Any] = {"unread": tuple(sorted({*columns} - {*names}))}
    if make_relabel is None and d4rl.REWARDS not in names:
        warning = f"{name} has no rewards, so that all are 0; use it for cloning or with goals"
        assumed |= {"warnings": (warning,), "assumed_fields": (fields.REWARD,)}
    num_episodes = len(starts) - 1

    def read(first: int = 0, stop: int | None = None) -> Iterator[Episode]:
        check = ContinuityCheck(name, num_rows, ROWS_IN_ORDER_ADVICE)
        relabel = None if make_relabel is None else make_relabel()
        with open_columns() as columns:
            for index in range(num_episodes)[first:stop]:
                rows = slice(*starts[index : index + 2])
                where = f"{name}: rows from {rows.start:,} (episode {index})"
                block = {key: as_columns(columns[key][rows], f"{where}: '{key}'") for key in names}
                if relabel is not None:
                    relabel(block)
                episode = _make_episode(where, index, block, extra_fields)
                check.add(episode)
                yield replace(episode, unterminated=is_unterminated and index == num_episodes - 1)

    return Source(
        name, "ogbench", read, num_episodes=num_episodes, num_rows=num_rows, count=lambda: num_episodes, **assumed
    )


def _check_columns(
    name: str, columns: Mapping[str, Any], names: Collection[str], extra_fields: Collection[str]
) -> None:
    for key in extra_fields:
        if key not in columns:
            raise SourceError(
                f"{name} has no '{key}', only {', '.join(sorted(columns))}; fix the name", extra_fields=...
            )
    require_equal_lengths(name, {key: columns[key] for key in names})


def _find_trajectories(name: str, columns: Mapping[str, Any]) -> tuple[list[int], bool]:
    """Returns the first row of each trajectory and the number of rows, and whether the last one has no flag."""
    is_compact = _VALIDS in columns
    key = _VALIDS if is_compact else d4rl.TERMINALS
    flags = as_flags(as_columns(columns[key][:], f"{name}: '{key}'"), f"{name}: {key}")
    if is_compact:
        terminals = as_flags(as_columns(columns[d4rl.TERMINALS][:], name), f"{name}: {d4rl.TERMINALS}")
        stated = {d4rl.TERMINALS: terminals | flags, "where valids is 0, it must be": True}
        require_agreement(name, {_VALIDS: stated})
    starts = [0, *(np.flatnonzero(flags != is_compact) + 1).tolist()]
    is_unterminated = starts[-1] < len(flags)
    return [*starts, len(flags)] if is_unterminated else starts, is_unterminated


def _make_episode(where: str, index: int, block: dict[str, np.ndarray], extra_fields: Collection[str]) -> Episode:
    """Returns the episode of the rows of one trajectory."""
    num_rows = len(block[d4rl.ACTIONS])
    num_transitions = num_rows - (d4rl.NEXT_OBSERVATIONS not in block)
    transitions = slice(num_transitions)
    masks = np.ones(num_rows, bool)
    if _MASKS in block:
        masks = as_flags(block[_MASKS], f"{where}: {_MASKS}")
    columns: dict[str, Any] = {
        "rewards": block.get(d4rl.REWARDS, np.zeros(num_rows, np.float32))[transitions],
        "next_observations": block.get(d4rl.NEXT_OBSERVATIONS),
        "extras": {key: block[key][transitions] for key in extra_fields},
    }
    terminated = bool(num_transitions and not masks[num_transitions - 1])
    observations, actions = block[d4rl.OBSERVATIONS], block[d4rl.ACTIONS][transitions]
    made = make_log_episode(where, index, observations, actions, **columns, terminated=terminated)
    made.steps[fields.DISCOUNT][transitions] = masks[transitions]
    for key in extra_fields:
        made.steps[key][num_transitions:num_rows] = block[key][num_transitions:]
    return made


def _has_columns(names: Collection[str]) -> bool:
    """Returns whether these are OGBench's columns rather than D4RL's, which have `rewards` and usually `timeouts`."""
    has_timeouts = any(name in names for name in (d4rl.TIMEOUTS, *d4rl.ALIASES[d4rl.TIMEOUTS]))
    is_special = d4rl.REWARDS not in names or _MASKS in names or _VALIDS in names
    return all(name in names for name in _REQUIRED) and is_special and not has_timeouts


def _is_name(location: Any) -> bool:
    return isinstance(location, str) and bool(_NAME.fullmatch(location)) and not minari.is_installed(location)


def _is_file(location: Any) -> bool:
    return isinstance(location, Path) and _has_columns(npz.list_arrays(location))


def _is_dict(source: Any) -> bool:
    return isinstance(source, Mapping) and _has_columns(source)


FILE = Format("an OGBench file", _is_file, open_ogbench, ("extra_fields",), "OGBench", suffixes=(".npz",))
NAME = Format(
    "an OGBench name",
    _is_name,
    open_name,
    ("split", "data_dir", "extra_fields"),
    "OGBench names",
    example="cube-single-play-v0",
)
COLUMNS = Format("a dict of OGBench columns", _is_dict, from_columns, ("extra_fields",))
