"""The validation of the episodes of a transfer, which drops those that are skipped."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb import fields
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode, find_problems
from rlds2reverb.errors import InvalidEpisodeError, Problem
from rlds2reverb.specs import Nest

from .conversion import OnInvalid
from .report import MAX_REPORTED_PROBLEMS, IngestReport


@dataclass(frozen=True)
class EpisodeFilter:
    """Decides which episodes are written.

    Attributes:
      step_spec: nest of specs of one step of an episode.
      on_invalid: treatment of invalid episodes; see `ingestion.ingest`.
    """

    step_spec: Nest
    on_invalid: OnInvalid

    def find_problems(self, episode: Episode) -> tuple[list[Problem], bool]:
        """Returns the problems of an episode, and whether to skip it, as is done in any case if no table can hold it.

        Raises:
          InvalidEpisodeError: If there are problems and they are errors.
        """
        problems = find_problems(episode, self.step_spec)
        if problems and self.on_invalid == "error":
            raise InvalidEpisodeError(problems)
        is_impossible = any(problem.field == fields.STEPS for problem in problems)
        return problems, bool(problems) and (self.on_invalid == "skip_episode" or is_impossible)

    def drop_skipped(self, batch: EpisodeBatch, report: IngestReport) -> EpisodeBatch | None:
        """Returns the episodes of a batch that are not skipped, or None if all are; adds problems to a report.

        Raises:
          InvalidEpisodeError: If there are problems and they are errors.
        """
        if batch.is_valid(self.step_spec):
            return batch
        kept = []
        for episode in batch.episodes:
            problems, is_skipped = self.find_problems(episode)
            report.problems += problems[: MAX_REPORTED_PROBLEMS - len(report.problems)]
            if is_skipped:
                report.skipped_episodes += 1
            else:
                report.kept_problems += len(problems)
                kept.append(episode)
        return EpisodeBatch(kept) if kept else None
