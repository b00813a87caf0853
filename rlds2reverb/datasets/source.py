"""`Source`, a dataset of any format, read as episodes in columns or as an RLDS dataset."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from rlds2reverb.errors import ErrorFinding, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode, make_metadata_spec, require_same_spec
from rlds2reverb.types.ownership import copy_arrays, is_user_code
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.spaces import add_bounds, dump_space, load_space
from rlds2reverb.types.specs import Nest, leaves, make_step_spec, to_tensor_spec

if TYPE_CHECKING:
    import tensorflow as tf

#: Names in the metadata of files of the environment's description and of its spaces.
ENV_SPEC, ACTION_SPACE, OBSERVATION_SPACE = "env_spec", "action_space", "observation_space"
#: Maximum number of iterators over one source that `IndexedEpisodes` keeps open.
_MAX_ITERATORS = 8


@dataclass(frozen=True)
class Identity:
    """The function, files and options from which episodes are read.

    Attributes:
      read: the function. A source in which user code has replaced it has an unknown identity.
      options: everything besides files that determines the episodes, as JSON values; None if it is not known.
      files: function that returns the paths of all files that are read.
      sources: the sources whose episodes are read.
      opened_ns: time at which the files were opened, in nanoseconds since 1970.
    """

    read: Callable[..., Iterator[Episode]]
    options: Any = None
    files: Callable[[], Iterable[Path]] = tuple
    sources: tuple[Source, ...] = ()
    opened_ns: int = 0

    def describe(self) -> Any:
        """Returns values that differ whenever the episodes do; None if they are unknown, or a file has changed."""
        parts = [self.options, self._describe_files(), *(source.identify() for source in self.sources)]
        return None if None in parts else parts

    def _describe_files(self) -> str | None:
        digest = xxhash.xxh3_128()
        for path in sorted(map(os.path.abspath, self.files())):
            try:
                status = os.stat(path)
            except OSError:
                return None
            if status.st_ctime_ns > self.opened_ns:  # The reader may have kept a part of the earlier content.
                return None
            facts = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            digest.update(repr(facts).encode())
        return digest.hexdigest()


@dataclass
class Source:
    """A dataset that can be iterated over for its episodes, any number of times.

    Each iteration opens the dataset, reads it gradually, and closes it at the end. A source that was opened from files
    can be pickled with `cloudpickle`; the other process opens the same files.

    If `read` is user code, the episodes are copied, so that it may reuse its arrays.

    Attributes:
      name: short name, for reports.
      kind: 'd4rl', 'rlds', 'minari', 'robomimic', 'ogbench', 'neorl', 'vd4rl', 'dqn_replay', 'lerobot',
        'aloha', 'maniskill', 'diffusion_policy', 'bag', 'store' or 'memory'.
      read: function that opens the dataset and returns an iterator over its episodes, whose arrays may be read-only. If
        there is a `count`, `read(first, stop)` reads episodes `first` up to, but not including, `stop`, so that several
        processes can read different parts of the dataset.
      num_episodes: number of episodes, or None if it is not known before they are read.
      num_rows: number of stored rows, or None if it is not known; used to show progress.
      warnings: sentences that the user should see.
      metadata: the dataset's description of itself, such as D4RL's `metadata/algorithm`: names and plain values.
      statistics: changes made by transforms; see `transforms.apply_transforms`.
      env_spec: the dataset's description of its environment, Gymnasium's `EnvSpec` as JSON, or None. It is not checked,
        and may name any module to import.
      action_space: the dataset's own action space, a `gymnasium.Space`, or None.
      observation_space: the dataset's own observation space, a `gymnasium.Space`, or None.
      assumed_fields: fields of the steps that the dataset does not contain and whose values are invented, such as
        'reward'; algorithms that learn from them cannot use the dataset.
      unread: names of columns of the dataset that are neither read as fields nor used otherwise, such as 'infos/qpos'.
      decodes_images: whether training in memory decodes images that `read` yields as files, such as JPEG, once rather
        than for each batch; see `keep_images_encoded`.
      descriptions: descriptions of fields by their paths, for formats that have encodings, classes and texts of fields;
        see the operation `describe` of mappings.
      count: function that returns the number of episodes, for which it may read a small part of the dataset; None if
        the episodes can only be read from the first one.
      identity: the files and options from which `read` was made; see `identify`.
      version: version of the dataset, such as '1.0.0' for one of TFDS; None if it has none.
      skipped: the first error of each episode that was left out while reading, if invalid episodes are left out.
    """

    name: str
    kind: str
    read: Callable[..., Iterator[Episode]] = field(repr=False)
    num_episodes: int | None = None
    num_rows: int | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict, repr=False)
    env_spec: str | None = field(default=None, repr=False)
    action_space: Any = field(default=None, repr=False)
    observation_space: Any = field(default=None, repr=False)
    count: Callable[[], int] | None = field(default=None, repr=False)
    assumed_fields: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    decodes_images: bool = False
    descriptions: Mapping[str, Any] = field(default_factory=dict, repr=False)
    identity: Identity | None = field(default=None, repr=False, compare=False)
    version: str | None = None
    skipped: dict[int, ErrorFinding] | None = field(default=None, repr=False, compare=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        read = self.read
        if is_user_code(read):
            self.read = lambda *bounds: map(copy_arrays, read(*bounds))

    def identify(self) -> Any:
        """Returns what the episodes are made from, as JSON values that differ whenever the episodes may.

        These are the files with their sizes, times and inodes, the format, the options of `load`, and the transforms.

        Returns:
          The values; None if only the episodes themselves tell: of data in memory, functions, and custom formats and
          transforms; also if a file has changed since it was opened.
        """
        known = self.identity is not None and self.identity.read is self.read
        return self.identity.describe() if self.identity is not None and known else None

    @property
    def described_unread(self) -> tuple[str, ...]:
        """A sentence about the columns that are not read, or ()."""
        return (f"{self.name}: columns that are not read: {', '.join(self.unread)}",) if self.unread else ()

    @property
    def full_metadata(self) -> Mapping[str, Any]:
        """The metadata together with the description of the environment and the spaces, as files contain them."""
        spaces = {ACTION_SPACE: dump_space(self.action_space), OBSERVATION_SPACE: dump_space(self.observation_space)}
        texts = {ENV_SPEC: self.env_spec, **spaces}
        return {**self.metadata, **{name: text for name, text in texts.items() if text is not None}}

    def __iter__(self) -> Iterator[Episode]:
        """Returns an iterator over the episodes, whose arrays the caller may modify."""
        return map(_make_writable, self.read())

    def read_range(self, first: int, stop: int | None) -> Iterator[Episode]:
        """Returns an iterator over the episodes of a range, before which others are read and skipped without a `count`.

        Args:
          first: index of the first episode.
          stop: index after the last one; None for all, if there is no `count`.
        """
        return itertools.islice(self.read(), first, stop) if self.count is None else self.read(first, stop)

    @property
    def first_episode(self) -> Episode:
        """The first episode that has steps; each access opens the dataset and closes it again.

        Raises:
          SourceError: If no episode has steps.
        """
        for episode in self.read():
            if episode.num_steps:
                return episode
        left_out = f" that can be read; the first error: {self.skipped[min(self.skipped)]}" if self.skipped else ""
        raise SourceError(f"{self.name} has no episode with steps{left_out or '; there is nothing to convert'}")

    @property
    def step_spec(self) -> dict[str, Nest]:
        """The shapes and dtypes of one step, taken from the first episode that has steps, with the spaces' bounds.

        Raises:
          SourceError: If no episode has steps.
        """
        return self._specs[0]

    @property
    def episode_metadata_spec(self) -> dict[str, Nest]:
        """The shapes and dtypes of `Episode.metadata`, taken from the same episode; the errors are the same."""
        return self._specs[1]

    @property
    def first_end_is_known(self) -> bool:
        """True if the final observation of the same episode is known; the errors are the same."""
        return self._specs[2]

    @cached_property
    def _specs(self) -> tuple[dict[str, Nest], dict[str, Nest], bool]:
        episode = self.first_episode
        return self.make_step_spec(episode), make_metadata_spec(episode), episode.is_end_known

    def make_step_spec(self, episode: Episode) -> dict[str, Nest]:
        """Returns the shapes and dtypes of one step of an episode, with the bounds of the dataset's spaces."""
        spec = make_step_spec(episode.steps)
        spaces = {fields.OBSERVATION: self.observation_space, fields.ACTION: self.action_space}
        return {**spec, **{name: add_bounds(spec[name], space) for name, space in spaces.items() if name in spec}}

    def to_rlds(self) -> tf.data.Dataset:
        """Returns an RLDS dataset, with an element `{'steps': dataset of steps}` per episode.

        Iterators over it, or over the output of an adder, can be saved with `tf.train.Checkpoint` and restored for an
        equal dataset, also in another process. The checkpoint contains the index of the next episode and the elements
        that `tf.data` has buffered, not the dataset itself. A restored iterator continues immediately if the episodes
        are in memory; any other source is first read again up to that episode. The source must therefore yield the
        same episodes in the same order each time, which excludes functions and `tf.data.Dataset`s that reshuffle.

        An iteration that stops early keeps its file open until this dataset, and everything made from it, is deleted.

        Raises:
          SourceError: If no episode has steps.
          SpecMismatchError: While iterating (as `tf.errors.InvalidArgumentError`), if the fields, dtypes or shapes of
            an episode differ from those of the first.
        """
        import tensorflow as tf

        from rlds2reverb.libraries.python_datasets import PythonDataset
        from rlds2reverb.libraries.tensorflow_internals import scan, without_autograph

        spec = self.step_spec
        signature = to_tensor_spec(spec, leading=(None,))
        no_rows = [np.zeros((0, *leaf.shape), leaf.dtype) for _, leaf in leaves(spec)]
        episodes = IndexedEpisodes(self.read)

        def read_columns(index: np.int64) -> list[Any]:
            episode = episodes.get(int(index))
            if episode is None:
                return [np.False_, *no_rows]
            require_same_spec(episode.steps, spec, episode.index)
            return [np.True_, *(column for _, column in leaves(episode.steps))]

        @without_autograph
        def read_episode(state: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, Nest]]:
            dtypes = [leaf.dtype for leaf in tf.nest.flatten(signature)]
            # Stateless, because TensorFlow cannot save a stateful function; the result depends on the index alone.
            exists, *columns = tf.numpy_function(read_columns, [index], [tf.bool, *dtypes], stateful=False)
            steps = tf.nest.pack_sequence_as(signature, columns)
            steps = tf.nest.map_structure(lambda column, leaf: tf.ensure_shape(column, leaf.shape), steps, signature)
            return state, (tf.ensure_shape(exists, []), steps)

        @without_autograph
        def make_episode(_: tf.Tensor, steps: Nest) -> dict[str, tf.data.Dataset]:
            return {fields.STEPS: tf.data.Dataset.from_tensor_slices(steps)}

        # `scan` keeps the order; `tf.data` would call the stateless function of a `map` from several threads at once.
        indices = tf.data.Dataset.range(np.iinfo(np.int64).max)
        dataset = scan(indices, np.int64(0), read_episode)
        weakref.finalize(dataset, episodes.close)  # TensorFlow references `read_columns` until the process exits.
        return PythonDataset(dataset.take_while(without_autograph(lambda exists, _: exists)).map(make_episode))


