"""robomimic's HDF5 format: groups `data/demo_0, demo_1, ...`, each with the columns of one episode.

Format: robomimic (Mandlekar et al. 2021, arXiv:2108.03298) and files derived from it, such as those of LIBERO, MimicGen
and Isaac Lab, which nests observations in groups and gives each demonstration an attribute `success`.
`rewards[t]` and `dones[t]` belong to the state after action `t`. robomimic writes `dones` in one of three modes, which
the file does not record: 0 marks every success, 1 the last row of each demonstration, and 2 both. A last row with
`dones` set is therefore no evidence of a terminal state; the rewards are, if they are 1 at success and 0 otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.specs import leaves, map_structure

from ..formats import Format
from ..source import Source
from . import hdf5, npz
from .agreement import add_contradictions, find_contradictions
from .columns import ColumnReader, Paths, as_columns, as_flags, make_log_episode, require_equal_lengths
from .continuity import ROWS_IN_ORDER_ADVICE, ContinuityCheck
from .episode_metadata import read_attributes
from .json_files import parse_object

OBSERVATIONS, NEXT_OBSERVATIONS, MASK = "obs", "next_obs", "mask"
LANGUAGE = "language_instruction"
ACTIONS, REWARDS, DONES = "actions", "rewards", "dones"
#: Attributes of a demonstration in files that `robomimic_writer` has written.
IS_TERMINAL, UNTERMINATED = "is_terminal", "unterminated"
#: Group of a demonstration, and attribute of `data`, in such files.
STEP_FIELDS, METADATA = "step_fields", "metadata"
#: Attribute of a demonstration, a dict as JSON, and the key of the text of its task.
EPISODE_META, LANG = "ep_meta", "lang"
#: Attributes of a demonstration in files of Isaac Lab.
_SUCCESS, SEED = "success", "seed"
#: Attributes of a demonstration that are not metadata of the episode; `model_file` is the XML of the simulation.
RESERVED = frozenset(["num_samples", "model_file", IS_TERMINAL, UNTERMINATED, SEED])
_OPTIONAL = (REWARDS, DONES, NEXT_OBSERVATIONS)
#: The kinds of `type` in `env_args`.
ENVIRONMENT_TYPES = {1: "robosuite", 2: "gym", 3: "ig_momart"}
_MAX_ENV_ARGS = 1 << 20
#: Maximum size of the rewards of all demonstrations that are kept in memory, so that they are read once.
MAX_KEPT_BYTES = 8 << 20


def is_robomimic(location: Any) -> bool:
    """Returns whether a location is a file with `data/demo_<n>` groups."""
    if not isinstance(location, Path) or location.is_dir() or npz.is_npz(location):
        return False
    with hdf5.open_hdf5(location) as file:
        return bool(_list_demos(file))


def open_robomimic(path: Path, *, split: str | None = None) -> Source:
    """Opens a robomimic file, whose observations become dicts.

    The final observation of an episode is the last row of `next_obs`. In a file without `next_obs`, a terminal episode
    ends in an observation of zeros, and any other one loses its last transition.

    An episode of `write_dataset` is terminal if its attribute says so. In other files, an episode is terminal if its
    last reward is 1, in a file whose rewards are all 0 or 1. Otherwise the attributes `success` decide if all
    demonstrations have one, and if not, `dones`, as far as they tell success from the end of a demonstration. All other
    episodes are truncated. Missing rewards are 0.

    Args:
      path: the file.
      split: filter key: only the demonstrations that `mask/<split>` lists are read; None for all.

    Raises:
      SourceError: If the file is refused (see `hdf5`), no demonstration can be read, or there is no such split; while
        iterating, if a demonstration is damaged or missing a column.
    """
    with hdf5.open_hdf5(path) as file:
        contents = _survey(file, _list_demos(file) if split is None else _select_demos(file, split))
        warnings = _describe_absent(file, contents.masks if split is None else {split: _read_mask(file, split)})
        if split is None and not contents.errors:
            rows = {"the attribute total": file["data"].attrs.get("total"), "the sum of rows": contents.num_rows}
            warnings += tuple(f"{path.name}: {found.message}" for found in find_contradictions({"rows": rows}))
        described, task = _describe_environment(file), _describe_task(file)
        with contextlib.suppress(OSError, RuntimeError, TypeError):  # Metadata are optional.
            task |= parse_object(file["data"].attrs.get(METADATA))
        names = {name for demo in contents.demos[:1] for name in hdf5.list_names(file[demo])}
        described["unread"] = tuple(sorted(names - {OBSERVATIONS, ACTIONS, STEP_FIELDS, *_OPTIONAL}))
    demos, count = contents.demos, len(contents.demos)
    described["metadata"] = {**described.get("metadata", {}), **task, **contents.metadata}
    described["warnings"] = (*warnings, *contents.warnings)
    described["assumed_fields"] = () if REWARDS in contents.optional else (fields.REWARD,)

    def list_columns() -> Iterable[tuple[str, ...]]:
        return hdf5.list_all_columns(path, [f"{demo}/{OBSERVATIONS}" for demo in demos])

    def read(left_out: Paths, first: int, stop: int | None) -> Iterator[Episode]:
        check = ContinuityCheck(path.name, contents.num_rows, ROWS_IN_ORDER_ADVICE)
        with hdf5.open_hdf5(path) as file:
            data = file["data"]
            for index in range(count)[first:stop]:
                if demos[index] in contents.errors:
                    raise SourceError(contents.errors[demos[index]])
                episode = _read_episode(_Demo(data, demos[index], path.name), index, contents, left_out)
                check.add(episode)
                yield episode

    reader = ColumnReader(read, list_columns)
    return Source(
        path.name,
        "robomimic",
        reader.read,
        num_episodes=count,
        num_rows=contents.num_rows,
        count=lambda: count,
        **described,
    )


def _list_demos(file: h5py.File) -> list[str]:
    data = hdf5.open_member(file, "data")
    if not isinstance(data, h5py.Group):
        return []
    names = hdf5.list_names(data)
    demos = [name for name in names if name.startswith("demo_") and name[5:].isdecimal() and name.isascii()]
    return [f"data/{name}" for name in sorted(demos, key=lambda name: int(name[5:]))]


def _describe_absent(file: h5py.File, masks: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Returns a sentence about each filter key that lists demonstrations that the file does not contain.

    A file that contains a part of a larger file's demonstrations often keeps its filter keys.
    """
    name, known = Path(file.filename).name, {demo.removeprefix("data/") for demo in _list_demos(file)}
    absent = {key: sorted(names - known) for key, names in masks.items() if names - known}
    return tuple(
        f"{name}: 'mask/{key}' lists {len(demos)} demonstrations that the file does not contain, first {demos[0]}"
        for key, demos in absent.items()
    )


