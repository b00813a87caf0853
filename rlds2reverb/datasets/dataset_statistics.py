"""All statistics of a dataset from one pass: its summary, errors, findings, and a random sample of its steps."""

from __future__ import annotations

from functools import cached_property

from rlds2reverb.errors import ErrorFinding, SourceError
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import ProgressCallback, find_errors, read_until_error, show_progress
from rlds2reverb.types.specs import Nest

from .checks import DatasetChecks
from .checks.findings import Finding
from .source import Source
from .step_sample import StepSampler
from .summary import SummaryParts
from .valid_episodes import read_readable

_MAX_ERRORS = 50


class DatasetStatistics:
    """The statistics of a dataset, after `read`.

    Attributes:
      source: the dataset.
      parts: the summary of its episodes.
      errors: the first errors found, of which those of episodes that cannot be read come first.
      num_errors: number of errors found.
      num_unreadable: number of episodes among them that cannot be read.
      invalid: positions of the first episodes with errors.
      error: the error at which the dataset could not be read any further, or None.
      sampler: the random sample of steps; None if it was not requested.
    """

    def __init__(self, source: Source, *, max_errors: int = _MAX_ERRORS, has_sample: bool = False):
        """Starts without episodes.

        Args:
          source: the dataset.
          max_errors: maximum number of errors to keep.
          has_sample: whether steps are sampled.
        """
        self.source, self.parts = source, SummaryParts()
        self.errors: list[ErrorFinding] = []
        self.num_errors, self.num_unreadable, self.invalid = 0, 0, list[int]()
        self.error: SourceError | None = None
        self.sampler = StepSampler() if has_sample else None
        self._max_errors, self._checks = max_errors, DatasetChecks(source)
        self._step_spec: Nest = None

    def read(self, progress: ProgressCallback, stage: str, *, counts_skipped: bool = False) -> None:
        """Reads the dataset to its end, and shows each episode as a part of a stage.

        An episode that cannot be read is an error; in a source that can only be read from the first episode, it is the
        error at which reading ends. With `counts_skipped`, the episodes that the source leaves out are errors, too.
        """
        errors: list[SourceError] = []
        episodes = read_until_error(read_readable(self.source, self._add_unreadable), errors)
        for batch in batch_episodes(show_progress(episodes, progress, stage)):
            self.add_batch(batch)
        self.error = errors[0] if errors else None
        for error in (self.source.skipped or {}).values() if counts_skipped else ():
            self._add_unreadable(error)

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds the next episodes, valid or not."""
        position = len(self.parts.episodes)
        first = next((episode for episode in batch.episodes if episode.num_steps), None)
        if self._step_spec is None and first is not None:
            self._step_spec = self.source.make_step_spec(first)
        self.parts.add_batch(batch)
        self._checks.add_batch(batch)
        if not batch.is_valid(self._step_spec):
            self._find_errors(batch, position)
        if self.sampler is not None:
            self.sampler.add_batch(batch, position)

    @cached_property
    def findings(self) -> list[Finding]:
        """What the checks have found; see `check_dataset`."""
        return self._checks.finish()

    def _add_unreadable(self, error: ErrorFinding) -> None:
        self.errors.insert(self.num_unreadable, error)
        del self.errors[self._max_errors :]
        self.num_errors, self.num_unreadable = self.num_errors + 1, self.num_unreadable + 1

    def _find_errors(self, batch: EpisodeBatch, position: int) -> None:
        for number, episode in enumerate(batch.episodes, position):
            if found := find_errors(episode, self._step_spec):
                self.errors += found[: max(0, self._max_errors - len(self.errors))]
                self.num_errors += len(found)
                if len(self.invalid) < _MAX_ERRORS:
                    self.invalid.append(number)
