"""The base class of adders: columns of episodes in, items out, for `tf.data` and for `ingest`."""

from __future__ import annotations

import abc
import re
from collections import OrderedDict
from typing import Any, ClassVar, overload

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb._internals.tensorflow import without_autograph
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.sources.rlds_episodes import columns_dataset
from rlds2reverb.specs import ArraySpec, Nest, to_tensor_spec
from rlds2reverb.tables import item_signature

#: The number of overlapping windows that are copied at a time; small, to limit memory.
_WINDOW_BATCH_SIZE = 64


class ColumnAdder(abc.ABC):
    """Base class of adders that compute columns of rows in TensorFlow and cut them into items.

    Called with a dataset of episodes (or passed to its `apply`), an adder returns a dataset of items. Called with an
    `Episode`, it returns the `Items` of that episode, as `rlds2reverb.ingest` requires. An episode in a dataset is an
    RLDS episode, `{'steps': dataset of steps}`, or a dict of columns `[N, ...]`; its last row holds the final
    observation. Episodes without steps yield no items.

    An adder works in two stages. A subclass overrides `row_spec`, and the methods in one column of this table:

        stage                     one episode per call    many episodes per call
        columns [N, ...] to rows  make_rows               make_batch_rows
        number of rows to items   cut_items               cut_batch_items

    The methods for one episode are simpler. Those for many episodes are much faster if episodes are short, because
    most of the time is spent on calls; the methods for one episode are then derived from them. Unless `cut_items` or
    `cut_batch_items` is overridden, all rows of an episode are one item, and other adders can follow in `compose`. For
    example, an adder that clips rewards:

        class ClippedRewards(ColumnAdder):
            def row_spec(self, step_spec):
                return step_spec

            def make_rows(self, columns):
                return {**columns, "reward": tf.clip_by_value(columns["reward"], -1, 1)}

    To make items smaller than an episode, override `cut_items` and `item_length` (or `squeeze`) and set
    `must_be_last`. `check_adder` checks a new adder. Equal adders share TensorFlow graphs, so make it a frozen
    dataclass if it has parameters.
    """

    #: Whether an item is one row, without a time axis.
    squeeze: ClassVar[bool] = False
    #: Whether an item may contain rows of several episodes; such items can only be taken from a dataset.
    crosses_episodes: ClassVar[bool] = False
    #: Whether no other adder can follow in `compose`.
    must_be_last: ClassVar[bool] = False

    @abc.abstractmethod
    def row_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s of one row, given those of one step.

        Raises:
          ValueError: If a field is missing or of the wrong kind.
        """

    def make_rows(self, columns: Nest) -> Nest:
        """Returns the rows `[R, ...]` of one episode, given its columns `[N, ...]`, N >= 1; traced by TensorFlow."""
        return self.make_batch_rows(columns, _count_rows(columns)[None])[0]

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Returns the rows of several episodes and the number of rows of each, bit for bit as for each episode alone.

        Args:
          columns: the concatenated columns of all episodes.
          num_steps: int64 `[E]`, the number of steps of each episode; 0 if a preceding adder left none.
        """
        raise NotImplementedError(f"{type(self).__name__} must override make_rows or make_batch_rows")

    def cut_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the first row and the length of each item of an episode, int64 `[M]`; by default one item."""
        starts, lengths, _ = self.cut_batch_items(tf.cast(num_rows, tf.int64)[None])
        return starts, lengths

    def cut_batch_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the first row and the length of each item of several episodes, and each episode's number of items.

        Args:
          num_rows: int64 `[E]`, the number of rows of each episode.

        Returns:
          First rows, counted from the beginning of the first episode, and lengths, int64 `[M]`; and int64 `[E]`.
        """
        has_rows = num_rows > 0
        starts = tf.cumsum(num_rows, exclusive=True)
        return starts[has_rows], num_rows[has_rows], tf.cast(has_rows, tf.int64)

    @property
    def supports_batches(self) -> bool:
        """Whether `make_batch_rows` and `cut_batch_items` can process several episodes at once."""
        own = type(self)
        is_derived = own.make_rows is ColumnAdder.make_rows and own.cut_items is ColumnAdder.cut_items
        return is_derived and own.make_batch_rows is not ColumnAdder.make_batch_rows

    @property
    def item_length(self) -> int | None:
        """The number of rows of every item, or None if it varies."""
        return None

    def item_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s of one item, for the table's signature; the `element_spec` of the item dataset.

        Args:
          step_spec: nest of specs of one step: `Source.step_spec`, or the `element_spec` of a dataset of steps.

        Raises:
          ValueError: If a field is missing or of the wrong kind.
        """
        row = self.row_spec(_to_tensor_spec(step_spec))
        return row if self.squeeze else item_signature(row, self.item_length)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # The same in every process; dataclasses have their own.

    @overload
    def __call__(self, episodes: Episode) -> Items: ...

    @overload
    def __call__(self, episodes: tf.data.Dataset) -> tf.data.Dataset: ...

    def __call__(self, episodes: Any) -> Any:
        """Returns the items of a dataset of episodes, or of one episode.

        Raises:
          ValueError: If a field is missing or of the wrong kind.
          TypeError: For anything else.
        """
        if isinstance(episodes, Episode):
            return self._convert_episode(episodes)
        if isinstance(episodes, tf.data.Dataset):
            return self._convert_dataset(episode_columns(episodes))
        raise TypeError(f"expected a tf.data.Dataset of episodes or an Episode, got {type(episodes).__name__}")

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch | None:
        """Implements `rlds2reverb.items.EpisodeBatchAdder`."""
        if self.crosses_episodes or not self.supports_batches:
            return None
        columns = tree.map_structure(tf.convert_to_tensor, batch.steps)
        graph = _get_graph(self, columns, "batch")
        try:
            tensors = graph(columns, tf.convert_to_tensor(batch.num_steps))
        except tf.errors.InvalidArgumentError:
            return None  # The caller converts the episodes one by one, and the error names the invalid episode.
        rows, num_rows, starts, lengths, num_items = tree.map_structure(lambda tensor: tensor.numpy(), tensors)
        return ItemBatch(Items(rows, starts, lengths, self.squeeze), num_rows, num_items)

    def _convert_episode(self, episode: Episode) -> Items:
        if self.crosses_episodes:
            raise ValueError(f"the items of {self} cross episodes and require a dataset; apply it to source.to_rlds()")
        sizes = {len(column) for column in tree.flatten(episode.steps)}
        if len(sizes) > 1:
            raise ValueError(f"the columns of episode {episode.index} must have equal lengths, got {sorted(sizes)}")
        columns = tree.map_structure(tf.convert_to_tensor, episode.steps)
        try:
            tensors = _get_graph(self, columns, "episode")(columns)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"episode {episode.index}: {_extract_reason(error)}") from error
        rows, starts, lengths = tree.map_structure(lambda tensor: tensor.numpy(), tensors)
        return Items(rows, starts, lengths, self.squeeze)

    @without_autograph
    def make_checked_rows(self, columns: Nest) -> Nest:
        """Returns `make_rows`, checked against `row_spec`; no rows if there are no steps."""
        spec = self.row_spec(columns_step_spec(columns))

        def make_none() -> Nest:
            return tree.map_structure(lambda leaf: tf.zeros([0, *(size or 0 for size in leaf.shape)], leaf.dtype), spec)

        return tf.cond(_count_rows(columns) > 0, lambda: _require_rows(self.make_rows(columns), spec), make_none)

    @without_autograph
    def _make_items(self, columns: Nest) -> tuple[Nest, tf.Tensor, tf.Tensor]:
        """Returns the rows of an episode, and the first row and length of each item."""
        rows = self.make_checked_rows(columns)
        return rows, *self.cut_items(_count_rows(rows))

    @without_autograph
    def _make_batch_items(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Any, ...]:
        """Returns the rows of several episodes, their numbers of rows, and the result of `cut_batch_items`."""
        rows, num_rows = self.make_batch_rows(columns, num_steps)
        _require_rows(rows, self.row_spec(columns_step_spec(columns)))
        return rows, num_rows, *self.cut_batch_items(num_rows)

    @without_autograph
    def _convert_dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        item_spec = self.item_spec(columns_step_spec(columns.element_spec))
        own = type(self)
        is_cut = own.cut_items is not ColumnAdder.cut_items or own.cut_batch_items is not ColumnAdder.cut_batch_items
        if not is_cut and self.item_length is None:
            return map_to_rows(self, columns).filter(lambda rows: _count_rows(rows) > 0)
        items = _map_graph(self, columns, "episode")
        if self.squeeze:
            return items.map(lambda rows, starts, _: _gather(rows, starts, item_spec)).unbatch()
        if self.item_length is None:
            return items.flat_map(slice_items).map(
                lambda item: tree.map_structure(lambda leaf, spec: tf.ensure_shape(leaf, spec.shape), item, item_spec)
            )
        offsets = np.arange(self.item_length)

        def make_windows(rows: Nest, starts: tf.Tensor, _: tf.Tensor) -> tf.data.Dataset:
            batches = tf.data.Dataset.from_tensor_slices(starts).batch(_WINDOW_BATCH_SIZE)
            return batches.map(lambda first: _gather(rows, first[:, None] + offsets, item_spec))

        return items.flat_map(make_windows).unbatch()


#: The most recently used graphs by adder and spec, since tracing takes half a second. They are global, so that equal
#: adders share them.
_GRAPHS: OrderedDict[Any, tuple[ColumnAdder, Any]] = OrderedDict()
_MAX_GRAPHS = 128


def _get_graph(adder: ColumnAdder, columns: Nest, kind: str) -> Any:
    """Returns a method of the adder, traced for any number of steps.

    All episodes use the same graph, so that the results do not depend on the order of episodes.

    Args:
      adder: the adder.
      columns: nest of columns `[N, ...]`, or of their specs.
      kind: 'episode' for `_make_items`, 'batch' for `_make_batch_items`, or 'rows' for `make_checked_rows`.

    Raises:
      ValueError: If a field is missing or of the wrong kind.
    """
    row_specs = repr([(path, column.shape[1:], column.dtype.name) for path, column in tree.flatten_with_path(columns)])
    key: Any = (adder, repr(adder), kind, row_specs)
    try:
        hash(key)
    except TypeError:  # An adder that is not hashable is equal to itself only.
        key = (id(adder), kind, row_specs)
    if key not in _GRAPHS:
        adder.item_spec(columns_step_spec(columns))
        spec = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), columns)
        methods = {"episode": adder._make_items, "batch": adder._make_batch_items, "rows": adder.make_checked_rows}
        num_steps = [tf.TensorSpec([None], tf.int64)] if kind == "batch" else []
        graph = tf.function(methods[kind], autograph=False).get_concrete_function(spec, *num_steps)
        _GRAPHS[key] = adder, graph  # Keeping the adder ensures that no other object gets its id.
        if len(_GRAPHS) > _MAX_GRAPHS:
            _GRAPHS.popitem(last=False)
    _GRAPHS.move_to_end(key)
    return _GRAPHS[key][1]


def _map_graph(adder: ColumnAdder, columns: tf.data.Dataset, kind: str) -> tf.data.Dataset:
    """Maps episodes with a graph of `_get_graph`, so that several datasets of equal adders trace it once."""
    graph = _get_graph(adder, columns.element_spec, kind)
    return columns.map(without_autograph(lambda steps: graph(steps)), tf.data.AUTOTUNE, deterministic=True)


def map_to_rows(adder: ColumnAdder, columns: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the rows of each episode; episodes without steps have none."""
    return _map_graph(adder, columns, "rows")


