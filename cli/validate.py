"""`rlds2reverb validate`: checks every episode of a dataset, or every file of a converted directory."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from rlds2reverb.datasets import Finding
from rlds2reverb.datasets.checks import SEVERITIES
from rlds2reverb.datasets.checks.repairs import REPAIRED, is_repairable, repair_dataset
from rlds2reverb.datasets.dataset_statistics import DatasetStatistics
from rlds2reverb.datasets.summary import SummaryParts, describe_unterminated
from rlds2reverb.datasets.transforms import apply_transforms
from rlds2reverb.errors import CheckpointError, ErrorFinding, SourceError
from rlds2reverb.system.text import format_bytes, format_columns, format_facts
from rlds2reverb.types.locations import expand_path, is_table_directory

from . import output, written_directories
from .declarations import PATH, option, parameter_names
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
from .reading import READING_NAMES, open_readable, reading_options

_NEVER = "never"
#: Options that change what is read, but not what `--fix` copies.
_NOT_COPIED = {"split", "mapping", *parameter_names(transform_options)}
_HEADINGS = {"Input": READING_NAMES, "Preprocessing": parameter_names(transform_options)}


@dataclass
class _Result:
    """The statistics and notes of one dataset."""

    #: What was read after the transforms, or None if the source could not be opened.
    statistics: DatasetStatistics | None = None
    warnings: tuple[str, ...] = ()
    transform_notes: tuple[str, ...] = ()
    #: Sentences about repairs; None if none were asked for.
    repairs: list[str] | None = None
    #: The reason that the dataset could not be read to the end, if any.
    source_error: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of episodes, steps, unterminated episodes, and errors."""
        parts, found = self._parts, 0 if self.statistics is None else self.statistics.num_errors
        counts = {name: parts.counts[name] for name in ("episodes", "steps", "unterminated")}
        return {**counts, **vars(parts.left_out), "num_errors": found + bool(self.source_error)}

    @property
    def errors(self) -> list[ErrorFinding]:
        """The first errors."""
        return [] if self.statistics is None else self.statistics.errors

    @property
    def findings(self) -> list[Finding]:
        """The findings of the checks."""
        return [] if self.statistics is None else self.statistics.findings

    @property
    def notes(self) -> list[str]:
        """The notes on open ends, on lost data and on transforms."""
        about_ends = describe_unterminated(self._parts.counts["unterminated"])
        notes = [*about_ends, *self._parts.left_out.describe_left_out(), *self.transform_notes]
        if self.statistics is not None and self.statistics.num_unreadable:
            are_left_out = (
                f"{self.statistics.num_unreadable:,} episodes cannot be read, and are not checked; convert and"
            )
            notes.append(f"{are_left_out} train leave them out with --on-invalid skip_episode")
        return [output.name_options(note) for note in notes]

    @property
    def _parts(self) -> SummaryParts:
        return SummaryParts() if self.statistics is None else self.statistics.parts


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@click.argument("source", metavar="SRC")
@reading_options
@transform_options
@option("--max-errors", default=20, type=at_least_0, help="Maximum number of errors to list; all of them are counted.")
@option(
    "--fail-on",
    type=click.Choice([*reversed(SEVERITIES), _NEVER]),
    default="error",
    help="Least severity of findings for the exit code 2, which errors in episodes always have.",
)
@report_option
@option(
    "--fix",
    "fix_path",
    type=PATH,
    metavar="OUT",
    help="LeRobot, robomimic, Minari, TFDS: write a copy in which fps, totals, numbers and places of rows, and "
    "statistics follow from the rows, and validate it. The source is not changed.",
)
@json_option
def validate(
    as_json: bool,
    max_errors: int,
    fail_on: str,
    report_path: Path | None,
    fix_path: Path | None,
    **options: Any,
) -> int:
    """Check every episode of a dataset, and list errors and findings.

    \b
    Examples:
      rlds2reverb validate hopper_medium-v2.hdf5
      rlds2reverb validate lift_ph.hdf5 --cut-at-terminal
      rlds2reverb validate lerobot/pusher --fail-on warning --json
      rlds2reverb validate hopper_medium-v2.hdf5 --report findings.html
      rlds2reverb validate lerobot/pusher --fix lerobot/pusher_fixed
      rlds2reverb validate hopper/

    Each error names its episode, step and field. Findings are valid data that are probably mistakes, such as frozen
    cameras or episodes in other units, with the first place and what to do; docs/findings.md lists all checks. Warnings
    concern the dataset as a whole. Notes report valid data that conversion loses, such as transitions without a next
    observation. If SRC is a directory that convert --out wrote, its files are compared with their checksums instead.

    The exit code is 2 if there is an error, or a finding of --fail-on or above, else 0.
    """
    if is_table_directory(options["source"]):
        require_unused({"fail_on", "report_path", "fix_path"}, "requires a dataset, not a converted directory")
        return _validate_directory(options["source"], as_json=as_json)
    repairs = None
    if fix_path is not None:
        require_unused(_NOT_COPIED, "cannot be combined with --fix, which copies everything; use convert")
        with status(f"writing {fix_path}"):
            repairs = repair_dataset(expand_path(options["source"]), fix_path)
        options["source"] = str(fix_path) if repairs else options["source"]
    result = _check(options, max_errors, has_sample=report_path is not None)
    result.repairs = repairs
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
    return INVALID_DATA if result.counts["num_errors"] or is_failed else OK


