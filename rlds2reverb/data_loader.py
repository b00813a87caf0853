"""Batches of a dataset, a store or the table of a server, for loops in NumPy, PyTorch or JAX, without TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import tree

from rlds2reverb.adders.adder import ItemAdder
from rlds2reverb.adders.n_step import Transitions
from rlds2reverb.datasets import load
from rlds2reverb.datasets.field_statistics import FieldStatistics, Normalization, read_statistics
from rlds2reverb.datasets.source import Source
from rlds2reverb.datasets.steps.image_files import Decoder, decode_images
from rlds2reverb.datasets.steps.item_index import ItemIndex, WeightedItems, find_shard, permute, sample_uniformly
from rlds2reverb.datasets.steps.layout import Layout
from rlds2reverb.datasets.steps.step_columns import MemoryColumns, StepColumns
from rlds2reverb.datasets.steps.stores import find_store, make_store, open_columns, require_valid_store
from rlds2reverb.errors import SourceError
from rlds2reverb.system.installation import install_command
from rlds2reverb.system.text import suggest
from rlds2reverb.system.threads import map_ahead
from rlds2reverb.types.arguments import require_count, require_defaults, require_one_of, take_arguments
from rlds2reverb.types.episode_batches import batch_episodes
from rlds2reverb.types.locations import is_server
from rlds2reverb.types.nest_paths import format_path, list_paths
from rlds2reverb.types.specs import Nest, map_structure

DEFAULT_ITEMS = Transitions()


class Batches(Iterable[Any]):
    """Batches, read from the first one by each iteration; see `batches`.

    Attributes:
      num_items: number of items of the dataset or store; None for the table of a server.
      num_batches: number of batches of an iteration; None if it does not end.
      statistics: the `FieldStatistics` of the fields that are normalised, by their paths.
    """

    def __init__(
        self,
        open_batches: Callable[[Callable[[Nest], Any]], Iterator[Any]],
        num_items: int | None = None,
        num_batches: int | None = None,
        convert: Callable[[Nest], Any] = lambda batch: batch,
        statistics: Mapping[str, FieldStatistics] = MappingProxyType({}),
    ):
        """
        Args:
          open_batches: function that starts an iteration, given the function that converts each batch.
          num_items: see `Batches`.
          num_batches: see `Batches`.
          convert: function that converts a batch of NumPy arrays.
          statistics: see `Batches`.
        """
        self.statistics = statistics
        self.num_items, self.num_batches = num_items, num_batches
        self._open_batches, self._convert = open_batches, convert

    def __iter__(self) -> Iterator[Any]:
        return self._open_batches(self._convert)

    def __len__(self) -> int:
        if self.num_batches is None:
            raise TypeError("these batches do not end; pass epochs to batches(), or stop after a number of steps")
        return self.num_batches

    def as_torch(self, *, pin_memory: bool = False) -> Batches:
        """Returns the same batches as tensors, which share the memory of the arrays; text becomes lists of bytes.

        Args:
          pin_memory: whether to copy the tensors to pinned memory, from which they can be copied to a GPU while it
            computes (`tensor.to("cuda", non_blocking=True)`).

        Raises:
          ImportError: If PyTorch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise ImportError(f"as_torch() requires PyTorch ({error}); run {install_command('torch')}") from error

        def convert(column: np.ndarray) -> Any:
            tensor = torch.from_numpy(column)
            return tensor.contiguous().pin_memory() if pin_memory else tensor

        return self._map_columns(convert)

    def as_jax(self) -> Batches:
        """Returns the same batches as JAX arrays; text becomes lists of bytes.

        JAX turns 64-bit numbers into 32-bit numbers unless its option jax_enable_x64 is set. The keys of items (uint64)
        stay NumPy arrays, because they would no longer be those of the items.

        Raises:
          ImportError: If JAX is not installed.
        """
        try:
            import jax.numpy as jnp
        except ImportError as error:
            raise ImportError(f"as_jax() requires JAX ({error}); run {install_command('jax')}") from error
        return self._map_columns(lambda column: column if column.dtype == np.uint64 else jnp.asarray(column))

    def _map_columns(self, convert: Callable[[np.ndarray], Any]) -> Batches:
        def convert_leaf(column: np.ndarray) -> Any:
            return column.tolist() if column.dtype.kind == "O" else convert(column)

        converted = partial(map_structure, convert_leaf)
        return Batches(self._open_batches, self.num_items, self.num_batches, converted, self.statistics)