def episode_columns(episodes: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the columns `[N, ...]` of each episode that has steps.

    Args:
      episodes: a dataset of RLDS episodes, `{'steps': dataset of steps}`, or of columns, which is returned as it is.

    Raises:
      ValueError: If it is neither.
    """
    spec = episodes.element_spec
    steps = spec.get(fields.STEPS) if isinstance(spec, dict) else None
    if isinstance(steps, tf.data.DatasetSpec):
        return columns_dataset(episodes)
    if not isinstance(spec, dict) or any(
        not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank in (None, 0) for leaf in tree.flatten(spec)
    ):
        raise ValueError(
            "the dataset must contain episodes, {'steps': dataset of steps} or dicts of columns [N, ...], got "
            f"elements {spec}; single steps and items cannot be combined into episodes"
        )
    return episodes.map(_require_equal_lengths)


@without_autograph
def _require_equal_lengths(columns: Nest) -> Nest:
    sizes = tf.stack([tf.shape(column)[0] for column in tree.flatten(columns)])
    is_equal = tf.debugging.assert_equal(sizes, sizes[:1], "the columns of an episode must have equal lengths")
    with tf.control_dependencies([is_equal]):
        return tree.map_structure(tf.identity, columns)


def _extract_reason(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the message of a `tf.debugging` assertion, or the first line of TensorFlow's own."""
    match = re.search(r"assertion failed: \[(.*?)\]", str(error.message))
    return match[1] if match else str(error.message).splitlines()[0]


def _count_rows(columns: Nest) -> tf.Tensor:
    return tf.shape(tree.flatten(columns)[0], out_type=tf.int64)[0]


def _to_tensor_spec(step_spec: Nest) -> Nest:
    """Returns the nest with `tf.TensorSpec`s as leaves; raises `ValueError` for other leaves."""
    leaves = tree.flatten(step_spec)
    if leaves and all(isinstance(leaf, ArraySpec) for leaf in leaves):
        return to_tensor_spec(step_spec)
    if not leaves or any(not isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        raise ValueError(f"step_spec must be a nest of tf.TensorSpecs such as Source.step_spec, got {step_spec}")
    return step_spec


def columns_step_spec(columns: Nest) -> Nest:
    """Returns the spec of one step of columns `[N, ...]`, which are tensors, arrays or their specs."""
    return tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), columns)


def _require_rows(rows: Nest, spec: Nest) -> Nest:
    """Returns the rows if they match `row_spec`."""
    for (path, row), leaf in zip(tree.flatten_with_path(rows), tree.flatten(spec), strict=True):
        if row.dtype != leaf.dtype:
            raise ValueError(f"rows{list(path)} must be {leaf.dtype.name} according to row_spec, got {row.dtype.name}")
    return tree.map_structure(lambda row, leaf: tf.ensure_shape(row, (None, *leaf.shape)), rows, spec)


def _gather(rows: Nest, indices: tf.Tensor, item_spec: Nest) -> Nest:
    """Returns the items `[M, ...]` at row indices `[M, ...]`."""
    return tree.map_structure(
        lambda row, leaf: tf.ensure_shape(tf.gather(row, indices), (None, *leaf.shape)), rows, item_spec
    )


def slice_items(rows: Nest, starts: tf.Tensor, lengths: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of ranges of rows `[R, ...]`, given the first row and the length of each, int64 `[M]`."""
    bounds = tf.data.Dataset.from_tensor_slices((starts, lengths))
    return bounds.map(lambda start, length: tree.map_structure(lambda row: row[start : start + length], rows))
