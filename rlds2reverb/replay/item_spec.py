"""What the items of a buffer are: nests of numbers of one structure, and what may be cast to fit it."""

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
UNIQUE_ID, PLACE, WEIGHT, USE, STALENESS = "replay_unique_id", "replay_buffer_idx", "IS", "use", "staleness"
#: Says which steps of a padded window or episode are there.
MASK = "mask"
#: Keys of an item that are no fields: two that a push may give, and what sampling adds.
NO_FIELDS = frozenset({PRIORITY, COLLECT_ITER, UNIQUE_ID, PLACE, WEIGHT, USE, STALENESS})

_FLOAT64 = np.dtype(np.float64)
_ADVICE = "cast or reshape it before the push"
_KINDS = "biufc"
#: Integers up to here are float64s as well.
_EXACT = 2**53


class _Unfit(Exception):
    """A value has another structure than the spec, or a cast would lose something."""


class Rows(NamedTuple):
    """Items as rows: those of the first one, then those of the second, and so on.

    Attributes:
      columns: of each leaf, `[R, ...]`.
      lengths: int64 `[N]`, the rows of each item; 1 without a time axis.
      spec: of these columns: the one that was asked, or a wider one.
    """

    columns: list[np.ndarray]
    lengths: np.ndarray
    spec: ItemSpec


@dataclass(frozen=True)
class _Given(ArraySpec):
    """The spec of a value, and whether it was Python's, which has no dtype of its own."""

    of_python: bool = False


