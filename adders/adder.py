"""The base class of adders, which turn steps into items: all items of an episode, or those of a batch.

An adder is defined once, by rows: where its items begin, and how they are read. The same definition runs in NumPy, for
`ingest`, `batches` and training, and in the graphs of `tf.data`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, overload

import numpy as np
import tree

from rlds2reverb.types.episode_batches import EpisodeBatch
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.items import ItemBatch, Items
from rlds2reverb.types.specs import ArraySpec, Nest, map_structure, to_tensor_spec, with_bounds
from rlds2reverb.types.tables import item_signature

from .arrays import Array, namespace
from .observation_history import NO_HISTORY, ObservationHistory
from .places import Places, Take, columns_step_spec, find_ends, find_places, take_from

#: Stands for a size that a spec leaves open.
_UNKNOWN_SIZE = 7919
#: The adder and the spec of the episode that were checked last.
_last_checked: tuple[Any, Any] = (None, None)


class ItemAdder:
    """Base class of adders.

    Called with a dataset of episodes (or passed to its `apply`), an adder returns a dataset of items, computed by a
    graph that can be saved. Called with an `Episode`, it returns the `Items` of that episode, as `rlds2reverb.ingest`
    requires; `batches` and training read items at random. An episode in a dataset is an RLDS episode, `{'steps':
    dataset of steps}`, or a dict of columns `[N, ...]`; its last row holds the final observation. Episodes without
    steps yield no items.

    A subclass overrides `read`, and `count` unless an item begins at each step but the last one. It may use the
    functions that NumPy and `tf.experimental.numpy` share (see `arrays.namespace`). For items that are ranges of steps,
    derive from `WindowAdder`; to change or add columns of whole episodes, from `ColumnAdder`. `check_adder` checks a
    new adder. An adder with parameters is a frozen dataclass.
    """

    #: Whether an item is one row, without a time axis.
    squeeze: ClassVar[bool] = True
    #: Whether an item may contain rows of several episodes; such items can only be taken from a dataset.
    crosses_episodes: ClassVar[bool] = False
    #: Whether no other adder can follow in `compose`.
    must_be_last: ClassVar[bool] = False
    #: The steps that observations contain.
    history: ObservationHistory = NO_HISTORY
    #: The number of rows of every item; None if it varies, or if items have no time axis.
    item_length: int | None = None

    def count(self, num_steps: Array) -> Array:
        """Returns the number of items of episodes with these numbers of steps, int64 `[E]`."""
        return namespace(num_steps).maximum(num_steps - 1, 0)

    def read(self, take: Take, places: Places) -> Any:
        """Returns items, a nest of arrays `[N, ...]`.

        Args:
          take: function that reads steps at rows int64 `[N]`.
          places: the places of the items.
        """
        raise NotImplementedError(f"{type(self).__name__} must override read")

    def require_steps(self, step_spec: Nest) -> None:
        """Raises `ValueError` unless items can be made of such steps.

        Args:
          step_spec: nest of `tf.TensorSpec`s of one step.
        """

    def _read_none(self, take: Take, none: Places) -> Nest:
        """Returns rows of which items consist, but none of them, `[0, ...]`."""
        return self.read(take, none)

    def following(self, adder: ItemAdder) -> ItemAdder:
        """Returns this adder for the rows of the adder that precedes it in `compose`."""
        return self

    @property
    def reads_at_random(self) -> bool:
        """True if `read` returns items at any places, as sampling requires."""
        return type(self).read is not ItemAdder.read

    @property
    def uses_all_actions(self) -> bool:
        """True if an action is used even if no observation follows it.

        Such a last action of a truncated episode begins no transition, but policies can be cloned from it. The adder
        then reads observations up to `Places.last_observation` and actions before `Places.last`. Datasets of `tf.data`
        do not say whether an observation follows.
        """
        return False

    @property
    def supports_batches(self) -> bool:
        """True if several episodes can be converted at once, bit for bit as each of them alone."""
        return not self.crosses_episodes

    def row_spec(self, step_spec: Nest) -> Nest:
        """Returns the `tf.TensorSpec`s of one row, given those of one step.

        Raises:
          ValueError: If a field is missing or of the wrong kind.
        """
        self.require_steps(step_spec)

        def blank(spec: Any) -> np.ndarray:
            shape = [_UNKNOWN_SIZE if size is None else size for size in spec.shape]
            return np.zeros((0, *shape), object if spec.dtype.name == "string" else spec.dtype.as_numpy_dtype)

        columns = map_structure(blank, step_spec)
        none = np.zeros(0, np.int64)
        return _describe_rows(self._read_none(take_from(columns), Places(none, none, none, none)), step_spec)

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
    def __call__(self, episodes: Any) -> Any: ...

    def __call__(self, episodes: Any) -> Any:
        """Returns the items of a `tf.data.Dataset` of episodes, or of one `Episode`.

        Raises:
          ValueError: If a field is missing or of the wrong kind.
          TypeError: For anything else.
        """
        if isinstance(episodes, Episode):
            return self._convert_episode(episodes)
        from .tf_data import episode_columns

        return self._convert_dataset(episode_columns(episodes))

    def _convert_dataset(self, columns: Any) -> Any:
        """Returns the dataset of the items of a dataset of columns `[N, ...]`."""
        from .tf_data import map_to_rows

        return map_to_rows(self, columns).unbatch()

    def convert_batch(self, batch: EpisodeBatch) -> ItemBatch | None:
        """Implements `rlds2reverb.types.items.EpisodeBatchAdder`."""
        if not self.supports_batches:
            return None
        try:
            return self._cut_episodes(batch.steps, batch.num_steps, batch.final_rows)
        except Exception as error:
            if _find_reason(error) is None:
                raise
            return None  # The caller converts the episodes one by one, and the error names the invalid episode.

    def _convert_episode(self, episode: Episode) -> Items:
        if self.crosses_episodes:
            raise ValueError(f"the items of {self} cross episodes and require a dataset; apply it to source.to_rlds()")
        sizes = {len(column) for column in tree.flatten(episode.steps)}
        if len(sizes) > 1:
            raise ValueError(f"the columns of episode {episode.index} must have equal lengths, got {sorted(sizes)}")
        self._require_suitable(episode)
        try:
            final_rows = np.array([episode.final_row], np.uint8)
            return self._cut_episodes(episode.steps, np.array(sorted(sizes)), final_rows).items
        except Exception as error:
            reason = _find_reason(error)
            if reason is None:
                raise
            raise ValueError(f"episode {episode.index}: {reason}") from error

    def _require_suitable(self, episode: Episode) -> None:
        """Raises `ValueError` as `row_spec`, unless the last episode had the same adder and spec, as most have."""
        global _last_checked
        spec = [(path, column.dtype, column.shape[1:]) for path, column in episode.columns]
        adder, last_spec = _last_checked
        if adder is not self or last_spec != spec:
            self.row_spec(columns_step_spec(episode.steps))
            _last_checked = self, spec

    def _cut_episodes(self, columns: Nest, num_steps: np.ndarray, final_rows: np.ndarray) -> ItemBatch:
        if not self.uses_all_actions:
            return self.cut(columns, num_steps)
        ends = find_ends(num_steps, final_rows)
        counts = self.count(ends.num_steps)
        return rows_as_items(self.read(take_from(columns), find_places(num_steps, ends, counts)), counts)

    def cut(self, columns: Nest, num_steps: np.ndarray) -> ItemBatch:
        """Returns all items of some episodes.

        Args:
          columns: the concatenated columns `[R, ...]` of the episodes.
          num_steps: int64 `[E]`, the number of steps of each episode.
        """
        rows, num_rows = self.transform(columns, num_steps)
        return rows_as_items(rows, num_rows)

    def transform(self, columns: Nest, num_steps: Array) -> tuple[Nest, Array]:
        """Returns the rows that another adder can follow on, `[R, ...]`, and the number of rows of each episode, `[E]`.

        Args:
          columns: the concatenated columns `[R, ...]` of the episodes, arrays or tensors.
          num_steps: int64 `[E]`, the number of steps of each episode.
        """
        counts = self.count(num_steps)
        return self.read(take_from(columns), find_places(num_steps, find_ends(num_steps), counts)), counts


def rows_as_items(rows: Nest, num_rows: np.ndarray) -> ItemBatch:
    """Returns rows as items without a time axis."""
    total = int(num_rows.sum())
    return ItemBatch(Items(rows, np.arange(total), np.ones(total, np.int64), squeeze=True), num_rows, num_rows)


def _describe_rows(rows: Nest, step_spec: Nest) -> Nest:
    """Returns the specs of one of the rows `[0, ...]`, with the bounds of steps."""
    import tensorflow as tf

    def describe(path: tuple[Any, ...], column: np.ndarray) -> Any:
        shape = [None if size == _UNKNOWN_SIZE else size for size in column.shape[1:]]
        spec = tf.TensorSpec(shape, tf.string if column.dtype == object else column.dtype)
        bounded: Any = step_spec
        for key in (str(path[0]).removeprefix("next_"), *path[1:]):
            bounded = bounded[key] if isinstance(bounded, dict) and key in bounded else None
        is_same = isinstance(bounded, tf.TensorSpec) and (bounded.shape, bounded.dtype) == (spec.shape, spec.dtype)
        return with_bounds(spec, bounded) if is_same else spec

    return tree.map_structure_with_path(describe, rows)


def _to_tensor_spec(step_spec: Nest) -> Nest:
    """Returns the nest with `tf.TensorSpec`s as leaves; raises `ValueError` for other leaves."""
    import tensorflow as tf

    leaves = tree.flatten(step_spec)
    if leaves and all(isinstance(leaf, ArraySpec) for leaf in leaves):
        return to_tensor_spec(step_spec)
    if not leaves or any(not isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        raise ValueError(f"step_spec must be a nest of tf.TensorSpecs such as Source.step_spec, got {step_spec}")
    return step_spec


def _find_reason(error: Exception) -> str | None:
    """Returns the message of an error about the data, which is that of an assertion in TensorFlow; None for others."""
    if isinstance(error, ValueError):
        return str(error)
    if type(error).__name__ != "InvalidArgumentError":
        return None
    text = str(getattr(error, "message", error))
    match = re.search(r"assertion failed: \[(.*?)\]", text) or re.match(r"([^\n]*)", text)
    return match[1] if match else None
