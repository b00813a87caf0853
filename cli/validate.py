"""`rlds2reverb validate`: everything that is wrong with a data set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from rlds2reverb.episodes import find_problems
from rlds2reverb.errors import Problem, SourceError

from . import output
from .options import open_source, source_options, transform_options, transformed
from .output import json_option

INVALID = 2


@click.command()
@source_options
@transform_options
@click.option("--max-problems", default=20, show_default=True, help="How many problems to list.")
@json_option
def validate(as_json: bool, max_problems: int, **options: Any) -> int:
    """Check every episode of a data set and list what is wrong.

    Each problem comes with its episode, step and field. Exit code 2 if there is any, 0 if there is none.
    """
    problems: list[Problem] = []
    num_problems = num_episodes = num_steps = open_ends = 0
    refusal = ""
    try:
        source, _ = transformed(open_source(options), options)
        with output.StepProgress(source) as progress:
            for episode in source:
                progress("check", episode)
                found = find_problems(episode, source.step_spec)
                problems += found[: max(0, max_problems - len(problems))]
                num_problems += len(found)
                num_episodes, num_steps = num_episodes + 1, num_steps + episode.num_steps
                open_ends += episode.open_end
    except SourceError as error:
        refusal = str(error)
    valid = not num_problems and not refusal
    if as_json:
        output.print_json(
            {
                "source": options["source"],
                "valid": valid,
                "episodes": num_episodes,
                "steps": num_steps,
                "open_ends": open_ends,
                "num_problems": num_problems + bool(refusal),
                "problems": [asdict(problem) for problem in problems],
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
    if open_ends:
        print(f"note: open ends in {output.counted(open_ends, 'episode')}; kept as truncated")
    counts = {"episode": num_episodes, "step": num_steps, "problem": num_problems + bool(refusal)}
    counted = ", ".join(output.counted(number, word) for word, number in counts.items())
    print(f"{options['source']}: {'valid' if valid else 'INVALID'} ({counted})")
    return 0 if valid else INVALID
