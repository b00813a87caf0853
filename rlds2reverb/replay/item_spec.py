"""The structure, dtypes and shapes of a buffer's items, and the lossless casts of items to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tree

from rlds2reverb.errors import ArgumentError, SpecMismatchError
from rlds2reverb.types.sample_info import BUFFER_IDX, PRIORITY, UNIQUE_ID
from rlds2reverb.types.specs import (
    ArraySpec,
    Nest,
    concatenate,
    describe,
    leaves,
    map_structure,
    path_name,
    require_match,
)

COLLECT_ITER, WEIGHT, USE, STALENESS = "collect_iter", "IS", "use", "staleness"
#: Field of padded windows and episodes: bool, False for padding.
MASK = "mask"
#: Keys that would be fields by mistake; those of the functions that take columns.
_MISNAMED = {"priorities": PRIORITY, "collect_iters": COLLECT_ITER}
#: Keys of an item that are not fields: the two options of a push, and what sampling adds.
RESERVED_KEYS = frozenset({PRIORITY, COLLECT_ITER, UNIQUE_ID, BUFFER_IDX, WEIGHT, USE, STALENESS})

_ADVICE = "cast or reshape it before the push"
_NUMERIC_KINDS = "biufc"
#: The dtypes of Python's own numbers.
_PYTHON_TYPES: dict[np.dtype, type] = {np.dtype(bool): bool, np.dtype(np.int64): int, np.dtype(np.float64): float}


class _Mismatch(Exception):
    """A value has another structure than the spec."""


class ItemRows(NamedTuple):
    """Items as rows, which they can share.

    Attributes:
      columns: one array `[R, ...]` per leaf.
      starts: int64 `[N]`, first row of each item, ascending.
      lengths: int64 `[N]`, number of rows of each item; 1 without a time axis.
      spec: spec that converted the items.
    """

    columns: list[np.ndarray]
    starts: np.ndarray
    lengths: np.ndarray
    spec: ItemSpec


@dataclass(frozen=True)
class ItemSpec:
    """The structure, dtypes and shapes of items.

    Attributes:
      rows: nest of `ArraySpec`s of one row of an item.
      holder: name of the buffer in messages, such as "buffer 'demo'".
      time: the time axis of items, `(length,)`, or `(None,)` if lengths vary; `()` if an item is one row.
    """

    rows: Nest
    holder: str
    time: tuple[int | None, ...] = ()

    @classmethod
    def from_example(cls, example: Any, holder: str, time: tuple[int | None, ...] = ()) -> ItemSpec:
        """Returns the spec of items like an example, which is an item or a nest of specs (`ArraySpec` or TensorFlow's).

        Raises:
          SpecMismatchError: If a field has no time axis, or a wrong length.
          TypeError: If the example, or a dict in it, is not a dict with string keys.
          ValueError: If there are no fields, or a field is neither bools nor numbers.
        """
        values = _map_values(_to_spec_or_array, get_fields(example))
        if not leaves(values):
            reserved = ", ".join(sorted(RESERVED_KEYS))
            raise ValueError(f"an item of {holder} must have at least one field besides {reserved}")
        for path, leaf in leaves(values):
            name = path_name(path, "item")
            if leaf.dtype.kind not in _NUMERIC_KINDS:
                raise ValueError(f"{name} must be bools or numbers, got {_describe(leaf)}; encode it before the push")
            if time and not leaf.shape:
                raise SpecMismatchError(
                    f"{name} is {_describe(leaf)}, but {holder} expects a time axis; pass each field as [T, ...]"
                )
            if time and leaf.shape[0] != (time[0] or leaf.shape[0]):
                raise SpecMismatchError(
                    f"{name} is {_describe(leaf)}, but {holder} expects {time[0]} steps; cut or pad the item, or set "
                    "another length in the configuration of the buffer"
                )
        rows = map_structure(lambda leaf: ArraySpec(leaf.shape[len(time) :], leaf.dtype), values)
        return cls(rows, holder, time)

    @property
    def length(self) -> int | None:
        """Number of rows of every item; None if it varies."""
        return self.time[0] if self.time else 1

    @cached_property
    def leaves(self) -> list[ArraySpec]:
        """`ArraySpec`s of a row, in the order of the columns."""
        return [leaf for _, leaf in leaves(self.rows)]

    @cached_property
    def is_flat(self) -> bool:
        """True if an item is a dict of arrays without nested structures."""
        return all(isinstance(part, ArraySpec) for part in self.rows.values())

    @property
    def items(self) -> Nest:
        """`ArraySpec`s of an item, including the time axis."""
        return map_structure(lambda leaf: ArraySpec((*self.time, *leaf.shape), leaf.dtype), self.rows)

    def pack(self, values: Sequence[Any]) -> Any:
        """Returns the nest with these leaves."""
        return tree.unflatten_as(self.rows, values)

    # --- from items to rows

    def join(self, columns: list[np.ndarray], lengths: np.ndarray) -> ItemRows:
        """Returns items of the given lengths that follow each other in the columns."""
        return ItemRows(columns, np.cumsum(lengths) - lengths, lengths, self)

    def convert_items(self, items: Sequence[Any]) -> ItemRows:
        """Converts items to rows, with lossless casts.

        Raises:
          SpecMismatchError: Naming the item, its field, what it is and what was expected.
          TypeError: If an item is not a dict with string keys.
        """
        columns, lengths = [], []
        for index, values in enumerate(self._split_leaves(items)):
            column = None if self.time else _stack_uniform(values, self.leaves[index])
            if column is None:
                arrays = [self._cast(index, value, self.time, f"item {n}") for n, value in enumerate(values)]
                column = concatenate(arrays) if self.time else np.stack(arrays)
                lengths.append([len(array) if self.time else 1 for array in arrays])
            columns.append(column)
        if not self.time:
            return self.join(columns, np.ones(len(items), np.int64))
        for number, item_lengths in enumerate(zip(*lengths, strict=True)):
            if len(set(item_lengths)) > 1 or item_lengths[0] != (self.length or max(item_lengths[0], 1)):
                expected = f"{self.length} steps" if self.length else "the same number of steps, at least 1,"
                got = ", ".join(map(str, sorted(set(item_lengths))))
                raise SpecMismatchError(
                    f"the fields of item {number} must have {expected} for {self.holder}, got {got}; cut or pad it"
                )
        return self.join(columns, np.array(lengths[0], np.int64))

    def convert_columns(self, columns: Any) -> ItemRows:
        """Converts stacked items, `[N, ...]` or `[N, T, ...]` with a time axis, to rows.

        Raises:
          SpecMismatchError: Naming the field; also if the columns have different numbers of items.
          TypeError: If they are not a dict with string keys.
        """
        arrays = self._convert(columns, "columns", self.time)
        count, length = len(arrays[0]), arrays[0].shape[1] if self.time else 1
        rows = [array.reshape(count * length, *leaf.shape) for array, leaf in zip(arrays, self.leaves, strict=True)]
        return self.join(rows, np.full(count, length, np.int64))

    def convert_steps(self, steps: Any) -> list[np.ndarray]:
        """Converts the fields of concatenated items to columns `[R, ...]`; raises as `convert_columns`."""
        return self._convert(steps, "steps", ())

    def _convert(self, columns: Any, root: str, time: tuple[int | None, ...]) -> list[np.ndarray]:
        """Returns the leaves of columns `[N, ...]`, whose items have a time axis or not."""
        values, num_axes = [_to_array(value) for value in self._flatten(columns, f"{root}[0]")], 1 + len(time)
        if any(value.ndim < num_axes and value.dtype.kind in _NUMERIC_KINDS for value in values):
            raise SpecMismatchError(
                f"{root} must be [{'N, T' if time else 'N'}, ...] in all fields for {self.holder}, got a field with "
                "fewer axes; stack the items"
            )
        arrays = [self._cast(index, value, time, f"{root}[0]", is_column=True) for index, value in enumerate(values)]
        sizes = sorted({array.shape[:num_axes] for array in arrays})
        if len(sizes) > 1 or (time and sizes[0][1] != (time[0] or max(sizes[0][1], 1))):
            expected = ", ".join(("N", *(str(length or "T") for length in time)))
            raise SpecMismatchError(
                f"{root} must have the leading axes [{expected}] in all fields for {self.holder}, got "
                f"{', '.join(str(list(size)) for size in sizes)}; cut or pad them"
            )
        return arrays

    def _split_leaves(self, items: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Returns the values of the first leaf in all items, then those of the second leaf, and so on."""
        if self.is_flat and set(map(type, items)) == {dict}:
            keys = items[0].keys()  # Fast path: all items have exactly these keys.
            if keys - RESERVED_KEYS == self.rows.keys() and set(map(len, items)) == {len(keys)}:
                with suppress(KeyError):
                    ordered = (*sorted(self.rows), *(keys & RESERVED_KEYS))  # Reserved keys are looked up as well.
                    return [[item[key] for item in items] for key in ordered][: len(self.leaves)]
        return list(zip(*(self._flatten(item, f"item {number}") for number, item in enumerate(items)), strict=True))

    def _flatten(self, item: Any, root: str) -> list[Any]:
        """Returns the leaves of an item or of columns; raises `SpecMismatchError` if their structure differs."""
        fields = get_fields(item)
        try:
            return list(_iterate_leaves(self.rows, fields))
        except _Mismatch:
            values = _map_values(_to_spec_or_array, fields)
            if [path for path, _ in leaves(values)] != [path for path, _ in leaves(self.rows)]:
                require_match(values, self.rows, holder=self.holder, advice=_ADVICE, root=root)
            raise SpecMismatchError(
                f"{root} must have the same dicts and tuples as the items of {self.holder}; restructure it"
            ) from None

    def _cast(
        self, index: int, value: Any, time: tuple[int | None, ...], root: str, *, is_column: bool = False
    ) -> np.ndarray:
        """Returns a value of a leaf, or a column of them, in the dtype of the leaf.

        Raises:
          SpecMismatchError: If the shape differs, or the cast would change the value.
        """
        leaf, array = self.leaves[index], _to_array(value)
        cast, num_axes = _cast_lossless(array, leaf.dtype, type(value)), is_column + len(time)
        if cast is not None and cast.ndim >= num_axes and cast.shape[num_axes:] == leaf.shape:
            return cast
        path, _ = leaves(self.rows)[index]
        got = _describe(_to_array(take_first(array)) if is_column else array)
        expected = ArraySpec((*time, *leaf.shape), leaf.dtype)
        raise SpecMismatchError(f"{path_name(path, root)} is {got}, but {self.holder} expects {expected}; {_ADVICE}")


def get_fields(item: Any) -> dict[str, Any]:
    """Returns the fields of an item, without the reserved keys.

    Raises:
      TypeError: If it is not a mapping with string keys.
      ValueError: If it has a key such as `priorities`, which would be a field instead of the priority.
    """
    if not isinstance(item, Mapping):
        raise TypeError(f"an item must be a dict of fields, such as {{'obs': array}}, got {type(item).__name__}")
    if wrong := [key for key in item if not isinstance(key, str)]:
        raise TypeError(f"the keys of an item must be strings, got {wrong[0]!r}; rename the field")
    for misnamed, name in _MISNAMED.items():
        if misnamed in item:
            raise ArgumentError(f"an item cannot have the field {misnamed!r}; use {name!r}, or rename it")
    return {key: value for key, value in item.items() if key not in RESERVED_KEYS}


def to_arrays(values: Any) -> Any:
    """Converts a nest of arrays, tensors and lists of numbers to a nest of arrays."""
    return _map_values(_to_array, values)


def take_first(columns: Nest) -> Nest:
    """Returns the first item of columns, zeros if they are empty; leaves without axes stay as they are."""
    return map_structure(lambda c: c if not c.ndim else c[0] if len(c) else np.zeros(c.shape[1:], c.dtype), columns)


def _cast_lossless(array: np.ndarray, dtype: np.dtype, kind: type) -> np.ndarray | None:
    """Returns an array in a different dtype, or None if that could change its values.

    Python numbers and lists of them (`kind`) have no dtype of their own: they are cast if their values fit, floats with
    the usual rounding. Numpy arrays and scalars are cast if their dtype allows it, and integers stay exact.
    """
    if array.dtype == dtype:
        return array
    is_python = kind in (bool, int, float, complex, list, tuple)
    if array.dtype.kind not in _NUMERIC_KINDS or (array.dtype.kind == "c" and dtype.kind != "c"):
        return None
    if not is_python and not np.can_cast(array.dtype, dtype, "safe"):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        rounds = array.dtype.kind in "fc" and dtype.kind in "fc"
        fits = np.isfinite(cast) == np.isfinite(array) if rounds else cast.real.astype(array.dtype) == array
    return cast if fits.all() else None


def _stack_uniform(values: Sequence[Any], leaf: ArraySpec) -> np.ndarray | None:
    """Returns values that all match a leaf without a cast, stacked; None if one may not, for the slower path."""
    types, dtype, count = set(map(type, values)), leaf.dtype, len(values)
    if not leaf.shape and types in ({dtype.type}, {_PYTHON_TYPES.get(dtype)}):
        with suppress(OverflowError):
            return np.array(values, dtype)
    if not leaf.shape or types != {np.ndarray}:
        return None
    if [value.dtype for value in values].count(dtype) < count or [v.shape for v in values].count(leaf.shape) < count:
        return None
    try:
        return np.frombuffer(b"".join(values), dtype).reshape(count, *leaf.shape)  # 5 times as fast as np.stack
    except (BufferError, TypeError, ValueError):  # An array is not contiguous.
        return np.stack(values)


def _to_array(value: Any) -> np.ndarray:
    """Converts a value to an array in native byte order; a list with rows of different lengths to one of objects."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty((), object)
        array[()] = value
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _to_spec_or_array(value: Any) -> ArraySpec | np.ndarray:
    """Returns the `ArraySpec` of a spec such as TensorFlow's, and other values as arrays."""
    if hasattr(value, "shape") and not hasattr(value, "__array__"):
        return ArraySpec(tuple(value.shape), np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype)))
    return _to_array(value)