def _make_writable(episode: Episode) -> Episode:
    is_writable = all(column.flags.writeable for _, column in episode.columns)
    return episode if is_writable else copy_arrays(episode)


def split_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a `Source` that `full_metadata` combines."""
    env_spec = metadata.get(ENV_SPEC)
    described = {name: load_space(metadata.get(name)) for name in (ACTION_SPACE, OBSERVATION_SPACE)}
    described[ENV_SPEC] = env_spec if isinstance(env_spec, str) else None
    return {"metadata": {name: value for name, value in metadata.items() if name not in described}, **described}


def keep_images_encoded(source: Source) -> Source:
    """Returns a dataset with images in the encoding of their files, which `decodes_images` then marks.

    A dataset is returned unchanged if its format has no encoded images, if transforms were applied to it, or if it was
    opened with `image_decoding=False`.
    """
    encoded = getattr(getattr(source.read, "__self__", None), "encoded", None)
    if encoded is None:
        return source
    return identify_step(source, replace(source, read=encoded.read, decodes_images=True), "encoded images")


def leave_out(source: Source, paths: Sequence[str]) -> tuple[Source, list[str]]:
    """Returns a source that does not read some fields, which may be damaged, and the paths of those among them."""
    reader: Any = getattr(source.read, "__self__", None)
    changed, found = reader.without(paths) if hasattr(reader, "without") else (reader, [])
    return (identify_step(source, replace(source, read=changed.read), ["without", found]) if found else source), found


@dataclass(frozen=True)
class SourceReader:
    """The base of readers that yield some episodes of a source unchanged."""

    source: Source

    @property
    def encoded(self) -> Any:
        """See `keep_images_encoded`."""
        encoded = keep_images_encoded(self.source)
        return replace(self, source=encoded) if encoded.decodes_images else None

    def without(self, paths: Sequence[str]) -> tuple[Any, list[str]]:
        """See `leave_out`."""
        changed, found = leave_out(self.source, paths)
        return replace(self, source=changed), found


def identify_files(source: Source, files: Callable[[], Iterable[Path]]) -> Source:
    """Returns a source that knows which files it reads; `load` adds the options."""
    return replace(source, identity=Identity(source.read, files=files))


def identify_step(source: Source, changed: Source, options: Any) -> Source:
    """Returns a source that knows that it was made from another one, with these options; None if they are unknown."""
    return replace(changed, identity=Identity(changed.read, options, sources=(source,)))


class IndexedEpisodes:
    """Random access by index to the episodes of a source that can only be iterated.

    The result of `get` depends on the index alone. The iterator that yielded episode `n` is kept for episode `n + 1`,
    so that ascending indices read the source once; any other index reads the source from its beginning. Thread-safe.
    """

    def __init__(self, read: Callable[[], Iterator[Episode]]):
        """
        Args:
          read: function that returns a new iterator over the same episodes each time.
        """
        self._read = read
        self._iterators: list[tuple[int, Iterator[Episode]]] = []  # With the index of their next episode, newest last.
        self._failed_at: int | None = None
        self._lock = threading.Lock()

    def get(self, index: int) -> Episode | None:
        """Returns an episode, or None after the last one and after one whose reading has raised an error."""
        if self._failed_at is not None and index > self._failed_at:
            return None
        iterator = self._pop_iterator(index) or itertools.islice(self._read(), index, None)
        try:
            episode = next(iterator, None)
        except Exception:
            self._failed_at = index
            raise
        if episode is not None:
            with self._lock:
                self._iterators = [*self._iterators[1 - _MAX_ITERATORS :], (index + 1, iterator)]
        return episode

    def close(self) -> None:
        """Drops the open iterators; a later `get` starts a new one.

        It takes no lock, because garbage collection may call it anywhere, and in a thread that holds the lock.
        """
        self._iterators = []

    def _pop_iterator(self, index: int) -> Iterator[Episode] | None:
        """Removes and returns the newest iterator whose next episode has this index, or None."""
        with self._lock:
            iterators = self._iterators  # `close` may replace it at any time.
            places = [place for place, (next_index, _) in enumerate(iterators) if next_index == index]
            return iterators.pop(places[-1])[1] if places else None