def _select_demos(file: h5py.File, split: str) -> list[str]:
    """Returns the demonstrations of the file that a filter key lists, in the order of the file."""
    where = f"{Path(file.filename).name}: 'mask/{split}'"
    masks = hdf5.open_member(file, MASK)
    keys = hdf5.list_names(masks) if isinstance(masks, h5py.Group) else []
    if split not in keys:
        raise SourceError(f"{where} does not exist; use one of: {', '.join(keys) or '(the file has no splits)'}")
    names = _read_mask(file, split)
    demos = [demo for demo in _list_demos(file) if demo.removeprefix("data/") in names]
    if not demos:
        raise SourceError(f"{where} must list demonstrations of the file, got {sorted(names)[:5]}; fix the split")
    return demos


def _read_mask(file: h5py.File, key: str) -> frozenset[str]:
    """Returns the names of the demonstrations that a filter key lists."""
    where = f"{Path(file.filename).name}: 'mask/{key}'"
    mask = hdf5.open_member(file[MASK], key)
    if not isinstance(mask, h5py.Dataset) or mask.dtype.kind not in "SO" or len(mask.shape or ()) != 1:
        raise SourceError(f"{where} must be a list of names of demonstrations")
    hdf5.require_safe([mask], where)
    return frozenset(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in mask[()])


def _read_masks(file: h5py.File) -> dict[str, frozenset[str]]:
    """Returns the demonstrations of each filter key that can be read."""
    masks: dict[str, frozenset[str]] = {}
    group = hdf5.open_member(file, MASK)
    for key in hdf5.list_names(group) if isinstance(group, h5py.Group) else ():
        with contextlib.suppress(SourceError):  # An error only if the key is used.
            masks[key] = _read_mask(file, key)
    return masks


