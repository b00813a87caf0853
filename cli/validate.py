"""`rlds2reverb validate`: checks every episode of a dataset, or every file of a converted directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from rlds2reverb.datasets import Finding, Source
from rlds2reverb.datasets.checks import SEVERITIES, DatasetChecks
from rlds2reverb.datasets.transforms import apply_transforms
from rlds2reverb.errors import CheckpointError, Problem, SourceError
from rlds2reverb.system.text import format_bytes, format_columns, format_facts
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import find_problems, read_until_error, show_progress
from rlds2reverb.types.left_out import LeftOut
from rlds2reverb.types.locations import is_table_directory
from rlds2reverb.types.specs import Nest

from . import output, written_directories
from .declarations import option, parameter_names
from .main import INVALID_DATA, OK
from .number_types import at_least_0
from .options import (
    GroupedCommand,
    make_transforms,
    report_option,
    require_unused,
    transform_options,
)
from .output import json_option
from .quiet import quiet_imports, status
from .reading import READING_NAMES, open_source, reading_options

_NEVER = "never"
_HEADINGS = {"Input": READING_NAMES, "Preprocessing": parameter_names(transform_options)}


@dataclass
class _Result(LeftOut):
    """The counts, problems, findings and notes of one dataset."""

    max_problems: int
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0
    episodes: int = 0
    steps: int = 0
    unterminated: int = 0
    warnings: tuple[str, ...] = ()
    transform_notes: tuple[str, ...] = ()
    #: The reason that the dataset could not be read to the end, if any.
    source_error: str | None = None
    #: The source after the transforms, or None if it could not be opened.
    source: Source | None = None
    findings: list[Finding] = field(default_factory=list)

    def add_batch(self, batch: EpisodeBatch, step_spec: Nest) -> None:
        """Checks and counts some episodes."""
        for episode in batch.episodes:
            problems = find_problems(episode, step_spec)
            self.problems += problems[: max(0, self.max_problems - len(self.problems))]
            self.num_problems += len(problems)
            self.episodes += 1
            self.steps += episode.num_steps
            self.unterminated += episode.unterminated
        self.count_left_out(batch)

    @property
    def notes(self) -> list[str]:
        """The notes on lost data and on transforms."""
        return [output.name_options(note) for note in (*self.describe_left_out(), *self.transform_notes)]


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@click.argument("source", metavar="SRC")
@reading_options
@transform_options
@option(
    "--max-problems", default=20, type=at_least_0, help="Maximum number of problems to list; all of them are counted."
)
@option(
    "--fail-on",
    type=click.Choice([*reversed(SEVERITIES), _NEVER]),
    default="error",
    help="Least severity of findings for the exit code 2, which problems always have.",
)
@report_option
@json_option
def validate(as_json: bool, max_problems: int, fail_on: str, report_path: Path | None, **options: Any) -> int:
    """Check every episode of a dataset, and list problems and findings.

    \b
    Examples:
      rlds2reverb validate hopper_medium-v2.hdf5
      rlds2reverb validate lift_ph.hdf5 --cut-at-terminal
      rlds2reverb validate lerobot/pusher --fail-on warning --json
      rlds2reverb validate hopper_medium-v2.hdf5 --report findings.html
      rlds2reverb validate hopper/

    Each problem names its episode, step and field. Findings are valid data that are probably mistakes, such as frozen
    cameras or episodes in other units, with the first place and what to do; docs/findings.md lists all checks. Warnings
    concern the dataset as a whole. Notes report valid data that conversion loses, such as transitions without a next
    observation. If SRC is a directory that convert --out wrote, its files are compared with their checksums instead.

    The exit code is 2 if there is a problem, or a finding of --fail-on or above, else 0.
    """
    if is_table_directory(options["source"]):
        require_unused({"fail_on", "report_path"}, "requires a dataset, not a converted directory")
        return _validate_directory(options["source"], as_json=as_json)
    result = _check(options, max_problems)
    severities = () if fail_on == _NEVER else SEVERITIES[SEVERITIES.index(fail_on) :]
    is_failed = any(finding.severity in severities for finding in result.findings)
    if report_path is not None:
        _write_report(result, report_path)
    if as_json:
        _print_json(options["source"], result, is_failed=is_failed)
    else:
        _print(options["source"], result, is_failed=is_failed)
        if report_path is not None:
            print(output.escape_controls(f"\nwrote {report_path} ({format_bytes(report_path.stat().st_size)})"))
    return INVALID_DATA if result.num_problems or is_failed else OK


def _write_report(result: _Result, path: Path) -> None:
    if result.source is None:
        raise SourceError(f"cannot write {path}: {result.source_error}")
    with status(f"writing {path}"), quiet_imports():
        from rlds2reverb.training.reports import report_findings

        report_findings(result.source, result.findings, path, problems=list(map(str, result.problems)))


def _check(options: dict[str, Any], max_problems: int) -> _Result:
    result = _Result(max_problems)
    dataset_checks = None
    try:
        opened = open_source(options)
        result.warnings = opened.warnings
        source, statistics = apply_transforms(opened, make_transforms(options))
        result.source, result.transform_notes = source, tuple(statistics.get("notes", ()))
        dataset_checks = DatasetChecks(source)
        errors: list[SourceError] = []
        with output.StepProgress(source) as progress:
            for batch in batch_episodes(show_progress(read_until_error(source.read(), errors), progress, "check")):
                result.add_batch(batch, source.step_spec)
                dataset_checks.add_batch(batch)
        if errors:
            raise errors[0]
    except SourceError as error:
        result.source_error = output.describe_error(error)
        result.num_problems += 1
    result.findings = dataset_checks.finish() if dataset_checks else []
    return result


def _print_json(source: str, result: _Result, *, is_failed: bool) -> None:
    names = ("episodes", "steps", "unterminated", *vars(LeftOut()), "num_problems")
    output.print_json(
        {
            "source": source,
            "valid": not result.num_problems,
            "failed": bool(result.num_problems) or is_failed,
            **{name: getattr(result, name) for name in names},
            "problems": [asdict(problem) for problem in result.problems],
            "findings": [asdict(finding) for finding in result.findings],
            "warnings": list(result.warnings),
            "notes": result.notes,
            "source_error": result.source_error,
        }
    )


def _print(source: str, result: _Result, *, is_failed: bool) -> None:
    for problem in result.problems:
        print(f"problem: {problem}")
    num_others = result.num_problems - len(result.problems) - bool(result.source_error)
    if num_others:
        print(f"... and {num_others:,} more (see --max-problems)")
    if result.source_error:
        output.fail(result.source_error)
    notes = result.notes
    if result.unterminated:
        verb = "ends" if result.unterminated == 1 else "end"
        episodes = output.count(result.unterminated, "episode")
        notes.insert(0, f"{episodes} {verb} without a terminal or a timeout; treated as truncated")
    for note in notes:
        output.note(note)
    counts = {"episode": result.episodes, "step": result.steps, "problem": result.num_problems}
    optional = {"warning": len(result.warnings), "note": len(notes)}
    counts.update({noun: number for noun, number in optional.items() if number})
    failed = "FAILED" if is_failed else ""
    verdict = "INVALID" if result.num_problems else failed or ("valid, with notes" if notes else "valid")
    print(f"{source}: {verdict} ({', '.join(output.count(number, noun) for noun, number in counts.items())})")
    if result.findings:
        _print_findings(result.findings)


def _print_findings(findings: list[Finding]) -> None:
    rows = [(part.severity, part.check, f"{part.count:,}", f"{part.num_episodes:,}", part.place) for part in findings]
    print("\n" + format_columns(("severity", "finding", "count", "episodes", "first in"), rows) + "\n")
    details = [(part.check, f"{part.field}: {part.message}; {output.name_options(part.advice)}") for part in findings]
    print(output.escape_controls(format_facts("what to do", details)))


def _validate_directory(path: str, *, as_json: bool) -> int:
    """Compares the files of a converted directory with their checksums, and prints what it contains."""
    error_message, description = "", {}
    try:
        description = written_directories.describe(path, verify=True)
    except CheckpointError as error:
        error_message = str(error)
    if as_json:
        output.print_json(
            {"source": path, "valid": not error_message, "source_error": error_message or None, **description}
        )
    elif error_message:
        output.fail(error_message)
        print(f"{path}: INVALID")
    else:
        output.print_facts(f"{path}: valid, all checksums match", written_directories.make_facts(description))
    return INVALID_DATA if error_message else OK
