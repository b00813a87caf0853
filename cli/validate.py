"""`rlds2reverb validate`: checks every episode of a dataset, or every file of a converted directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import click

from rlds2reverb.episode_batches import EpisodeBatch
from rlds2reverb.episodes import Episode, find_problems
from rlds2reverb.errors import CheckpointError, Problem, SourceError
from rlds2reverb.left_out import LeftOut
from rlds2reverb.locations import is_table_directory
from rlds2reverb.specs import Nest

from . import checks, directories, output
from .main import INVALID_DATA, OK
from .options import (
    GroupedCommand,
    apply_transform_options,
    open_source,
    parameter_names,
    reading_options,
    source_options,
    transform_options,
)
from .output import json_option

_HEADINGS = {"Input": parameter_names(reading_options), "Preprocessing": parameter_names(transform_options)}


@dataclass
class _Findings(LeftOut):
    """The counts, problems and notes of one dataset."""

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

    def add(self, episode: Episode, step_spec: Nest) -> None:
        """Checks and counts one episode."""
        problems = find_problems(episode, step_spec)
        self.problems += problems[: max(0, self.max_problems - len(self.problems))]
        self.num_problems += len(problems)
        self.episodes += 1
        self.steps += episode.num_steps
        self.unterminated += episode.unterminated
        self.count_left_out(EpisodeBatch([episode]))

    @property
    def notes(self) -> list[str]:
        """The notes on lost data and on transforms."""
        return [output.name_options(note) for note in (*self.describe_left_out(), *self.transform_notes)]


@click.command(cls=GroupedCommand, headings=_HEADINGS)
@source_options
@transform_options
@click.option(
    "--max-problems",
    default=20,
    type=checks.at_least_0,
    show_default=True,
    metavar="N",
    help="Maximum number of problems to list; all of them are counted.",
)
@json_option
def validate(as_json: bool, max_problems: int, **options: Any) -> int:
    """Check every episode of a dataset and list the problems.

    \b
    Examples:
      rlds2reverb validate hopper_medium-v2.hdf5
      rlds2reverb validate lift_ph.hdf5 --cut-at-terminal
      rlds2reverb validate hopper/

    Each problem names its episode, step and field. Warnings concern the dataset as a whole. Notes report valid data
    that conversion loses, such as transitions without a next observation. If SRC is a directory that convert --out
    wrote, its files are compared with their checksums instead.

    The exit code is 2 if there is a problem, else 0.
    """
    if is_table_directory(options["source"]):
        return _validate_directory(options["source"], as_json=as_json)
    findings = _check(options, max_problems)
    if as_json:
        _print_json(options["source"], findings)
    else:
        _print(options["source"], findings)
    return INVALID_DATA if findings.num_problems else OK


def _check(options: dict[str, Any], max_problems: int) -> _Findings:
    findings = _Findings(max_problems)
    try:
        opened = open_source(options)
        findings.warnings = opened.warnings
        source, statistics = apply_transform_options(opened, options)
        findings.transform_notes = tuple(statistics.get("notes", ()))
        with output.StepProgress(source) as progress:
            for episode in source:
                progress("check", episode)
                findings.add(episode, source.step_spec)
    except SourceError as error:
        findings.source_error = output.describe_error(error)
        findings.num_problems += 1
    return findings


def _print_json(source: str, findings: _Findings) -> None:
    names = ("episodes", "steps", "unterminated", *vars(LeftOut()), "num_problems")
    output.print_json(
        {
            "source": source,
            "valid": not findings.num_problems,
            **{name: getattr(findings, name) for name in names},
            "problems": [asdict(problem) for problem in findings.problems],
            "warnings": list(findings.warnings),
            "notes": findings.notes,
            "source_error": findings.source_error,
        }
    )


def _print(source: str, findings: _Findings) -> None:
    for problem in findings.problems:
        print(f"problem: {problem}")
    num_others = findings.num_problems - len(findings.problems) - bool(findings.source_error)
    if num_others:
        print(f"... and {num_others:,} more (see --max-problems)")
    if findings.source_error:
        output.fail(findings.source_error)
    notes = findings.notes
    if findings.unterminated:
        verb = "ends" if findings.unterminated == 1 else "end"
        episodes = output.count(findings.unterminated, "episode")
        notes.insert(0, f"{episodes} {verb} without a terminal or a timeout; treated as truncated")
    for note in notes:
        output.note(note)
    counts = {"episode": findings.episodes, "step": findings.steps, "problem": findings.num_problems}
    optional = {"warning": len(findings.warnings), "note": len(notes)}
    counts.update({noun: number for noun, number in optional.items() if number})
    verdict = "INVALID" if findings.num_problems else "valid, with notes" if notes else "valid"
    print(f"{source}: {verdict} ({', '.join(output.count(number, noun) for noun, number in counts.items())})")


def _validate_directory(path: str, *, as_json: bool) -> int:
    """Compares the files of a converted directory with their checksums, and prints what it contains."""
    error_message, description = "", {}
    try:
        description = directories.describe(path, verify=True)
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
        output.print_facts(f"{path}: valid, all checksums match", directories.make_facts(description))
    return INVALID_DATA if error_message else OK
