"""Where the learner's batches come from: a data set of samples, or items that lie on the training device."""

from __future__ import annotations

from collections.abc import Callable
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
    """What gives a batch for each iteration, in the graph."""

    #: Spec of the experience of one batch: a nest of `tf.TensorSpec` `[B, ...]`.
    experience_spec: Nest
    #: Whether the batches come with a `SampleInfo`: keys, weights, owners.
    has_info: bool

    def next(self, iteration: tf.Tensor) -> tuple[Nest, Any]:
        """Returns the experience of an iteration, and its `SampleInfo` or (); traced by TensorFlow."""


class StreamingDataset:
    """Batches of a data set, in its order: `sample_dataset(...)`, or anything that gives batches of experience."""

    def __init__(self, dataset: tf.data.Dataset | tf.data.Iterator):
        """Nothing is read before the first iteration.

        Args:
          dataset: endless, of `reverb.ReplaySample`, of pairs (experience, info), or of experience alone: batches of
            TF-Agents' `Trajectory` `[B, T, ...]` or `Transition` `[B, ...]`. Or an iterator over one, such as one that
            a checkpoint has too, so that a run continues with the batch after the last.

        Raises:
          TypeError: if it is neither.
        """
        if not isinstance(dataset, (tf.data.Dataset, tf.data.Iterator)):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}, expected a tf.data.Dataset, its iterator or InMemoryDataset"
            )
        self._dataset = dataset
        self._iterator: Any = dataset if isinstance(dataset, tf.data.Iterator) else None
        self.experience_spec, info = parted(dataset.element_spec)
        self.has_info = hasattr(info, "key")

    def next(self, iteration: tf.Tensor) -> tuple[Nest, Any]:
        """See `Feed.next`; batches are in the data set's order, whatever the iteration is."""
        if self._iterator is None:
            with tf.init_scope():
                self._iterator = iter(self._dataset)
        return parted(next(self._iterator))


def parted(batch: Any) -> tuple[Nest, Any]:
    """Returns the experience and the info of a batch, or of its spec; the info is () if there is none."""
    if isinstance(batch, reverb.ReplaySample):
        experience, info = to_experience(batch)
        if getattr(experience, "_fields", None) == Transition._fields:  # a table gives named tuples of its own
            now, action, then = experience
            experience = Transition(TimeStep(*now), PolicyStep(*action), TimeStep(*then))
        return experience, info
    if isinstance(batch, tuple) and not hasattr(batch, "_fields") and len(batch) == 2:
        return batch
    return batch, ()


#: Makes the draws of items others than those of the agents with the same seed.
_SALT = 0x52_45_53_49


