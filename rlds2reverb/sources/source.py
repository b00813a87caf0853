"""A source: a data set of any kind, as episodes in columns and as an RLDS data set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, require_same_spec
from rlds2reverb.errors import SourceError
from rlds2reverb.specs import Nest, step_spec_of, to_tensor_spec

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
    """

    name: str
    kind: str
    read: Callable[[], Iterator[Episode]] = field(repr=False)
    num_episodes: int | None = None
    num_rows: int | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

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
        return step_spec_of(self.first_episode.steps)

    def to_rlds(self) -> tf.data.Dataset:
        """Returns an RLDS data set: `{'steps': data set of steps}` for every episode, read as it is iterated.

        `tf.train.Checkpoint` cannot save an iterator over it or over what an adder makes of it, wherever the episodes
        are: they are read by a Python generator, which TensorFlow cannot save. To continue later, count the elements
        and `skip` them, or save the data set first (`tf.data.Dataset.save`) and iterate over the saved one.

        Raises:
          SpecMismatch: while iterating (as `tf.errors.InvalidArgumentError`), if an episode has other fields,
            dtypes or shapes than the first.
        """
        import tensorflow as tf

        spec = self.step_spec
        signature = to_tensor_spec(spec, leading=(None,))

        def columns() -> Iterator[Nest]:
            for episode in self:
                require_same_spec(episode, spec)
                yield episode.steps

        dataset = tf.data.Dataset.from_generator(columns, output_signature=signature)
        return dataset.map(lambda steps: {fields.STEPS: tf.data.Dataset.from_tensor_slices(steps)})
