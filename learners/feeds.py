"""Sources of training batches, which are read several iterations at a time as NumPy arrays.

A batch of a table crosses these boundaries between threads, processes and graphs on its way to an update:

1. A thread of the server's process samples items (`reverb.process.batch_service`, or Reverb itself) and streams them
   over gRPC.
2. A thread per stream (`reverb.sampling.streams`) decodes them to blocks of arrays, and puts these into the server's
   queue.
3. A thread of the learner (`ReadAhead`) takes blocks from the queues of all servers, joins them to batches with weights
   (`SampleIterator`), and stacks the batches of several iterations (`StreamingDataset.read`).
4. The thread that called `Learner` passes these arrays to one call of the training graph, which reads no data itself,
   and afterwards new priorities to the `PriorityWriter`, whose thread sends them.

Batches from memory, an in-process buffer or a `tf.data` dataset take only the last two steps.
"""

from __future__ import annotations

import abc
import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import Trajectory, Transition

from rlds2reverb.datasets.steps.item_index import sample_uniformly
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.replay.item_spec import WEIGHT, get_fields
from rlds2reverb.replay.sampled_batches import Batch
from rlds2reverb.reverb.sampling.importance import Beta, require_beta
from rlds2reverb.reverb.wire.packing import Packing, pack_columns, unpack, unpack_arrays
from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.experience import convert_data, is_transition_dict
from rlds2reverb.types.items import Items
from rlds2reverb.types.sample_info import BUFFER_IDX, PRIORITY, UNIQUE_ID, SampleInfo
from rlds2reverb.types.specs import Nest, concatenate, describe, path_name