class InMemoryDataset:
    """Items of a data set held as tensors, and drawn uniformly, with replacement, in the graph.

    The draws of an iteration follow from the seed and its number alone, so that a run that is continued draws what it
    would have drawn. There is no server, and nothing is copied to the device in a step.
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
        """Puts the items on the device.

        Args:
          items: of all episodes, such as `collect_items` gives them; all of one length, at least one.
          batch_size: items in a batch, at least 1.
          seed: of the draws, in [0, 2^31).
          to_experience: makes experience of a batch of items, such as `NStep.as_transition`; None if they are
            experience already.

        Raises:
          ValueError: if there are no items, they differ in length, or a number is out of its range.
        """
        require_count("batch_size", batch_size)
        require_count("seed", seed, 0, 2**31 - 1)
        if not len(items):
            raise ValueError("there are no items to train from; are all episodes shorter than an item?")
        lengths = np.unique(items.lengths)
        if len(lengths) > 1:
            raise ValueError(
                f"items have {lengths.min()} to {lengths.max()} rows, expected one length; sample them from a table"
            )
        self._packed = _PackedColumns(items.columns)
        every = np.arange(len(items))
        self._starts = None if np.array_equal(items.starts, every) else tf.constant(items.starts, tf.int64)
        self._length = None if items.squeeze else int(lengths[0])
        self.num_items, self._batch_size, self._seed = len(items), batch_size, seed
        self._as_experience = to_experience or (lambda batch: batch)
        self.experience_spec = (
            tf.function(self.next).get_concrete_function(tf.TensorSpec([], tf.int64)).structured_outputs[0]
        )

    def next(self, iteration: tf.Tensor) -> tuple[Nest, Any]:
        """See `Feed.next`."""
        drawn = self.drawn(iteration)
        rows = drawn if self._starts is None else tf.gather(self._starts, drawn)
        if self._length is not None:
            rows = rows[:, None] + tf.range(self._length, dtype=tf.int64)
        return self._as_experience(self._packed.at(rows)), ()

    def drawn(self, iteration: tf.Tensor) -> tf.Tensor:
        """Returns which items an iteration gets: int64 `[batch_size]`, in [0, `num_items`)."""
        seed = tf.stack([tf.constant(self._seed ^ _SALT, tf.int64), tf.cast(iteration, tf.int64)])
        return tf.random.stateless_uniform([self._batch_size], seed, maxval=self.num_items, dtype=tf.int64)


class _PackedColumns:
    """Columns `[R, ...]` on the device, those of one dtype side by side, so that a batch is one gather a dtype."""

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

    def at(self, rows: tf.Tensor) -> Nest:
        """Returns the columns at some rows, bit for bit."""
        gathered = {dtype: tf.gather(matrix, rows) for dtype, matrix in self._matrices.items()}
        ends = dict.fromkeys(gathered, 0)
        parts = []
        for shape, dtype in zip(self._shapes, self._dtypes, strict=True):
            begin = ends[dtype]
            ends[dtype] = begin + int(np.prod(shape))
            part = gathered[dtype][..., begin : ends[dtype]]
            parts.append(tf.reshape(part, [*rows.shape, *shape]))
        return tree.unflatten_as(self._structure, parts)


def collect_items(parts: Any) -> Items:
    """Returns the items of several episodes as one, the rows one after the other.

    Args:
      parts: iterable of `Items`, such as `map(adder, source)`.

    Raises:
      SourceError: if there is no episode.
    """
    made = list(parts)
    if not made:
        raise SourceError("there are no episodes to train from")
    bases = np.cumsum([0] + [items.num_rows for items in made])
    return Items(
        tree.map_structure(lambda *columns: np.concatenate(columns), *[items.columns for items in made]),
        np.concatenate([items.starts + base for items, base in zip(made, bases, strict=False)]),
        np.concatenate([items.lengths for items in made]),
        made[0].squeeze,
    )


def require_experience(spec: Nest, agent: Any) -> None:
    """Checks the experience of a data set against what an agent is trained on.

    Args:
      spec: nest of `tf.TensorSpec` of a batch.
      agent: a `TFAgent`.

    Raises:
      SpecMismatchError: naming each field that differs, what it is, and what the agent expects.
    """
    wanted = agent.collect_data_spec
    if isinstance(spec, Transition):
        pairs = [
            ("observation", spec.time_step.observation, wanted.observation),
            ("action", spec.action_step.action, wanted.action),
            ("reward", spec.next_time_step.reward, wanted.reward),
            ("discount", spec.next_time_step.discount, wanted.discount),
            ("next_observation", spec.next_time_step.observation, wanted.observation),
        ]
        axes = 1
    elif isinstance(spec, Trajectory):
        names = ("step_type", "observation", "action", "next_step_type", "reward", "discount")
        pairs = [(name, getattr(spec, name), getattr(wanted, name)) for name in names]
        # Agents without recurrent networks may take single ones: TF-Agents' BehavioralCloningAgent takes [B].
        axes = 1 if spec.step_type.shape.rank == 1 else 2
        length, wanted_length = (*spec.step_type.shape, None)[1], agent.train_sequence_length
        if axes == 2 and None not in (length, wanted_length) and length != wanted_length:
            raise SpecMismatchError(
                f"the data do not fit the agent: items have {length} steps, the agent expects {wanted_length}; make "
                f"them with TrajectoryWindows({wanted_length})"
            )
    else:
        return  # somebody's own experience: the agent checks it itself
    wrong = [sentence for name, got, want in pairs for sentence in _differences(name, got, want, axes)]
    if wrong:
        raise SpecMismatchError(
            f"the data do not fit the agent: {'; '.join(wrong)}; make the agent from the data's spec, or convert the "
            "data again"
        )


def _differences(name: str, got: Nest, want: Nest, axes: int) -> list[str]:
    have = dict(tree.flatten_with_path(got))
    expected = dict(tree.flatten_with_path(want))
    sentences = []
    for path in sorted({*have, *expected}, key=repr):
        place = path_name(path, name)
        if path not in have or path not in expected:
            sentences.append(f"{place} is {'missing' if path not in have else 'not of the agent'}")
            continue
        one, other = have[path], expected[path]
        row = tf.TensorSpec(one.shape[axes:], one.dtype)
        if row.dtype != other.dtype or not row.shape.is_compatible_with(other.shape):
            sentences.append(f"{place} is {describe(row)}, the agent expects {describe(other)}")
    return sentences
