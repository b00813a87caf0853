"""Batches of items that are cut from stored steps when they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.adders.adder import ItemAdder
from rlds2reverb.datasets.steps import image_files
from rlds2reverb.datasets.steps.goals import NUM_NUMBERS, GoalSampling
from rlds2reverb.datasets.steps.item_index import (
    ItemIndex,
    WeightedItems,
    draw_numbers,
    permute_epochs,
    sample_uniformly,
)
from rlds2reverb.datasets.steps.step_columns import StepColumns
from rlds2reverb.errors import SourceError
from rlds2reverb.reverb.wire.packing import Packing, pack_columns, packed_signature, unpack
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.experience import convert_data
from rlds2reverb.types.specs import ArraySpec, Nest, map_structure

from .feeds import SEED_SALT, Feed

#: Separates the random numbers of goals from those of items with the same seed.
_GOAL_SALT = 0x47_4F_41_4C


class StoredItems(Feed):
    """Items of stored steps, sampled uniformly with replacement, or in epochs (see `resize`).

    The batch of an iteration, goals included, depends only on the seed and the iteration's number, so a resumed run
    samples the same items as an uninterrupted one.

    Attributes:
      steps: the steps, in memory or in files.
      convert: function applied to columns when they are read.
      num_items: the number of items.
    """

    _in_epochs = False

    def __init__(
        self,
        steps: StepColumns,
        adder: ItemAdder,
        batch_size: int,
        *,
        seed: int = 0,
        is_used: np.ndarray | None = None,
        convert: Callable[[dict[str, Nest]], dict[str, Nest]] = lambda steps: steps,
        added: Mapping[str, Nest] = MappingProxyType({}),
        goals: GoalSampling | None = None,
        weigh: Callable[[dict[str, Nest]], Any] | None = None,
    ):
        """Reads one item, for the spec of the batches.

        Args:
          steps: the steps, in memory or in files.
          adder: the adder of the items.
          batch_size: number of items in a batch, at least 1.
          seed: random seed for sampling, in [0, 2^31).
          is_used: bool `[E]`, the episodes to sample from; None for all.
          convert: function applied to columns `[R, ...]` of some fields when they are read, row by row.
          added: further fields that the adder can read, nests of arrays `[R, ...]` with a row for each step.
          goals: goals of the items, which are then transitions of one step; None for none.
          weigh: function of the columns of an episode that returns the weights of its items; see `WeightedItems`. None
            to sample uniformly.

        Raises:
          SourceError: If there are no items.
          ValueError: If a number is out of range.
        """
        require_count("batch_size", batch_size)
        require_count("seed", seed, 0, 2**31 - 1)
        self.convert, self._adder, self._added, self._goals = convert, adder, added, goals
        self._batch_size, self._seed = batch_size, seed
        self._set_steps(steps, is_used)
        self._weighted = None if weigh is None else WeightedItems(self._index, steps, weigh)
        first = self.read_items(np.zeros(1, np.int64))
        item_spec = map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), first)
        # One matrix is faster to pass to the graph than many columns. Bytes, of which images consist, are not.
        packing = Packing(item_spec, squeeze=True)
        self._packing = packing if packed_signature(packing).dtype == tf.int32 else None
        self._item_spec = item_spec if self._packing is None else packed_signature(packing)

    def _set_steps(self, steps: StepColumns, is_used: np.ndarray | None) -> None:
        self.steps, self._index = steps, ItemIndex(steps, self._adder, is_used)
        self.num_items = self._index.num_items
        if not self.num_items:
            raise SourceError("there are no items to train on; check whether all episodes are shorter than an item")

    @cached_property
    def data_spec(self) -> Nest:
        """The specs of a batch."""
        return tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([self._batch_size, *leaf.shape], leaf.dtype), self._item_spec
        )

    def resize(self, batch_size: int, *, in_epochs: bool = False) -> StoredItems:
        """Returns a feed with batches of a different size of the same items, which are not copied.

        Args:
          batch_size: number of items in a batch, at least 1.
          in_epochs: whether each epoch contains each item once, in the order of `permute`. All batches are full: the
            one in which an epoch ends contains the first items of the next epoch as well.
        """
        require_count("batch_size", batch_size)
        resized = copy.copy(self)
        resized._batch_size, resized._in_epochs = batch_size, in_epochs
        for name in ("experience_spec", "data_spec"):
            resized.__dict__.pop(name, None)
        return resized

    def replace_steps(self, steps: StepColumns) -> StoredItems:
        """Returns a feed of the items of other steps with the same layout; this one must have no `added` fields.

        Raises:
          SourceError: If there are no items.
        """
        replaced = copy.copy(self)
        replaced._set_steps(steps, None)
        return replaced

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`."""
        items = self.sample_indices(first_step, count)
        numbers = None if self._goals is None else self._draw_goals(first_step, *items.shape)
        batch = self.read_items(items.ravel(), numbers)
        if self._packing is not None:
            batch = pack_columns(tf.nest.flatten(batch))
        return map_structure(lambda column: column.reshape(*items.shape, *column.shape[1:]), batch), ()

    def to_experience(self, data: Nest) -> Nest:
        """Implements `Feed.to_experience`."""
        return convert_data(data if self._packing is None else unpack(data, self._packing))

    def sample_indices(self, first_step: int, count: int = 1) -> np.ndarray:
        """Implements `Feed.sample_indices`."""
        seed, size = self._seed ^ SEED_SALT, self._batch_size
        if self._weighted is not None:
            return self._weighted.sample(seed, first_step, count, size)
        if not self._in_epochs:
            return sample_uniformly(seed, first_step, count, size, self.num_items)
        positions = np.arange(first_step * size, (first_step + count) * size).reshape(count, size)
        return permute_epochs(positions, self.num_items, seed=seed)

    def read_items(self, items: np.ndarray, numbers: np.ndarray | None = None) -> Nest:
        """Returns items as a nest of arrays `[N, ...]`.

        Args:
          items: int64 `[N]`, their numbers.
          numbers: uint64 `[N, NUM_NUMBERS]`, the random numbers of their goals; None for those of the first iteration.
        """
        places = self._index.find_places(items)
        batch = self._adder.read(self.take, places)
        if self._goals is None:
            return batch
        if numbers is None:
            numbers = self._draw_goals(0, 1, len(items))
        return self._goals.relabel(batch, self.take, places, numbers, self._index)

    def _draw_goals(self, first_step: int, count: int, num_items: int) -> np.ndarray:
        """Returns the random numbers of the goals of consecutive iterations."""
        numbers = draw_numbers(self._seed ^ _GOAL_SALT, first_step, count, num_items * NUM_NUMBERS)
        return numbers.reshape(-1, NUM_NUMBERS)

    def take(self, rows: np.ndarray, names: Sequence[str] | None) -> dict[str, Nest]:
        """Returns some fields of the steps at rows int64 `[N]`, or all, converted like those of the items."""
        if names is None:
            names = [*self.steps.layout.step_spec, *self._added]
        stored = [name for name in names if name not in self._added]
        taken = self.convert(self.steps.take(rows, stored, decode=decode_images))
        added = {name: self._added[name] for name in names if name in self._added}
        return taken | map_structure(lambda column: column[rows], added)


def decode_images(files: Sequence[bytes], pixels: ArraySpec) -> np.ndarray:
    """Decodes images with TensorFlow on all cores, or with Pillow if one must be converted; see `Decoder`."""
    if not all(image_files.needs_no_conversion(file, pixels) for file in files if file):
        return image_files.decode_images(files, pixels)
    has_content = np.array([bool(file) for file in files])
    shape: Any = pixels.shape
    images = np.zeros((len(files), *shape), pixels.dtype)
    if has_content.any():
        decoded = _decode(tf.constant([file for file in files if file]), shape, pixels.dtype.name).numpy()
        images[has_content] = decoded
    return images


@tf.function(autograph=False, reduce_retracing=True)
def _decode(files: tf.Tensor, shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    def decode(file: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(file, channels=shape[-1], dtype=tf.as_dtype(dtype), expand_animations=False)
        return tf.ensure_shape(image, shape)

    return tf.map_fn(decode, files, fn_output_signature=tf.TensorSpec(shape, dtype), parallel_iterations=32)
