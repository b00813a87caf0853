"""The episodes of a source in valid batches, checked against what a dataset format can represent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.errors import ErrorFinding, InvalidEpisodeError, Message, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode, ProgressCallback, find_errors, require_same_spec, show_progress
from rlds2reverb.types.left_out import LeftOut, find_nonzero_final_rows
from rlds2reverb.types.ownership import isolate
from rlds2reverb.types.specs import ArraySpec, Nest, describe, leaves, map_structure, path_name

from ..readers import d4rl
from ..source import Source

_ADVICE = Message("replace the discounts, or use the format 'rlds'", recompute_discounts=True)


@dataclass(frozen=True)
class FormatLimits:
    """The limits of what a dataset format can represent.

    Attributes:
      name: name of the format in messages.
      write: function that writes batches of episodes to a path, and may return sentences for the report.
      options: the options of `write_dataset` that apply to the format.
      has_discounts: whether it stores discounts, the action and reward of the last step, and episodes of a single step.
        If False, discounts follow from the terminal flag.
      has_descriptions: whether it stores `Source.descriptions`.
      has_episodes: whether it stores each episode on its own, with the extra fields of the last step, and every episode
        can be unterminated, rather than the last one only.
      reads_extras_by_name: whether `load` reads additional fields only if they are named.
      layouts: whether a dataset has final observations: True for always, False for never. If both are possible, it has
        them if those of all episodes are known.
    """

    name: str
    write: Callable[..., tuple[str, ...] | None]
    options: tuple[str, ...] = ("recompute_discounts",)
    has_discounts: bool = False
    has_descriptions: bool = False
    has_episodes: bool = True
    reads_extras_by_name: bool = False
    layouts: tuple[bool, ...] = (True, False)

    @property
    def loss(self) -> str:
        """A sentence about what the format does not store of any episode; '' if there is nothing."""
        if True in self.layouts:
            return ""
        return (
            f"{self.name} has no row for the last step of an episode: final observations, and additional fields there, "
            "are not written, so that load() drops the last transition of each truncated episode"
        )

    def describe_lost_metadata(self, source: Source) -> tuple[str, ...]:
        """Returns sentences about fields of the episodes and descriptions for which the format has no place."""
        sentences = []
        names = ["/".join(path) for path, _ in leaves(source.episode_metadata_spec)]
        if names and not self.has_episodes:
            fields = ", ".join(names)
            sentences.append(f"{self.name} has no place for the fields {fields} of an episode, which are not written")
        if source.descriptions and not self.has_descriptions:
            sentences.append(f"{self.name} has no place for the descriptions of {', '.join(source.descriptions)}")
        return tuple(sentences)


def choose_layouts(source: Source, limits: FormatLimits) -> tuple[bool, ...]:
    """Returns the layouts in which to try to write a source; see `FormatLimits.layouts`."""
    return limits.layouts if source.first_end_is_known else limits.layouts[-1:]


class UnknownFinalObservationError(Exception):
    """The final observation of an episode is unknown, so that no episode of the dataset can have one."""


class WrittenEpisodes:
    """An iterable over the valid episodes of a source in batches, and their counts.

    All episodes have the same layout. With final steps, the last step of an episode is its final observation: if that
    is unknown, a truncated episode ends one transition earlier, and a terminal one, whose last action is needed, ends
    in a copy of its last observation. Otherwise, the last step is the last action; final observations are left out.

    Attributes:
      step_spec: the spec of a step.
      counts: numbers of `episodes` and `transitions` yielded, of `skipped_episodes`, and of `kept_errors`.
      left_out: counts of the values that no transition has.
      has_final_steps: whether the last step of an episode is its final observation.
    """

    def __init__(
        self,
        source: Source,
        limits: FormatLimits,
        *,
        on_invalid: str,
        recompute_discounts: bool = False,
        progress: ProgressCallback = lambda stage, episode: None,
        step_spec: dict[str, Nest] | None = None,
        may_be_empty: bool = False,
        has_final_steps: bool = True,
    ):
        """Reads nothing yet.

        Args:
          source: the source.
          limits: limits of the format.
          on_invalid: see `write_dataset`.
          recompute_discounts: see `write_dataset`.
          progress: see `write_dataset`.
          step_spec: spec of a step; None for that of the source.
          may_be_empty: whether the source may have no valid episode, which is an error otherwise.
          has_final_steps: see `WrittenEpisodes`; one of `limits.layouts`.
        """
        self.has_final_steps, self._must_be_known = has_final_steps, has_final_steps and False in limits.layouts
        self.step_spec = source.step_spec if step_spec is None else step_spec
        _require_dtypes(self.step_spec, limits.name)
        self._may_be_empty = may_be_empty
        self.counts = Counter(episodes=0, transitions=0, skipped_episodes=0, kept_errors=0)
        self.left_out = LeftOut()
        self._source, self._limits, self._on_invalid, self._progress = source, limits, on_invalid, isolate(progress)
        self._checks_discounts = not limits.has_discounts and not recompute_discounts
        #: Numbers of episodes by how they end: 'unterminated', and with final observations that are 'unknown', 'known'
        #: although truncated, or 'copied'.
        self.ends = Counter[str]()
        self._ends_unterminated = False

    def __iter__(self) -> Iterator[EpisodeBatch]:
        """Yields the episodes.

        Raises:
          UnknownFinalObservationError: If those of a dataset with final steps can also be written without them.
        """
        if self._checks_discounts:
            _require_discount_spec(self.step_spec[fields.DISCOUNT])
        for batch in batch_episodes(show_progress(self._source, self._progress, "writing")):
            if self._must_be_known and not all(episode.is_end_known for episode in batch.episodes):
                raise UnknownFinalObservationError
            self.left_out.count_left_out(batch)
            valid = self._drop_invalid(batch)
            if valid is not None:
                self._count(valid)
                if not self._must_be_known:
                    valid = EpisodeBatch([self._change_end(episode) for episode in valid.episodes])
                self._require_representable(valid)
                yield valid
        if not self.counts["episodes"] and not self._may_be_empty:
            raise no_episode_error(self._source.name)

    def make_warnings(self) -> tuple[str, ...]:
        """Returns sentences about what the source has, but its episodes or the written dataset do not."""
        left_out, name = self.left_out, self._limits.name
        dropped, unbootstrapped = left_out.dropped_last_transition, left_out.unbootstrapped
        if not self._limits.has_discounts:
            dropped, unbootstrapped = dropped + unbootstrapped, 0
        if not self.has_final_steps:  # The rows of these transitions are written.
            dropped = 0
        left_out = replace(left_out, dropped_last_transition=dropped, unbootstrapped=unbootstrapped)
        warnings = list(left_out.describe_left_out())
        if self.ends["copied"]:
            warnings.append(
                f"{name} requires final observations: {self.ends['copied']:,} terminal episodes, in which it is "
                "unknown, end in a copy of their last observation"
            )
        if self._limits.loss and self.ends["known"]:
            warnings.append(f"{self._limits.loss} ({self.ends['known']:,} episodes)")
        elif not self._limits.loss and not self.has_final_steps:
            known = self.counts["episodes"] - self.ends["unknown"]
            warnings.append(
                f"the final observations of {self.ends['unknown']:,} episodes are unknown, so that the last row of "
                "every episode is its last action" + f"; those of the other {known:,} are not written" * bool(known)
            )
        num_closed = self.ends["unterminated"] - self._ends_unterminated
        if num_closed and not self._limits.has_episodes:
            warnings.append(
                f"{num_closed:,} unterminated episodes are marked as truncated, because in {name} only the last "
                "episode can end without a flag"
            )
        return tuple(warnings)

    def _drop_invalid(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        """Returns the valid episodes of a batch, or None; raises `InvalidEpisodeError` if none may be left out."""
        if batch.is_valid(self.step_spec) and all(self._is_long_enough(episode) for episode in batch.episodes):
            return batch
        valid = []
        for episode in batch.episodes:
            errors = self._find_errors(episode)
            if errors and self._on_invalid != "skip_episode":
                raise InvalidEpisodeError(errors)
            self.counts["skipped_episodes"] += bool(errors)
            if not errors:
                valid.append(episode)
        return EpisodeBatch(valid) if valid else None

    def _find_errors(self, episode: Episode) -> list[ErrorFinding]:
        if self._on_invalid == "keep":
            require_same_spec(episode.steps, self.step_spec, episode.index)
            names = () if self._limits.has_discounts else (*fields.FLAG_FIELDS, fields.STEPS)
            found = find_errors(episode)
            errors = [error for error in found if error.field in names]
            self.counts["kept_errors"] += len(found) - len(errors)
        else:
            errors = find_errors(episode, self.step_spec)
        if not errors and not self._is_long_enough(episode):
            message = (
                f"the episode has no transition, which {self._limits.name} cannot represent; use the format 'rlds', or "
                "skip invalid episodes"
            )
            return [ErrorFinding(episode.index, None, fields.STEPS, message)]
        return errors

    def _is_long_enough(self, episode: Episode) -> bool:
        return self._count_transitions(episode) > 0 or (self._limits.has_discounts and self.has_final_steps)

    def _count_transitions(self, episode: Episode) -> int:
        """Returns the number of actions of an episode that are written."""
        if self.has_final_steps:
            return episode.num_transitions - (episode.unknown_final_observation and not episode.is_terminal)
        return episode.num_transitions + episode.dropped_last_transition

    def _change_end(self, episode: Episode) -> Episode:
        """Returns an episode in the layout of the dataset."""
        if not self.has_final_steps:
            return drop_final_step(episode)
        if not episode.unknown_final_observation:
            return episode
        if not episode.is_terminal:
            marks: Any = {"unknown_final_observation": False, "dropped_last_transition": True}
            return replace(drop_final_step(episode), **marks)
        observations = episode.steps[fields.OBSERVATION]
        copied = map_structure(lambda column: np.concatenate([column[:-1], column[-2:-1]]), observations)
        return replace(episode, steps={**episode.steps, fields.OBSERVATION: copied})

    def _require_representable(self, batch: EpisodeBatch) -> None:
        _require_texts(batch, self._limits.name)
        if self._checks_discounts:
            _require_standard_discounts(batch, self._limits.name, self.has_final_steps)
        if self._limits.has_episodes or not self.has_final_steps:
            return
        for path, column in leaves(select_extras(batch.steps)):
            if (nonzero := find_nonzero_final_rows(batch, column)).any():
                episode = batch.episodes[int(np.argmax(nonzero))]
                raise SourceError(
                    f"{path_name(path)} of the last step must be zeros for {self._limits.name}, which has no row for "
                    f"that step, got other values in episode {episode.index}; use the format 'rlds' or 'minari', or "
                    "drop the field"
                )

    def _count(self, batch: EpisodeBatch) -> None:
        self.counts["episodes"] += len(batch.episodes)
        for episode in batch.episodes:
            is_unknown = not episode.is_end_known
            self.counts["transitions"] += self._count_transitions(episode)
            self.ends["unterminated"] += episode.unterminated
            self.ends["unknown"] += is_unknown
            self.ends["known"] += not is_unknown and not episode.is_terminal
            self.ends["copied"] += self.has_final_steps and is_unknown and episode.is_terminal
        self._ends_unterminated = batch.episodes[-1].unterminated


def drop_final_step(episode: Episode) -> Episode:
    """Returns an episode whose last step is its last action, with the flags and, if truncated, discount of its end."""
    steps = episode.steps
    if episode.dropped_last_transition or not episode.num_transitions:
        return episode
    rows = map_structure(lambda column: column[:-1].copy(), steps)
    for name in (fields.IS_LAST, fields.IS_TERMINAL):
        rows[name][-1] = steps[name][-1]
    if episode.unknown_final_observation and not episode.is_terminal:  # Before, it was 0.
        pairs = zip(leaves(rows[fields.DISCOUNT]), leaves(steps[fields.DISCOUNT]), strict=True)
        for (_, kept), (_, column) in pairs:
            kept[-1] = column[-1]
    is_unknown = episode.unknown_final_observation or episode.is_terminal
    return replace(episode, steps=rows, unknown_final_observation=is_unknown, dropped_last_transition=not is_unknown)


def no_episode_error(name: str) -> SourceError:
    """Returns the error for a source without valid episodes."""
    return SourceError(f"{name} has no valid episode; there is nothing to write")


def has_tuple(nest: Nest, path: tuple[Any, ...]) -> bool:
    """Returns whether the path of a leaf leads through a tuple."""
    for part in path:
        if not isinstance(nest, Mapping):
            return True
        nest = nest[part]
    return False


def select_extras(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of steps, or of their spec, that not every step has."""
    return {name: nest for name, nest in steps.items() if name not in fields.STEP_FIELDS}