@dataclass(frozen=True)
class _Contents:
    """The demonstrations of a file, and the properties that they share.

    Attributes:
      demos: the demonstrations that have rows or cannot be read.
      errors: the errors of those that cannot be read, which have no other properties.
      num_rows: number of rows of all others.
      optional: names of the optional columns and groups that the demonstrations contain.
      is_terminal: whether each demonstration ends in a terminal state.
      unterminated: whether each demonstration ends in the middle of an episode; {} if none does.
      rewards: the rewards of each demonstration, which need not be read again; {} if they are too large.
      metadata: the mode of `dones`.
      warnings: assumptions about rewards and ends.
      masks: the demonstrations of each filter key.
    """

    demos: list[str]
    errors: dict[str, str]
    num_rows: int
    optional: frozenset[str]
    is_terminal: dict[str, bool]
    unterminated: dict[str, bool]
    rewards: dict[str, np.ndarray]
    metadata: dict[str, Any]
    warnings: tuple[str, ...]
    masks: dict[str, frozenset[str]]


def _survey(file: h5py.File, demos: Sequence[str]) -> _Contents:
    """Reads the rewards and `dones` of all demonstrations, or their actions if there are neither.

    Reading both before the episodes is the main cost over a plain read of a file, of which opening the columns takes
    most of the time.
    """
    name, data = Path(file.filename).name, file["data"]
    optional: set[str] = set()
    columns: dict[str, dict[str, np.ndarray]] = {}
    errors: dict[str, str] = {}
    empty = []
    for path in demos:
        try:
            demo = _Demo(data, path, name)
            optional.update(demo.optional)
            found = {key: demo.read(key) for key in (REWARDS, DONES) if key in demo.optional}
            found = found or {ACTIONS: demo.read(ACTIONS)}
            if not any(map(len, found.values())):
                empty.append(path)
                continue
            require_equal_lengths(demo.where, found)
            if DONES in found:
                found[DONES] = as_flags(found[DONES], f"{demo.where}: dones")
            columns[path] = found
        except SourceError as error:
            errors[path] = str(error)
        except (OSError, RuntimeError) as error:  # As h5py raises for damage.
            errors[path] = f"{name}: '{path}' is damaged; copy or download it again ({error})"
    for path, found in columns.items():
        if missing := optional & {REWARDS, DONES} - {*found}:
            errors[path] = f"{name}: '{path}/{min(missing)}' is missing, which other demonstrations contain"
    kept = [path for path in columns if path not in errors]
    if errors and not kept:
        raise SourceError(next(iter(errors.values())))
    rewards, dones = ([columns[path][key] for path in kept if key in columns[path]] for key in (REWARDS, DONES))
    is_sparse = bool(rewards) and all(((column == 0) | (column == 1)).all() for column in rewards)
    successes = [(column == 1).reshape(len(column), -1).any(axis=1) for column in rewards] if is_sparse else []
    marks, succeeded = (_read_marks(file, kept, attribute) for attribute in (IS_TERMINAL, _SUCCESS))
    is_terminal, assumption = (marks, None) if marks else _find_terminal(successes, dones, succeeded, len(kept))
    warnings = [] if assumption is None else [f"{name}: {assumption}"]
    if empty:
        warnings.append(f"{name}: {len(empty)} demonstrations without rows are left out, first {empty[0]!r}")
    if not rewards:
        warnings.append(f"{name} has no rewards, so that all are 0; use it for cloning")
    small = rewards if sum(column.nbytes for column in rewards) <= MAX_KEPT_BYTES else []
    return _Contents(
        [path for path in demos if path not in empty],
        errors,
        num_rows=sum(len(next(iter(columns[path].values()))) for path in kept),
        optional=frozenset(optional),
        is_terminal=dict(zip(kept, is_terminal, strict=True)),
        unterminated=dict(zip(kept, _read_marks(file, kept, UNTERMINATED), strict=False)),
        rewards=dict(zip(kept, small, strict=False)),
        metadata=_describe_dones(successes, dones),
        warnings=tuple(warnings),
        masks=_read_masks(file),
    )


def _read_marks(file: h5py.File, demos: Sequence[str], name: str) -> tuple[bool, ...]:
    """Returns an attribute of each demonstration; () unless it is a bool in all of them."""
    stored = (_Demo(file["data"], demo, "").group.attrs.get(name) for demo in demos)
    marks = [bool(mark) for mark in itertools.takewhile(lambda mark: isinstance(mark, np.bool_), stored)]
    return tuple(marks) if len(marks) == len(demos) else ()