def _write_report(result: _Result, path: Path) -> None:
    if result.statistics is None:
        raise SourceError(f"cannot write {path}: {result.source_error}")
    with status(f"writing {path}"), quiet_imports():
        from rlds2reverb.training.reports.dataset_report import report_statistics

        report_statistics(result.statistics, path)


def _check(options: dict[str, Any], max_errors: int, *, has_sample: bool) -> _Result:
    result = _Result()
    try:
        opened = open_readable(options)
        result.warnings = opened.warnings
        source, fitted = apply_transforms(opened, make_transforms(options))
        result.transform_notes = tuple(fitted.get("notes", ()))
        result.statistics = DatasetStatistics(source, max_errors=max_errors, has_sample=has_sample)
        with output.StepProgress(source) as progress:
            result.statistics.read(progress, "check", counts_skipped=True)
        if result.statistics.error:
            raise result.statistics.error
        if not result.statistics.num_unreadable:
            source.step_spec  # noqa: B018 - Raises if no episode has steps.
    except SourceError as error:
        result.source_error = output.describe_error(error)
    return result


def _print_json(source: str, result: _Result, *, is_failed: bool) -> None:
    counts = result.counts
    output.print_json(
        {
            "source": source,
            "valid": not counts["num_errors"],
            "failed": bool(counts["num_errors"]) or is_failed,
            **counts,
            "errors": [asdict(error) for error in result.errors],
            "findings": [asdict(finding) for finding in result.findings],
            "warnings": list(result.warnings),
            "notes": result.notes,
            "source_error": result.source_error,
            **({} if result.repairs is None else {"repairs": result.repairs}),
        }
    )


def _print(source: str, result: _Result, *, is_failed: bool) -> None:
    for repair in result.repairs or ():
        print(output.escape_controls(f"repaired: {repair}"))
    if result.repairs == []:
        print("repaired: nothing, so that no copy was written")
    for error in result.errors:
        print(output.name_options(f"error: {error}"))
    num_errors = result.counts["num_errors"]
    num_others = num_errors - len(result.errors) - bool(result.source_error)
    if num_others:
        print(f"... and {num_others:,} more (see --max-errors)")
    if result.source_error:
        output.fail(result.source_error)
    notes = result.notes
    for note in notes:
        output.note(note)
    all_errors = num_errors + sum(finding.severity == "error" for finding in result.findings)
    counts = {"episode": result.counts["episodes"], "step": result.counts["steps"], "error": all_errors}
    optional = {"warning": len(result.warnings), "note": len(notes)}
    counts.update({noun: number for noun, number in optional.items() if number})
    failed = "FAILED" if is_failed else ""
    verdict = "INVALID" if num_errors else failed or ("valid, with notes" if notes else "valid")
    print(f"{source}: {verdict} ({', '.join(output.count(number, noun) for noun, number in counts.items())})")
    if result.findings:
        _print_findings(result.findings)
    found = {finding.check for finding in result.findings}
    if result.repairs is None and found & REPAIRED and is_repairable(expand_path(source)):
        print(f"\nnext  rlds2reverb validate {shlex.quote(source)} --fix OUT  (writes a repaired copy)")
    elif result.repairs is not None and result.findings:
        print(f"\nnot repaired, because the right values are unknown: {', '.join(sorted(found))}")


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
