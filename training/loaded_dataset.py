"""The steps of a dataset, read into memory or a store in one validated pass, with statistics of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb._system.memory import free_memory_bytes
from rlds2reverb._system.text import format_bytes
from rlds2reverb.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.episodes import Episode, ProgressCallback
from rlds2reverb.errors import SourceError, SpecMismatchError
from rlds2reverb.fingerprints import Fingerprint, episode_digests
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.stored_items import decode_images
from rlds2reverb.left_out import LeftOut
from rlds2reverb.ownership import isolate
from rlds2reverb.sources import Source
from rlds2reverb.sources.moments import ObservationMoments, mark_transitions
from rlds2reverb.sources.store import cache_store, find_store, open_columns, open_store
from rlds2reverb.sources.transforms import CastFloats, CutAtTerminal, DropFields, EpisodeFn, Transform, apply_transforms
from rlds2reverb.specs import ArraySpec, Nest, describe, leaves, make_step_spec, map_structure, path_name
from rlds2reverb.store.layout import Layout, find_image, has_images
from rlds2reverb.store.step_columns import MemoryColumns, StepColumns

from .actions import ActionStatistics, describe_joined_actions, join_actions, require_trainable_actions
from .config import TrainingConfig

#: Share of the free memory that a dataset may take.
_MEMORY_SHARE = 0.7


@dataclass
class LoadedDataset:
    """The episodes of a dataset with at least one transition, and statistics of all of them.

    Attributes:
      name: name of the dataset.
      steps: the steps of the episodes, and of shorter ones if they are in a store. Those in memory are without fields
        that training does not use, and their floats are float32.
      returns: float64 `[E]`, the undiscounted return of each episode.
      fingerprint: fingerprint of the content.
      moments: moments of the observations.
      actions: statistics of the actions.
      notes: sentences about data that the episodes leave out.
    """

    name: str
    steps: StepColumns
    returns: np.ndarray
    fingerprint: str
    moments: ObservationMoments
    actions: ActionStatistics
    notes: list[str]


def read_dataset(
    source: Source,
    config: TrainingConfig,
    *,
    action_space: Any,
    other_fields: Sequence[str] = (),
    progress: ProgressCallback,
) -> LoadedDataset:
    """Reads a dataset once, and validates it as `ingest` does.

    Fields are dropped, episodes cut and floats cast first; `source` yields everything else unchanged. With `cache_dir`,
    the steps are in a store there, from which all but the images are read again.

    Args:
      source: the dataset.
      config: the options of the run.
      action_space: action space of the environment; None if unknown.
      other_fields: names of further fields of the steps to keep, each a number.
      progress: callback for each episode.

    Raises:
      InvalidEpisodeError: If an episode is invalid, or does not match the first one.
      SpecMismatchError: If the algorithm cannot learn from the first episode.
      SourceError: If the dataset has no transitions, or no rewards or terminal flags, although the algorithm or an
        option uses them; or if it cannot be read.
      ValueError: If a field to drop does not exist.
    """
    _require_known(source.assumed_fields, config)
    builder: _DatasetBuilder | None = None
    texts: list[str] = []
    num_empty, stored = 0, None
    path = find_or_build_store(source, config, texts)
    if path is None:
        episodes = _drop_texts(_preprocess(source, config), texts)
    else:
        stored, episodes = open_columns(path, random_access=True), open_store(path, with_images=False).read()
    for batch in batch_episodes(_report(episodes, progress)):
        if not batch.num_steps.any():
            num_empty += len(batch.num_steps)
            continue
        if builder is None:
            builder = _DatasetBuilder(source, config, stored, batch, action_space, other_fields)
        builder.add(batch)
    if builder is None or not builder.returns:
        raise SourceError("the dataset has no transitions, but training requires them")
    dataset = builder.finish()
    if texts:
        dataset.notes.append(f"{', '.join(texts)}: text is left out, because agents cannot learn from it")
    if num_empty:
        dataset.notes.append(f"{num_empty} episodes without steps are left out")
    return dataset


def compute_fingerprint(source: Source, config: TrainingConfig) -> str:
    """Returns the fingerprint of a dataset, as `read_dataset` does; raises as `Source`."""
    if config.cache_dir is not None or find_store(source) is not None:
        return read_dataset(source, config, action_space=None, progress=lambda stage, episode: None).fingerprint
    fingerprint, is_raw = Fingerprint(), None
    for batch in batch_episodes(_drop_texts(_preprocess(source, config), [])):
        if batch.num_steps.any():
            is_raw = has_images(batch.episodes[0].steps) if is_raw is None else is_raw
            fingerprint.update(b"".join(episode_digests(batch if is_raw else _convert_batch(batch))))
    return fingerprint.hexdigest()


class TooLargeError(Exception):
    """The steps of a dataset do not fit in memory."""


def _require_memory(source: Source, batch: EpisodeBatch) -> None:
    """Raises `TooLargeError` if a dataset whose first steps are given needs more than its share of the free memory."""
    sizes = [sum(map(len, column)) if column.dtype == object else column.nbytes for _, column in leaves(batch.steps)]
    if source.num_rows is not None:
        needed = sum(sizes) / len(batch.steps[fields.IS_FIRST]) * source.num_rows
    else:
        needed = sum(sizes) / len(batch.num_steps) * (source.num_episodes or 0)
    free = free_memory_bytes()
    if needed > _MEMORY_SHARE * free:
        raise TooLargeError(
            f"the steps need about {format_bytes(int(needed))} of memory, of which {format_bytes(free)} are free"
        )


def default_cache_dir() -> Path:
    """Returns the directory of stores of data that do not fit in memory, `~/.cache/rlds2reverb` on most systems."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlds2reverb"