def _find_terminal(
    successes: Sequence[np.ndarray], dones: Sequence[np.ndarray], succeeded: tuple[bool, ...], num_demos: int
) -> tuple[tuple[bool, ...], str | None]:
    """Returns whether each demonstration ends in a terminal state, and what was assumed about it, or None."""
    if successes:
        is_terminal = tuple(bool(column[-1:].any()) for column in successes)
        pairs = zip(is_terminal, dones, strict=False)
        num_failed = sum(not terminal and bool(done[-1:].any()) for terminal, done in pairs)
        failed = f"{num_failed} demonstrations end with dones set but without success (reward 1), and are truncated"
        return is_terminal, failed if num_failed else None
    if succeeded:
        num_failed = num_demos - sum(succeeded)
        return succeeded, (
            f"{sum(succeeded)} demonstrations are terminal because of their attribute success; {num_failed} others "
            "failed and are truncated"
        )
    if dones and not all(column[-1:].all() for column in dones):  # Mode 0.
        return tuple(bool(column[-1:].any()) for column in dones), None
    if any(column[:-1].any() for column in dones):
        held = tuple(bool(len(column) > 1 and column[-2:].all()) for column in dones)
        return held, (
            f"dones are set in the last row of each demonstration; {sum(held)} of {num_demos}, in which the row before "
            "is set as well, are terminal, and the others are truncated"
        )
    return (False,) * num_demos, "nothing tells success from the end of a demonstration, so that all are truncated"


def _describe_dones(successes: Sequence[np.ndarray], dones: Sequence[np.ndarray]) -> dict[str, Any]:
    """Returns the modes in which `dones` can have been written, as metadata."""
    if not dones:
        return {}
    last = [np.arange(len(column)) == len(column) - 1 for column in dones]
    modes = {"1 (end of the demonstration)": last}
    if successes:
        both = [success | end for success, end in zip(successes, last, strict=True)]
        modes = {"0 (success)": list(successes), **modes, "2 (success or end of the demonstration)": both}
    matching = [mode for mode, expected in modes.items() if all(map(np.array_equal, dones, expected))]
    return {"done_mode": " or ".join(matching)} if matching else {}


def _describe_environment(file: h5py.File) -> dict[str, Any]:
    """Returns the `env_spec` and the metadata of `env_args`; an empty dict if the file has none that can be read."""
    try:
        attributes = file["data"].attrs
        if "env_args" not in attributes or attributes.get_id("env_args").get_storage_size() > _MAX_ENV_ARGS:
            return {}
        arguments = parse_object(attributes["env_args"])
    except (OSError, RuntimeError, TypeError, ValueError):  # Metadata are optional.
        return {}
    if not isinstance(arguments.get("env_name"), str):
        return {}
    kind = ENVIRONMENT_TYPES.get(arguments["type"]) if isinstance(arguments.get("type"), int) else None
    plain = {"env_name": arguments["env_name"], "env_type": kind, "env_version": arguments.get("env_version")}
    return {
        "env_spec": json.dumps({"id": arguments["env_name"], "kwargs": arguments.get("env_kwargs")}),
        "metadata": {key: value for key, value in plain.items() if isinstance(value, str)},
    }


def _describe_task(file: h5py.File) -> dict[str, str]:
    """Returns the text of the task in LIBERO's files as metadata."""
    with contextlib.suppress(OSError, RuntimeError, TypeError, ValueError):  # Metadata are optional.
        text = parse_object(file["data"].attrs.get("problem_info")).get(LANGUAGE)
        return {LANGUAGE: text} if isinstance(text, str) else {}
    return {}


class _Demo:
    """One demonstration of an open file, whose group is `group`; `where` names both in messages."""

    def __init__(self, data: h5py.Group, path: str, file_name: str):
        self.where = f"{file_name}: '{path}'"
        group = hdf5.open_group(data, path.removeprefix("data/"))
        if not isinstance(group, h5py.Group):
            raise SourceError(f"{self.where} must be a group of columns")
        self.group, self._file_name, self._path = group, file_name, path

    @cached_property
    def optional(self) -> list[str]:
        """The names of the optional columns and groups that it contains."""
        return [name for name in _OPTIONAL if self.group.id.links.exists(name.encode())]

    def read(self, name: str) -> np.ndarray:
        """Returns the values of a column, which must exist."""
        values = hdf5.read_column(self.group, name)
        if values is None:
            raise SourceError(f"{self._describe(name)} is missing")
        return as_columns(values, self._describe(name))

    def read_nest(self, name: str, left_out: Paths) -> dict[str, Any]:
        """Returns the columns of a group of observations, which must exist, with nested dicts for the groups in it."""
        nest = hdf5.read_nest(self.group, name, self._describe("")[:-2], left_out=left_out)
        if not isinstance(nest, dict):
            raise SourceError(
                f"{self._describe(name)} is missing, or is not a group of columns; extract the observations from the "
                "states with robomimic's dataset_states_to_obs.py"
            )
        return nest

    def _describe(self, name: str) -> str:
        return f"{self._file_name}: '{self._path}/{name}'"