@dataclass(frozen=True)
class _Options:
    """The options of `batches`."""

    source: Any
    batch_size: int
    _: KW_ONLY
    items: ItemAdder = DEFAULT_ITEMS
    normalize: Mapping[str, Normalization] | None = None
    sampler: Callable[[dict[str, Any]], Any] | None = None
    seed: int = 0
    epochs: int | None = None
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    first_step: int = 0
    prefetch: int = 2
    store_dir: str | Path | None = None
    decode: Decoder | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        for name, low in (("batch_size", 1), ("world_size", 1), ("first_step", 0), ("prefetch", 0)):
            require_count(name, getattr(self, name), low)
        require_count("seed", self.seed, 0, 2**31 - 1)
        require_count("rank", self.rank, 0, self.world_size - 1)
        if self.epochs is None:
            require_defaults(self, ["drop_last"], "without epochs, in which all batches are full")
        else:
            require_count("epochs", self.epochs)
            require_defaults(self, ["sampler"], "with epochs, which contain each item once")
        for name, mode in (self.normalize or {}).items():
            require_one_of(f"normalize[{name!r}]", mode, get_args(Normalization))
        if not isinstance(self.items, ItemAdder) or not self.items.reads_at_random:
            kinds = "Transitions, StepOffsets, Windows or another adder with a method read"
            raise TypeError(f"items must be of a kind that can be read at random ({kinds}), got {self.items!r}")


@take_arguments(_Options)
def batches(options: _Options) -> Batches:  # noqa: D417 - The arguments are those of the options.
    """Returns batches of items as dicts of NumPy arrays `[batch_size, ...]`; `as_torch` and `as_jax` convert them.

    TensorFlow is imported only to read RLDS and TFDS, neither for other datasets and stores nor for servers.

    Without `epochs`, items are sampled uniformly with replacement, without end. With `epochs`, each epoch contains each
    item exactly once, in a permutation of the whole dataset that differs between epochs; no buffer is shuffled. A batch
    depends only on the dataset, `seed`, its step, `rank` and the sizes. To continue, pass the number of batches that
    were used as `first_step`.

    In each step, each of `world_size` processes reads the batch of its `rank`. In an epoch, no two of them read the
    same item, and together they read all items, with the same number of batches each. The last batches of an epoch are
    smaller if there are too few items for full ones: the remaining items are divided as evenly as possible, and some
    processes get an empty batch if there are fewer items than processes. With `drop_last`, incomplete batches are left
    out in all processes; the items that are missing differ between epochs. Use it to train with several processes.

    Servers choose the items themselves, so most options do not apply. Their batches are `ReplaySample`s of `info`
    (keys, importance weights, ...) and `data`, as `rlds2reverb.sample` yields them, which has more options.

    Args:
      source: a dataset (any argument of `load`, or a `Source`), which is read into memory; a store, whose files are
        mapped into memory; or servers: an address 'HOST:PORT', a `ReplayServer`, and so on (see `sample`).
      batch_size: number of items per batch of each process, at least 1.
      items: the kind of the items: `Transitions`, `StepOffsets`, `Windows`, or another adder.
      normalize: how to normalise fields of floats, by their paths, such as {'observation.state': 'mean_std', 'action':
        'quantiles'}, with the statistics of the whole dataset; see `FieldStatistics`, of which `Batches.statistics`
        contains one for each field. Next observations are normalised like observations.
      sampler: function of the columns `[T, ...]` of an episode, without its images, that returns its weight, or the
        weights `[T]` of its steps, in proportion to which items are sampled; None to sample uniformly. The k-th item
        of an episode has the weight of its k-th step.
      seed: random seed for sampling and for the order of epochs, in [0, 2^31).
      epochs: number of epochs, at least 1; None to sample with replacement.
      drop_last: whether to leave out the incomplete batches at the end of each epoch.
      rank: number of this process, in [0, `world_size`).
      world_size: number of processes that share the dataset.
      first_step: number of batches to skip, over all epochs.
      prefetch: number of batches that are read ahead, each in a separate thread; 0 to read in the calling thread.
        For servers, at least 1.
      store_dir: directory in which the dataset is stored on first use, and read from files instead of memory;
        a store is read where it is.
      decode: function that decodes images `(files, spec of one image) -> [N, H, W, C]`; Pillow if None.
      table: name of the table of a server; 'replay' if None.

    Raises:
      ImportError: If the format requires a package that is not installed.
      InvalidEpisodeError: If an episode is invalid; see `ingest`.
      ServerUnavailableError: If no server answers.
      SourceError: If the dataset cannot be read, or has no items.
      SpecMismatchError: If the episodes differ in their fields, shapes or dtypes.
      TypeError: If `source` or `items` is of a different type.
      ValueError: If a number is out of range, an option does not apply, or the dataset has no field that is asked for.
    """
    if is_server(options.source):
        return _open_server(options)
    require_defaults(options, ["table"], "for datasets")
    reader = _StoredBatches(_open_steps(options.source, options.store_dir), options)
    return Batches(reader.read_all, reader.index.num_items, reader.num_batches, statistics=reader.statistics)