class Feed(abc.ABC):
    """A source of one batch per iteration.

    A thread calls `read`, while the graph runs that trains on the batches before. The graph calls `to_experience`.

    Attributes:
      data_spec: nest of `tf.TensorSpec` `[B, ...]` of the data of one batch.
      info_spec: `SampleInfo` of specs, if the batches have one (keys, weights, owners), else ().
      reads_ahead: whether batches may be read before the iterations that precede them are completed.
    """

    data_spec: Nest
    info_spec: Any = ()
    reads_ahead: bool = True

    @abc.abstractmethod
    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Returns the data and the info of consecutive iterations as arrays `[n, B, ...]`.

        Args:
          first_step: number of iterations completed before the first of them.
          count: maximum number of iterations, n. There may be fewer, but at least one, if a batch has a different shape
            or cannot be read; the next call then returns it, or raises its error.
        """

    def to_experience(self, data: Nest) -> Nest:
        """Returns the experience of one batch from tensors of its data; TensorFlow traces this method."""
        return convert_data(data)

    def sample_indices(self, first_step: int, count: int = 1) -> np.ndarray | None:
        """Returns the numbers of the items in the batches of consecutive iterations; None if they have none.

        Args:
          first_step: number of iterations completed before the first of them.
          count: number of iterations.

        Returns:
          int64 `[count, B]`, or None.
        """
        return None

    def close(self) -> None:
        """Releases what `read` has opened, by default nothing. A later `read` opens it again."""
        return

    @cached_property
    def experience_spec(self) -> Nest:
        """The spec of the experience in a batch: a nest of `tf.TensorSpec` `[B, ...]`."""
        convert = tf.function(self.to_experience, autograph=False).get_concrete_function(self.data_spec)
        return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), convert.structured_outputs)


def make_feed(dataset: Any) -> Feed:
    """Returns the feed of a dataset: itself if it is a feed, else a `StreamingDataset`.

    Raises:
      TypeError: If it is neither a feed, a `tf.data.Dataset` nor an iterator over one.
    """
    return dataset if isinstance(dataset, Feed) else StreamingDataset(dataset)


class StreamingDataset(Feed):
    """The batches of a stream in order, such as those of `sample_dataset(...)` or a replay buffer's `dataset(...)`.

    `Learner.advance` reads up to 100 batches ahead, but none for iterations after its last one. Items are thus sampled
    with the priorities, and from the contents, that a table or buffer had that many iterations before.
    """

    def __init__(self, dataset: Any, *, beta: Beta | None = None):
        """Checks the dataset; nothing is read before the first iteration.

        Args:
          dataset: endless `tf.data.Dataset`, or other iterable with an `element_spec`, of `reverb.ReplaySample`, of a
            replay buffer's `Batch`, of pairs (experience, info), or of experience alone, where experience is a batch of
            TF-Agents' `Trajectory` `[B, T, ...]` or `Transition` `[B, ...]`, or a dict of transitions (see
            `experience.as_transition`); or an iterator over one. An iterator is never read ahead. If it is part of the
            checkpoint, a run resumes with the next batch.
          beta: exponent of the importance weights of a dataset that was made with `beta=1`: a number in [0, 1] or a
            schedule of the learner's step, such as `LinearSchedule`. The weights are `(min NP / NP)^beta` (Schaul et
            al. 2016, section 3.4). None to use the weights of the dataset.

        Raises:
          SpecMismatchError: If the items are dicts with other fields than those of a transition.
          TypeError: If `dataset` has no `element_spec`.
          ValueError: If `beta` is out of its range, or set for batches without weights.
        """
        if not hasattr(dataset, "element_spec"):
            advice = "; pass its dataset(batch_size)" if callable(getattr(dataset, "dataset", None)) else ""
            raise TypeError(
                "dataset must be a feed, a tf.data.Dataset or an iterator over one, "
                f"got a {type(dataset).__name__}{advice}"
            )
        self._dataset, self._beta = dataset, beta
        self._iterator: Any = None
        #: What was read, but belongs to the next call of `read`: a batch of a different shape, or an error.
        self._next: Any = None
        self.data_spec, self.info_spec = _split_batch(dataset.element_spec)
        self.reads_ahead = not isinstance(dataset, tf.data.Iterator)
        if beta is not None:
            require_beta(beta)
            if not hasattr(self.info_spec, "weight"):
                raise ValueError("beta cannot be set for batches without weights; create the dataset by sample_dataset")

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`; returns the next batches of the dataset, whatever the step is."""
        batches = [self._read_batch()]
        shapes = [leaf.shape for leaf in batches[0]]
        while len(batches) < count:
            try:
                batch = self._read_batch()
            except Exception as error:
                self._next = error
                break
            if [leaf.shape for leaf in batch] != shapes:
                self._next = batch
                break
            batches.append(batch)
        columns = [np.stack(column) for column in zip(*batches, strict=True)]
        data, info = tf.nest.pack_sequence_as((self.data_spec, self.info_spec), columns)
        if self._beta is not None:
            beta = self._beta
            steps = range(first_step, first_step + len(batches))
            exponents = np.array([float(beta(np.int64(step)) if callable(beta) else beta) for step in steps])
            weights = info.weight.astype(np.float64) ** exponents[:, None]
            info = info._replace(weight=weights.astype(np.float32))
        return data, info

    def _read_batch(self) -> list[np.ndarray]:
        """Returns the leaves of the next batch; raises the error of the dataset, or `ValueError` if it has ended."""
        batch, self._next = self._next, None
        if isinstance(batch, Exception):
            raise batch
        if batch is not None:
            return batch
        if self._iterator is None:
            self._iterator = iter(self._dataset)  # An iterator over a dataset returns itself.
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise ValueError("the dataset ended; use an endless dataset, such as dataset.repeat()") from None
        return [np.asarray(leaf) for leaf in tf.nest.flatten(_split_batch(batch))]

    def close(self) -> None:
        """Releases the iterator, and closes it if it has a method `close`, unless the caller passed it.

        An iterator over samples of a server that has stopped blocks until its timeout when it is deleted.
        """
        if self._iterator is not self._dataset and hasattr(self._iterator, "close"):
            self._iterator.close()
        self._iterator = self._next = None


def split_experience_and_info(batch: Any) -> tuple[Nest, Any]:
    """Returns the experience of a batch, in TF-Agents' types, and its info, or () if it has none.

    Raises:
      SpecMismatchError: If the items are dicts with other fields than those of a transition.
    """
    data, info = _split_batch(_stack_samples(batch) if isinstance(batch, list) else batch)
    return convert_data(data), info


def _stack_samples(items: list[Any]) -> Any:
    """Returns the items that the `sample` of a buffer returned as one batch; those without an id have no info."""
    if not items or not isinstance(items[0], Mapping):
        raise TypeError("a list of items must contain dicts, as the sample of a buffer returns them")
    fields = tree.map_structure(lambda *leaves: np.stack(leaves), *map(get_fields, items))
    columns = {name: np.array([item.get(name) for item in items]) for name in (UNIQUE_ID, BUFFER_IDX, PRIORITY, WEIGHT)}
    if UNIQUE_ID not in items[0]:
        return fields, ()
    weights, slots = columns[WEIGHT].astype(np.float32), columns[BUFFER_IDX]
    return Batch(fields, SampleInfo(columns[UNIQUE_ID], (), (), columns[PRIORITY], (), weights, (), slot=slots))


