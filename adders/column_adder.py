"""What all adders have in common: columns of episodes in, items out, for `tf.data` and for `ingest`."""

from __future__ import annotations

import abc
import re
from collections import OrderedDict
from typing import Any, ClassVar, overload

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.sources.rlds_episodes import columns_dataset
from rlds2reverb.specs import ArraySpec, Nest, to_tensor_spec

#: How many overlapping windows are copied out at a time: few, so that memory stays small.
_WINDOWS_AT_ONCE = 64


class ColumnAdder(abc.ABC):
    """Makes items of episodes. Called with a data set of episodes (or by its `apply`) it gives one of items; called
    with an `Episode` it gives that episode's `Items`, as `rlds2reverb.ingest` wants them.

    An episode is an RLDS one, `{'steps': data set of steps}`, or its columns, a dict of tensors `[N, ...]` of which
    the last row holds the final observation. Episodes without steps give no items.

    A new adder says how columns become rows (`row_spec`, `rows`) and which runs of rows are items (`item_bounds`).
    Where episodes are short, most of the time goes into one call for each; an adder that has `batch_rows` and
    `batch_bounds` instead of `rows` and `item_bounds` is called once for many.
    """

    #: Whether an item is one row, without a time axis.
    squeeze: ClassVar[bool] = False
    #: Whether an item may hold rows of several episodes; only data sets give such items.
    crosses_episodes: ClassVar[bool] = False
    #: Whether the rows are cut into items, so that no other adder can follow in `compose`.
    ends_chain: ClassVar[bool] = False

    @abc.abstractmethod
    def row_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s of one row, made from those of one step.

        Raises:
          ValueError: if a field is missing or of the wrong kind.
        """

    def rows(self, columns: Nest) -> Nest:
        """Rows `[R, ...]` of the columns `[N, ...]` of one episode, of one step or more; traced by TensorFlow."""
        num_steps = _num_rows(columns)[None]
        return self.batch_rows(columns, num_steps)[0]

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Returns the rows of several episodes, and how many each has; bit for bit those of each episode alone.

        Args:
          columns: of all episodes, one after the other.
          num_steps: int64 `[E]`, the steps of each; 0 where an adder before this one left none.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither rows nor batch_rows; one of them is needed")

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The first row and the number of rows of each item, int64 `[M]`: here one item of all rows."""
        starts, lengths, _ = self.batch_bounds(tf.cast(num_rows, tf.int64)[None])
        return starts, lengths

    def batch_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the same for episodes that have `num_rows` int64 `[E]` each, and how many items each has, `[E]`."""
        has_rows = num_rows > 0
        starts = tf.cumsum(num_rows, exclusive=True)
        return starts[has_rows], num_rows[has_rows], tf.cast(has_rows, tf.int64)

    @property
    def takes_batches(self) -> bool:
        """Whether the rows and items of several episodes can be made at once, with `batch_rows` and `batch_bounds`."""
        own = type(self)
        is_kept = own.rows is ColumnAdder.rows and own.item_bounds is ColumnAdder.item_bounds
        return is_kept and own.batch_rows is not ColumnAdder.batch_rows

    @property
    def item_length(self) -> int | None:
        """Rows of every item, or None where they differ."""
        return None

    def item_spec(self, step_spec: Nest) -> Nest:
        """`tf.TensorSpec`s of one item, for the table's signature; equal to the `element_spec` of the data set.

        Args:
          step_spec: nest of specs of one step: `Source.step_spec`, or the `element_spec` of a data set of steps.

        Raises:
          ValueError: if a field is missing or of the wrong kind.
        """
        row = self.row_spec(_as_tensor_spec(step_spec))
        if self.squeeze:
            return row
        return tree.map_structure(lambda leaf: tf.TensorSpec((self.item_length, *leaf.shape), leaf.dtype), row)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # says the same in each process; dataclasses have their own

    @overload
    def __call__(self, episodes: Episode) -> Items: ...

    @overload
    def __call__(self, episodes: tf.data.Dataset) -> tf.data.Dataset: ...

    def __call__(self, episodes: Any) -> Any:
        """Items of a data set of episodes, or of one episode.

        Raises:
          ValueError: if a field is missing or of the wrong kind.
          TypeError: for anything else.
        """
        if isinstance(episodes, Episode):
            return self._items(episodes)
        if isinstance(episodes, tf.data.Dataset):
            return self._dataset(episode_columns(episodes))
        raise TypeError(f"got a {type(episodes).__name__}, expected a tf.data.Dataset of episodes or an Episode")

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch | None:
        """See `rlds2reverb.items.EpisodeBatchAdder`."""
        if self.crosses_episodes or not self.takes_batches:
            return None
        columns = tree.map_structure(tf.convert_to_tensor, batch.steps)
        graph = _graph_of(self, columns, "batch")
        try:
            made = graph(columns, tf.convert_to_tensor(batch.num_steps))
        except tf.errors.InvalidArgumentError:
            return None  # made of each episode alone, the error names the one that it is in
        rows, num_rows, starts, lengths, num_items = tree.map_structure(lambda tensor: tensor.numpy(), made)
        return ItemBatch(Items(rows, starts, lengths, self.squeeze), num_rows, num_items)

    def _items(self, episode: Episode) -> Items:
        if self.crosses_episodes:
            raise ValueError(f"the items of {self} run on over the ends of episodes; take them from a data set")
        sizes = {len(column) for column in tree.flatten(episode.steps)}
        if len(sizes) > 1:
            raise ValueError(f"episode {episode.index} has columns of {sorted(sizes)} rows, expected equal ones")
        columns = tree.map_structure(tf.convert_to_tensor, episode.steps)
        try:
            made = _graph_of(self, columns, "episode")(columns)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"episode {episode.index}: {_reason(error)}") from error
        rows, starts, lengths = tree.map_structure(lambda tensor: tensor.numpy(), made)
        return Items(rows, starts, lengths, self.squeeze)

    @tf.autograph.experimental.do_not_convert  # its errors would be buried in pages
    def checked_rows(self, columns: Nest) -> Nest:
        """Rows as `row_spec` says, none for no steps."""
        spec = self.row_spec(spec_of_columns(columns))

        def nothing() -> Nest:
            return tree.map_structure(lambda leaf: tf.zeros([0, *(size or 0 for size in leaf.shape)], leaf.dtype), spec)

        return tf.cond(_num_rows(columns) > 0, lambda: _require_rows(self.rows(columns), spec), nothing)

    @tf.autograph.experimental.do_not_convert
    def _bounded_rows(self, columns: Nest) -> tuple[Nest, tf.Tensor, tf.Tensor]:
        """Rows, and the bounds of the items among them."""
        rows = self.checked_rows(columns)
        return rows, *self.item_bounds(_num_rows(rows))

    @tf.autograph.experimental.do_not_convert
    def _bounded_batch(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Any, ...]:
        """Rows of several episodes, the number of rows of each, and the bounds of the items among them."""
        rows, num_rows = self.batch_rows(columns, num_steps)
        _require_rows(rows, self.row_spec(spec_of_columns(columns)))
        return rows, num_rows, *self.batch_bounds(num_rows)

    def _dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        item_spec = self.item_spec(spec_of_elements(columns))
        own = type(self)
        bounds = own.item_bounds, own.batch_bounds
        if bounds == (ColumnAdder.item_bounds, ColumnAdder.batch_bounds) and self.item_length is None:
            return whole_rows(self, columns).filter(lambda rows: _num_rows(rows) > 0)
        parts = columns.map(self._bounded_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        if self.squeeze:
            return parts.map(lambda rows, starts, _: _gathered(rows, starts, item_spec)).unbatch()
        if self.item_length is None:
            return parts.flat_map(_slices).map(lambda item: tree.map_structure(_with_spec, item, item_spec))
        within = np.arange(self.item_length)

        def windows(rows: Nest, starts: tf.Tensor, _: tf.Tensor) -> tf.data.Dataset:
            some = tf.data.Dataset.from_tensor_slices(starts).batch(_WINDOWS_AT_ONCE)
            return some.map(lambda first: _gathered(rows, first[:, None] + within, item_spec))

        return parts.flat_map(windows).unbatch()


#: The graphs that were traced last, by adder and spec, so that equal adders share them: tracing takes half a second.
#: They are of the process since an adder is a value: two equal ones are one.
_GRAPHS: OrderedDict[Any, tuple[ColumnAdder, Any]] = OrderedDict()
_MAX_GRAPHS = 128


def _graph_of(adder: ColumnAdder, columns: Nest, kind: str) -> Any:
    """Returns `_bounded_rows` of an 'episode', or `_bounded_batch` of a 'batch', traced for any number of steps.

    It is the same graph, to the bit, for every episode.

    Raises:
      ValueError: if a field is missing or of the wrong kind.
    """
    described = repr([(path, column.shape[1:], column.dtype.name) for path, column in tree.flatten_with_path(columns)])
    key: Any = (adder, repr(adder), kind, described)
    try:
        hash(key)
    except TypeError:  # a user's own class that can be changed is equal to itself alone
        key = (id(adder), kind, described)
    if key not in _GRAPHS:
        adder.item_spec(spec_of_columns(columns))
        spec = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), columns)
        if kind == "batch":
            traced = tf.function(adder._bounded_batch, autograph=False)
            graph = traced.get_concrete_function(spec, tf.TensorSpec([None], tf.int64))
        else:
            graph = tf.function(adder._bounded_rows, autograph=False).get_concrete_function(spec)
        _GRAPHS[key] = adder, graph  # the adder stays, so that nothing else gets its id
        if len(_GRAPHS) > _MAX_GRAPHS:
            _GRAPHS.popitem(last=False)
    _GRAPHS.move_to_end(key)
    return _GRAPHS[key][1]


def whole_rows(adder: ColumnAdder, columns: tf.data.Dataset) -> tf.data.Dataset:
    """The rows of each episode, none of those without steps."""
    return columns.map(adder.checked_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def episode_columns(episodes: tf.data.Dataset) -> tf.data.Dataset:
    """The columns `[N, ...]` of each episode that has steps.

    Args:
      episodes: a data set of RLDS episodes, `{'steps': data set of steps}`, or of columns, which is left as it is.

    Raises:
      ValueError: if it is neither.
    """
    spec = episodes.element_spec
    steps = spec.get(fields.STEPS) if isinstance(spec, dict) else None
    if isinstance(steps, tf.data.DatasetSpec):
        return columns_dataset(episodes)
    if not isinstance(spec, dict) or any(
        not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank in (None, 0) for leaf in tree.flatten(spec)
    ):
        raise ValueError(
            f"the data set has elements of {spec}, expected episodes: {{'steps': data set of steps}}, or a dict of "
            "columns [N, ...] (single steps or items cannot be put together to episodes)"
        )
    return episodes.map(_require_one_length)


def _require_one_length(columns: Nest) -> Nest:
    sizes = tf.stack([tf.shape(column)[0] for column in tree.flatten(columns)])
    same = tf.debugging.assert_equal(sizes, sizes[:1], "the columns of an episode differ in length")
    with tf.control_dependencies([same]):
        return tree.map_structure(tf.identity, columns)


def _reason(error: tf.errors.InvalidArgumentError) -> str:
    """The sentence of a `tf.debugging` assertion, or TensorFlow's own."""
    found = re.search(r"assertion failed: \[(.*?)\]", str(error.message))
    return found[1] if found else str(error.message).splitlines()[0]