def find_or_build_store(source: Source, config: TrainingConfig, texts: list[str]) -> Path | None:
    """Returns the directory of the store that a run reads: the dataset's own, or one in `cache_dir`; None for neither.

    The name of the directory contains a digest of the dataset and of what is dropped or cut.

    Args:
      source: the dataset.
      config: the options of the run.
      texts: list to which the paths of text in observations are added, which a store in `cache_dir` does not contain.

    Raises:
      Exception: See `sources.store.cache_store`.
    """
    own = find_store(source)
    if own is None and config.cache_dir is None:
        return None
    found = _find_texts(source.first_episode.steps[fields.OBSERVATION], fields.OBSERVATION)
    is_changed = bool(found or config.drop_fields or config.cut_at_terminal)
    if config.cache_dir is None or not (own is None or is_changed):
        return None if is_changed else own
    texts += found
    source = _preprocess(source, config.replace(drop_fields=(*config.drop_fields, *texts)))
    return cache_store(source, config.cache_dir, drop_fields=config.drop_fields, cut_at_terminal=config.cut_at_terminal)


def _preprocess(source: Source, config: TrainingConfig) -> Source:
    transforms: list[Transform] = [DropFields(config.drop_fields)] if config.drop_fields else []
    transforms += [CutAtTerminal()] if config.cut_at_terminal else []
    return apply_transforms(source, transforms)[0]


def _drop_texts(source: Source, texts: list[str]) -> Iterator[Episode]:
    """Yields episodes without the text that observations contain besides numbers; adds the paths to `texts`."""
    drop: EpisodeFn | None = None
    for episode in source.read():
        if drop is None:
            found = _find_texts(episode.steps[fields.OBSERVATION], fields.OBSERVATION)
            texts += [] if found == [fields.OBSERVATION] else found
            drop = DropFields(tuple(texts)).fit(source)[0] if texts else lambda episode: episode
        yield drop(episode)


def _find_texts(columns: Nest, path: str) -> list[str]:
    """Returns the paths of the parts of columns that contain nothing but text, as far as they are in dicts."""
    if not isinstance(columns, dict):
        is_text = isinstance(columns, np.ndarray) and columns.dtype == object and find_image(columns) is None
        return [path] if is_text else []
    texts = [text for name, part in columns.items() for text in _find_texts(part, f"{path}/{name}")]
    return [path] if {*texts} == {f"{path}/{name}" for name in columns} else texts