def _split_batch(batch: Any) -> tuple[Nest, Any]:
    """Returns the data of a batch, or of the spec of one, and its info without a mask."""
    names = getattr(batch, "_fields", ())
    if {*names} == {"data", "info"}:  # A `reverb.ReplaySample`, or the `Batch` of a replay buffer.
        _require_transition_fields(batch.data)
        data, info = batch.data, batch.info
    else:
        is_pair = isinstance(batch, tuple) and not names and len(batch) == 2
        data, info = batch if is_pair else (batch, ())
    # Masks differ in length from batch to batch, and no receiver of priorities needs them.
    return data, info._replace(mask=()) if hasattr(info, "mask") else info


def _require_transition_fields(data: Nest) -> None:
    if isinstance(data, Mapping) and not is_transition_dict(data):
        got = ", ".join(repr(name) for name in sorted(data))
        missing = ", ".join(repr(name) for name in fields.TRANSITION_FIELDS if name not in data)
        raise SpecMismatchError(
            f"the items have the fields {got}, but a transition also requires {missing}; rename the fields, or pass "
            "dataset.map(to_experience) with a custom function that returns (experience, batch.info)"
        )


#: Separates the random numbers used here from those of agents with the same seed.
SEED_SALT = 0x52_45_53_49


class InMemoryDataset(Feed):
    """Items held in memory as rows of a packed matrix, and sampled uniformly with replacement.

    The sample of an iteration depends only on the seed and the iteration's number, so a resumed run samples the same
    items as an uninterrupted one. (Versions before this one sampled different items.)
    """

    def __init__(
        self, items: Items, batch_size: int, *, seed: int = 0, to_experience: Callable[[Nest], Nest] | None = None
    ):
        """Packs the items, unless `collect_items` did.

        Args:
          items: items of all episodes, as returned by `collect_items`; at least one, all of the same length.
          batch_size: number of items in a batch, at least 1.
          seed: random seed for sampling, in [0, 2^31).
          to_experience: function that converts a batch of items to experience, such as `NStep.as_transition`; None if
            the items are experience, or dicts of transitions (see `experience.as_transition`).

        Raises:
          SpecMismatchError: If the items contain text.
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
        self._packing = _make_packing(items, int(lengths[0]))
        self._matrix = _pack(items) if items.packed is None else items.packed
        is_item_per_row = np.array_equal(items.starts, np.arange(len(items)))
        self._starts = None if is_item_per_row else items.starts
        self._offsets = None if items.squeeze else np.arange(lengths[0])
        self.num_items, self._batch_size, self._seed = len(items), batch_size, seed
        self._convert = to_experience or convert_data

    @property
    def data_spec(self) -> tf.TensorSpec:
        """The spec of the packed rows of a batch."""
        leading = [] if self._offsets is None else [len(self._offsets)]
        return tf.TensorSpec([self._batch_size, *leading, self._matrix.shape[1]], self._matrix.dtype)

    def resize(self, batch_size: int) -> InMemoryDataset:
        """Returns a dataset with batches of a different size of the same items, which are not copied."""
        require_count("batch_size", batch_size)
        resized = copy.copy(self)
        resized._batch_size = batch_size
        resized.__dict__.pop("experience_spec", None)
        return resized

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`."""
        indices = self.sample_indices(first_step, count)
        rows = indices if self._starts is None else self._starts[indices]
        if self._offsets is not None:
            rows = rows[..., None] + self._offsets
        return np.take(self._matrix, rows, axis=0), ()

    def to_experience(self, data: Nest) -> Nest:
        """Implements `Feed.to_experience`."""
        return self._convert(unpack(data, self._packing))

    def sample_indices(self, first_step: int, count: int = 1) -> np.ndarray:
        """Implements `Feed.sample_indices`; the indices are in [0, `num_items`)."""
        return sample_uniformly(self._seed ^ SEED_SALT, first_step, count, self._batch_size, self.num_items)


