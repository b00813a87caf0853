"""The structure, dtypes and shapes of a buffer's items, and the lossless casts of items to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.specs import ArraySpec, Nest, concatenate, describe, leaves, map_structure, path_name, require_match

PRIORITY, COLLECT_ITER = "priority", "collect_iter"
UNIQUE_ID, BUFFER_IDX, WEIGHT, USE, STALENESS = "replay_unique_id", "replay_buffer_idx", "IS", "use", "staleness"
#: Field of padded windows and episodes: bool, False for padding.
MASK = "mask"
#: Keys of an item that are not fields: the two options of a push, and what sampling adds.
RESERVED_KEYS = frozenset({PRIORITY, COLLECT_ITER, UNIQUE_ID, BUFFER_IDX, WEIGHT, USE, STALENESS})

_FLOAT64 = np.dtype(np.float64)
_ADVICE = "cast or reshape it before the push"
_NUMERIC_KINDS = "biufc"
#: All integers up to this one can be represented as float64.
_MAX_EXACT = 2**53
#: The dtypes of Python's own numbers.
_PYTHON_TYPES: dict[np.dtype, type] = {np.dtype(bool): bool, np.dtype(np.int64): int, np.dtype(np.float64): float}


class _Mismatch(Exception):
    """A value has another structure than the spec, or a cast would lose information."""


class ItemRows(NamedTuple):
    """Items as concatenated rows.

    Attributes:
      columns: one array `[R, ...]` per leaf.
      lengths: int64 `[N]`, number of rows of each item; 1 without a time axis.
      spec: spec of these columns: the one that converted the items, or a wider one.
    """

    columns: list[np.ndarray]
    lengths: np.ndarray
    spec: ItemSpec


@dataclass(frozen=True)
class _ValueSpec(ArraySpec):
    """The spec of a value, whether it is a Python number (which has no dtype of its own), and how to describe it."""

    is_python: bool
    description: str


@dataclass(frozen=True)
class ItemSpec:
    """The structure, dtypes and shapes of items.

    Attributes:
      rows: nest of `ArraySpec`s of one row of an item.
      holder: name of the buffer in messages, such as "buffer 'demo'".
      has_time_axis: whether an item has a time axis; otherwise it is one row.
      length: number of rows of every item; None if it varies.
      widening: indices of the int64 leaves that began with a Python integer: the first float makes them float64.
    """

    rows: Nest
    holder: str
    has_time_axis: bool = False
    length: int | None = 1
    widening: frozenset[int] = frozenset()

    @classmethod
    def from_example(
        cls, example: Any, holder: str, *, has_time_axis: bool = False, length: int | None = 1
    ) -> ItemSpec:
        """Returns the spec of items like an example, which is an item or a nest of specs (`ArraySpec` or TensorFlow's).

        Raises:
          SpecMismatchError: If a field has no time axis, or a wrong length.
          TypeError: If the example, or a dict in it, is not a dict with string keys.
          ValueError: If there are no fields, or a field is neither bools nor numbers.
        """
        specs = _map_values(_make_spec, get_fields(example))
        spec_leaves = leaves(specs)
        if not spec_leaves:
            reserved = ", ".join(sorted(RESERVED_KEYS))
            raise ValueError(f"an item of {holder} must have at least one field besides {reserved}")
        for path, leaf in spec_leaves:
            name = path_name(path, "item")
            if leaf.dtype.kind not in _NUMERIC_KINDS:
                raise ValueError(f"{name} must be bools or numbers, got {leaf.description}; encode it before the push")
            if has_time_axis and not leaf.shape:
                raise SpecMismatchError(
                    f"{name} is {leaf.description}, but {holder} expects a time axis; pass each field as [T, ...]"
                )
            if has_time_axis and length is not None and leaf.shape[0] != length:
                raise SpecMismatchError(
                    f"{name} is {leaf.description}, but {holder} expects {length} steps; cut or pad the item, or set "
                    "another length in the configuration of the buffer"
                )
        rows = map_structure(lambda leaf: ArraySpec(leaf.shape[1:] if has_time_axis else leaf.shape, leaf.dtype), specs)
        widening = [i for i, (_, leaf) in enumerate(spec_leaves) if leaf.is_python and leaf.dtype == np.int64]
        return cls(rows, holder, has_time_axis, length, frozenset(widening))

    @cached_property
    def leaves(self) -> list[ArraySpec]:
        """`ArraySpec`s of a row, in the order of the columns."""
        return [leaf for _, leaf in leaves(self.rows)]

    @cached_property
    def is_flat(self) -> bool:
        """Whether an item is a dict of arrays without nested structures."""
        return all(isinstance(part, ArraySpec) for part in self.rows.values())

    @property
    def items(self) -> Nest:
        """`ArraySpec`s of an item, including the time axis."""
        time = (self.length,) if self.has_time_axis else ()
        return map_structure(lambda leaf: ArraySpec((*time, *leaf.shape), leaf.dtype), self.rows)

    def pack(self, values: Sequence[Any]) -> Any:
        """Returns the nest with these leaves."""
        return _pack(self.rows, iter(values))

    # --- from items to rows

    def convert_items(self, items: Sequence[Any]) -> ItemRows:
        """Converts items to rows, with lossless casts.

        Raises:
          SpecMismatchError: Naming the item, its field, what it is and what was expected.
          TypeError: If an item is not a dict with string keys.
        """
        columns: list[np.ndarray] = []
        lengths: list[list[int]] = []
        try:
            for values in self._split_leaves(items):
                column, column_lengths = self._make_column(len(columns), values)
                columns.append(column)
                lengths.append(column_lengths)
        except _Mismatch:
            for number, item in enumerate(items):
                self._raise_mismatch(item, f"item {number}")
            raise self.make_widening_error(len(columns), "item") from None
        if not self.has_time_axis:
            return ItemRows(columns, np.ones(len(items), np.int64), self._widen_to(columns))
        for number, item_lengths in enumerate(zip(*lengths, strict=True)):
            if len(set(item_lengths)) > 1 or item_lengths[0] != (self.length or max(item_lengths[0], 1)):
                expected = f"{self.length} steps" if self.length else "the same number of steps, at least 1,"
                got = ", ".join(map(str, sorted(set(item_lengths))))
                raise SpecMismatchError(
                    f"the fields of item {number} must have {expected} for {self.holder}, got {got}; cut or pad it"
                )
        return ItemRows(columns, np.array(lengths[0], np.int64), self._widen_to(columns))

    def convert_columns(self, columns: Any, root: str = "columns") -> ItemRows:
        """Converts stacked items, `[N, ...]` or `[N, T, ...]` with a time axis, to rows.

        Raises:
          SpecMismatchError: Naming the field; also if the columns have different numbers of items.
          TypeError: If they are not a dict with string keys.
        """
        fields, num_axes = get_fields(columns), 2 if self.has_time_axis else 1
        arrays: list[np.ndarray] = []
        try:
            values = [_to_array(value) for value in _iterate_leaves(self.rows, fields)]
            if any(value.ndim < num_axes and value.dtype.kind in _NUMERIC_KINDS for value in values):
                axes = "N, T" if self.has_time_axis else "N"
                raise SpecMismatchError(
                    f"{root} must be [{axes}, ...] in all fields for {self.holder}, got a field with fewer axes; stack "
                    "the items"
                )
            if any(value.shape[num_axes:] != leaf.shape for value, leaf in zip(values, self.leaves, strict=True)):
                raise _Mismatch
            for value in values:
                arrays.append(self._cast(len(arrays), value))
        except _Mismatch:
            self._raise_mismatch(take_first(map_structure(_to_array, fields)), f"{root}[0]")
            raise self.make_widening_error(len(arrays), root) from None
        sizes = sorted({array.shape[:num_axes] for array in arrays})
        if len(sizes) > 1 or (self.has_time_axis and sizes[0][1] != (self.length or max(sizes[0][1], 1))):
            expected = ", ".join(str(size) for size in ("N", self.length or "T")[:num_axes])
            raise SpecMismatchError(
                f"{root} must have the leading axes [{expected}] in all fields for {self.holder}, got "
                f"{', '.join(str(list(size)) for size in sizes)}; cut or pad them"
            )
        rows = [array.reshape(-1, *leaf.shape) for array, leaf in zip(arrays, self.leaves, strict=True)]
        length = sizes[0][1] if self.has_time_axis else 1
        return ItemRows(rows, np.full(sizes[0][0], length, np.int64), self._widen_to(rows))

    def convert_concatenated(self, columns: Any, lengths: np.ndarray) -> ItemRows:
        """Converts concatenated items to rows: columns `[R, ...]`, and the number of rows of each item.

        Raises:
          SpecMismatchError: Naming the field.
        """
        rows = replace(self, has_time_axis=False).convert_columns(columns, "steps")
        if len(rows.lengths) != lengths.sum():
            raise SpecMismatchError(f"the steps must have {lengths.sum()} rows, got {len(rows.lengths)}")
        return ItemRows(rows.columns, lengths, self._widen_to(rows.columns))

    def make_widening_error(self, leaf_index: int, root: str) -> SpecMismatchError:
        """Returns the error for a leaf with floats and with integers that float64 cannot represent."""
        path, _ = leaves(self.rows)[leaf_index]
        return SpecMismatchError(
            f"{path_name(path, root)} has both floats and integers above 2^53, but {self.holder} has one dtype for "
            "both, and float64 would change the integers; cast them before the push, or set the spec of the buffer"
        )

    def apply_widening(self, restored: ItemSpec) -> ItemSpec:
        """Returns this spec with float64 for the leaves that were widened in a restored one."""
        widened = {
            index
            for index in self.widening & set(range(len(restored.leaves)))
            if restored.leaves[index] == ArraySpec(self.leaves[index].shape, _FLOAT64)
        }
        rows = self.pack([restored.leaves[i] if i in widened else leaf for i, leaf in enumerate(self.leaves)])
        return replace(self, rows=rows, widening=self.widening - widened)

    def _widen_to(self, columns: Sequence[np.ndarray]) -> ItemSpec:
        """Returns this spec, or a wider one with the dtypes of the columns."""
        if all(column.dtype == leaf.dtype for column, leaf in zip(columns, self.leaves, strict=True)):
            return self
        specs = [ArraySpec(leaf.shape, column.dtype) for column, leaf in zip(columns, self.leaves, strict=True)]
        widened = {index for index, leaf in enumerate(self.leaves) if specs[index] != leaf}
        return replace(self, rows=self.pack(specs), widening=self.widening - widened)

    def _split_leaves(self, items: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Returns the values of the first leaf in all items, then those of the second leaf, and so on."""
        if self.is_flat and set(map(type, items)) == {dict}:
            keys = items[0].keys()  # Fast path: all items have exactly these keys.
            if keys - RESERVED_KEYS == self.rows.keys() and set(map(len, items)) == {len(keys)}:
                with suppress(KeyError):
                    ordered = (*sorted(self.rows), *(keys & RESERVED_KEYS))  # Reserved keys are looked up as well.
                    return [[item[key] for item in items] for key in ordered][: len(self.leaves)]
        return list(zip(*(_iterate_leaves(self.rows, get_fields(item)) for item in items), strict=True))

    def _make_column(self, leaf_index: int, values: Sequence[Any]) -> tuple[np.ndarray, list[int]]:
        """Returns the rows of one leaf, and the number of rows of each item if there is a time axis."""
        leaf, num_axes = self.leaves[leaf_index], int(self.has_time_axis)
        if not self.has_time_axis and (stacked := _stack_uniform(values, leaf)) is not None:
            return stacked, []
        arrays = _to_common_dtype([self._cast(leaf_index, value) for value in values])
        if any(array.ndim < num_axes or array.shape[num_axes:] != leaf.shape for array in arrays):
            raise _Mismatch
        return (concatenate(arrays), list(map(len, arrays))) if self.has_time_axis else (np.stack(arrays), [])

    def _cast(self, leaf_index: int, value: Any) -> np.ndarray:
        """Casts a value to the dtype of a leaf, or to float64 if the leaf can be widened.

        Python numbers and lists of them have no dtype of their own: they are cast if their values fit, floats with
        the usual rounding. Numpy arrays and scalars are cast if all values of their dtype would fit.
        """
        dtype, array = self.leaves[leaf_index].dtype, _to_array(value)
        if array.dtype == dtype:
            return array
        if array.dtype.kind not in _NUMERIC_KINDS or (array.dtype.kind == "c" and dtype.kind != "c"):
            raise _Mismatch
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
        if type(value) in (bool, int, float, complex, list, tuple):
            rounds = array.dtype.kind in "fc" and dtype.kind in "fc"
            fits = np.isfinite(cast) == np.isfinite(array) if rounds else cast.real.astype(array.dtype) == array
            fits = fits.all()
        else:
            fits = np.can_cast(array.dtype, dtype, "safe") and is_lossless(array, dtype)
        if fits:
            return cast
        if leaf_index in self.widening and array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            return array.astype(np.float64)
        raise _Mismatch

    # --- errors

    def _raise_mismatch(self, item: Any, root: str) -> None:
        """Raises `SpecMismatchError` if the item alone does not match."""
        time = (None,) if self.has_time_axis else ()
        fields = get_fields(item)
        specs = _map_values(_make_spec, fields)
        got_leaves = leaves(specs)
        if [path for path, _ in got_leaves] != [path for path, _ in leaves(self.rows)]:
            require_match(specs, self.rows, holder=self.holder, advice=_ADVICE, root=root)
        try:
            values = list(_iterate_leaves(self.rows, fields))
        except _Mismatch:
            raise SpecMismatchError(
                f"{root} must have the same dicts and tuples as the items of {self.holder}; restructure it"
            ) from None
        for index, ((path, got), row, value) in enumerate(zip(got_leaves, self.leaves, values, strict=True)):
            try:
                fits = self._cast(index, value).shape[len(time) :] == row.shape
            except _Mismatch:
                fits = False
            if not fits or len(got.shape) != len(time) + len(row.shape):
                expected = ArraySpec((*time, *row.shape), row.dtype)
                raise SpecMismatchError(
                    f"{path_name(path, root)} is {got.description}, but {self.holder} expects {expected}; {_ADVICE}"
                )


def get_fields(item: Any) -> dict[str, Any]:
    """Returns the fields of an item, without the reserved keys.

    Raises:
      TypeError: If it is not a mapping with string keys.
    """
    if not isinstance(item, Mapping):
        raise TypeError(f"an item must be a dict of fields, such as {{'obs': array}}, got {type(item).__name__}")
    if wrong := [key for key in item if not isinstance(key, str)]:
        raise TypeError(f"the keys of an item must be strings, got {wrong[0]!r}; rename the field")
    return {key: value for key, value in item.items() if key not in RESERVED_KEYS}


def to_arrays(values: Any) -> Any:
    """Converts a nest of arrays, tensors and lists of numbers to a nest of arrays."""
    return _map_values(_to_array, values)


def take_first(columns: Nest) -> Nest:
    """Returns the first item of columns, zeros if they are empty; leaves without axes stay as they are."""
    return map_structure(lambda c: c if not c.ndim else c[0] if len(c) else np.zeros(c.shape[1:], c.dtype), columns)


def is_lossless(array: np.ndarray, dtype: np.dtype) -> bool:
    """Returns whether a cast to a float dtype keeps all values: float64 keeps integers up to 2^53."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or dtype.kind not in "fc" or not array.size:
        return True
    return bool(array.max() <= _MAX_EXACT and array.min() >= -_MAX_EXACT)


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


def _to_common_dtype(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Casts arrays to the widest of their dtypes if that keeps all values."""
    widest = np.result_type(*{array.dtype for array in arrays})
    if not all(is_lossless(array, widest) for array in arrays):
        raise _Mismatch
    return [array.astype(widest, copy=False) for array in arrays]


def _to_array(value: Any) -> np.ndarray:
    """Converts a value to an array in native byte order; a list with rows of different lengths to one of objects."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty((), object)
        array[()] = value
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


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


def _make_spec(value: Any) -> _ValueSpec:
    """Returns the spec of a value, or of a spec such as TensorFlow's."""
    if hasattr(value, "shape") and not hasattr(value, "__array__"):
        dtype = np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype))
        return _ValueSpec(tuple(value.shape), dtype, False, describe(value))
    array = _to_array(value)
    is_python = isinstance(value, (bool, int, float, list))
    return _ValueSpec(array.shape, array.dtype, is_python, _describe_array(array))


def _describe_array(array: np.ndarray) -> str:
    if array.dtype.kind in "SU":
        return "a string" if not array.ndim else "strings"
    if array.dtype.kind != "O":
        return describe(array)
    first = array.flat[0] if array.size else None
    if isinstance(first, list):
        return "a list whose rows have different lengths"
    if any(isinstance(element, int) and abs(element) >= 2**63 for element in array.flat):
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


def _pack(spec: Nest, values: Iterator[Any]) -> Any:
    """Returns a nest like the spec from leaves in the order of `specs.leaves`."""
    if isinstance(spec, ArraySpec):
        return next(values)
    if isinstance(spec, Mapping):
        return {key: _pack(spec[key], values) for key in sorted(spec)}
    parts = [_pack(part, values) for part in spec]
    return type(spec)(*parts) if hasattr(spec, "_fields") else type(spec)(parts)
