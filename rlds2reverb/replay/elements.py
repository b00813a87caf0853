"""Elements of a buffer: nests of arrays on their way into a table, and out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tree

from rlds2reverb._encoding.item_blocks import ItemBlock
from rlds2reverb._encoding.messages import require_dtype
from rlds2reverb.errors import SpecMismatch
from rlds2reverb.specs import ArraySpec, Nest, describe, leaves, path_name, require_match, to_tensor_spec

PRIORITY, COLLECT_ITER = "priority", "collect_iter"
UNIQUE_ID, WEIGHT, USE, STALENESS = "replay_unique_id", "IS", "use", "staleness"
#: Says which steps of a padded window are of the episode.
MASK = "mask"
#: Keys of an item that are no fields: two that a push may give, and what sampling adds.
NO_FIELDS = frozenset({PRIORITY, COLLECT_ITER, UNIQUE_ID, WEIGHT, USE, STALENESS})


class _Differs(Exception):
    """A value has another structure than the spec."""


@dataclass(frozen=True)
class TimeAxis:
    """The time axis of elements.

    Attributes:
      exists: whether they have one; without it an element is one row.
      length: rows of every element; None if they vary.
    """

    exists: bool = False
    length: int | None = None

    @property
    def leading(self) -> tuple[int | None, ...]:
        """The axes in front of those of a row."""
        return (self.length,) if self.exists else ()


class Elements:
    """Checks elements of one structure, makes the blocks that are written, and makes elements of what is read."""

    def __init__(self, row_spec: Nest, axis: TimeAxis, *, holder: str):
        """For elements of a spec.

        Args:
          row_spec: dict (of nests) of `ArraySpec`s of one row.
          axis: of time.
          holder: who wants them, for messages, such as "buffer 'demo'".

        Raises:
          ValueError: if there are no fields, or fields of a dtype that tables do not take.
        """
        self.row_spec, self.axis, self._holder = row_spec, axis, holder
        self.row_specs: list[ArraySpec] = tree.flatten(row_spec)
        if not self.row_specs:
            raise ValueError(f"an item of {holder} has no fields; it needs one beside {', '.join(sorted(NO_FIELDS))}")
        for path, spec in leaves(row_spec):
            require_dtype(spec, path_name(path, "item"))

    @property
    def spec(self) -> Nest:
        """`ArraySpec`s of an element, time axis included."""
        return tree.map_structure(lambda row: ArraySpec((*self.axis.leading, *row.shape), row.dtype), self.row_spec)

    @property
    def signature(self) -> Nest:
        """`tf.TensorSpec`s of an element."""
        return to_tensor_spec(self.row_spec, self.axis.leading)

    def columns(self, items: Sequence[Any]) -> list[list[np.ndarray]]:
        """The fields of some items: for each column of the table, its arrays, one an item.

        Raises:
          SpecMismatch: naming the item, its field, what it is and what was expected.
        """
        found: list[list[np.ndarray]] = [[] for _ in self.row_specs]
        for number, item in enumerate(items):
            try:
                values = [_array(value) for value in _values(self.row_spec, fields_of(item))]
            except (_Differs, TypeError):
                self._tell(number, item)
                raise
            self._check(number, item, values)
            for column, value in zip(found, values, strict=True):
                column.append(value)
        return found

    def _check(self, number: int, item: Any, values: Sequence[np.ndarray]) -> None:
        skip = len(self.axis.leading)
        for value, spec in zip(values, self.row_specs, strict=True):
            if value.dtype != spec.dtype or value.shape[skip:] != spec.shape or value.ndim < skip:
                self._tell(number, item)
        if skip:
            lengths = {len(value) for value in values}
            wanted = self.axis.length
            if len(lengths) > 1 or lengths == {0} or (wanted is not None and lengths != {wanted}):
                raise SpecMismatch(
                    f"the fields of item {number} have {', '.join(map(str, sorted(lengths)))} steps, {self._holder} "
                    f"wants {wanted or 'at least one, in all fields as many'}; cut or pad the item"
                )

    def _tell(self, number: int, item: Any) -> None:
        """Raises `SpecMismatch` with what is wrong with an item, if anything is."""
        got = spec_of(fields_of(item))
        advice = "cast or reshape it before the push"
        wanted = tree.map_structure(
            lambda row: ArraySpec((*((None,) if self.axis.exists else ()), *row.shape), row.dtype), self.row_spec
        )
        require_match(got, wanted, holder=self._holder, advice=advice, root=f"item {number}")
        raise SpecMismatch(f"item {number} has another structure than {self._holder} wants; {advice}")

    def blocks(
        self, columns: Sequence[Sequence[np.ndarray]], priorities: np.ndarray, first_number: int
    ) -> Iterator[ItemBlock]:
        """What is written of elements with consecutive numbers.

        Args:
          columns: see `columns`.
          priorities: float64 `[N]`.
          first_number: of the first of them.
        """
        if self.axis.exists and self.axis.length is None:  # each in chunks of its own: sampling ships whole chunks
            for at, rows in enumerate(zip(*columns, strict=True)):
                starts, lengths = np.zeros(1, np.int64), np.array([len(rows[0])])
                number = first_number + at
                yield ItemBlock.of_one(
                    rows, starts, lengths, priorities[at : at + 1], episode=number, first_item=number
                )
            return
        rows = tuple(np.concatenate(column) if self.axis.exists else np.stack(column) for column in columns)
        length = self.axis.length or 1
        starts = np.arange(len(priorities), dtype=np.int64) * length
        yield ItemBlock.of_one(
            rows, starts, np.full(len(starts), length), priorities, episode=first_number, first_item=first_number
        )

    def element(self, values: Sequence[np.ndarray]) -> dict[str, Any]:
        """The fields of an element that was read, scalars as numpy's scalars."""
        fields: dict[str, Any] = _nest(self.row_spec, iter([value[()] for value in values]))
        return fields