@dataclass(frozen=True)
class ItemSpec:
    """The structure, dtypes and shapes of items. It never changes: a wider one is another one.

    Attributes:
      rows: nest of `ArraySpec`s of one row of an item.
      holder: who wants such items, for messages, such as "buffer 'demo'".
      has_time: whether an item has a time axis; without it is one row.
      length: rows of every item; None if they vary.
      widening: the numbers of int64 leaves that a Python integer began: the first float makes them float64.
    """

    rows: Nest
    holder: str
    has_time: bool = False
    length: int | None = 1
    widening: frozenset[int] = frozenset()

    @classmethod
    def of(cls, example: Any, holder: str, *, has_time: bool = False, length: int | None = 1) -> ItemSpec:
        """The spec of items like an example, an item or a nest of specs (ours or TensorFlow's).

        Raises:
          SpecMismatchError: if a field lacks the time axis, or has another length.
          TypeError: if it is not a dict with text for keys, or a dict in it is not.
          ValueError: if it has no fields, or a field is neither bools nor numbers.
        """
        given = _spec_of(fields_of(example))
        found = leaves(given)
        if not found:
            raise ValueError(f"an item of {holder} has no fields; it needs one beside {', '.join(sorted(NO_FIELDS))}")
        for path, leaf in found:
            what = f"{path_name(path, 'item')} is {describe(leaf)}"
            if leaf.dtype.kind not in _KINDS:
                raise ValueError(f"{what}, expected bools or numbers; encode it before the push")
            if has_time and not leaf.shape:
                raise SpecMismatchError(f"{what}, but {holder} expects a time axis; give each field [T, ...]")
            if has_time and length is not None and leaf.shape[0] != length:
                raise SpecMismatchError(
                    f"{what}, but {holder} expects {length} steps; cut or pad the item, or make the buffer with another "
                    "length"
                )
        rows = map_structure(lambda leaf: ArraySpec(leaf.shape[1:] if has_time else leaf.shape, leaf.dtype), given)
        begun = [number for number, (_, leaf) in enumerate(found) if leaf.of_python and leaf.dtype == np.int64]
        return cls(rows, holder, has_time, length, frozenset(begun))

    @cached_property
    def leaves(self) -> list[ArraySpec]:
        """`ArraySpec`s of a row, in the order of the columns."""
        return [leaf for _, leaf in leaves(self.rows)]

    @cached_property
    def is_flat(self) -> bool:
        """Whether an item is a dict of arrays, without another nest in it."""
        return all(isinstance(part, ArraySpec) for part in self.rows.values())

    @property
    def items(self) -> Nest:
        """`ArraySpec`s of an item, time axis included."""
        time = (self.length,) if self.has_time else ()
        return map_structure(lambda leaf: ArraySpec((*time, *leaf.shape), leaf.dtype), self.rows)

    def nest(self, values: Sequence[Any]) -> Any:
        """The nest of which the leaves are given."""
        return _nest(self.rows, iter(values))

    # --- from items to rows

    def rows_of(self, items: Sequence[Any]) -> Rows:
        """The rows of items, after casts that lose nothing.

        Raises:
          SpecMismatchError: naming the item, its field, what it is and what was expected.
          TypeError: if an item is not a dict with text for keys.
        """
        found: list[tuple[np.ndarray, list[int]]] = []
        try:
            for values in self._leaves_of(items):
                found.append(self._column(len(found), values))
        except _Unfit:
            for number, item in enumerate(items):
                self._explain(item, f"item {number}")
            raise self._mismatch(len(found), "item") from None
        columns, lengths = [column for column, _ in found], [own for _, own in found]
        for number, own in enumerate(zip(*lengths, strict=True) if self.has_time else ()):
            if len(set(own)) > 1 or own[0] == 0 or own[0] != (self.length or own[0]):
                raise SpecMismatchError(
                    f"the fields of item {number} have {', '.join(map(str, sorted(set(own))))} steps, {self.holder} "
                    f"wants {self.length or 'at least one, in all fields as many'}; cut or pad the item"
                )
        own_lengths = np.array(lengths[0], np.int64) if self.has_time else np.ones(len(items), np.int64)
        return Rows(columns, own_lengths, self._like(columns))

    def rows_of_columns(self, columns: Any, root: str = "columns") -> Rows:
        """The rows of items that are given stacked, `[N, ...]` or with a time axis `[N, T, ...]`.

        Raises:
          SpecMismatchError: naming the field; also if the columns have different numbers of items.
          TypeError: if they are not a dict with text for keys.
        """
        fields, skip = fields_of(columns), 2 if self.has_time else 1
        found: list[np.ndarray] = []
        try:
            values = [_array(value) for value in _values(self.rows, fields)]
            if any(value.ndim < skip for value in values):
                axes = "N, T" if self.has_time else "N"
                raise SpecMismatchError(
                    f"{root} lack an axis, but {self.holder} expects each field as [{axes}, ...]; stack the items"
                )
            if any(value.shape[skip:] != leaf.shape for value, leaf in zip(values, self.leaves, strict=True)):
                raise _Unfit
            for value in values:
                found.append(self._cast(len(found), value))
        except _Unfit:
            self._explain(first_of(map_structure(_array, fields)), f"{root}[0]")
            raise self._mismatch(len(found), root) from None
        sizes = sorted({value.shape[:skip] for value in found})
        if len(sizes) > 1 or (self.has_time and sizes[0][1] != (self.length or max(sizes[0][1], 1))):
            raise SpecMismatchError(
                f"{root} have the leading axes {', '.join(str(list(size)) for size in sizes)}, but {self.holder} expects "
                f"[{', '.join(str(size) for size in ('N', self.length or 'T')[:skip])}] in all fields; cut or pad them"
            )
        columns = [value.reshape(-1, *leaf.shape) for value, leaf in zip(found, self.leaves, strict=True)]
        return Rows(columns, np.full(sizes[0][0], sizes[0][-1] if self.has_time else 1, np.int64), self._like(columns))

    def rows_of_runs(self, columns: Any, lengths: np.ndarray) -> Rows:
        """The rows of items that are given one after the other: columns `[R, ...]`, and the rows of each item.

        Raises:
          SpecMismatchError: naming the field.
        """
        rows = replace(self, has_time=False).rows_of_columns(columns, "steps")
        if len(rows.lengths) != lengths.sum():
            raise SpecMismatchError(
                f"the steps are {len(rows.lengths)} rows, expected {lengths.sum()}; cut or pad them"
            )
        return Rows(rows.columns, lengths, self._like(rows.columns))

    def refuse_widening(self, number: int) -> None:
        """Raises `SpecMismatchError` for a leaf that holds integers which are no float64s."""
        path, _ = leaves(self.rows)[number]
        raise SpecMismatchError(
            f"{path_name(path, 'item')} is a float, {self.holder} holds int64 there and some above 2^53, which no "
            "float64 is; give the buffer a spec"
        )

    def _like(self, columns: Sequence[np.ndarray]) -> ItemSpec:
        """This spec, or the wider one that columns have."""
        if all(column.dtype == leaf.dtype for column, leaf in zip(columns, self.leaves, strict=True)):
            return self
        specs = [ArraySpec(leaf.shape, column.dtype) for column, leaf in zip(columns, self.leaves, strict=True)]
        wider = {number for number, leaf in enumerate(self.leaves) if specs[number] != leaf}
        return replace(self, rows=self.nest(specs), widening=self.widening - wider)

    def _leaves_of(self, items: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """The values of some items: of the first leaf, then of the second, and so on."""
        if self.is_flat and set(map(type, items)) == {dict}:
            keys = items[0].keys()  # where all items have just these, nothing else needs to be looked at
            if keys - NO_FIELDS == self.rows.keys() and set(map(len, items)) == {len(keys)}:
                with suppress(KeyError):
                    found = [[item[key] for item in items] for key in (*sorted(self.rows), *(keys & NO_FIELDS))]
                    return found[: len(self.leaves)]
        return list(zip(*(_values(self.rows, fields_of(item)) for item in items), strict=True))

    def _column(self, number: int, values: Sequence[Any]) -> tuple[np.ndarray, list[int]]:
        """One leaf of some items: its rows, and how many each item has; `_Unfit` if one does not fit."""
        leaf, skip = self.leaves[number], int(self.has_time)
        if not skip and (stacked := _stacked(values, leaf)) is not None:
            return stacked, []
        arrays = _alike([self._cast(number, value) for value in values])
        if any(array.ndim < skip or array.shape[skip:] != leaf.shape for array in arrays):
            raise _Unfit
        return (concatenate(arrays), [len(array) for array in arrays]) if skip else (np.stack(arrays), [])

    def _cast(self, number: int, value: Any) -> np.ndarray:
        """A value in the dtype of a leaf, or as float64 where the leaf may be widened to that.

        A number of Python's, or a list of them, has no dtype of its own: it fits where its value does, a float with
        the usual rounding. An array or a scalar of numpy's fits where every value of its dtype would.
        """
        dtype, array = self.leaves[number].dtype, _array(value)
        if array.dtype == dtype:
            return array
        if array.dtype.kind not in _KINDS or (array.dtype.kind == "c" and dtype.kind != "c"):
            raise _Unfit
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
        if type(value) in (bool, int, float, complex, list, tuple):
            rounds = array.dtype.kind in "fc" and dtype.kind in "fc"
            fits = np.isfinite(cast) == np.isfinite(array) if rounds else cast.real.astype(array.dtype) == array
            fits = fits.all()
        else:
            fits = np.can_cast(array.dtype, dtype, "safe") and is_exact(array, dtype)
        if fits:
            return cast
        if number in self.widening and array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            return array.astype(np.float64)
        raise _Unfit

    def _mismatch(self, number: int, root: str) -> SpecMismatchError:
        """What is wrong with a leaf of which the first value alone would fit."""
        path, _ = leaves(self.rows)[number]
        return SpecMismatchError(
            f"{path_name(path, root)} has integers above 2^53 among floats, but {self.holder} expects one dtype; {_ADVICE}"
        )

    def with_widened(self, restored: ItemSpec) -> ItemSpec:
        """This spec, with float64 where a restored one was widened to it."""
        own, theirs = self.leaves, restored.leaves
        widened = {n for n in self.widening if n < len(theirs) and theirs[n] == ArraySpec(own[n].shape, _FLOAT64)}
        rows = self.nest([theirs[n] if n in widened else leaf for n, leaf in enumerate(own)])
        return replace(self, rows=rows, widening=self.widening - widened)

    def _explain(self, item: Any, root: str) -> None:
        """Raises `SpecMismatchError` with what is wrong with an item, if anything is."""
        skip = (None,) if self.has_time else ()
        wanted = leaves(map_structure(lambda leaf: ArraySpec((*skip, *leaf.shape), leaf.dtype), self.rows))
        given = _spec_of(fields_of(item))
        got = leaves(given)
        if [path for path, _ in got] != [path for path, _ in wanted]:
            require_match(given, self.rows, holder=self.holder, advice=_ADVICE, root=root)
        for number, ((path, have), (_, want), value) in enumerate(
            zip(got, wanted, _values(self.rows, fields_of(item)), strict=True)
        ):
            try:
                fits = self._cast(number, value).shape[len(skip) :] == want.shape[len(skip) :]
            except _Unfit:
                fits = False
            if not fits or len(have.shape) != len(want.shape):
                raise SpecMismatchError(
                    f"{path_name(path, root)} is {describe(have)}, but {self.holder} expects {describe(want)}; {_ADVICE}"
                )


#: The types of Python whose values are of a dtype.
_PYTHONS: dict[np.dtype, type] = {np.dtype(bool): bool, np.dtype(np.int64): int, np.dtype(np.float64): float}


def fields_of(item: Any) -> dict[str, Any]:
    """The fields of an item.

    Raises:
      TypeError: if it is not a mapping with text for keys.
    """
    if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
        kind = type(item).__name__
        raise TypeError(f"an item is a {kind}, expected a dict of fields with text for keys, such as {{'obs': array}}")
    return {key: value for key, value in item.items() if key not in NO_FIELDS}


def arrays_of(given: Any) -> Any:
    """A nest of arrays from one of arrays, tensors and lists of numbers."""
    if isinstance(given, Mapping):
        return {key: arrays_of(part) for key, part in given.items()}
    if isinstance(given, (tuple, list)) and not _is_list_of_numbers(given):
        parts = [arrays_of(part) for part in given]
        return type(given)(*parts) if hasattr(given, "_fields") else type(given)(parts)
    return np.asarray(given)


def first_of(columns: Nest) -> Nest:
    """The first of items that are given as columns, zeros where there is none; a number stays as it is."""
    return map_structure(lambda c: c if not c.ndim else c[0] if len(c) else np.zeros(c.shape[1:], c.dtype), columns)


def is_exact(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether numbers keep their values in a dtype of floats: int64 does up to 2^53."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or dtype.kind not in "fc" or not array.size:
        return True
    return bool(array.max() <= _EXACT and array.min() >= -_EXACT)


def _stacked(values: Sequence[Any], leaf: ArraySpec) -> np.ndarray | None:
    """Values that fit a leaf as they are, `[N, ...]`; None where one may not, which is looked at more slowly."""
    kinds, dtype, count = set(map(type, values)), leaf.dtype, len(values)
    if not leaf.shape and kinds in ({dtype.type}, {_PYTHONS.get(dtype)}):
        with suppress(OverflowError):
            return np.array(values, dtype)
    if not leaf.shape or kinds != {np.ndarray}:
        return None
    if [value.dtype for value in values].count(dtype) < count or [v.shape for v in values].count(leaf.shape) < count:
        return None
    try:
        return np.frombuffer(b"".join(values), dtype).reshape(count, *leaf.shape)  # a fifth of what numpy's own take
    except (BufferError, TypeError, ValueError):  # one is not contiguous
        return np.stack(values)


def _alike(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays in the widest of their dtypes; `_Unfit` if that changes a number."""
    widest = np.result_type(*{array.dtype for array in arrays})
    if not all(is_exact(array, widest) for array in arrays):
        raise _Unfit
    return [array.astype(widest, copy=False) for array in arrays]


def _array(value: Any) -> np.ndarray:
    """An array in the byte order of this machine; `_Unfit` where numpy makes none."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _Unfit from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _is_list_of_numbers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(part, (bool, int, float)) or _is_list_of_numbers(part) for part in value)
    )


def _spec_of(value: Any) -> Nest:
    """The nest of `_Given` of a nest of values, or of specs."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a field has a dict with keys {', '.join(map(repr, value))}, expected text; rename them")
        return {key: _spec_of(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)) and not _is_list_of_numbers(value):
        parts = [_spec_of(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if hasattr(value, "shape") and not hasattr(value, "__array__"):
        return _Given(tuple(value.shape), np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype)))
    array = np.asarray(value)
    return _Given(array.shape, array.dtype.newbyteorder("="), isinstance(value, (bool, int, float, list)))


def _values(spec: Nest, value: Any) -> Iterator[Any]:
    """The leaves of a value, in the order of `specs.leaves` of a spec of its structure; `_Unfit` if it has another."""
    if isinstance(spec, ArraySpec):
        if isinstance(value, Mapping):
            raise _Unfit
        yield value
    elif isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            raise _Unfit
        for key in sorted(spec):
            yield from _values(spec[key], value[key])
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(spec):
            raise _Unfit
        for part, inner in zip(spec, value, strict=True):
            yield from _values(part, inner)


def _nest(spec: Nest, values: Iterator[Any]) -> Any:
    """A nest like a spec, of leaves in the order of `specs.leaves`."""
    if isinstance(spec, ArraySpec):
        return next(values)
    if isinstance(spec, Mapping):
        return {key: _nest(spec[key], values) for key in sorted(spec)}
    parts = [_nest(part, values) for part in spec]
    return type(spec)(*parts) if hasattr(spec, "_fields") else type(spec)(parts)
