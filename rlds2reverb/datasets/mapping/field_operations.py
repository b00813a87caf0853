"""Operations of mappings on fields: other names and places, parts joined and split, constants, and dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, FinalRow
from rlds2reverb.types.nest_paths import Keys, find_part, format_path, get_part, replace_part
from rlds2reverb.types.specs import ArraySpec, Nest, cast_array, describe, leaves

from ..readers.episode_metadata import to_metadata_array
from ..source import leave_out
from .mapped_source import MappedSource, change_steps, insert_part, parse_path, take_part


def rename_fields(dataset: MappedSource, paths: Mapping[str, str]) -> MappedSource:
    """Moves fields or groups of fields to new paths, all at once: `{old: new}`."""
    moves = {dataset.find(old): new for old, new in paths.items()}

    def rename(steps: dict[str, Nest]) -> dict[str, Nest]:
        parts = []
        for keys in moves:
            steps, part = take_part(steps, keys)
            parts.append(part)
        for new, part in zip(moves.values(), parts, strict=True):
            steps = insert_part(steps, new, part)
        return steps

    names = dataset.names
    renamed = {path: _rename(path, paths) for path in names}
    return change_steps(dataset, rename, names={renamed[path]: elements for path, elements in names.items()})


def _rename(path: str, paths: Mapping[str, str]) -> str:
    for old, new in paths.items():
        if path == old or path.startswith(f"{old}."):
            return new + path[len(old) :]
    return path


def drop_fields(dataset: MappedSource, paths: Sequence[str]) -> MappedSource:
    """Drops fields or groups of fields: a list of their paths."""
    keys = [dataset.find(path) for path in paths]
    source, _ = leave_out(dataset.source, ["/".join(map(str, part)) for part in keys])

    def drop(steps: dict[str, Nest]) -> dict[str, Nest]:
        for part in keys:
            with contextlib.suppress(KeyError):  # It is left out by the reader.
                steps, _ = take_part(steps, part)
        return steps

    return change_steps(replace(dataset, source=source), drop)


def copy_fields(dataset: MappedSource, paths: Mapping[str, str]) -> MappedSource:
    """Copies fields of steps, episodes or the dataset to fields of steps: `{old: new}`."""
    for old, new in paths.items():
        dataset = _copy_field(dataset, old, new)
    return dataset


def _copy_field(dataset: MappedSource, old: str, new: str) -> MappedSource:
    target = tuple(parse_path(new))
    constant = dataset.source.metadata.get(old)
    try:
        keys = find_part(dataset.first.metadata, old)
    except ValueError:
        if constant is None:
            keys = dataset.find(old, is_changed=False)
            names = dataset.names
            names |= {new: names[old]} if old in names else {}
            return change_steps(
                dataset, lambda steps: insert_part(steps, new, _copy(get_part(steps, keys))), names=names
            )
        return set_constants(dataset, {new: constant})
    if isinstance(value := get_part(dataset.first.metadata, keys), dict):
        raise SourceError(f"{old!r} must be a single field of the episodes, got a group of {', '.join(value)}")

    def copy(episode: Episode) -> Episode:
        try:
            rows = _repeat(episode, get_part(episode.metadata, keys), target)
        except KeyError:
            raise SourceError(
                f"episode {episode.index} must have the field {old!r}, as the first one; select those that have it"
            ) from None
        return replace(episode, steps=insert_part(episode.steps, new, rows))

    return dataset.change(copy, unbounded=[target])


def _copy(part: Nest) -> Nest:
    return {name: _copy(inner) for name, inner in part.items()} if isinstance(part, dict) else part.copy()


def set_constants(dataset: MappedSource, values: Mapping[str, Any]) -> MappedSource:
    """Sets fields to the same value in all steps, or replaces them by it: `{path: value}`."""
    for path, value in values.items():
        dataset = _set_constant(dataset, path, value)
    return dataset


def _set_constant(dataset: MappedSource, path: str, value: Any) -> MappedSource:
    array, target = to_metadata_array(value), tuple(parse_path(path))
    if array is None:
        raise SourceError(f"the constant {path!r} must be a text, a number or a list of numbers, got {value!r}")
    array = array.astype(np.float32) if array.dtype == np.float64 else array
    try:
        known = find_part(dataset.spec, path)
    except ValueError:
        known = None

    def fill(episode: Episode) -> Episode:
        steps = episode.steps if known is None else take_part(episode.steps, known)[0]
        return replace(episode, steps=insert_part(steps, path, _repeat(episode, array, target)))

    return dataset.change(fill, unbounded=[target])


def _repeat(episode: Episode, value: np.ndarray, keys: Keys) -> np.ndarray:
    """Returns a value for each step; a last step without an action has it only in its observation."""
    rows = np.repeat(np.asarray(value)[None], episode.num_steps, axis=0)
    if keys[0] != fields.OBSERVATION and episode.final_row is not FinalRow.ACTION:
        rows[-1:] = b"" if rows.dtype == object else 0
    return rows


def join_fields(dataset: MappedSource, joins: Mapping[str, Any]) -> MappedSource:
    """Joins fields to one vector, in order: `{new: [paths]}`, or `{new: {"from": [paths], "names": [names]}}`."""
    for path, value in joins.items():
        value = value if isinstance(value, Mapping) else {"from": value}
        paths, elements = value.get("from"), value.get("names")
        is_list = isinstance(paths, (list, tuple)) and isinstance(elements, (list, tuple, type(None)))
        if not is_list or not paths or set(value) - {"from", "names"}:
            raise SourceError(
                f"the join {path!r} must list fields, alone or as 'from' with a list of 'names', got {value!r}"
            )
        dataset = _join(dataset, path, paths, elements)
    return dataset


def _join(dataset: MappedSource, path: str, paths: Sequence[str], elements: Any) -> MappedSource:
    requirement = "numbers or a vector of them to be joined"
    parts = [dataset.get_numbers(part, requirement) for part in paths]
    kinds = {part: spec.dtype.kind == "f" for part, (_, spec) in zip(paths, parts, strict=True)}
    if len(set(kinds.values())) > 1:
        integers = ", ".join(repr(part) for part, is_float in kinds.items() if not is_float)
        raise SourceError(f"floats and integers cannot be joined to {path!r}; cast {integers} to float32 first")
    if len(set(paths)) < len(paths):
        raise SourceError(f"a field can be joined to {path!r} once, got {', '.join(map(repr, paths))}")
    known, widths = dataset.names, [spec.shape[0] if spec.shape else 1 for _, spec in parts]
    inner = zip(paths, widths, strict=True)
    default = [name for part, width in inner for name in known.get(part) or _number(part.split(".")[-1], width)]
    names = default if elements is None else [str(name) for name in elements]
    if len(names) != sum(width or 0 for width in widths):
        raise SourceError(f"the join {path!r} must have {sum(width or 0 for width in widths)} names, got {len(names)}")

    def join(steps: dict[str, Nest]) -> dict[str, Nest]:
        columns = []
        for keys, _ in parts:
            steps, column = take_part(steps, keys)
            columns.append(column.reshape(len(column), -1))
        return insert_part(steps, path, np.concatenate(columns, axis=1))

    kept = {part: of_part for part, of_part in known.items() if part not in paths}
    return change_steps(dataset, join, names={**kept, path: names})


def _number(name: str, width: int | None) -> list[str]:
    return [name] if width == 1 else [f"{name}_{number}" for number in range(width or 0)]


def split_fields(dataset: MappedSource, splits: Mapping[str, Any]) -> MappedSource:
    """Splits vectors into consecutive parts of given sizes: `{old: {new: size, ...}}`."""
    for path, sizes in splits.items():
        dataset = _split(dataset, path, sizes)
    return dataset


def _split(dataset: MappedSource, path: str, sizes: Any) -> MappedSource:
    keys, spec = dataset.get_numbers(path, "a vector of numbers to be split")
    total = spec.shape[0] if spec.shape else 0
    is_valid = isinstance(sizes, Mapping) and all(type(size) is int and size > 0 for size in sizes.values())
    if not is_valid or sum(sizes.values()) != total:
        got = dict(sizes) if isinstance(sizes, Mapping) else sizes
        raise SourceError(f"the parts of {path!r} must have sizes that add up to {total}, got {got!r}")
    ends = np.cumsum(list(sizes.values()))[:-1]

    def split(steps: dict[str, Nest]) -> dict[str, Nest]:
        steps, column = take_part(steps, keys)
        for new, part in zip(sizes, np.split(column, ends, axis=1), strict=True):
            steps = insert_part(steps, new, np.ascontiguousarray(part))
        return steps

    names = dataset.names
    if elements := names.pop(path, None):
        starts = [0, *map(int, ends)]
        names |= {new: elements[start : start + size] for (new, size), start in zip(sizes.items(), starts, strict=True)}
    return change_steps(dataset, split, names=names)


def cast_fields(dataset: MappedSource, dtypes: Mapping[str, str]) -> MappedSource:
    """Casts fields, or all fields of groups: `{path: dtype}`. Only floats may be rounded."""
    for path, name in dtypes.items():
        keys = dataset.find(path)
        try:
            dtype = np.dtype(name or object)  # None would be float64.
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "biuf":
            raise SourceError(f"the dtype of {path!r} must be a number such as 'float32', got {name!r}")
        for part, spec in leaves(get_part(dataset.spec, keys), keys):
            dataset = _cast(dataset, part, spec, dtype)
    return dataset


def _cast(dataset: MappedSource, keys: Keys, spec: ArraySpec, dtype: np.dtype) -> MappedSource:
    path = format_path(keys)
    if spec.dtype.kind not in "biuf":
        raise SourceError(f"{path!r} must be numbers to be cast, got {describe(spec)}")

    def cast(episode: Episode) -> Episode:
        values, changed = cast_array(get_part(episode.steps, keys), dtype)
        if changed is not None and changed.any():
            row = int(np.argmax(changed.reshape(len(changed), -1).any(axis=1)))
            raise SourceError(
                f"{path!r} must have values that {dtype} can represent, got other ones in episode {episode.index}, "
                f"step {row}; cast it to a different dtype"
            )
        return replace(episode, steps=replace_part(episode.steps, keys, lambda _: values))

    def cast_bounds(episode: Episode) -> Episode:
        return replace(episode, steps=replace_part(episode.steps, keys, lambda column: column.astype(dtype)))

    is_unbounded = spec.minimum is None or dtype.kind != spec.dtype.kind
    return dataset.change(cast, of_bounds=cast_bounds, unbounded=[keys] if is_unbounded else [])


def describe_features(dataset: MappedSource, described: Mapping[str, Any]) -> MappedSource:
    """Describes fields for formats that have encodings, classes and texts: `{path: description}`."""
    for path in described:
        dataset.get_leaf(path)
    return dataset.replace(descriptions={**dataset.source.descriptions, **described})


#: The operations, given the dataset and their value in the mapping.
FIELD_OPERATIONS: dict[str, Callable[[MappedSource, Any], MappedSource]] = {
    "rename": rename_fields,
    "copy": copy_fields,
    "constant": set_constants,
    "join": join_fields,
    "split": split_fields,
    "cast": cast_fields,
    "drop": drop_fields,
}
