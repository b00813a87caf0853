"""What all adders have in common: columns of episodes in, items out, for `tf.data` and for `ingest`."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, overload

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb.episodes import Episode
from rlds2reverb.items import Items
from rlds2reverb.specs import Nest, to_tensor_spec
from rlds2reverb.trajectories import transition_discounts

_WHOLE_EPISODE = 1 << 40


class EpisodeAdder(abc.ABC):
    """Makes items of episodes. Called with a data set of episodes (or by its `apply`) it gives one of items; called
    with an `Episode` it gives that episode's `Items`, as `rlds2reverb.ingest` wants them.

    An episode is an RLDS one, `{'steps': data set of steps}`, or its columns, a dict of tensors `[N, ...]` of which
    the last row holds the final observation. Episodes without steps give no items.

    A new adder says how columns become rows (`row_spec`, `rows`) and which runs of rows are items (`item_bounds`).
    """

    #: Whether an item is one row, without a time axis.
    squeeze: ClassVar[bool] = False
    #: Whether an item may hold rows of several episodes; only data sets give such items.
    crosses_episodes: ClassVar[bool] = False
    #: Whether the rows are cut into items, so that no other adder can follow in `compose`.
    ends_chain: ClassVar[bool] = False

    @abc.abstractmethod
    def row_spec(self, step_spec: Nest) -> Nest:
        """`tf.TensorSpec`s of one row, from those of one step.

        Raises:
          ValueError: if a field is missing or of the wrong kind.
        """

    @abc.abstractmethod
    def rows(self, columns: Nest) -> Nest:
        """Rows `[R, ...]` of the columns `[N, ...]` of one episode, of one step or more; traced by TensorFlow."""

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The first row and the number of rows of each item, int64 `[M]`: here one item of all rows."""
        count = tf.cast(num_rows > 0, tf.int64)
        return tf.zeros([count], tf.int64), tf.fill([count], num_rows)

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
        raise TypeError(f"got a {type(episodes).__name__}, wanted a tf.data.Dataset of episodes or an Episode")

    def _items(self, episode: Episode) -> Items:
        if self.crosses_episodes:
            raise ValueError(f"the items of {self} run on over the ends of episodes; take them from a data set")
        columns = tree.map_structure(tf.convert_to_tensor, episode.steps)
        self.row_spec(_spec_of(columns))
        rows, starts, lengths = tree.map_structure(lambda tensor: tensor.numpy(), self._graph(columns))
        return Items(rows, starts, lengths, self.squeeze)

    @cached_property
    def _graph(self) -> Any:
        return tf.function(self._bounded_rows, reduce_retracing=True)

    def _checked_rows(self, columns: Nest) -> Nest:
        """Rows as `row_spec` says, none for no steps."""
        spec = self.row_spec(_spec_of(columns))

        def nothing() -> Nest:
            return tree.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), spec)

        return tf.cond(_num_rows(columns) > 0, lambda: _require_rows(self.rows(columns), spec), nothing)

    def _bounded_rows(self, columns: Nest) -> tuple[Nest, tf.Tensor, tf.Tensor]:
        """Rows, and the bounds of the items among them."""
        rows = self._checked_rows(columns)
        return rows, *self.item_bounds(_num_rows(rows))

    def _dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        item_spec = self.item_spec(_spec_of_elements(columns))
        parts = columns.map(self._bounded_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        if self.squeeze:
            items = parts.map(lambda rows, starts, _: _gathered(rows, starts)).unbatch()
        elif self.item_length is not None:
            within = np.arange(self.item_length)
            items = parts.map(lambda rows, starts, _: _gathered(rows, starts[:, None] + within)).unbatch()
        else:
            items = parts.flat_map(_slices)
        return items.map(lambda item: tree.map_structure(_with_spec, item, item_spec))


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
        # An episode gives one element, or none if it is empty, so that reading two at a time keeps their order.
        return episodes.interleave(
            lambda episode: episode[fields.STEPS].batch(_WHOLE_EPISODE),
            cycle_length=2,
            num_parallel_calls=2,
            deterministic=True,
        )
    if not isinstance(spec, dict) or any(not isinstance(leaf, tf.TensorSpec) for leaf in tree.flatten(spec)):
        raise ValueError(
            f"{fields.NO_STEPS} An element is {spec}, wanted {{'steps': data set of steps}} or a dict of columns."
        )
    return episodes


def compose(*adders: EpisodeAdder) -> EpisodeAdder:
    """One adder after the other, each given the rows of the one before it; the last one makes the items.

    Raises:
      ValueError: if there are none, or one before the last has already cut its rows into items.
    """
    if not adders:
        raise ValueError("compose got no adders, wanted at least one")
    for adder in adders[:-1]:
        if adder.ends_chain:
            raise ValueError(f"{type(adder).__name__} cuts episodes into items, so that nothing can follow it")
    return adders[0] if len(adders) == 1 else _Chain(adders)


@dataclass(frozen=True)
class _Chain(EpisodeAdder):
    adders: tuple[EpisodeAdder, ...]

    @property
    def squeeze(self) -> bool:  # type: ignore[override]
        return self.adders[-1].squeeze

    @property
    def ends_chain(self) -> bool:  # type: ignore[override]
        return self.adders[-1].ends_chain

    @property
    def item_length(self) -> int | None:
        return self.adders[-1].item_length

    def row_spec(self, step_spec: Nest) -> Nest:
        for adder in self.adders:
            step_spec = adder.row_spec(step_spec)
        return step_spec

    def rows(self, columns: Nest) -> Nest:
        for adder in self.adders:
            columns = adder.rows(columns)
        return columns

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.adders[-1].item_bounds(num_rows)

    @property
    def crosses_episodes(self) -> bool:  # type: ignore[override]
        return self.adders[-1].crosses_episodes

    def _dataset(self, columns: tf.data.Dataset) -> tf.data.Dataset:
        self.row_spec(_spec_of_elements(columns))
        for adder in self.adders[:-1]:
            columns = columns.map(adder._checked_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return self.adders[-1]._dataset(columns)


def require_fields(step_spec: Nest, names: Sequence[str], who: str) -> None:
    """Raises `ValueError` unless a step is a dict with these fields."""
    found = list(step_spec) if isinstance(step_spec, dict) else type(step_spec).__name__
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{who} needs the field {missing[0]!r} in every step, found {found}")


def require_single_rewards(step_spec: Nest, who: str) -> tf.DType:
    """The dtype of the returns; raises `ValueError` unless there is one reward, a number, at every step."""
    require_fields(step_spec, (fields.REWARD, fields.DISCOUNT, fields.IS_LAST, fields.IS_TERMINAL), who)
    for name in (fields.REWARD, fields.DISCOUNT):
        spec = step_spec[name]
        if tree.is_nested(spec) or spec.shape.rank != 0:
            raise ValueError(f"{who} wants one {name} a step, step[{name!r}] is {spec}")
    return returns_dtype(step_spec[fields.REWARD].dtype)


def returns_dtype(reward_dtype: tf.DType) -> tf.DType:
    """Sums of float rewards keep their dtype, others are float32."""
    return reward_dtype if reward_dtype.is_floating else tf.float32


def transitions(columns: Nest) -> tuple[tf.Tensor, tf.Tensor]:
    """Rewards and discounts `[T]` of the T = N - 1 transitions between N steps.

    The discount is the step's own, and 0 where the transition leads into a terminal state (`transition_discounts`
    with 'product'); the reward and the discount of the last step mean nothing and are left out.
    """
    dtype = returns_dtype(columns[fields.REWARD].dtype)
    is_terminal = columns[fields.IS_TERMINAL]
    following = {fields.IS_TERMINAL: tf.concat([is_terminal[1:], tf.zeros_like(is_terminal[:1])], 0)}
    own = tf.cast(columns[fields.DISCOUNT], tf.float32)
    discounts = transition_discounts(columns, following, own, "product", tf.where)
    return tf.cast(columns[fields.REWARD][:-1], dtype), tf.cast(discounts[:-1], dtype)


def with_last_zero(column: tf.Tensor) -> tf.Tensor:
    """A column of transitions `[T, ...]` as one of steps `[T + 1, ...]`: 0 at the last step, where it means nothing."""
    return tf.pad(column, [[0, 1]] + [[0, 0]] * (column.shape.rank - 1))


def _num_rows(columns: Nest) -> tf.Tensor:
    return tf.shape(tree.flatten(columns)[0], out_type=tf.int64)[0]


def _as_tensor_spec(step_spec: Nest) -> Nest:
    is_tensor_spec = isinstance(tree.flatten(step_spec)[0], tf.TensorSpec)
    return step_spec if is_tensor_spec else to_tensor_spec(step_spec)


def _spec_of(columns: Nest) -> Nest:
    return tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), columns)


def _spec_of_elements(columns: tf.data.Dataset) -> Nest:
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


def _gathered(rows: Nest, places: tf.Tensor) -> Nest:
    return tree.map_structure(lambda row: tf.gather(row, places), rows)


def _slices(rows: Nest, starts: tf.Tensor, lengths: tf.Tensor) -> tf.data.Dataset:
    bounds = tf.data.Dataset.from_tensor_slices((starts, lengths))
    return bounds.map(lambda start, length: tree.map_structure(lambda row: row[start : start + length], rows))