def _num_rows(columns: Nest) -> tf.Tensor:
    return tf.shape(tree.flatten(columns)[0], out_type=tf.int64)[0]


def _as_tensor_spec(step_spec: Nest) -> Nest:
    """The nest with `tf.TensorSpec`s; raises `ValueError` for other leaves."""
    leaves = tree.flatten(step_spec)
    if leaves and all(isinstance(leaf, ArraySpec) for leaf in leaves):
        return to_tensor_spec(step_spec)
    if not leaves or any(not isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        raise ValueError(
            f"the spec of a step is {step_spec}, expected a nest of tf.TensorSpecs such as Source.step_spec"
        )
    return step_spec


def spec_of_columns(columns: Nest) -> Nest:
    """Returns the spec of one step of columns `[N, ...]`, tensors or arrays."""
    return tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), columns)


def spec_of_elements(columns: tf.data.Dataset) -> Nest:
    """The spec of one step, of a data set of columns."""
    return tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), columns.element_spec)


def _with_spec(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    return tf.ensure_shape(tensor, spec.shape)


def _require_rows(rows: Nest, spec: Nest) -> Nest:
    """Rows that are what `row_spec` says."""
    for (path, row), leaf in zip(tree.flatten_with_path(rows), tree.flatten(spec), strict=True):
        if row.dtype != leaf.dtype:
            raise ValueError(f"rows{list(path)} are {row.dtype.name}, row_spec says {leaf.dtype.name}")
    return tree.map_structure(lambda row, leaf: tf.ensure_shape(row, (None, *leaf.shape)), rows, spec)


def _gathered(rows: Nest, places: tf.Tensor, item_spec: Nest) -> Nest:
    """Items `[M, ...]`."""
    return tree.map_structure(
        lambda row, leaf: tf.ensure_shape(tf.gather(row, places), (None, *leaf.shape)), rows, item_spec
    )


def _slices(rows: Nest, starts: tf.Tensor, lengths: tf.Tensor) -> tf.data.Dataset:
    bounds = tf.data.Dataset.from_tensor_slices((starts, lengths))
    return bounds.map(lambda start, length: tree.map_structure(lambda row: row[start : start + length], rows))