def require_plain_names(step_spec: Mapping[str, Nest], format_name: str) -> None:
    """Raises `SourceError` if the name of a field is empty or contains '/', which separates names in files."""
    for path, _ in leaves(dict(step_spec)):
        if any(isinstance(part, str) and ("/" in part or not part) for part in path):
            raise SourceError(f"{path_name(path)} must not have '/' in its name for {format_name}; rename the field")


def require_log_fields(step_spec: Mapping[str, Nest], format_name: str) -> None:
    """Raises `SourceError` unless a reward is one number, and the names of the fields are plain and not reserved."""
    require_plain_names(step_spec, format_name)
    d4rl.require_new_names(select_extras(step_spec), "steps")
    reward = step_spec[fields.REWARD]
    if not isinstance(reward, ArraySpec) or reward.shape:
        raise SourceError(
            f"step['reward'] must be one number for {format_name}, got {describe(reward)}; use the format 'rlds'"
        )


def make_refusal(
    path: tuple[Any, ...], spec: ArraySpec, requirement: str, format_name: str, alternative: str = ""
) -> SourceError:
    """Returns the error for a field that a format cannot represent."""
    sentence = f"{path_name(path)} must {requirement} for {format_name}, got {describe(spec)}; drop it{alternative}"
    return SourceError(sentence, DropFields=...)