class JoinedFeed(Feed):
    """Batches that consist of the batches of several feeds, one after the other."""

    def __init__(self, feeds: Sequence[Feed]):
        """Checks that the batches can be joined.

        Args:
          feeds: feeds of the same experience except for the size of the batches, at least one. Their info is not used.

        Raises:
          SpecMismatchError: If their experience differs.
        """
        self._feeds = tuple(feeds)
        rows = [
            tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), feed.experience_spec)
            for feed in feeds
        ]
        different = next((spec for spec in rows if spec != rows[0]), None)
        if different is not None:
            raise SpecMismatchError(
                f"the feeds must have the same experience to be joined, got {rows[0]} and {different}; convert all "
                "data with the same adder"
            )
        self.data_spec = tuple(feed.data_spec for feed in feeds)
        self.reads_ahead = all(feed.reads_ahead for feed in feeds)

    def read(self, first_step: int, count: int) -> tuple[Nest, Any]:
        """Implements `Feed.read`."""
        parts = []
        for feed in self._feeds:
            parts.append(feed.read(first_step, count)[0])
            count = len(tf.nest.flatten(parts[-1])[0])
        # A feed whose next batch cannot be read has fewer; what the others have read for that iteration is dropped.
        return tf.nest.map_structure(lambda column: column[:count], tuple(parts)), ()

    def to_experience(self, data: Nest) -> Nest:
        """Implements `Feed.to_experience`."""
        batches = [feed.to_experience(part) for feed, part in zip(self._feeds, data, strict=True)]
        return tf.nest.map_structure(lambda *columns: tf.concat(columns, 0), *batches)

    def close(self) -> None:
        """Closes all feeds."""
        for feed in self._feeds:
            feed.close()


def collect_items(item_groups: Iterable[Items]) -> Items:
    """Concatenates the items of several episodes.

    Args:
      item_groups: items of each episode, such as `map(adder, source)`.

    Returns:
      The items, whose columns are views of one packed matrix, which an `InMemoryDataset` uses without a copy.

    Raises:
      SourceError: If there is no episode.
      SpecMismatchError: If the episodes have different items, or items contain text.
    """
    groups = iter(item_groups)
    first = next(groups, None)
    if first is None:
        raise SourceError("there are no episodes to train on")
    packing, kinds = _make_packing(first), None
    matrices, starts, lengths, num_rows = [], [], [], 0
    for items in itertools.chain([first], groups):
        got = [(column.dtype, column.shape[1:]) for column in tree.flatten(items.columns)]
        kinds = kinds or got
        if got != kinds:
            raise SpecMismatchError(f"the items of all episodes must have the same columns, got {kinds} and {got}")
        matrices.append(_pack(items))
        starts.append(items.starts + num_rows)
        lengths.append(items.lengths)
        num_rows += items.num_rows
    packed = concatenate(matrices)
    columns = unpack_arrays(packed, packing)
    return Items(columns, np.concatenate(starts), np.concatenate(lengths), first.squeeze, packed)


def _make_packing(items: Items, length: int | None = None) -> Packing:
    """Returns the packing of items, which have `length` rows; raises `SpecMismatchError` if they contain text."""
    leading = () if items.squeeze else (length,)
    item_spec = tree.map_structure(
        lambda column: tf.TensorSpec((*leading, *column.shape[1:]), column.dtype), items.columns
    )
    _require_numbers(item_spec)
    return Packing(item_spec, items.squeeze)


def _pack(items: Items) -> np.ndarray:
    return pack_columns([np.asarray(column) for column in tree.flatten(items.columns)])


def require_experience(spec: Nest, agent: Any) -> None:
    """Checks that an agent can be trained on the experience of a dataset.

    Experience that is neither a `Transition` nor a `Trajectory` is left to the agent's own checks.

    Args:
      spec: nest of `tf.TensorSpec` of a batch.
      agent: a `TFAgent`.

    Raises:
      SpecMismatchError: If a field differs or contains text; the message lists every such field, its spec and the
        expected one.
    """
    if isinstance(spec, (Transition, Trajectory)):
        _require_numbers(spec)
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
    differences = [difference for field in fields for difference in _describe_differences(*field, num_axes)]
    if differences:
        raise SpecMismatchError(
            f"the data do not match the agent: {'; '.join(differences)}; create the agent from the data's specs, or "
            "convert the data again"
        )


def _require_numbers(spec: Nest) -> None:
    for path, leaf in tree.flatten_with_path(spec):
        if leaf.dtype == tf.string:
            raise SpecMismatchError(
                f"{path_name(path, 'experience')} is text, but agents are trained on numbers; encode it as numbers, or "
                "drop the field"
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