def _require_known(assumed_fields: Sequence[str], config: TrainingConfig) -> None:
    """Raises `SourceError` if a run learns from fields that the dataset does not contain."""
    has_use = get_algorithm(config.algo).learns_from_rewards or config.top_percent is not None or config.reward
    if assumed_fields and has_use:
        names = " and ".join(map(repr, assumed_fields))
        raise SourceError(
            f"the dataset has no {names}, from which {config.algo} or an option of the run learns; clone with 'bc' or "
            "'discrete_bc', or load RLDS with values for them",
            missing=...,
        )


def _convert_batch(batch: EpisodeBatch) -> EpisodeBatch:
    return EpisodeBatch.from_columns(convert_columns(batch.steps), batch.num_steps)


def convert_columns(steps: dict[str, Nest]) -> dict[str, Nest]:
    """Returns columns of some fields with float32 in place of other floats, and nested actions joined to vectors."""
    steps = CastFloats().cast(steps)
    if fields.ACTION in steps:
        steps[fields.ACTION] = join_actions(steps[fields.ACTION])
    if fields.REWARD in steps and steps[fields.REWARD].dtype.kind != "f":
        steps[fields.REWARD] = steps[fields.REWARD].astype(np.float32)
    return steps


def _report(episodes: Iterable[Episode], progress: ProgressCallback) -> Iterator[Episode]:
    show = isolate(progress)
    for episode in episodes:
        show("read", episode)
        yield episode


def require_trainable(step_spec: Nest, config: TrainingConfig, action_space: Any) -> None:
    """Checks the fields of a dataset before it is read.

    Raises:
      SpecMismatchError: If an observation holds strings, a reward is not a single number, or the algorithm cannot learn
        from the actions.
      SourceError: If there are no rewards.
    """
    if fields.REWARD not in step_spec:
        raise SourceError("the dataset has no rewards, but training requires them")
    reward = step_spec[fields.REWARD]
    if not isinstance(reward, ArraySpec) or reward.shape != () or reward.dtype.kind not in "fiub":
        got = describe(reward) if isinstance(reward, ArraySpec) else "a nest"
        raise SpecMismatchError(f"the rewards must be single numbers, got {got}; combine them into one")
    for path, leaf in leaves({fields.OBSERVATION: step_spec[fields.OBSERVATION]}):
        if leaf.dtype.kind not in "fiub":
            raise SpecMismatchError(
                f"{path_name(path)} must be numbers, got {describe(leaf)}; encode it, or drop it",
                drop_fields=["/".join(map(str, path))],
            )
    require_trainable_actions(step_spec[fields.ACTION], get_algorithm(config.algo), action_space)


