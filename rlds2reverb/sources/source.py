"""What every kind of source gives: episodes as columns, and from them an RLDS data set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlds2reverb import fields
from rlds2reverb.episodes import Episode, require_same_spec
from rlds2reverb.specs import Nest, step_spec_of, to_tensor_spec

if TYPE_CHECKING:
    import tensorflow as tf

#: Where a source keeps the episodes that follow its first.
_BEGUN = "_begun"


class SourceError(ValueError):
    """A file or a directory that is not, or not safely, a data set that we read."""


@dataclass(frozen=True)
class Source:
    """A data set, opened: iterate over it for its episodes, as often as you like; it is read as you go.

    Attributes:
      name: short name, for reports.
      kind: 'd4rl', 'rlds', 'minari', 'robomimic' or 'memory'.
      read: gives a new iterator over the episodes.
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
        begun: Iterator[Episode] | None = self.__dict__.pop(_BEGUN, None)
        return self.read() if begun is None else begun

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, which begins at the beginning."""
        return {name: value for name, value in self.__dict__.items() if name != _BEGUN}

    @cached_property
    def first_episode(self) -> Episode:
        """The first episode that has steps.

        Who iterates over the source next goes on from there, so that it is read once; a file stays open until then.

        Raises:
          SourceError: if there is none.
        """
        episodes, looked_at = iter(self.read()), []
        for episode in episodes:
            looked_at.append(episode)
            if episode.num_steps:
                self.__dict__[_BEGUN] = itertools.chain(looked_at, episodes)
                return episode
        raise SourceError(f"{self.name} has no episode with steps; there is nothing to convert")

    @cached_property
    def step_spec(self) -> dict[str, Nest]:
        """Shapes and dtypes of one step, read off the first episode that has steps.

        Raises:
          SourceError: if there is none.
        """
        return step_spec_of(self.first_episode.steps)

    def to_rlds(self) -> tf.data.Dataset:
        """An RLDS data set: `{'steps': data set of steps}` for every episode, read as it is iterated.

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