def require_numbers(step_spec: Mapping[str, Nest], format_name: str) -> None:
    """Raises `SourceError` if a field contains strings."""
    for path, spec in leaves(dict(step_spec)):
        if spec.dtype.kind not in "biuf":
            raise make_refusal(path, spec, "contain numbers", format_name, ", or use the format 'rlds'")


def _require_dtypes(step_spec: Mapping[str, Nest], format_name: str) -> None:
    """Raises `SourceError` if the values of a field are of a kind that no format can represent."""
    for path, spec in leaves(dict(step_spec)):
        if spec.dtype.kind not in "biufOSU" or (spec.dtype.kind in "biuf" and spec.dtype.itemsize > 8):
            raise make_refusal(
                path, spec, "contain numbers of at most 64 bits or strings", format_name, ", or convert it"
            )


def _require_texts(batch: EpisodeBatch, format_name: str) -> None:
    """Raises `SourceError` if a column of objects contains anything but strings that UTF-8 can represent."""
    for path, column in leaves(batch.steps):
        for row, values in enumerate(column.reshape(len(column), -1).tolist() if column.dtype == object else ()):
            if wrong := [value for value in values if not _is_text(value)]:
                where = "{} of episode {}, step {}".format(path_name(path), *batch.locate(row))
                sentence = f"{where} must be a string that UTF-8 can represent for {format_name}, got {wrong[0]!r:.60}"
                raise SourceError(f"{sentence}; convert or drop it", DropFields=...)


