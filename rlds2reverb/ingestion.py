"""`ingest`: a data set into the tables of a Reverb server, with a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import reverb

from rlds2reverb import fields, writing
from rlds2reverb.episodes import Episode, InvalidEpisode, Problem, find_problems
from rlds2reverb.sources import Source, load
from rlds2reverb.summaries import Fingerprint
from rlds2reverb.tables import item_signature
from rlds2reverb.trajectories import require_discount_source, trajectory_columns, trajectory_spec

#: What to do with an episode that does not hold together.
ON_INVALID = ("error", "skip_episode", "keep")
_PROBLEMS_KEPT = 20

Progress = Callable[[str, Episode], None]


@dataclass
class IngestReport:
    """What happened.

    Attributes:
      source: name of the data set.
      tables: names of the tables, each of which got every item.
      episodes, steps, items, bytes: written; `steps` has those of final observations, `bytes` are of the steps.
      open_ends: episodes that the source just stops in, written as truncated.
      too_short: episodes shorter than a window, which give no item.
      skipped_episodes: left out because of problems.
      kept_problems: found and written all the same.
      problems: the first 20 of them.
      seconds: by stage: 'check' (reading and checking before anything is written), 'read', 'convert', 'write'.
      fingerprint: sha256 over the content of what was written; see `summaries.Fingerprint`.
    """

    source: str
    tables: tuple[str, ...]
    episodes: int = 0
    steps: int = 0
    items: int = 0
    bytes: int = 0
    open_ends: int = 0
    too_short: int = 0
    skipped_episodes: int = 0
    kept_problems: int = 0
    problems: list[Problem] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def steps_per_second(self) -> float:
        """Steps over the seconds of all stages."""
        total = sum(self.seconds.values())
        return self.steps / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts, for JSON."""
        return {**asdict(self), "steps_per_second": self.steps_per_second}


def ingest(
    source: Any,
    server: str | int | reverb.Client | reverb.Server,
    tables: str | Sequence[str] = "replay",
    *,
    sequence_length: int = 2,
    stride: int = 1,
    priority: float = 1.0,
    discount_source: str = "product",
    on_invalid: str = "error",
    timeout_secs: float = 30.0,
    progress: Progress = lambda stage, episode: None,
) -> IngestReport:
    """Writes a data set into tables of a running Reverb server, as windows of trajectories.

    Args:
      source: a `Source`, or anything that `load` takes.
      server: address 'host:port', a port of this machine, a client, or a server in this process.
      tables: name or names; each gets every item. They have to exist, with the data's signature or none.
      sequence_length: trajectories in an item; 2 is one transition, as TF-Agents' `AsTransition` takes it.
      stride: trajectories between the beginnings of items.
      priority: of every item, in [0, 1e12].
      discount_source: see `trajectories.transition_discounts`.
      on_invalid: 'error' reads and checks the whole data set first, and writes nothing if an episode is invalid;
        'skip_episode' leaves such episodes out; 'keep' writes them as they are, but for those that no table can hold
        (no steps, uneven columns, other dtypes or shapes). Both count them in the report.
      timeout_secs: how long to wait for the server, each time.
      progress: called with 'check' or 'write' and each episode.

    Returns:
      `IngestReport`.

    Raises:
      InvalidEpisode: with on_invalid='error', at the first episode with problems; nothing is written.
      SourceError: if the source cannot be opened or read.
      SpecMismatch: if a table's signature differs from the data, or an episode from the first.
      ServerUnavailable: if the server does not answer or take items in time.
      ValueError: if an argument is out of its range or a table does not exist.
    """
    require_discount_source(discount_source)
    if on_invalid not in ON_INVALID:
        raise ValueError(f"on_invalid is {on_invalid!r}, wanted one of {', '.join(map(repr, ON_INVALID))}")
    source = load(source)
    names = (tables,) if isinstance(tables, str) else tuple(tables)
    spec = trajectory_spec(source.step_spec)
    writing.require_no_strings(spec)
    client = writing.connect(server)
    writer = writing.PublicWriter(
        client,
        names,
        spec,
        sequence_length=sequence_length,
        stride=stride,
        priority=priority,
        timeout_secs=timeout_secs,
    )
    infos = writing.table_infos(client, timeout_secs=timeout_secs)
    for name in names:
        writing.require_table(infos, name, item_signature(spec, sequence_length))
    report = IngestReport(source.name, names)
    if on_invalid == "error":
        with _Stage(report, "check"):
            check_all(source, progress)
    with writer:
        _write_all(source, writer, report, on_invalid, discount_source, progress)
    return report


def check_all(source: Source, progress: Progress = lambda stage, episode: None) -> None:
    """Reads a source to its end and raises at the first episode that is invalid or unlike the first."""
    for episode in source:
        progress("check", episode)
        problems = find_problems(episode, source.step_spec)
        if problems:
            raise InvalidEpisode(problems)


class _Stage:
    """Adds the seconds spent inside to the report."""

    def __init__(self, report: IngestReport, name: str):
        self._seconds, self._name = report.seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exception: Any) -> None:
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + time.perf_counter() - self._start


def _write_all(
    source: Source,
    writer: writing.PublicWriter,
    report: IngestReport,
    on_invalid: str,
    discount_source: str,
    progress: Progress,
) -> None:
    fingerprint = Fingerprint()
    episodes: Iterator[Episode] = iter(source)
    while True:
        with _Stage(report, "read"):
            episode = next(episodes, None)
        if episode is None:
            break
        with _Stage(report, "convert"):
            if not _take(source, episode, report, on_invalid):
                continue
            fingerprint.add(episode)
            trajectories = trajectory_columns(episode.steps, discount_source=discount_source)
        with _Stage(report, "write"):
            items = writer.write(trajectories)
        report.episodes += 1
        report.steps += episode.num_steps
        report.items += items
        report.bytes += episode.num_bytes
        report.open_ends += episode.open_end
        report.too_short += not items
        progress("write", episode)
    report.fingerprint = fingerprint.hexdigest()


def _take(source: Source, episode: Episode, report: IngestReport, on_invalid: str) -> bool:
    """Whether an episode is to be written; notes its problems."""
    problems = [] if on_invalid == "error" else find_problems(episode, source.step_spec)
    report.problems += problems[: _PROBLEMS_KEPT - len(report.problems)]
    if not problems:
        return True
    if on_invalid == "skip_episode" or any(problem.field == fields.STEPS for problem in problems):
        report.skipped_episodes += 1
        return False
    report.kept_problems += len(problems)
    return True