def _read_step_fields(group: h5py.Group, name: str, where: str) -> Any:
    """Returns the columns of a group of fields, in which texts are bytes; None if there is none."""
    member = hdf5.open_member(group, name)
    if isinstance(member, h5py.Group):
        return {key: _read_step_fields(member, key, f"{where}/{name}") for key in sorted(hdf5.list_names(member))}
    if isinstance(member, h5py.Dataset) and h5py.check_string_dtype(member.dtype) is not None:
        hdf5.require_safe([member], f"{where}/{name}")
        return member[()].astype(object)
    return hdf5.read_column(group, name)


def _read_episode(demo: _Demo, index: int, contents: _Contents, left_out: Paths) -> Episode:
    path, actions, observations = contents.demos[index], demo.read(ACTIONS), demo.read_nest(OBSERVATIONS, left_out)
    has_next = NEXT_OBSERVATIONS in contents.optional
    next_observations = demo.read_nest(NEXT_OBSERVATIONS, left_out) if has_next else None
    rewards = np.zeros(len(actions), np.float32)
    if REWARDS in contents.optional:
        rewards = contents.rewards[path] if contents.rewards else demo.read(REWARDS)
    nested, after = (
        {"/".join((group, *path)): column for path, column in leaves(nest)}
        for group, nest in ((OBSERVATIONS, observations), (NEXT_OBSERVATIONS, next_observations or {}))
    )
    require_equal_lengths(demo.where, {ACTIONS: actions, REWARDS: rewards, **nested, **after})
    names, names_after = ({name.partition("/")[2] for name in nest} for nest in (nested, after))
    if next_observations is not None and names != names_after:
        different = ", ".join(sorted(names ^ names_after))
        raise SourceError(f"{demo.where}: obs and next_obs must have the same columns; they differ in {different}")
    columns: dict[str, Any] = {"rewards": rewards, "next_observations": next_observations}
    extras = _read_step_fields(demo.group, STEP_FIELDS, demo.where) or {}
    columns["extras"] = map_structure(lambda column: column[: len(actions)], extras)
    is_terminal = contents.is_terminal[path]
    episode = make_log_episode(demo.where, index, observations, actions, **columns, terminated=is_terminal)
    whole = [len(column) == episode.num_steps for _, column in leaves(extras)]  # With the last step.
    if extras and all(whole):
        episode = replace(episode, steps={**episode.steps, **extras})
    is_unterminated = contents.unterminated.get(path, False)
    metadata, name = _read_metadata(demo.group), path.removeprefix("data/")
    if contents.masks:
        metadata[MASK] = {key: np.array(name in names) for key, names in contents.masks.items()}
    seed, stated = demo.group.attrs.get(SEED), demo.group.attrs.get("num_samples")
    known = int(seed) if isinstance(seed, np.integer) else None
    made = replace(episode, unterminated=is_unterminated, metadata=metadata, seed=known)
    return add_contradictions(made, {"length": {"num_samples": stated, "the number of actions": len(actions)}})


def _read_metadata(group: h5py.Group) -> dict[str, Any]:
    """Returns the attributes of a demonstration, and the text in `ep_meta` unless `robomimic_writer` added it."""
    metadata = read_attributes(group, RESERVED)
    stated: Any = metadata.get(EPISODE_META)
    described = parse_object(stated.item()) if isinstance(stated, np.ndarray) and not stated.shape else {}
    if {*described} == {LANG}:
        del metadata[EPISODE_META]
    if isinstance(described.get(LANG), str) and IS_TERMINAL not in group.attrs:
        metadata.setdefault(LANGUAGE, np.array(described[LANG].encode(), object))
    return metadata


FILE = Format("a robomimic file", is_robomimic, open_robomimic, ("split",), "robomimic")
