"""What a data set holds: counts, returns, lengths, fields, faults and a fingerprint, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import xxhash

from rlds2reverb._text import columns_text, facts_text, number_text
from rlds2reverb._units import bytes_text
from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode, discontinuity_place, notes
from rlds2reverb.specs import describe, leaves, make_step_spec, path_name

from .scores import REFERENCE_RETURNS, d4rl_environment, d4rl_score
from .source import Source

_COUNTS = (
    "episodes",
    "steps",
    "transitions",
    "terminals",
    "timeouts",
    "unterminated",
    "empty",
    "dropped_last_transition",
    "discontinuities",
)
_QUANTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Distribution:
    """Five numbers and the mean of a sample; all NaN for an empty one."""

    min: float
    q25: float
    median: float
    q75: float
    max: float
    mean: float

    @classmethod
    def of(cls, values: list[float]) -> Distribution:
        """Returns the distribution of a list of numbers."""
        if not values:
            return cls(*[float("nan")] * 6)
        q25, median, q75 = np.quantile(values, _QUANTILES)
        return cls(min(values), float(q25), float(median), float(q75), max(values), float(np.mean(values)))

    def __str__(self) -> str:
        mean, low, high = (number_text(value) for value in (self.mean, self.min, self.max))
        quartiles = ", ".join(number_text(value) for value in (self.q25, self.median, self.q75))
        return f"mean {mean}, from {low} to {high} (quartiles {quartiles})"


@dataclass(frozen=True)
class FieldSummary:
    """One field of the steps: its place, dtype, shape, and how many of its numbers are NaN or Inf."""

    name: str
    spec: str
    non_finite: int


@dataclass(frozen=True)
class Summary:
    """A data set in numbers.

    Attributes:
      episodes, steps, transitions: counts; `steps` has those of the final observations, `transitions` are pairs of
        adjacent steps.
      terminals, timeouts, unterminated: how episodes end; an open end is one that the data set just stops in (it is
        counted in neither of the others).
      empty: episodes without steps.
      dropped_last_transition: transitions that are left out because their truncated episodes have no final observation.
      discontinuities: rows inside episodes whose `next_observations` is not the observation of the next row.
      returns, lengths: per episode; undiscounted sums of rewards, and transitions.
      score: D4RL's normalised score of the mean return, or None where no reference returns are known.
      score_environment: whose reference returns were used.
      bytes: of all steps in memory.
      warnings: those of the source, and a sentence each for `dropped_last_transition` and `discontinuities`.
      metadata: what the source says of itself.
      fingerprint: XXH3-128 over the content: field names, dtypes, shapes and bytes of every episode in order.
    """

    name: str
    kind: str
    episodes: int
    steps: int
    transitions: int
    terminals: int
    timeouts: int
    unterminated: int
    empty: int
    dropped_last_transition: int
    discontinuities: int
    returns: Distribution
    lengths: Distribution
    score: float | None
    score_environment: str | None
    bytes: int
    fingerprint: str
    fields: tuple[FieldSummary, ...]
    warnings: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns the same as plain dicts, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            (field.name, field.spec, f"{field.non_finite:,}" if field.non_finite else "none") for field in self.fields
        ]
        return f"{facts_text(self.name, self.facts())}\n\n{columns_text(('field', 'one step', 'NaN or Inf'), rows)}"

    def facts(self) -> list[tuple[str, str]]:
        """The summary as names and values for people, without the fields."""
        ends = f"{self.terminals:,} terminal, {self.timeouts:,} truncated, {self.unterminated:,} open"
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
            whose = f"D4RL's constants for its own {environment}" if environment else "returns as given"
            facts.append(("score", f"{self.score:.1f} (0 random, 100 expert; {whose})"))
        if self.metadata:
            facts.append(("metadata", ", ".join(f"{name} {value}" for name, value in self.metadata.items())))
        facts += [("size", bytes_text(self.bytes)), ("fingerprint", f"xxh128 {self.fingerprint}")]
        return facts + [("warning", sentence) for sentence in self.warnings]


@dataclass
class Fingerprint:
    """A running 128-bit hash (XXH3) over episodes: the same for data sets of the same content, in order."""

    _hash: Any = field(default_factory=xxhash.xxh3_128)

    def add(self, episode: Episode) -> None:
        """Adds one episode to the hash."""
        self.add_batch(EpisodeBatch([episode]))

    def add_batch(self, batch: EpisodeBatch) -> None:
        """Adds episodes to the hash, one after the other."""
        columns = [(f"{path}{column.dtype.str}", np.ascontiguousarray(column)) for path, column in leaves(batch.steps)]
        first_row = 0
        for num_steps in batch.num_steps.tolist():
            rows = slice(first_row, first_row + num_steps)
            first_row = rows.stop
            for head, column in columns:
                part = column[rows] if len(batch.episodes) > 1 else column
                self._hash.update(f"{head}{part.shape}".encode())
                if part.dtype.kind == "O":
                    for row in part.reshape(-1):
                        text = row if isinstance(row, bytes) else str(row).encode()
                        self._hash.update(f"{len(text)}:".encode() + text)
                else:
                    self._hash.update(part.data)

    def hexdigest(self) -> str:
        """Returns the fingerprint so far, 32 hexadecimal digits."""
        return self._hash.hexdigest()


def summarize(
    source: Source,
    *,
    reference_returns: tuple[float, float] | None = None,
    is_d4rl: bool = False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Summary:
    """Reads a source once and returns its summary.

    Args:
      source: the data set; what is wrong with episodes is counted, not raised.
      reference_returns: returns of a random policy and of an expert, for the normalised score.
      is_d4rl: whether the data are D4RL's own, so that D4RL's returns hold for the environment in the name. Without it
        they are used for data sets of TFDS's D4RL builders alone: a file of that name may come from anywhere.
      on_episode: called with each episode, for progress.

    Raises:
      SourceError: if the source cannot be read to its end.
    """
    counts = dict.fromkeys(_COUNTS, 0)
    first_discontinuity = ""
    total_bytes = 0
    returns: list[float] = []
    lengths: list[float] = []
    specs: dict[str, str] = {}
    non_finite: dict[str, int] = {}
    fingerprint = Fingerprint()
    for episode in source:
        on_episode(episode)
        _count(counts, episode)
        first_discontinuity = first_discontinuity or discontinuity_place(episode)
        fingerprint.add(episode)
        total_bytes += episode.num_bytes
        for path, column in leaves(episode.steps):
            name = path_name(path, root="")
            bad = int(np.size(column) - np.isfinite(column).sum()) if column.dtype.kind in "fc" else 0
            non_finite[name] = non_finite.get(name, 0) + bad
        if episode.num_steps:
            returns.append(episode.total_reward)
            lengths.append(float(episode.num_transitions))
            specs = specs or {path_name(p, root=""): describe(s) for p, s in leaves(make_step_spec(episode.steps))}
    known = is_d4rl or (source.kind == "rlds" and source.name.startswith("d4rl_"))
    environment = d4rl_environment(source.name) if known and not reference_returns else None
    reference = reference_returns or (REFERENCE_RETURNS[environment] if environment else None)
    return Summary(
        name=source.name,
        kind=source.kind,
        **counts,
        returns=Distribution.of(returns),
        lengths=Distribution.of(lengths),
        score=d4rl_score(float(np.mean(returns)), reference) if reference and returns else None,
        score_environment=environment,
        bytes=total_bytes,
        fingerprint=fingerprint.hexdigest(),
        fields=tuple(FieldSummary(name, spec, non_finite[name]) for name, spec in specs.items()),
        warnings=source.warnings
        + notes(counts["dropped_last_transition"], counts["discontinuities"], first_discontinuity),
        metadata=dict(source.metadata),
    )


def _count(counts: dict[str, int], episode: Episode) -> None:
    counts["episodes"] += 1
    counts["steps"] += episode.num_steps
    counts["transitions"] += episode.num_transitions
    counts["dropped_last_transition"] += episode.dropped_last_transition
    counts["discontinuities"] += len(episode.discontinuities)
    if not episode.num_steps:
        end = "empty"
    elif episode.unterminated:
        end = "unterminated"
    else:
        end = "terminals" if episode.is_terminal else "timeouts"
    counts[end] += 1