class _StoredBatches:
    """The batches of steps in memory or in files."""

    def __init__(self, steps: StepColumns, options: _Options):
        self._steps, self._options = steps, options
        self._names = list_paths(steps.layout.step_spec)
        normalize = options.normalize or {}
        self._require_fields(normalize)
        self.statistics = {path: read_statistics(steps, path, mode) for path, mode in normalize.items()}
        self.index = ItemIndex(steps, options.items)
        if not self.index.num_items:
            raise SourceError("there are no items; check whether all episodes are shorter than an item")
        self._weighted = None if options.sampler is None else WeightedItems(self.index, steps, options.sampler)
        self._read_items(np.zeros(1, np.int64))  # Raises errors of the options.
        size = options.batch_size * options.world_size
        self._steps_per_epoch = self.index.num_items // size if options.drop_last else -(-self.index.num_items // size)
        if not self._steps_per_epoch:
            raise SourceError(
                f"there are {self.index.num_items} items, too few for a batch of {options.batch_size} in "
                f"{options.world_size} processes; use a smaller batch_size, or drop_last=False"
            )
        self.num_batches = None
        if options.epochs is not None:
            num_steps = options.epochs * self._steps_per_epoch
            require_count("first_step", options.first_step, 0, num_steps)
            self.num_batches = num_steps - options.first_step

    def read_all(self, convert: Callable[[Nest], Any]) -> Iterator[Any]:
        """Yields all batches, each converted in the thread that reads it."""
        first, prefetch = self._options.first_step, self._options.prefetch
        steps = itertools.count(first) if self.num_batches is None else range(first, first + self.num_batches)
        return map_ahead(lambda step: convert(self._read_items(self._choose_items(step))), steps, prefetch)

    def _read_items(self, items: np.ndarray) -> dict[str, Nest]:
        return self._options.items.read(self._take, self.index.find_places(items))

    def _choose_items(self, step: int) -> np.ndarray:
        options, num_items = self._options, self.index.num_items
        rank, world_size = options.rank, options.world_size
        if self._weighted is not None:
            return self._weighted.sample(options.seed, step * world_size + rank, 1, options.batch_size)[0]
        if options.epochs is None:
            return sample_uniformly(options.seed, step * world_size + rank, 1, options.batch_size, num_items)[0]
        epoch, step = divmod(step, self._steps_per_epoch)
        positions = find_shard(step, options.batch_size, num_items, rank=rank, world_size=world_size)
        return permute(positions, num_items, seed=options.seed, epoch=epoch)

    def _take(self, rows: np.ndarray, names: Sequence[str] | None) -> dict[str, Nest]:
        self._require_fields(names or ())
        taken = self._steps.take(rows, names, decode=self._options.decode or decode_images)
        if not self.statistics:
            return taken

        def convert(keys: Sequence[Any], column: np.ndarray) -> np.ndarray:
            statistics = self.statistics.get(format_path(tuple(keys)))
            return column if statistics is None else statistics.normalize(column)

        normalized: dict[str, Nest] = tree.map_structure_with_path(convert, taken)
        return normalized

    def _require_fields(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self._names]
        if unknown:
            similar = suggest(unknown[0], self._names)
            raise ValueError(f"the dataset has no field {unknown[0]!r}{similar}; it has {', '.join(self._names)}")


def _open_steps(source: Any, store_dir: str | Path | None) -> StepColumns:
    """Returns the steps of a dataset, from a store or in memory."""
    source = load(source)
    path = find_store(source)
    if path is None and store_dir is not None:
        path = make_store(source, store_dir)
    if path is None:
        return _read_steps(source)
    columns = open_columns(path, random_access=True)
    require_valid_store(path, columns)
    return columns


def _read_steps(source: Source) -> StepColumns:
    """Reads a dataset into memory, and validates its episodes as `ingest` does, except for images that stay encoded."""
    layout = Layout.of_steps(source.first_episode.steps)
    columns, spec = MemoryColumns(layout), layout.step_spec
    for batch in batch_episodes(source.read()):
        if batch.num_steps.any():
            layout.require_match(batch)
            layout.hide_images(batch).require_valid(spec)
            columns.append(batch)
    return columns.finish()


def _open_server(options: _Options) -> Batches:
    from rlds2reverb.reverb.sampling.sample_iterator import SamplePlan

    used = ("source", "batch_size", "prefetch", "table")
    names = [option.name for option in fields(options) if option.name not in used]
    require_defaults(options, names, "for servers, which choose the items themselves")
    plan = SamplePlan(options.source, options.table or "replay", options.batch_size, prefetch=options.prefetch)
    return Batches(lambda convert: map(convert, plan.open()))