def fields_of(item: Any) -> dict[str, Any]:
    """The fields of an item.

    Raises:
      TypeError: if it is no mapping with text for keys.
    """
    if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
        kind = type(item).__name__
        raise TypeError(f"an item is a {kind}, expected a dict of fields with text for keys, such as {{'obs': array}}")
    return {key: value for key, value in item.items() if key not in NO_FIELDS}


def spec_of(fields: Mapping[str, Any]) -> Nest:
    """`ArraySpec`s of fields: nests of specs, or of anything that numpy makes arrays of.

    Raises:
      TypeError: if a dict has a key that is no text.
    """

    def convert(value: Any) -> ArraySpec:
        if hasattr(value, "shape") and not hasattr(value, "__array__"):
            return ArraySpec(tuple(value.shape), np.dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype)))
        array = _array(value)
        return ArraySpec(array.shape, array.dtype)

    _require_text_keys(fields)
    return tree.map_structure(convert, dict(fields))


def _require_text_keys(nest: Any) -> None:
    """Raises `TypeError` if a dict in a nest has a key that is no text, which signatures of tables do not take."""
    if isinstance(nest, Mapping):
        if not all(isinstance(key, str) for key in nest):
            raise TypeError(f"a field has a dict with keys {', '.join(map(repr, nest))}, expected text; rename them")
        nest = tuple(nest.values())
    for part in nest if isinstance(nest, (tuple, list)) else ():
        _require_text_keys(part)


def row_spec_of(spec: Nest, axis: TimeAxis, *, holder: str) -> Nest:
    """`ArraySpec`s of a row, from those of an element.

    Raises:
      SpecMismatch: if a field lacks the time axis.
    """

    def convert(path: tuple[Any, ...], leaf: Any) -> ArraySpec:
        shape, dtype = leaf.shape, leaf.dtype
        if axis.exists and not shape:
            raise SpecMismatch(
                f"{path_name(path, 'item')} is {describe(leaf)}, {holder} wants a time axis; give each field [T, ...]"
            )
        return ArraySpec(shape[1:] if axis.exists else shape, dtype)

    return tree.map_structure_with_path(convert, spec)


def _array(value: Any) -> np.ndarray:
    """An array in the byte order of this machine."""
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _values(spec: Nest, value: Any) -> Iterator[Any]:
    """The leaves of a value, in the order of `tree.flatten` of a spec of its structure."""
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            raise _Differs
        for key in sorted(spec):
            yield from _values(spec[key], value[key])
    elif isinstance(spec, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(spec):
            raise _Differs
        for part, inner in zip(spec, value, strict=True):
            yield from _values(part, inner)
    elif isinstance(value, (Mapping, tuple, list)):
        raise _Differs
    else:
        yield value


def _nest(spec: Nest, values: Iterator[Any]) -> Any:
    """A nest like a spec, of leaves in the order of `tree.flatten`; faster than `tree.unflatten_as`."""
    if isinstance(spec, Mapping):
        return {key: _nest(spec[key], values) for key in sorted(spec)}
    if isinstance(spec, (tuple, list)):
        parts = [_nest(part, values) for part in spec]
        return type(spec)(*parts) if hasattr(spec, "_fields") else type(spec)(parts)
    return next(values)
