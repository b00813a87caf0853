"""Sources of training batches: a streaming dataset, or items held in memory on the training device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import reverb
import tensorflow as tf
import tree
from tf_agents.trajectories import PolicyStep, TimeStep, Trajectory, Transition

from rlds2reverb._arguments import require_count
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.items import Items
from rlds2reverb.sampling import to_experience
from rlds2reverb.specs import Nest, describe, path_name


class Feed(Protocol):
    """A source of one batch per iteration, read inside the graph."""

    #: Spec of the experience in a batch: a nest of `tf.TensorSpec` `[B, ...]`.
    experience_spec: Nest
    #: Whether the batches come with a `SampleInfo`: keys, weights, owners.
    has_info: bool

    def next(self, iteration: tf.Tensor) -> tuple[Nest, Any]:
        """Returns the experience of an iteration, and its `SampleInfo` or (); TensorFlow traces this method."""


class StreamingDataset(Feed):
    """The batches of a `tf.data.Dataset` in order, such as those of `sample_dataset(...)`."""

    def __init__(self, dataset: tf.data.Dataset | tf.data.Iterator):
        """Checks the dataset; nothing is read before the first iteration.

        Args:
          dataset: endless dataset of `reverb.ReplaySample`, of pairs (experience, info), or of experience alone, where
            experience is a batch of TF-Agents' `Trajectory` `[B, T, ...]` or `Transition` `[B, ...]`; or an iterator
            over one. With an iterator that is part of the checkpoint, a run resumes with the next batch.

        Raises:
          TypeError: If `dataset` is neither.
        """
        if not isinstance(dataset, (tf.data.Dataset, tf.data.Iterator)):
            raise TypeError(
                "dataset must be a tf.data.Dataset, an iterator over one, or an InMemoryDataset, "
                f"got a {type(dataset).__name__}"
            )
        self._dataset = dataset
        self._iterator: Any = dataset if isinstance(dataset, tf.data.Iterator) else None
        self.experience_spec, info = split_experience_and_info(dataset.element_spec)
        self.has_info = hasattr(info, "key")

    def next(self, iteration: tf.Tensor) -> tuple[Nest, Any]:
        """Implements `Feed.next`; returns the next batch of the dataset, whatever the iteration is."""
        if self._iterator is None:
            with tf.init_scope():
                self._iterator = iter(self._dataset)
        return split_experience_and_info(next(self._iterator))


def split_experience_and_info(batch: Any) -> tuple[Nest, Any]:
    """Returns the experience and the info of a batch, or of the spec of one; the info is () if there is none."""
    if isinstance(batch, reverb.ReplaySample):
        experience, info = to_experience(batch)
        if getattr(experience, "_fields", None) == Transition._fields:  # Reverb returns different named tuple types.
            time_step, action_step, next_time_step = experience
            experience = Transition(TimeStep(*time_step), PolicyStep(*action_step), TimeStep(*next_time_step))
        return experience, info
    if isinstance(batch, tuple) and not hasattr(batch, "_fields") and len(batch) == 2:
        return batch
    return batch, ()


#: Separates the random numbers used here from those of agents with the same seed.
_SALT = 0x52_45_53_49


class InMemoryDataset(Feed):
    """Items held as tensors on the device, and sampled uniformly with replacement inside the graph.

    The sample of an iteration depends only on the seed and the iteration's number, so a resumed run samples the same
    items as an uninterrupted one. There is no server, and no step copies anything to the device.
    """

    has_info = False

    def __init__(
        self,
        items: Items,
        batch_size: int,
        *,
        seed: int = 0,
        to_experience: Callable[[Nest], Nest] | None = None,
    ):
        """Copies the items to the device.

        Args:
          items: items of all episodes, as returned by `collect_items`; at least one, all of the same length.
          batch_size: number of items in a batch, at least 1.
          seed: random seed for sampling, in [0, 2^31).
          to_experience: function that converts a batch of items to experience, such as `NStep.as_transition`; None if
            the items already are experience.

        Raises:
          ValueError: If there are no items, if they differ in length, or if a number is out of range.
        """
        require_count("batch_size", batch_size)
        require_count("seed", seed, 0, 2**31 - 1)
        if not len(items):
            raise ValueError("there are no items to train on; check whether all episodes are shorter than an item")
        lengths = np.unique(items.lengths)
        if len(lengths) > 1:
            raise ValueError(
                f"all items must have the same number of rows, got {lengths.min()} to {lengths.max()}; "
                "sample items of different lengths from a table"
            )
        self._packed = _PackedColumns(items.columns)
        is_item_per_row = np.array_equal(items.starts, np.arange(len(items)))
        self._starts = None if is_item_per_row else tf.constant(items.starts, tf.int64)
        self._length = None if items.squeeze else int(lengths[0])
        self.num_items, self._batch_size, self._seed = len(items), batch_size, seed
        self._to_experience = to_experience or (lambda batch: batch)
        self.experience_spec = (
            tf.function(self.next).get_concrete_function(tf.TensorSpec([], tf.int64)).structured_outputs[0]
        )

    def next(self, iteration: tf.Tensor) -> tuple[Nest, Any]:
        """Implements `Feed.next`."""
        indices = self.sample_indices(iteration)
        rows = indices if self._starts is None else tf.gather(self._starts, indices)
        if self._length is not None:
            rows = rows[:, None] + tf.range(self._length, dtype=tf.int64)
        return self._to_experience(self._packed.gather(rows)), ()

    def sample_indices(self, iteration: tf.Tensor) -> tf.Tensor:
        """Returns the indices of the items in an iteration's batch: int64 `[batch_size]`, in [0, `num_items`)."""
        seed = tf.stack([tf.constant(self._seed ^ _SALT, tf.int64), tf.cast(iteration, tf.int64)])
        return tf.random.stateless_uniform([self._batch_size], seed, maxval=self.num_items, dtype=tf.int64)


