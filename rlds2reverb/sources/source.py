"""A source: a data set of any kind, as episodes in columns and as an RLDS data set."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, require_same_spec
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import Nest, leaves, make_step_spec, to_tensor_spec

from .numbered_episodes import NumberedEpisodes

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass
class Source:
    """A data set that can be read: iterate over it for its episodes, as often as you like.

    Each iteration opens the data set, reads it as it goes, and closes it at the end.

    Attributes:
      name: short name, for reports.
      kind: 'd4rl', 'rlds', 'minari', 'robomimic' or 'memory'.
      read: opens the data set and returns an iterator over its episodes.
      num_episodes: how many there are, if that is known without reading them.
      num_rows: how many rows are stored, if known: a measure of progress.
      warnings: sentences that the user should see.
      metadata: what the source says of itself, such as D4RL's `metadata/algorithm`: names and plain values.
      statistics: what transforms changed, in sum; see `transforms.apply_transforms`.
    """

    name: str
    kind: str
    read: Callable[[], Iterator[Episode]] = field(repr=False)
    num_episodes: int | None = None
    num_rows: int | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Episode]:
        return self.read()

    @property
    def first_episode(self) -> Episode:
        """The first episode that has steps; the data set is opened for it each time, and closed.

        Raises:
          SourceError: if no episode has steps.
        """
        episodes = self.read()
        with contextlib.ExitStack() as stack:
            if hasattr(episodes, "close"):  # a generator, which may hold a file open
                stack.callback(episodes.close)
            for episode in episodes:
                if episode.num_steps:
                    return episode
        raise SourceError(f"{self.name} has no episode with steps; there is nothing to convert")

    @cached_property
    def step_spec(self) -> dict[str, Nest]:
        """Shapes and dtypes of one step, read off the first episode that has steps, once.

        Raises:
          SourceError: if no episode has steps.
        """
        return make_step_spec(self.first_episode.steps)

    def to_rlds(self) -> tf.data.Dataset:
        """Returns an RLDS data set: `{'steps': data set of steps}` for every episode, read as it is iterated.

        `tf.train.Checkpoint` can save an iterator over it, or over what an adder makes of it, and restore one of an
        equal data set, also in another process. A checkpoint holds the number of the next episode and what `tf.data`
        has ready of the few before it, not the data set. A restored iterator begins at once with episodes in memory;
        any other source is read again up to its place, at the speed of reading. So the source has to give the same
        episodes each time, in one order: not a function, or a `tf.data.Dataset`, that shuffles them anew each time.

        A reading that is left before its end keeps its file open until this data set, and all made of it, are gone.

        Raises:
          SourceError: if no episode has steps.
          SpecMismatchError: while iterating (as `tf.errors.InvalidArgumentError`), if an episode has other fields,
            dtypes or shapes than the first.
        """
        import tensorflow as tf

        spec = self.step_spec
        signature = to_tensor_spec(spec, leading=(None,))
        columns = [leaf for _, leaf in leaves(spec)]
        nothing = [np.zeros((0, *column.shape), column.dtype) for column in columns]
        numbered = NumberedEpisodes(self.read)

        def read(number: np.int64) -> list[Any]:
            episode = numbered(int(number))
            if episode is None:
                return [np.False_, *nothing]
            require_same_spec(episode, spec)
            return [np.True_, *(column for _, column in leaves(episode.steps))]

        def episode_at(state: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, Nest]]:
            dtypes = [leaf.dtype for leaf in tf.nest.flatten(signature)]
            # TensorFlow cannot save a function with a state; this one gives the same for the same number.
            is_there, *found = tf.numpy_function(read, [number], [tf.bool, *dtypes], stateful=False)
            steps = tf.nest.pack_sequence_as(signature, found)
            steps = tf.nest.map_structure(lambda leaf, one: tf.ensure_shape(leaf, one.shape), steps, signature)
            return state, (tf.ensure_shape(is_there, []), steps)

        # A `scan`, because `tf.data` calls a `map` of a function without a state from several threads, in no order.
        numbers = tf.data.Dataset.range(np.iinfo(np.int64).max)
        found = numbers.scan(np.int64(0), episode_at)
        weakref.finalize(found, numbered.close)  # TensorFlow keeps `read` for as long as the process lives
        found = found.take_while(lambda is_there, _: is_there)
        return found.map(lambda _, steps: {fields.STEPS: tf.data.Dataset.from_tensor_slices(steps)})
