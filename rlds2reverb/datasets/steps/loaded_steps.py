"""The steps of a dataset, read into memory or a store in one validated pass, with statistics of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.free_memory import free_memory_bytes
from rlds2reverb.system.text import format_bytes
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode, ProgressCallback, show_progress
from rlds2reverb.types.fingerprints import Fingerprint, episode_digests
from rlds2reverb.types.left_out import LeftOut
from rlds2reverb.types.ownership import isolate
from rlds2reverb.types.specs import ArraySpec, Nest, leaves, make_step_spec, map_structure

from ..action_statistics import ActionStatistics, describe_joined_actions, join_actions, require_joined
from ..checks import Finding
from ..checks.actions import ActionBounds
from ..checks.outliers import Jumps
from ..checks.transition_blocks import Block
from ..moments import ObservationMoments, mark_transitions
from ..source import Source
from ..task_texts import TASK_FIELDS
from ..transforms import CastFloats, Clipping, CutAtTerminal, DropFields, EpisodeFn, Transform, apply_transforms
from ..valid_episodes import count_skipped, describe_skipped
from .image_files import Decoder, decode_images
from .layout import Layout, find_image, has_images
from .step_columns import MemoryColumns, StepColumns
from .stores import find_store, make_store, open_columns

#: Share of the free memory that a dataset may take.
_MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class Preparation:
    """The changes of a dataset before its steps are read, and the place where they are stored.

    Attributes:
      drop_fields: paths of the fields to drop, such as 'observation/language'.
      cut_at_terminal: whether episodes end at their first terminal step.
      store_dir: directory of stores, in which there will be one of the dataset; None for memory.
    """

    drop_fields: tuple[str, ...] = ()
    cut_at_terminal: bool = False
    store_dir: str | None = None

    def transform(self, source: Source, *texts: str) -> Source:
        """Returns the changed dataset, also without the fields of `texts`."""
        dropped = (*self.drop_fields, *texts)
        transforms: list[Transform] = [DropFields(dropped)] if dropped else []
        return apply_transforms(source, transforms + [CutAtTerminal()] * self.cut_at_terminal)[0]

    def find_or_build_store(self, source: Source, texts: list[str], on_note: Callable[[str], None]) -> Path | None:
        """Returns the directory of the store to read: the dataset's own, or one in `store_dir`; None for neither.

        Args:
          source: the dataset, unchanged.
          texts: list to which the paths of text in observations are added, which a store in `store_dir` does not
            contain.
          on_note: see `stores.make_store`.

        Raises:
          Exception: See `stores.make_store`.
        """
        own = find_store(source)
        if own is None and self.store_dir is None:
            return None
        observation = self.transform(source).first_episode.steps[fields.OBSERVATION]
        found = _find_texts(observation, fields.OBSERVATION)
        is_changed = bool(found or self.drop_fields or self.cut_at_terminal)
        if self.store_dir is None or not (own is None or is_changed):
            return None if is_changed else own
        texts += found
        return make_store(self.transform(source, *found), self.store_dir, on_note=on_note)


@dataclass(frozen=True)
class LoadedSteps:
    """The episodes of a dataset with at least one transition, and statistics of all of them.

    Attributes:
      steps: the steps of the episodes, and of shorter ones if they are in a store. Those in memory have no fields
        besides those asked for, and their floats are float32.
      step_spec: the spec of one step, before floats were cast and fields left out.
      returns: float64 `[E]`, the undiscounted return of each episode.
      fingerprint: fingerprint of the content.
      moments: moments of the observations.
      actions: statistics of the actions.
      odd_actions: findings about actions far above all others, which matter if the data determine the bounds.
      left_out: counts of data that are in no transition.
      texts: paths of text in observations, which is left out.
      tasks: the texts of the tasks of episodes, which are left out as well.
      num_empty: number of episodes without steps, which are left out.
      num_skipped: number of invalid episodes that were left out; see `valid_episodes.skip_invalid`.
    """

    steps: StepColumns
    step_spec: dict[str, Nest]
    returns: np.ndarray
    fingerprint: str
    moments: ObservationMoments
    actions: ActionStatistics
    odd_actions: Sequence[Finding]
    left_out: LeftOut
    texts: Sequence[str]
    num_empty: int
    num_skipped: int = 0
    tasks: frozenset[bytes] = frozenset()

    @property
    def observation_spec(self) -> Nest:
        """The spec of an observation, whose floats are float32."""
        return map_structure(cast_spec, self.steps.layout.step_spec[fields.OBSERVATION])

    def describe_left_out(self, kept: Sequence[str], *, uses_all_actions: bool) -> list[str]:
        """Returns sentences about data that are not learned from, or in a different form.

        Args:
          kept: names of the fields that are learned from.
          uses_all_actions: whether last actions without a next observation are used.
        """
        left_out = replace(self.left_out, dropped_last_transition=0) if uses_all_actions else self.left_out
        unused = [repr(name) for name in sorted(self.step_spec) if name not in kept]
        joined = describe_joined_actions(self.step_spec[fields.ACTION])
        notes = [*left_out.describe_left_out(), *joined]
        if unused:
            are_left_out = f"step field {unused[0]} is" if len(unused) == 1 else f"step fields {', '.join(unused)} are"
            notes.append(f"the {are_left_out} left out: agents learn from {', '.join(fields.STEP_FIELDS)} only")
        if self.texts:
            notes.append(f"{', '.join(self.texts)}: text is left out, because agents cannot learn from it")
        if self.num_empty:
            notes.append(f"{self.num_empty} episodes without steps are left out")
        return notes

    def count_clipped(self, action_spec: Nest) -> Clipping:
        """Returns how many actions of the transitions are outside the bounds of a spec."""
        clipping = Clipping(action_spec)
        for steps, num_steps in self.steps.read_batches([fields.ACTION]):
            clipping.add_actions(convert_columns(steps)[fields.ACTION][mark_transitions(num_steps)])
        return clipping


def read_steps(
    source: Source,
    preparation: Preparation,
    names: Sequence[str],
    *,
    require: Callable[[dict[str, Nest]], None],
    decode_images: Decoder,
    progress: ProgressCallback,
    on_note: Callable[[str], None] = lambda sentence: None,
) -> LoadedSteps:
    """Reads the steps of a dataset once, and validates them as `ingest` does.

    The dataset is prepared first. Then nested actions are joined, and floats and rewards become float32. If the steps
    are in a store, all but the images are read from it.

    Args:
      source: the dataset.
      preparation: how it is changed, and whether its steps are stored.
      names: names of the fields to keep in memory.
      require: function that raises an error if a dataset with these specs of one step is of no use.
      decode_images: decodes the images of files that are in the encoding of the dataset.
      progress: callback for each episode.
      on_note: see `stores.make_store`.

    Raises:
      InvalidEpisodeError: If an episode is invalid, or does not match the first one.
      TooLargeError: If the steps do not fit in memory.
      SourceError: If the dataset has no transitions, or cannot be read.
      ValueError: If a field to drop does not exist.
    """
    builder: _Builder | None = None
    texts: list[str] = []
    num_empty, num_read, stored = 0, 0, None
    path = preparation.find_or_build_store(source, texts, on_note)
    if path is None:
        episodes = _drop_texts(preparation.transform(source), texts)
    else:
        stored, episodes = open_columns(path, random_access=True), open_columns(path).read_episodes(with_images=False)
    for batch in batch_episodes(show_progress(episodes, isolate(progress), "read")):
        num_read += len(batch.num_steps)
        if not batch.num_steps.any():
            num_empty += len(batch.num_steps)
            continue
        if builder is None:
            builder = _Builder(source, stored, batch, names, require, decode_images)
        builder.add(batch)
    if builder is None or not builder.returns:
        left_out = describe_skipped(source, len(source.skipped or ()))
        raise SourceError("; ".join(["the dataset has no transitions, but training requires them", *left_out]))
    return replace(builder.finish(texts, num_empty), num_skipped=count_skipped(source, num_read))


def compute_fingerprint(source: Source, preparation: Preparation) -> str:
    """Returns the fingerprint that `read_steps` finds; raises as `Source`."""
    if preparation.store_dir is not None or find_store(source) is not None:
        no_checks: Any = {"require": lambda spec: None, "progress": lambda stage, episode: None}
        return read_steps(source, preparation, fields.STEP_FIELDS, decode_images=decode_images, **no_checks).fingerprint
    fingerprint, is_raw = Fingerprint(), None
    for batch in batch_episodes(_drop_texts(preparation.transform(source), [])):
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


def _convert_batch(batch: EpisodeBatch) -> EpisodeBatch:
    return EpisodeBatch.from_columns(convert_columns(batch.steps), batch.num_steps, batch.final_rows)


def convert_columns(steps: dict[str, Nest]) -> dict[str, Nest]:
    """Returns columns of some fields with float32 in place of other floats, and nested actions joined to vectors."""
    steps = CastFloats().cast(steps)
    if fields.ACTION in steps:
        steps[fields.ACTION] = join_actions(steps[fields.ACTION])
    if fields.REWARD in steps and steps[fields.REWARD].dtype.kind != "f":
        steps[fields.REWARD] = steps[fields.REWARD].astype(np.float32)
    return steps


class _Builder:
    """A builder of `LoadedSteps`, from a single pass over a dataset."""

    def __init__(
        self,
        source: Source,
        stored: StepColumns | None,
        first: EpisodeBatch,
        names: Sequence[str],
        require: Callable[[dict[str, Nest]], None],
        decode_images: Decoder,
    ):
        """Checks the first episodes; see `read_steps`."""
        self._source, self._stored, self._names, self._decode_images = source, stored, names, decode_images
        self._observations = Layout.of_steps({fields.OBSERVATION: first.steps[fields.OBSERVATION]})
        self.step_spec = {**make_step_spec(first.steps), **self._observations.step_spec}
        action_spec: Any = make_step_spec(join_actions(first.steps[fields.ACTION]))
        require({**self.step_spec, fields.ACTION: action_spec})
        if stored is None:
            _require_memory(source, self._observations.hide_images(first) if source.decodes_images else first)
        #: Whether the fingerprint is that of the episodes before they are converted: a store has it, so that its images
        #: need not be read.
        self._has_raw_digests = stored.has_images if stored is not None else has_images(first.episodes[0].steps)
        self._steps: MemoryColumns | None = None
        self.returns: list[float] = []
        self._tasks = set[bytes]()
        self.fingerprint, self.left_out = Fingerprint(), LeftOut()
        self.moments = ObservationMoments(self.step_spec[fields.OBSERVATION])
        self.actions = ActionStatistics(cast_spec(require_joined(action_spec)))
        self._checks: Any = [] if source.action_space is not None else [Jumps(source), ActionBounds(source)]

    def add(self, raw: EpisodeBatch) -> None:
        """Validates some episodes and keeps those with transitions."""
        without_images = self._observations.hide_images(raw)  # Images need not be decoded to validate the episodes.
        without_images.require_valid(self.step_spec)
        self.moments.add_batch(without_images)  # Before the cast, which would round the times of a clock.
        self._check_actions(raw)
        self.left_out.count_left_out(raw)
        for name in TASK_FIELDS:
            column = raw.steps.get(name)
            if name not in self._names and isinstance(column, np.ndarray) and column.dtype == object:
                self._tasks.update(column[(np.cumsum(raw.num_steps) - raw.num_steps)[raw.num_steps > 0]].tolist())
        batch = _convert_batch(raw)
        if self._stored is None or not self._has_raw_digests:
            self.fingerprint.update(b"".join(episode_digests(raw if self._has_raw_digests else batch)))
        self.actions.add(batch.steps[fields.ACTION][mark_transitions(batch.num_steps)])
        kept = batch.select(batch.num_steps > 1)
        if kept is None:
            return
        self.returns += _sum_rewards(kept)
        if self._stored is not None:
            return
        if self._source.decodes_images:
            kept = self._observations.decode_images(kept, self._decode_images)
        steps = {name: kept.steps[name] for name in self._names}
        self._steps = self._steps or MemoryColumns(Layout.of_steps(steps))
        self._steps.append(EpisodeBatch.from_columns(steps, kept.num_steps, kept.final_rows))

    def finish(self, texts: Sequence[str], num_empty: int) -> LoadedSteps:
        """Returns the result; see `LoadedSteps`."""
        steps, fingerprint = self._stored, self.fingerprint.hexdigest()
        if steps is None:
            assert self._steps is not None
            steps = self._steps.finish()
        elif self._has_raw_digests:
            fingerprint = steps.fingerprint
        found = [finding for check in self._checks for finding in check.finish()]
        odd = [finding for finding in found if finding.check == "actions-out-of-bounds"]
        statistics = (np.array(self.returns), fingerprint, self.moments, self.actions, odd, self.left_out)
        return LoadedSteps(steps, self.step_spec, *statistics, texts, num_empty, tasks=frozenset(self._tasks))

    def _check_actions(self, raw: EpisodeBatch) -> None:
        names = (fields.ACTION, *fields.FLAG_FIELDS)
        if self._checks and not self.actions.is_discrete:
            block = Block(raw.with_steps({name: raw.steps[name] for name in names}))
            for check in self._checks:
                check.add(block)


def _sum_rewards(batch: EpisodeBatch) -> list[float]:
    """Returns the undiscounted return of each episode, bit for bit as `Episode.total_reward`."""
    rewards, ends = batch.steps[fields.REWARD], np.cumsum(batch.num_steps)
    bounds = zip((ends - batch.num_steps).tolist(), (ends - 1).tolist(), strict=True)
    return [float(np.sum(rewards[start:end], dtype=np.float64)) for start, end in bounds]


def cast_spec(spec: ArraySpec) -> ArraySpec:
    """Returns the spec of an array after its floats are cast to float32."""
    return ArraySpec(spec.shape, np.dtype(np.float32)) if spec.dtype.kind == "f" else spec
