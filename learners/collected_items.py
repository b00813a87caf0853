"""Items that are collected during training, as a source of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb._arguments import require_count
from rlds2reverb.errors import CheckpointError
from rlds2reverb.experience import convert_data
from rlds2reverb.items import Items
from rlds2reverb.specs import Nest

from .feeds import Feed, make_output_spec

#: Separates the random numbers used here from those of other parts with the same seed.
_SALT = 0x43_4F_4C_4C
_FILE = "items.npz"


class CollectedItems(Feed):
    """Items in variables on the device, to which items are added, and which are sampled uniformly with replacement.

    When it is full, each new item replaces the oldest one. The sample of an iteration depends only on the seed, the
    iteration's number and the items, so a resumed run samples the same items as an uninterrupted one.
    """

    has_info = False

    def __init__(self, item_spec: Nest, capacity: int, batch_size: int, *, seed: int = 0):
        """Allocates memory for all items.

        Args:
          item_spec: nest of `tf.TensorSpec` of one item, such as `adder.item_spec(...)`; of known shapes.
          capacity: maximum number of items to hold, at least 1.
          batch_size: number of items in a batch, at least 1.
          seed: random seed for sampling, in [0, 2^31).

        Raises:
          ValueError: If a number is out of range.
        """
        require_count("capacity", capacity)
        require_count("batch_size", batch_size)
        require_count("seed", seed, 0, 2**31 - 1)
        self.capacity, self._batch_size, self._seed = capacity, batch_size, seed
        self._spec = item_spec
        widths: dict[np.dtype, int] = {}
        for leaf in tree.flatten(item_spec):
            dtype = np.dtype(leaf.dtype.as_numpy_dtype)
            widths[dtype] = widths.get(dtype, 0) + int(np.prod(leaf.shape))
        self._matrices = {
            dtype: tf.Variable(tf.zeros([capacity, width], dtype), trainable=False) for dtype, width in widths.items()
        }
        with tf.device("CPU"):
            self._num_held = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.num_added = 0
        self.experience_spec = make_output_spec(self.next, tf.TensorSpec([], tf.int64))[0]

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def append(self, items: Items) -> None:
        """Adds items of the spec in order."""
        rows = items.starts if items.squeeze else items.starts[:, None] + np.arange(items.lengths.max(initial=1))
        count = len(items)
        if not count:
            return
        parts: dict[np.dtype, list[np.ndarray]] = {dtype: [] for dtype in self._matrices}
        for leaf, column in zip(tree.flatten(self._spec), tree.flatten(items.columns), strict=True):
            dtype = np.dtype(leaf.dtype.as_numpy_dtype)
            parts[dtype].append(np.asarray(column, dtype)[rows].reshape(count, -1))
        self._write({dtype: np.concatenate(columns, 1) for dtype, columns in parts.items()}, count)

    def _write(self, rows: dict[np.dtype, np.ndarray], count: int) -> None:
        skipped = max(count - self.capacity, 0)  # Items that later ones of the same call replace.
        slots = (self.num_added + np.arange(skipped, count)) % self.capacity
        for dtype, matrix in self._matrices.items():
            matrix.scatter_update(tf.IndexedSlices(rows[dtype][skipped:], slots))
        self.num_added += count
        self._num_held.assign(len(self))

    def next(self, step: tf.Tensor) -> tuple[Nest, Any]:
        """Implements `Feed.next`. There must be at least one item."""
        seed = tf.stack([tf.constant(self._seed ^ _SALT, tf.int64), tf.cast(step, tf.int64)])
        indices = tf.random.stateless_uniform([self._batch_size], seed, maxval=self._num_held, dtype=tf.int64)
        gathered = {dtype: tf.gather(matrix, indices) for dtype, matrix in self._matrices.items()}
        ends = dict.fromkeys(gathered, 0)
        columns = []
        for leaf in tree.flatten(self._spec):
            dtype = np.dtype(leaf.dtype.as_numpy_dtype)
            begin = ends[dtype]
            ends[dtype] = begin + int(np.prod(leaf.shape))
            columns.append(tf.reshape(gathered[dtype][:, begin : ends[dtype]], [self._batch_size, *leaf.shape]))
        return convert_data(tree.unflatten_as(self._spec, columns)), ()

    def save_data(self, folder: Path) -> None:
        """Writes all items into a folder."""
        matrices = {dtype.name: matrix[: len(self)].numpy() for dtype, matrix in self._matrices.items()}
        np.savez(Path(folder) / _FILE, num_added=self.num_added, **matrices)

    def load_data(self, folder: Path) -> None:
        """Replaces all items by those that `save_data` wrote into a folder.

        Raises:
          CheckpointError: If they have a different spec, or there are more than the capacity.
        """
        with np.load(Path(folder) / _FILE) as saved:
            num_added = int(saved["num_added"])
            rows = {dtype: saved[dtype.name] for dtype in self._matrices if dtype.name in saved}
        is_same = all(rows[dtype].shape[1:] == matrix.shape[1:] for dtype, matrix in self._matrices.items()
                      if dtype in rows)  # fmt: skip
        count = len(next(iter(rows.values()), ()))
        if len(rows) != len(self._matrices) or not is_same or count != min(num_added, self.capacity):
            raise CheckpointError(
                f"{folder} contains {count:,} collected items of a different kind or capacity; use a different run_dir"
            )
        for dtype, matrix in self._matrices.items():
            matrix[:count].assign(rows[dtype])
        self.num_added = num_added
        self._num_held.assign(len(self))
