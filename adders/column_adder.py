"""The base class of adders that compute columns of whole episodes."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.types.items import ItemBatch, Items
from rlds2reverb.types.specs import Nest, map_structure

from .adder import ItemAdder
from .arrays import Array
from .places import columns_step_spec
from .tf_data import count_rows, map_to_rows


class ColumnAdder(ItemAdder):
    """Base class of adders that change or add columns of whole episodes, in TensorFlow.

    An item is a whole episode, a dict of columns `[N, ...]`; to cut smaller ones, other adders can follow in `compose`.
    A subclass overrides `row_spec` and `make_rows`. For example, an adder that clips rewards:

        class ClippedRewards(ColumnAdder):
            def row_spec(self, step_spec):
                return step_spec

            def make_rows(self, columns):
                return {**columns, "reward": tf.clip_by_value(columns["reward"], -1, 1)}

    An adder that overrides `make_batch_rows` instead is called once for many episodes, which is much faster if they are
    short.
    """

    squeeze: ClassVar[bool] = False
    #: Whether `make_rows` also accepts NumPy arrays, and returns them then. If not, it is called with tensors only.
    runs_on_arrays: ClassVar[bool] = False

    @abc.abstractmethod
    def row_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s of one row, given those of one step.

        Raises:
          ValueError: If a field is missing or of the wrong kind.
        """

    def make_rows(self, columns: Nest) -> Nest:
        """Returns the rows `[R, ...]` of one episode, given its columns `[N, ...]`, with N >= 1."""
        first = tree.flatten(columns)[0]
        num_steps = np.array([len(first)]) if isinstance(first, np.ndarray) else count_rows(columns)[None]
        return self.make_batch_rows(columns, num_steps)[0]

    def make_batch_rows(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Returns the rows of several episodes and the number of rows of each, bit for bit as for each episode alone.

        Args:
          columns: the concatenated columns of all episodes: tensors, or also arrays with `runs_on_arrays`.
          num_steps: int64 `[E]`, the number of steps of each episode; 0 if a preceding adder left none.
        """
        raise NotImplementedError(f"{type(self).__name__} must override make_rows or make_batch_rows")

    @property
    def supports_batches(self) -> bool:
        """True if `make_batch_rows` can process several episodes at once."""
        own = type(self)
        return own.make_rows is ColumnAdder.make_rows and own.make_batch_rows is not ColumnAdder.make_batch_rows

    def transform(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Implements `ItemAdder.transform`."""
        if not isinstance(num_steps, np.ndarray) or self.runs_on_arrays:
            return self._make_checked_rows(columns, num_steps)
        tensors = map_structure(tf.convert_to_tensor, columns)
        rows, num_rows = self._make_checked_rows(tensors, tf.convert_to_tensor(num_steps))
        return tree.map_structure(lambda row: row.numpy(), rows), num_rows.numpy()

    def cut(self, columns: Nest, num_steps: np.ndarray) -> ItemBatch:
        """Implements `ItemAdder.cut`: an item for each episode with rows."""
        return episodes_as_items(*self.transform(columns, num_steps))

    def _make_checked_rows(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Returns `make_batch_rows`, or `make_rows` of one episode, checked against `row_spec`."""
        spec = self.row_spec(columns_step_spec(columns))
        if self.supports_batches:
            rows, num_rows = self.make_batch_rows(columns, num_steps)
            return _require_rows(rows, spec), num_rows

        def make_none() -> Nest:
            return tree.map_structure(
                lambda leaf: np.zeros([0, *(size or 0 for size in leaf.shape)], leaf.dtype.as_numpy_dtype), spec
            )

        def make_some() -> Nest:
            return _require_rows(self.make_rows(columns), spec)

        if isinstance(num_steps, np.ndarray):
            rows = make_some() if num_steps.any() else make_none()
            return rows, np.array([len(tree.flatten(rows)[0])])
        rows = tf.cond(
            count_rows(columns) > 0, make_some, lambda: tree.map_structure(tf.convert_to_tensor, make_none())
        )
        return rows, count_rows(rows)[None]

    def _convert_dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        return map_to_rows(self, columns).filter(lambda rows: count_rows(rows) > 0)


def episodes_as_items(rows: Nest, num_rows: np.ndarray) -> ItemBatch:
    """Returns an item for each episode with rows."""
    starts, is_item = np.cumsum(num_rows) - num_rows, num_rows > 0
    return ItemBatch(Items(rows, starts[is_item], num_rows[is_item]), num_rows, is_item.astype(np.int64))


def _require_rows(rows: Nest, spec: Nest) -> Nest:
    """Returns the rows if they match `row_spec`."""
    for (path, row), leaf in zip(tree.flatten_with_path(rows), tree.flatten(spec), strict=True):
        if tf.as_dtype(row.dtype) != leaf.dtype:
            got = tf.as_dtype(row.dtype).name
            raise ValueError(f"rows{list(path)} must be {leaf.dtype.name} according to row_spec, got {got}")
    if isinstance(tree.flatten(rows)[0], np.ndarray):
        return rows
    return tree.map_structure(lambda row, leaf: tf.ensure_shape(row, (None, *leaf.shape)), rows, spec)
