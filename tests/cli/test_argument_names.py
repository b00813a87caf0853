"""Messages of the library, in which the command line names its options."""

import click
import pytest

from rlds2reverb.cli.argument_names import name_options

COMMAND = click.Command(
    "x",
    params=[
        click.Option(["--download"], is_flag=True),
        click.Option(["--max-episode-steps"]),
        click.Option(["--extra-field", "extra_fields"]),
        click.Option(["--steps"]),
        click.Option(["--layout"]),
        click.Option(["--no-resume"], is_flag=True),
        click.Option(["--drop-field", "drop_fields"]),
        click.Option(["--env"]),
        click.Option(["--n-step"]),
        click.Option(["--sequence-length"]),
    ],
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("pass download=True to download it", "pass --download to download it"),
        ("pass max_episode_steps=N (the limit)", "pass --max-episode-steps N (the limit)"),
        ("or convert with layout='packed' and resume=False", "or convert with --layout packed and --no-resume"),
        ("pass layout= to choose one, or steps=", "pass --layout to choose one, or --steps"),
        ("max_episode_steps must be >= 1, got 0", "--max-episode-steps must be >= 1, got 0"),
        (
            "drop it from extra_fields, or pass extra_fields=['a', 'b']",
            "drop it from --extra-field, or pass --extra-field ['a', 'b']",
        ),
        ("drop it with drop_fields=['observation/mission']", "drop it with --drop-field observation/mission"),
        ("pass env=None for no evaluation", "pass --env none for no evaluation"),
        ("drop the field with transforms.DropFields", "drop the field with --drop-field"),
        ("different arguments: layout of x was 'a'", "different arguments: --layout of x was 'a'"),
        ("different arguments: length of x was 2", "different arguments: --sequence-length of x was 2"),
        ("arguments: adder was x; tables was y", "arguments: --sequence-length, --n-step was x; tables was y"),
        ("arguments: tables was x", "arguments: tables was x"),
        ("other_name=1 and steps are not options here", "other_name=1 and steps are not options here"),
        ("step['max_episode_steps'], a/max_episode_steps and max_episode_steps()",) * 2,
    ],
)
def test_name_options_replaces_argument_names(message, expected):
    assert name_options(message, COMMAND) == expected
    assert name_options(message, None) == message