def _is_list_of_numbers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(part, (bool, int, float)) or _is_list_of_numbers(part) for part in value)
    )


def _map_values(function: Any, value: Any) -> Any:
    """Maps the leaves of a nest in which a list of numbers is a leaf.

    Raises:
      TypeError: If a dict has keys that are not strings.
    """
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            keys = ", ".join(map(repr, value))
            raise TypeError(f"the keys of a dict in an item must be strings, got {keys}; rename them")
        return {key: _map_values(function, part) for key, part in value.items()}
    if isinstance(value, (tuple, list)) and not _is_list_of_numbers(value):
        parts = [_map_values(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return function(value)


def _describe(leaf: ArraySpec | np.ndarray) -> str:
    if leaf.dtype.kind in "SU":
        return "a string" if not leaf.shape else "strings"
    if leaf.dtype.kind != "O" or isinstance(leaf, ArraySpec):
        return describe(leaf)
    first = leaf.flat[0] if leaf.size else None
    if isinstance(first, list):
        return "a list whose rows have different lengths"
    if any(isinstance(element, int) and abs(element) >= 2**63 for element in leaf.flat):
        return "an integer that does not fit in 64 bits"
    return "None" if first is None else f"a {type(first).__name__}"


def _iterate_leaves(spec: Nest, value: Any) -> Iterator[Any]:
    """Yields the leaves of a value in the order of `specs.leaves`; raises `_Mismatch` if its structure differs."""
    if isinstance(spec, ArraySpec):
        if isinstance(value, Mapping):
            raise _Mismatch
        yield value
    elif isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            raise _Mismatch
        for key in sorted(spec):
            yield from _iterate_leaves(spec[key], value[key])
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(spec):
            raise _Mismatch
        for part, inner in zip(spec, value, strict=True):
            yield from _iterate_leaves(part, inner)