def _is_text(value: Any) -> bool:
    """Returns whether a value is bytes, or a string without lone surrogates, which UTF-8 cannot represent."""
    return isinstance(value, bytes) or (isinstance(value, str) and not re.search("[\ud800-\udfff]", value))


def _require_discount_spec(spec: ArraySpec) -> None:
    if spec != ArraySpec((), np.dtype(np.float32)):
        raise SourceError(
            f"step['discount'] must be float32 [] unless the format stores discounts, got {describe(spec)}; " + _ADVICE
        )


def _require_standard_discounts(batch: EpisodeBatch, format_name: str, has_final_steps: bool) -> None:
    """Raises `SourceError` unless the discounts are 0 exactly for terminal steps and the transitions into them."""
    discounts, is_terminal = batch.steps[fields.DISCOUNT], batch.steps[fields.IS_TERMINAL]
    expected = np.where(is_terminal, np.float32(0), np.float32(1))
    if has_final_steps:
        expected[:-1][is_terminal[1:]] = 0
    differs = discounts != expected
    if differs.any():
        row = int(np.argmax(differs))
        index, step = batch.locate(row)
        raise SourceError(
            f"step['discount'] must be {expected[row]:g} for {format_name}, which does not store discounts, got "
            f"{discounts[row]:g} (episode {index}, step {step}); " + _ADVICE
        )
