"""Summary of a dataset in one pass: counts, returns, lengths, fields, non-finite numbers and a fingerprint."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.errors import ArgumentError
from rlds2reverb.system.text import format_bytes, format_columns, format_facts, format_number
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode
from rlds2reverb.types.fingerprints import Fingerprint, episode_digests
from rlds2reverb.types.left_out import LeftOut
from rlds2reverb.types.scores import REFERENCE_RETURNS, d4rl_environment, d4rl_score
from rlds2reverb.types.short_repr import short_repr
from rlds2reverb.types.specs import describe, leaves, make_step_spec, path_name

from .source import Source

_COUNTS = ("episodes", "steps", "transitions", "terminal", "truncated", "unterminated", "empty")
_LEFT_OUT = ("dropped_last_transition", "unbootstrapped", "discontinuities", "boundary_values")
_QUANTILES = (0.25, 0.5, 0.75)
_MAX_TEXT = 60


@dataclass(frozen=True)
class Distribution:
    """Minimum, quartiles, maximum and mean of a sample; all NaN if it is empty."""

    min: float
    q25: float
    median: float
    q75: float
    max: float
    mean: float

    @classmethod
    def from_values(cls, values: list[float]) -> Distribution:
        """Computes the distribution of a list of numbers."""
        if not values:
            return cls(*[float("nan")] * 6)
        q25, median, q75 = np.quantile(values, _QUANTILES).tolist()
        return cls(min(values), q25, median, q75, max(values), float(np.mean(values)))

    def __str__(self) -> str:
        mean, low, high = (format_number(value) for value in (self.mean, self.min, self.max))
        quartiles = ", ".join(format_number(value) for value in (self.q25, self.median, self.q75))
        return f"mean {mean}, from {low} to {high} (quartiles {quartiles})"


@dataclass(frozen=True)
class FieldSummary:
    """One field of the steps: its path, its dtype and shape, and how many of its numbers are NaN or Inf."""

    name: str
    spec: str
    non_finite: int


@dataclass(frozen=True)
class Summary:
    """Statistics of a dataset.

    Attributes:
      name: name of the source.
      kind: kind of the source.
      episodes: number of episodes.
      steps: number of steps, including those of final observations.
      transitions: number of pairs of adjacent steps.
      terminal: number of episodes that end in a terminal state.
      truncated: number of truncated episodes, without the unterminated ones.
      unterminated: number of episodes in which the dataset ends without a flag.
      empty: number of episodes without steps.
      dropped_last_transition: number of transitions dropped because a truncated episode has no final observation.
      unbootstrapped: number of truncated episodes whose final observation is unknown; see `LeftOut`.
      discontinuities: number of rows inside episodes whose `next_observations` is not the next row's observation.
      boundary_values: number of episodes with a reward or an action other than zero in their last step; see `LeftOut`.
      returns: undiscounted sums of rewards per episode.
      lengths: transitions per episode.
      score: D4RL's normalised score of the mean return, or None if there are no reference returns.
      score_environment: D4RL environment whose reference returns were used, or None.
      size_bytes: size of all steps in memory.
      fingerprint: XXH3-128 of the content: field names, dtypes, shapes and bytes of every episode in order.
      fields: the fields of a step.
      episode_fields: dtype, shape and first value of each field of `Episode.metadata`, by its path.
      warnings: warnings of the source, and the sentences of `LeftOut`.
      metadata: the dataset's description of itself.
      unread: names of columns that are not read.
      version: version of the dataset, or None.
    """

    name: str
    kind: str
    episodes: int
    steps: int
    transitions: int
    terminal: int
    truncated: int
    unterminated: int
    empty: int
    dropped_last_transition: int
    unbootstrapped: int
    discontinuities: int
    boundary_values: int
    returns: Distribution
    lengths: Distribution
    score: float | None
    score_environment: str | None
    size_bytes: int
    fingerprint: str
    fields: tuple[FieldSummary, ...]
    warnings: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    episode_fields: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    version: str | None = None

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Returns the summary as plain dicts, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        table = format_columns(("field", "one step", "NaN or Inf"), self.field_rows())
        title = " ".join(filter(None, (self.name, self.version)))
        return f"{format_facts(title, self.facts())}\n\n{table}"

    def field_rows(self) -> list[tuple[str, str, str]]:
        """Returns (name, dtype and shape, number of NaN and Inf) of each field for display."""
        return [(part.name, part.spec, f"{part.non_finite:,}" if part.non_finite else "none") for part in self.fields]

    def facts(self) -> list[tuple[str, str]]:
        """Returns (name, value) pairs for display, without the fields."""
        ends = f"{self.terminal:,} terminal, {self.truncated:,} truncated, {self.unterminated:,} unterminated"
        facts = [("kind", self.kind), ("episodes", f"{self.episodes:,} ({ends})")]
        if self.empty:
            facts.append(("empty", f"{self.empty:,} episodes have no steps"))
        facts += [
            ("transitions", f"{self.transitions:,} ({self.steps:,} steps with the final observations)"),
            ("return", str(self.returns)),
            ("length", str(self.lengths)),
        ]
        if self.score is not None:
            environment = self.score_environment
            scale = f"D4RL's constants for its own {environment}" if environment else "the given reference returns"
            facts.append(("score", f"{self.score:.1f} (0 random, 100 expert; {scale})"))
        if self.metadata:
            facts.append(("metadata", ", ".join(f"{name} {value}" for name, value in self.metadata.items())))
        facts += [("episode field", f"{name}  {value}") for name, value in self.episode_fields.items()]
        facts += [("unread", ", ".join(self.unread))] if self.unread else []
        facts += [("size", format_bytes(self.size_bytes)), ("fingerprint", f"xxh128 {self.fingerprint}")]
        return facts + [("warning", sentence) for sentence in self.warnings]


class EpisodeSummary(NamedTuple):
    """One episode of a summary.

    Attributes:
      number: its index in the dataset.
      digest: digest of its content.
      total_reward: its return; None if it has no steps.
      num_transitions: its length.
      end: how it ends, the name of a count of `Summary`: 'terminal', 'truncated', 'unterminated' or 'empty'.
    """

    number: int
    digest: bytes
    total_reward: float | None
    num_transitions: int
    end: str


@dataclass
class SummaryParts:
    """The contribution of some episodes to the `Summary` of a dataset; contributions can be merged in any order.

    Attributes:
      counts: counts of episodes, steps and more; see `Summary`.
      left_out: counts of what no transition has.
      num_bytes: size of all steps in memory.
      non_finite: number of NaN and Inf by field.
      specs: description of each field, from the first episode with steps.
      episode_fields: description of each field of that episode apart from its steps.
      episodes: each episode, in the order in which they were added.
      first: index of the episode that `specs` comes from; None without one.
    """

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_COUNTS, 0)))
    num_bytes: int = 0
    non_finite: Counter[str] = field(default_factory=Counter)
    specs: dict[str, str] = field(default_factory=dict)
    episode_fields: dict[str, str] = field(default_factory=dict)
    episodes: list[EpisodeSummary] = field(default_factory=list)
    first: int | None = None
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def returns(self) -> np.ndarray:
        """The return of each episode, float64 [N]; NaN for empty ones."""
        totals = (episode.total_reward for episode in self.episodes)
        return np.array([np.nan if total is None else total for total in totals])

    @property
    def lengths(self) -> np.ndarray:
        """The number of transitions of each episode, int64 [N]."""
        return np.array([episode.num_transitions for episode in self.episodes])

    @property
    def ends(self) -> np.ndarray:
        """How each episode ends, [N]; see `EpisodeSummary`."""
        return np.array([episode.end for episode in self.episodes])

    def add(self, episode: Episode) -> None:
        """Adds an episode, valid or not."""
        self.add_batch(EpisodeBatch([episode]))

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds some episodes, valid or not."""
        self.left_out.count_left_out(batch)
        for path, column in leaves(batch.steps):
            count = int(np.size(column) - np.isfinite(column).sum()) if column.dtype.kind in "fc" else 0
            self.non_finite[path_name(path, root="")] += count
            self.num_bytes += column.nbytes
        for episode, digest in zip(batch.episodes, episode_digests(batch), strict=True):
            sizes, end = {"steps": episode.num_steps, "transitions": episode.num_transitions}, _name_end(episode)
            for name, count in {"episodes": 1, **sizes, end: 1}.items():
                self.counts[name] += count
            if episode.num_steps and self._is_first(episode.index):
                self.specs = {path_name(p, root=""): describe(s) for p, s in leaves(make_step_spec(episode.steps))}
                self.episode_fields = {"/".join(p): _describe_value(value) for p, value in leaves(episode.metadata)}
            total = episode.total_reward if episode.num_steps else None
            self.episodes.append(EpisodeSummary(episode.index, digest, total, episode.num_transitions, end))

    def _is_first(self, index: int | None) -> bool:
        """Returns whether `specs` comes from no episode before this one, and records its index if so."""
        if index is None or (self.first is not None and index >= self.first):
            return False
        self.first = index
        return True

    def merge(self, other: SummaryParts) -> None:
        """Adds the episodes that were added to other parts of the same dataset."""
        self.counts.update(other.counts)
        self.num_bytes += other.num_bytes
        self.non_finite.update(other.non_finite)
        if self._is_first(other.first):
            self.specs, self.episode_fields = other.specs, other.episode_fields
        self.left_out.merge_left_out(other.left_out)
        self.episodes += other.episodes

    def as_dict(self) -> dict[str, Any]:
        """Returns the parts as plain values, for JSON."""
        episodes = [(number, digest.hex(), *rest) for number, digest, *rest in self.episodes]
        return {**vars(self), "episodes": episodes, "left_out": asdict(self.left_out)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SummaryParts:
        """Creates parts from the values of `as_dict`."""
        episodes = [
            EpisodeSummary(number, bytes.fromhex(digest), *rest) for number, digest, *rest in values["episodes"]
        ]
        counters = {name: Counter(values[name]) for name in ("counts", "non_finite")}
        return cls(**{**values, **counters, "episodes": episodes, "left_out": LeftOut(**values["left_out"])})

    def finish(
        self, source: Source, *, reference_returns: tuple[float, float] | None = None, is_d4rl: bool = False
    ) -> Summary:
        """Returns the summary; the arguments are those of `summarize`, and the source is not read."""
        ordered = sorted(self.episodes)
        fingerprint = Fingerprint(b"".join(episode.digest for episode in ordered))
        returns = [episode.total_reward for episode in ordered if episode.total_reward is not None]
        lengths = [float(episode.num_transitions) for episode in ordered if episode.total_reward is not None]
        reference, environment = find_reference_returns(source, reference_returns, is_d4rl=is_d4rl)
        return Summary(
            name=source.name,
            kind=source.kind,
            **self.counts,
            **{name: getattr(self.left_out, name) for name in _LEFT_OUT},
            returns=Distribution.from_values(returns),
            lengths=Distribution.from_values(lengths),
            score=d4rl_score(float(np.mean(returns)), reference) if reference and returns else None,
            score_environment=environment,
            size_bytes=self.num_bytes,
            fingerprint=fingerprint.hexdigest(),
            fields=tuple(FieldSummary(name, spec, self.non_finite[name]) for name, spec in self.specs.items()),
            warnings=(*source.warnings, *self.left_out.describe_left_out()),
            metadata=dict(source.metadata),
            episode_fields=self.episode_fields,
            unread=source.unread,
            version=source.version,
        )


def summarize(
    source: Source, *, reference_returns: tuple[float, float] | None = None, is_d4rl: bool = False
) -> Summary:
    """Reads a source once and returns its summary.

    Args:
      source: the dataset. Invalid episodes are counted and raise no error.
      reference_returns: returns of a random policy and an expert, for the normalised score.
      is_d4rl: whether these are D4RL's own data, so that D4RL's reference returns apply to the environment in the
        name. If False, they are used only for datasets of TFDS's D4RL builders, because any file may have such a name.

    Raises:
      SourceError: If the source cannot be read to its end.
      ValueError: If `is_d4rl` is set together with `reference_returns`, or D4RL has no dataset of that name.
    """
    find_reference_returns(source, reference_returns, is_d4rl=is_d4rl)
    parts = SummaryParts()
    for batch in batch_episodes(source.read()):
        parts.add_batch(batch)
    return parts.finish(source, reference_returns=reference_returns, is_d4rl=is_d4rl)


def find_reference_returns(
    source: Source, reference_returns: tuple[float, float] | None, *, is_d4rl: bool
) -> tuple[tuple[float, float] | None, str | None]:
    """Returns the returns of a random policy and an expert, or None; and the D4RL environment they belong to, or None.

    Args:
      source: see `summarize`.
      reference_returns: see `summarize`.
      is_d4rl: see `summarize`.

    Raises:
      ValueError: If `is_d4rl` is set, but has no effect.
    """
    if is_d4rl and (reference_returns or d4rl_environment(source.name) is None):
        reason = "with reference returns" if reference_returns else f"on {source.name}, which is not a D4RL dataset"
        raise ArgumentError(f"has no effect {reason}; leave it out", about="is_d4rl", value=True)
    is_d4rl = is_d4rl or (source.kind == "rlds" and source.name.startswith("d4rl_"))
    environment = d4rl_environment(source.name) if is_d4rl and not reference_returns else None
    return reference_returns or (REFERENCE_RETURNS[environment] if environment else None), environment


def describe_unterminated(count: int) -> list[str]:
    """Returns a note on the number of episodes in which the dataset ends without a flag; none for 0."""
    ends = "episode ends" if count == 1 else "episodes end"
    return [f"{count:,} {ends} without a terminal or a timeout; treated as truncated"] if count else []


def _describe_value(value: np.ndarray) -> str:
    """Returns the dtype and shape of a value, and a single value itself, shortened to one line."""
    if value.shape:
        return describe(value)
    content = value.item()
    text = repr(content.decode("utf-8", "replace") if isinstance(content, bytes) else content)
    return f"{describe(value)}, first {text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + '...'}"


def _name_end(episode: Episode) -> str:
    """Returns the name of the count of episodes that end like this one."""
    if not episode.num_steps:
        return "empty"
    if episode.unterminated:
        return "unterminated"
    return "terminal" if episode.is_terminal else "truncated"
