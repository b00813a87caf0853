"""`rlds2reverb validate`: everything that is wrong with a data set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from rlds2reverb.episodes import discontinuity_place, find_problems, notes
from rlds2reverb.errors import CheckpointError, Problem, SourceError

from . import checks, directories, output
from .options import open_source, source_options, transform_options, transformed
from .output import json_option

INVALID = 2


@click.command()
@source_options
@transform_options
@click.option(
    "--max-problems", default=20, type=checks.at_least_0, show_default=True, help="How many problems to list."
)
@json_option
def validate(as_json: bool, max_problems: int, **options: Any) -> int:
    """Check every episode of a data set and list what is wrong.

    Each problem comes with its episode, step and field, after the warnings about the data set as a whole. Notes name
    what is no problem and is lost all the same: transitions without a successor, next_observations that are not the
    observation of the next row (more than 1 % of them are a problem). The files of a directory that convert --out wrote
    are compared with their checksums. Exit code 2 if there is any problem, else 0.
    """
    if directories.is_ours(options["source"]):
        return _validate_directory(options["source"], as_json=as_json)
    problems: list[Problem] = []
    warnings: tuple[str, ...] = ()
    num_problems = num_episodes = num_steps = unterminated = dropped_last_transition = num_jumps = 0
    first_jump = refusal = ""
    statistics: dict[str, Any] = {}
    try:
        opened = open_source(options)
        warnings = opened.warnings
        source, statistics = transformed(opened, options)
        with output.StepProgress(source) as progress:
            for episode in source:
                progress("check", episode)
                found = find_problems(episode, source.step_spec)
                problems += found[: max(0, max_problems - len(problems))]
                num_problems += len(found)
                num_episodes, num_steps = num_episodes + 1, num_steps + episode.num_steps
                unterminated += episode.unterminated
                dropped_last_transition += episode.dropped_last_transition
                num_jumps += len(episode.discontinuities)
                first_jump = first_jump or discontinuity_place(episode)
    except SourceError as error:
        refusal = str(error)
    valid = not num_problems and not refusal
    found_notes = [*notes(dropped_last_transition, num_jumps, first_jump), *statistics.get("notes", [])]
    if as_json:
        output.print_json(
            {
                "source": options["source"],
                "valid": valid,
                "episodes": num_episodes,
                "steps": num_steps,
                "unterminated": unterminated,
                "dropped_last_transition": dropped_last_transition,
                "discontinuities": num_jumps,
                "num_problems": num_problems + bool(refusal),
                "problems": [asdict(problem) for problem in problems],
                "warnings": list(warnings),
                "notes": found_notes,
                "refused": refusal or None,
            }
        )
        return 0 if valid else INVALID
    for problem in problems:
        print(problem)
    if num_problems > len(problems):
        print(f"... and {num_problems - len(problems):,} more (--max-problems)")
    if refusal:
        output.fail(refusal)
    if unterminated:
        found_notes.insert(0, f"open ends in {output.counted(unterminated, 'episode')}; kept as truncated")
    for note in found_notes:
        print(f"note: {note}")
    counts = {"episode": num_episodes, "step": num_steps, "problem": num_problems + bool(refusal)}
    counts |= {word: len(said) for word, said in (("warning", warnings), ("note", found_notes)) if said}
    counted = ", ".join(output.counted(number, word) for word, number in counts.items())
    verdict = ("valid, with notes" if found_notes else "valid") if valid else "INVALID"
    print(f"{options['source']}: {verdict} ({counted})")
    return 0 if valid else INVALID


def _validate_directory(source: str, *, as_json: bool) -> int:
    """Compares the files of a directory of ours with their sha256, and says what is in it."""
    refusal, found = "", {}
    try:
        found = directories.described(source, verify=True)
    except CheckpointError as error:
        refusal = str(error)
    if as_json:
        output.print_json({"source": source, "valid": not refusal, "refused": refusal or None, **found})
    elif refusal:
        output.fail(refusal)
        print(f"{source}: INVALID")
    else:
        output.print_facts(f"{source}: valid, every file is as it was written", directories.facts(found))
    return INVALID if refusal else 0
