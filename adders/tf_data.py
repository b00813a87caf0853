"""Adders as transforms of `tf.data`: datasets of episodes in, datasets of items out, as graphs that can be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.libraries.tensorflow_internals import without_autograph
from rlds2reverb.types import fields
from rlds2reverb.types.specs import Nest

from .places import Places, columns_step_spec, take_from

if TYPE_CHECKING:
    from .adder import ItemAdder
    from .window_adder import WindowAdder

_PARALLEL_EPISODES = 2
_ALL_STEPS = np.iinfo(np.int64).max
#: The number of windows that are read at a time; small, to limit memory.
_WINDOW_BATCH_SIZE = 64


def episode_columns(episodes: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the columns `[N, ...]` of each episode that has steps.

    Args:
      episodes: a dataset of RLDS episodes, `{'steps': dataset of steps}`, or of columns, which is returned as it is.

    Raises:
      TypeError: If it is not a dataset.
      ValueError: If its elements are something else.
    """
    if not isinstance(episodes, tf.data.Dataset):
        raise TypeError(f"expected a tf.data.Dataset of episodes or an Episode, got {type(episodes).__name__}")
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
def columns_dataset(episodes: tf.data.Dataset, *, with_index: bool = False) -> tf.data.Dataset:
    """Returns a dataset of the columns `[N, ...]` of each episode that has steps, in order.

    Args:
      episodes: dataset of dicts whose `steps` is a dataset of steps.
      with_index: whether the elements are pairs of the episode's index (int64) and its columns. Episodes without steps
        count too.
    """

    def indexed_columns(index: tf.Tensor, episode: Any) -> tf.data.Dataset:
        return episode[fields.STEPS].batch(_ALL_STEPS).map(lambda columns: (index, columns))

    # Each episode is at most one element, so that reading two at a time keeps their order.
    parallel = {"cycle_length": _PARALLEL_EPISODES, "num_parallel_calls": _PARALLEL_EPISODES, "deterministic": True}
    if with_index:
        return episodes.enumerate().interleave(indexed_columns, **parallel)
    return episodes.interleave(lambda episode: episode[fields.STEPS].batch(_ALL_STEPS), **parallel)


@without_autograph
def _require_equal_lengths(columns: Nest) -> Nest:
    sizes = tf.stack([tf.shape(column)[0] for column in tree.flatten(columns)])
    is_equal = tf.debugging.assert_equal(sizes, sizes[:1], "the columns of an episode must have equal lengths")
    with tf.control_dependencies([is_equal]):
        return tree.map_structure(tf.identity, columns)


def map_to_rows(adder: ItemAdder, columns: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the rows that an adder makes of each episode; episodes without steps have none."""
    spec = adder.row_spec(columns_step_spec(columns.element_spec))

    def transform(steps: Nest) -> Nest:
        return set_shapes(adder.transform(steps, count_rows(steps)[None])[0], spec, 1)

    return columns.map(without_autograph(transform), tf.data.AUTOTUNE, deterministic=True)


def map_to_windows(adder: WindowAdder, columns: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the windows of each episode."""
    spec = adder.item_spec(columns_step_spec(columns.element_spec))

    def read(steps: Nest) -> tf.data.Dataset:
        num_steps = count_rows(steps)
        numbers = tf.data.Dataset.range(adder.count(num_steps[None])[0])
        batches = numbers.batch(_WINDOW_BATCH_SIZE if adder.item_length else 1)  # Other items differ in length.
        return batches.map(without_autograph(lambda numbers: _read(adder, steps, numbers, spec)))

    return columns.flat_map(without_autograph(read)).unbatch()


def _read(adder: WindowAdder, steps: Nest, numbers: tf.Tensor, spec: Nest) -> Nest:
    places = _find_places(steps, numbers)
    return set_shapes(adder.read(take_from(steps), places), spec, 1)


def _find_places(steps: Nest, numbers: tf.Tensor) -> Places:
    """Returns the places of some items of one episode."""
    last = tf.zeros_like(numbers) + count_rows(steps) - 1
    return Places(tf.zeros_like(numbers), last, last, numbers)


def continue_windows(adder: WindowAdder, columns: tf.data.Dataset, stride: int) -> tf.data.Dataset:
    """Returns a dataset of the windows of an adder over the rows of consecutive episodes, as if they were one."""
    step_spec = columns_step_spec(columns.element_spec)
    row_spec, item_spec = adder.row_spec(step_spec), adder.item_spec(step_spec)
    length = adder.item_length

    def read_rows(steps: Nest) -> Nest:
        rows = tf.range(count_rows(steps))
        places = _find_places(steps, rows)
        return set_shapes(adder.read_rows(take_from(steps), rows, rows >= 0, places), row_spec, 1)

    def read_windows(state: tuple[Nest, tf.Tensor], rows: Nest) -> tuple[tuple[Nest, tf.Tensor], Nest]:
        # The rows from the start of the next window on, and the number of rows to come before that start.
        pending, skip = state
        rows = tree.map_structure(lambda old, new: tf.concat([old, new], 0), pending, rows)
        num_rows = count_rows(rows)
        starts = tf.range(skip, tf.maximum(num_rows - length + 1, skip), stride)
        windows = tree.map_structure(
            lambda row: tf.gather(row, starts[:, None] + tf.range(length, dtype=tf.int64)), rows
        )
        next_start = skip + stride * tf.shape(starts, out_type=tf.int64)[0]
        pending = tree.map_structure(lambda row: row[tf.minimum(next_start, num_rows) :], rows)
        return (pending, tf.maximum(next_start - num_rows, 0)), set_shapes(windows, item_spec, 1)

    none = tree.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), row_spec)
    rows = columns.map(without_autograph(read_rows))
    return rows.scan((none, tf.constant(0, tf.int64)), without_autograph(read_windows)).unbatch()


def set_shapes(nest: Nest, spec: Nest, num_leading: int) -> Nest:
    """Returns tensors whose static shapes are those of a spec, after some leading axes."""
    leading = [None] * num_leading
    return tree.map_structure(lambda column, leaf: tf.ensure_shape(column, [*leading, *leaf.shape]), nest, spec)


def count_rows(columns: Nest) -> tf.Tensor:
    """Returns the number of rows of columns, int64 []."""
    return tf.shape(tree.flatten(columns)[0], out_type=tf.int64)[0]
