"""Sources of training batches: a streaming dataset, or items held in memory on the training device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import tensorflow as tf
import tree
from tf_agents.trajectories import Trajectory, Transition

from rlds2reverb._arguments import require_count
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.experience import TRANSITION_FIELDS, convert_data, is_transition_dict
from rlds2reverb.items import Items
from rlds2reverb.replay import Batch
from rlds2reverb.sampling.importance import Beta, evaluate_beta, require_beta
from rlds2reverb.specs import Nest, describe, path_name


@runtime_checkable
class Feed(Protocol):
    """A source of one batch per iteration, read inside the graph. Derive from it to inherit `close`."""

    #: Spec of the experience in a batch: a nest of `tf.TensorSpec` `[B, ...]`.
    experience_spec: Nest
    #: Whether the batches come with a `SampleInfo`: keys, weights, owners.
    has_info: bool

    def next(self, step: tf.Tensor) -> tuple[Nest, Any]:
        """Returns the experience of an iteration, and its `SampleInfo` or (); TensorFlow traces this method.

        Args:
          step: int64 `[]`, number of iterations done before this one.
        """

    def close(self) -> None:
        """Releases what `next` has opened, by default nothing. A later `next` opens it again."""
        return


def make_feed(dataset: Any) -> Feed:
    """Returns the feed of a dataset: itself if it is a feed, else a `StreamingDataset`.

    Raises:
      TypeError: If it is neither a feed, a `tf.data.Dataset` nor an iterator over one.
    """
    return dataset if isinstance(dataset, Feed) else StreamingDataset(dataset)


class StreamingDataset(Feed):
    """The batches of a `tf.data.Dataset` in order, such as those of `sample_dataset(...)` or `buffer.dataset(...)`."""

    def __init__(self, dataset: tf.data.Dataset | tf.data.Iterator, *, beta: Beta | None = None):
        """Checks the dataset; nothing is read before the first iteration.

        Args:
          dataset: endless dataset of `reverb.ReplaySample`, of a replay buffer's `Batch`, of pairs (experience, info),
            or of experience alone, where experience is a batch of TF-Agents' `Trajectory` `[B, T, ...]` or `Transition`
            `[B, ...]`, or a dict of transitions (see `experience.as_transition`); or an iterator over one. With an
            iterator that is part of the checkpoint, a run resumes with the next batch.
          beta: exponent of the importance weights of a dataset that was made with `beta=1`: a number in [0, 1] or a
            schedule of the learner's step, such as `LinearSchedule`. The weights are `(min NP / NP)^beta` (Schaul et
            al. 2016, section 3.4). None to use the weights of the dataset.

        Raises:
          SpecMismatchError: If the items are dicts with other fields than those of a transition.
          TypeError: If `dataset` is neither.
          ValueError: If `beta` is out of its range, or set for batches without weights.
        """
        if not isinstance(dataset, (tf.data.Dataset, tf.data.Iterator)):
            advice = "; pass its dataset(batch_size)" if callable(getattr(dataset, "dataset", None)) else ""
            raise TypeError(
                "dataset must be a feed, a tf.data.Dataset or an iterator over one, "
                f"got a {type(dataset).__name__}{advice}"
            )
        self._dataset = dataset
        self._iterator: Any = None
        self.experience_spec, info = make_output_spec(split_experience_and_info, dataset.element_spec)
        self.has_info = hasattr(info, "key")
        self._beta = beta
        if beta is not None:
            require_beta(beta)
            if not hasattr(info, "weight"):
                raise ValueError("beta cannot be set for batches without weights; create the dataset by sample_dataset")

    def next(self, step: tf.Tensor) -> tuple[Nest, Any]:
        """Implements `Feed.next`; returns the next batch of the dataset, whatever the step is."""
        if self._iterator is None:
            with tf.init_scope():
                self._iterator = iter(self._dataset)  # An iterator over a dataset returns itself.
        experience, info = split_experience_and_info(next(self._iterator))
        if self._beta is not None:
            weights = tf.cast(info.weight, tf.float64) ** evaluate_beta(self._beta, step)
            info = info._replace(weight=tf.cast(weights, tf.float32))
        return experience, info

    def close(self) -> None:
        """Releases the iterator, unless the caller passed one. Graphs that have traced `next` must be dropped as well.

        An iterator over samples of a server that has stopped blocks until its timeout when it is deleted.
        """
        self._iterator = None


def split_experience_and_info(batch: Any) -> tuple[Nest, Any]:
    """Returns the experience of a batch, in TF-Agents' types, and its info, or () if it has none.

    Raises:
      SpecMismatchError: If the items are dicts with other fields than those of a transition.
    """
    if getattr(batch, "_fields", None) == ("info", "data") or isinstance(batch, Batch):
        _require_transition_fields(batch.data)
        return convert_data(batch.data), batch.info
    is_pair = isinstance(batch, tuple) and not hasattr(batch, "_fields") and len(batch) == 2
    experience, info = cast(Any, batch) if is_pair else (batch, ())
    return convert_data(experience), info


def _require_transition_fields(data: Nest) -> None:
    if isinstance(data, Mapping) and not is_transition_dict(data):
        got = ", ".join(repr(name) for name in sorted(data))
        missing = ", ".join(repr(name) for name in TRANSITION_FIELDS if name not in data)
        raise SpecMismatchError(
            f"the items have the fields {got}, but a transition also requires {missing}; rename the fields, or pass "
            "dataset.map(to_experience) with a function of your own that returns (experience, batch.info)"
        )


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
            the items are experience, or dicts of transitions (see `experience.as_transition`).

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
        self._to_experience = to_experience or convert_data
        self.experience_spec, _ = make_output_spec(self.next, tf.TensorSpec([], tf.int64))

    def resize(self, batch_size: int) -> InMemoryDataset:
        """Returns a dataset with batches of a different size of the same items, which are not copied."""
        require_count("batch_size", batch_size)
        resized = copy.copy(self)
        resized._batch_size = batch_size
        resized.experience_spec, _ = make_output_spec(resized.next, tf.TensorSpec([], tf.int64))
        return resized

    def next(self, step: tf.Tensor) -> tuple[Nest, Any]:
        """Implements `Feed.next`."""
        indices = self.sample_indices(step)
        rows = indices if self._starts is None else tf.gather(self._starts, indices)
        if self._length is not None:
            rows = rows[:, None] + tf.range(self._length, dtype=tf.int64)
        return self._to_experience(self._packed.gather(rows)), ()

    def sample_indices(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the indices of the items in an iteration's batch: int64 `[batch_size]`, in [0, `num_items`)."""
        seed = tf.stack([tf.constant(self._seed ^ _SALT, tf.int64), tf.cast(step, tf.int64)])
        return tf.random.stateless_uniform([self._batch_size], seed, maxval=self.num_items, dtype=tf.int64)


class JoinedFeed(Feed):
    """Batches that consist of the batches of several feeds, one after the other."""

    has_info = False

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
        self.experience_spec, _ = make_output_spec(self.next, tf.TensorSpec([], tf.int64))

    def next(self, step: tf.Tensor) -> tuple[Nest, Any]:
        """Implements `Feed.next`."""
        batches = [feed.next(step)[0] for feed in self._feeds]
        return tf.nest.map_structure(lambda *columns: tf.concat(columns, 0), *batches), ()

    def close(self) -> None:
        """Closes all feeds."""
        for feed in self._feeds:
            feed.close()


def make_output_spec(function: Callable[[Any], Any], spec: Any) -> Any:
    """Returns the specs of what a function returns for a nest of tensors with the given specs."""
    outputs = tf.function(function, autograph=False).get_concrete_function(spec).structured_outputs
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), outputs)


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
    differences = [text for field in fields for text in _describe_differences(*field, num_axes)]
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