class _DatasetBuilder:
    """A builder of a `LoadedDataset`, from a single pass over a dataset."""

    def __init__(
        self,
        source: Source,
        config: TrainingConfig,
        stored: StepColumns | None,
        first: EpisodeBatch,
        action_space: Any,
        other_fields: Sequence[str],
    ):
        """Checks the first episodes; see `read_dataset`, and `TooLargeError`."""
        self._source, self._stored = source, stored
        self._observations = Layout.of_steps({fields.OBSERVATION: first.steps[fields.OBSERVATION]})
        self.step_spec = {**make_step_spec(first.steps), **self._observations.step_spec}
        action_spec = make_step_spec(join_actions(first.steps[fields.ACTION]))
        require_trainable({**self.step_spec, fields.ACTION: action_spec}, config, action_space)
        _require_numbers(self.step_spec, other_fields)
        if stored is None:
            _require_memory(source, self._observations.hide_images(first) if source.decodes_images else first)
        self._field_names = (*fields.STEP_FIELDS, *other_fields)
        #: Whether the fingerprint is that of the episodes before they are converted: a store has it, so that its images
        #: need not be read.
        self._has_raw_digests = stored.has_images if stored is not None else has_images(first.episodes[0].steps)
        self._steps: MemoryColumns | None = None
        self.returns: list[float] = []
        self.fingerprint, self.left_out = Fingerprint(), LeftOut()
        self.moments = ObservationMoments(self.step_spec[fields.OBSERVATION])
        self.actions = ActionStatistics(cast_spec(action_spec))

    def add(self, raw: EpisodeBatch) -> None:
        """Validates some episodes and keeps those with transitions."""
        without_images = self._observations.hide_images(raw)  # Images need not be decoded to validate the episodes.
        without_images.require_valid(self.step_spec)
        self.moments.add_batch(without_images)  # Before the cast, which would round the times of a clock.
        self.left_out.count_left_out(raw)
        batch = _convert_batch(raw)
        if self._stored is None or not self._has_raw_digests:
            self.fingerprint.update(b"".join(episode_digests(raw if self._has_raw_digests else batch)))
        has_action = mark_transitions(batch.num_steps)
        self.actions.add(batch.steps[fields.ACTION][has_action])
        kept = select_episodes(batch, batch.num_steps > 1)
        if kept is None:
            return
        self.returns += sum_rewards(kept)
        if self._stored is not None:
            return
        if self._source.decodes_images:
            kept = self._observations.decode_images(kept, decode_images)
        steps = {name: kept.steps[name] for name in self._field_names}
        self._steps = self._steps or MemoryColumns(Layout.of_steps(steps))
        self._steps.append(EpisodeBatch.from_columns(steps, kept.num_steps))

    def finish(self) -> LoadedDataset:
        """Returns the result."""
        steps, fingerprint = self._stored, self.fingerprint.hexdigest()
        if steps is None:
            assert self._steps is not None
            steps = self._steps.finish()
        elif self._has_raw_digests:
            fingerprint = steps.fingerprint
        notes = [
            *self.left_out.describe_left_out(),
            *describe_joined_actions(self.step_spec[fields.ACTION]),
            *_describe_unused(self.step_spec, self._field_names),
        ]
        name, returns = self._source.name, np.array(self.returns)
        return LoadedDataset(name, steps, returns, fingerprint, self.moments, self.actions, notes)


def _require_numbers(step_spec: Nest, names: Sequence[str]) -> None:
    """Raises `SourceError` unless there are step fields with these names, each of which is a single number."""
    for name in names:
        spec = step_spec.get(name)
        if not isinstance(spec, ArraySpec) or spec.shape != () or spec.dtype.kind not in "fiu":
            got = "no such field" if spec is None else describe(spec) if isinstance(spec, ArraySpec) else "a nest"
            have = ", ".join(map(repr, sorted(step_spec)))
            raise SourceError(f"the step field {name!r} must be a number, got {got}; the dataset has {have}")


def _describe_unused(step_spec: Nest, used: Sequence[str]) -> list[str]:
    names = [repr(name) for name in sorted(step_spec) if name not in used]
    if not names:
        return []
    left_out = f"the step field {names[0]} is" if len(names) == 1 else f"the step fields {', '.join(names)} are"
    return [f"{left_out} left out: agents learn from {', '.join(fields.STEP_FIELDS)} only"]


def sum_rewards(batch: EpisodeBatch) -> list[float]:
    """Returns the undiscounted return of each episode, bit for bit as `Episode.total_reward`."""
    rewards, ends = batch.steps[fields.REWARD], np.cumsum(batch.num_steps)
    bounds = zip((ends - batch.num_steps).tolist(), (ends - 1).tolist(), strict=True)
    return [float(np.sum(rewards[start:end], dtype=np.float64)) for start, end in bounds]


def select_episodes(batch: EpisodeBatch, is_kept: np.ndarray) -> EpisodeBatch | None:
    """Returns the episodes of a batch that are kept, bool `[E]`; None if there are none."""
    if is_kept.all():
        return batch
    if not is_kept.any():
        return None
    rows = np.repeat(is_kept, batch.num_steps)
    return EpisodeBatch.from_columns(map_structure(lambda column: column[rows], batch.steps), batch.num_steps[is_kept])


def cast_spec(spec: ArraySpec) -> ArraySpec:
    """Returns the spec of an array after its floats are cast to float32."""
    return ArraySpec(spec.shape, np.dtype(np.float32)) if spec.dtype.kind == "f" else spec