class _PackedColumns:
    """Columns `[R, ...]` on the device, concatenated by dtype so that a batch needs only one gather per dtype."""

    def __init__(self, columns: Nest):
        flat = [np.asarray(column) for column in tree.flatten(columns)]
        self._shapes = [column.shape[1:] for column in flat]
        self._dtypes = [column.dtype for column in flat]
        by_dtype: dict[np.dtype, list[np.ndarray]] = {}
        for column in flat:
            width = int(np.prod(column.shape[1:]))
            by_dtype.setdefault(column.dtype, []).append(column.reshape(len(column), width))
        self._matrices = {dtype: tf.constant(np.concatenate(parts, 1)) for dtype, parts in by_dtype.items()}
        self._structure = tree.map_structure(lambda _: None, columns)

    def gather(self, rows: tf.Tensor) -> Nest:
        """Returns the columns at the given rows, bit for bit."""
        gathered = {dtype: tf.gather(matrix, rows) for dtype, matrix in self._matrices.items()}
        ends = dict.fromkeys(gathered, 0)
        columns = []
        for shape, dtype in zip(self._shapes, self._dtypes, strict=True):
            begin = ends[dtype]
            ends[dtype] = begin + int(np.prod(shape))
            column = gathered[dtype][..., begin : ends[dtype]]
            columns.append(tf.reshape(column, [*rows.shape, *shape]))
        return tree.unflatten_as(self._structure, columns)


def collect_items(item_groups: Iterable[Items]) -> Items:
    """Concatenates the items of several episodes.

    Args:
      item_groups: items of each episode, such as `map(adder, source)`.

    Raises:
      SourceError: If there is no episode.
    """
    groups = list(item_groups)
    if not groups:
        raise SourceError("there are no episodes to train on")
    offsets = np.cumsum([0] + [items.num_rows for items in groups])
    return Items(
        tree.map_structure(lambda *columns: np.concatenate(columns), *[items.columns for items in groups]),
        np.concatenate([items.starts + offset for items, offset in zip(groups, offsets, strict=False)]),
        np.concatenate([items.lengths for items in groups]),
        groups[0].squeeze,
    )


def require_experience(spec: Nest, agent: Any) -> None:
    """Checks that an agent can be trained on the experience of a dataset.

    Experience that is neither a `Transition` nor a `Trajectory` is left to the agent's own checks.

    Args:
      spec: nest of `tf.TensorSpec` of a batch.
      agent: a `TFAgent`.

    Raises:
      SpecMismatchError: If a field differs; the message lists every such field, its spec and the expected one.
    """
    expected = agent.collect_data_spec
    if isinstance(spec, Transition):
        fields = [
            ("observation", spec.time_step.observation, expected.observation),
            ("action", spec.action_step.action, expected.action),
            ("reward", spec.next_time_step.reward, expected.reward),
            ("discount", spec.next_time_step.discount, expected.discount),
            ("next_observation", spec.next_time_step.observation, expected.observation),
        ]
        num_axes = 1
    elif isinstance(spec, Trajectory):
        names = ("step_type", "observation", "action", "next_step_type", "reward", "discount")
        fields = [(name, getattr(spec, name), getattr(expected, name)) for name in names]
        # Agents without recurrent networks may take single steps: TF-Agents' BehavioralCloningAgent takes [B].
        num_axes = 1 if spec.step_type.shape.rank == 1 else 2
        length, expected_length = (*spec.step_type.shape, None)[1], agent.train_sequence_length
        if num_axes == 2 and None not in (length, expected_length) and length != expected_length:
            raise SpecMismatchError(
                f"the data do not match the agent: items have {length} steps, but the agent expects {expected_length}; "
                f"convert the data with TrajectoryWindows({expected_length})"
            )
    else:
        return
    differences = [text for field in fields for text in _describe_differences(*field, num_axes)]
    if differences:
        raise SpecMismatchError(
            f"the data do not match the agent: {'; '.join(differences)}; create the agent from the data's specs, or "
            "convert the data again"
        )


def _describe_differences(name: str, batch_spec: Nest, expected_spec: Nest, num_axes: int) -> list[str]:
    """Returns a phrase for each leaf that is missing, unexpected, or different without its first `num_axes` axes."""
    got, expected = dict(tree.flatten_with_path(batch_spec)), dict(tree.flatten_with_path(expected_spec))
    phrases = []
    for path in sorted({*got, *expected}, key=repr):
        place = path_name(path, name)
        if path not in got or path not in expected:
            phrases.append(f"{place} is {'missing' if path not in got else 'unexpected'}")
            continue
        row = tf.TensorSpec(got[path].shape[num_axes:], got[path].dtype)
        if row.dtype != expected[path].dtype or not row.shape.is_compatible_with(expected[path].shape):
            phrases.append(f"{place} is {describe(row)}, but the agent expects {describe(expected[path])}")
    return phrases
