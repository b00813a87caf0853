"""Items that are collected during training, as a source of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets.steps.item_index import sample_uniformly
from rlds2reverb.errors import CheckpointError, SpecMismatchError
from rlds2reverb.reverb.wire.packing import Packing, pack_columns, packed_signature, unpack
from rlds2reverb.types.experience import convert_data
from rlds2reverb.types.items import Items
from rlds2reverb.types.specs import Nest, path_name

from .feeds import Feed

#: Separates the random numbers used here from those of other parts with the same seed.
_SALT = 0x43_4F_4C_4C
_FILE = "items.npz"


class CollectedItems(Feed):
    """Items in the rows of a matrix, to which items are added, and which are sampled uniformly with replacement.

    When it is full, each new item replaces the oldest one. The sample of an iteration depends only on the seed, the
    iteration's number and the items, so a resumed run samples the same items as an uninterrupted one.
    """

    reads_ahead = False

    def __init__(self, item_spec: Nest, capacity: int, batch_size: int, *, seed: int = 0):
        """Reserves memory for all items, which is used as they are added.

        Args:
          item_spec: nest of `tf.TensorSpec` of one item, such as `adder.item_spec(...)`; of known shapes.
          capacity: maximum number of items to hold, at least 1.
          batch_size: number of items in a batch, at least 1.
          seed: random seed for sampling, in [0, 2^31).
        """
        self.capacity, self._batch_size, self._seed = capacity, batch_size, seed
        # The whole item is one row, even if it has a time axis.
        self._packing = Packing(item_spec, squeeze=True)
        row = packed_signature(self._packing)
        self._matrix = np.zeros([capacity, *row.shape], row.dtype.as_numpy_dtype)
        self.data_spec = tf.TensorSpec([batch_size, *row.shape], row.dtype)
        self.num_added = 0

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def append(self, items: Items) -> None:
        """Adds items in order; raises `SpecMismatchError` if they do not have the shapes and dtypes of the spec."""
        count = len(items)
        if not count:
            return
        rows = items.starts if items.squeeze else items.starts[:, None] + np.arange(items.lengths.max())
        specs, columns = tree.flatten_with_path(self._packing.item_spec), tree.flatten(items.columns)
        for (path, spec), column in zip(specs, columns, strict=True):
            shape = tuple(spec.shape) if items.squeeze else tuple(spec.shape)[1:]
            if (column.dtype, column.shape[1:]) != (spec.dtype.as_numpy_dtype, shape):
                got = f"{column.dtype} {[*column.shape[1:]]}"
                raise SpecMismatchError(f"{path_name(path, 'item')} must be {spec.dtype.name} {[*shape]}, got {got}")
        packed = pack_columns([column[rows] for column in columns])
        skipped = max(count - self.capacity, 0)  # Items that later ones of the same call replace.
        self._matrix[(self.num_added + np.arange(skipped, count)) % self.capacity] = packed[skipped:]
        self.num_added += count

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`. There must be at least one item."""
        indices = sample_uniformly(self._seed ^ _SALT, first_step, count, self._batch_size, len(self))
        return np.take(self._matrix, indices, axis=0), ()

    def to_experience(self, data: Nest) -> Nest:
        """Implements `Feed.to_experience`."""
        return convert_data(unpack(data, self._packing))

    def save_data(self, folder: Path) -> None:
        """Writes all items into a folder."""
        np.savez(Path(folder) / _FILE, num_added=self.num_added, items=self._matrix[: len(self)])

    def load_data(self, folder: Path) -> None:
        """Replaces all items by those that `save_data` wrote into a folder.

        Raises:
          CheckpointError: If they have a different spec, or there are more than the capacity.
        """
        with np.load(Path(folder) / _FILE) as saved:
            num_added, rows = int(saved["num_added"]), saved["items"]
        expected = (min(num_added, self.capacity), self._matrix.shape[1])
        if rows.shape != expected or rows.dtype != self._matrix.dtype:
            raise CheckpointError(
                f"{folder} contains {len(rows):,} collected items of a different kind or capacity; use a different "
                "run directory"
            )
        self._matrix[: len(rows)] = rows
        self.num_added = num_added
