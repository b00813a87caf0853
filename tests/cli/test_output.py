"""Messages of the library, in which the command line names its options."""

import io
import pickle
import re
import sys
from types import SimpleNamespace

import click
import pytest

from rlds2reverb.cli import output
from rlds2reverb.cli.assignments import AssignmentOption
from rlds2reverb.cli.output import describe_error, name_options
from rlds2reverb.errors import ArgumentError, CheckpointError, Message
from rlds2reverb.system.task_process import TaskProcess

COMMAND = click.Command(
    "x",
    params=[
        click.Option(["--download"], is_flag=True),
        click.Option(["--extra-field", "extra_fields"]),
        click.Option(["--layout"]),
        click.Option(["--resume/--no-resume"]),
        click.Option(["--no-verify"], is_flag=True),
        click.Option(["--drop-field", "drop_fields"]),
        click.Option(["--env", "environment"]),
        click.Option(["--sequence-length"]),
    ],
)


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO, "reading: 5 steps, 50 %, "), (Screen, "reading .* 50 % ")])
def test_progress_of_a_stage_has_a_share_and_a_rate(stream, shown, monkeypatch):
    monkeypatch.setattr(output, "SECS_BETWEEN_LINES", 0)
    monkeypatch.setattr(sys, "stderr", stream())
    with output.StepProgress(SimpleNamespace(num_rows=10, num_episodes=2)) as progress:
        progress("reading", SimpleNamespace(num_transitions=5, index=0))
    assert re.search(shown + r".*\d steps/s", sys.stderr.getvalue())


@pytest.mark.parametrize(
    ("message", "in_python", "in_command"),
    [
        (Message("allow the download", download=True), "(download=True)", "(--download)"),
        (Message("fix the name", extra_fields=...), "(extra_fields)", "(--extra-field)"),
        (
            Message("start again", layout="packed", resume=False),
            "(layout='packed' or resume=False)",
            "(--layout packed or --no-resume)",
        ),
        (Message("start without verification", verify=False), "(verify=False)", "(--no-verify)"),
        (Message("drop it", drop_fields=["a/b"]), "(drop_fields=['a/b'])", "(--drop-field a/b)"),
        (Message("drop it", DropFields=...), "(DropFields)", "(--drop-field)"),
        (Message("evaluation can be disabled", env=None), "(env=None)", "(--env none)"),
        (Message("was 2, is now 3", about="length"), "length was 2", "--sequence-length was 2"),
        (Message("is no option here", about="other", more=1), "other is no option here (more=1)", "(more=1)"),
        ("a path/" + Message("; use one", layout=...), "a path/; use one (layout)", "a path/; use one (--layout)"),
        (
            "seed_0: " + Message("was 2", about="length", resume=False) + ", see there",
            "seed_0: length was 2 (resume=False), see there",
            "seed_0: --sequence-length was 2 (--no-resume), see there",
        ),
    ],
)
def test_messages_name_arguments_in_python_and_options_in_commands(message, in_python, in_command):
    assert in_python in message and name_options(message, None) == message
    assert in_command in name_options(message, COMMAND)
    copy = pickle.loads(pickle.dumps(CheckpointError(message)))
    assert str(copy) == message and describe_error(copy, COMMAND) == name_options(message, COMMAND)


def test_errors_make_messages_of_their_arguments():
    error = ArgumentError("must be one of a, b", about="layout", download=True)
    assert isinstance(error, ValueError) and str(error) == "layout must be one of a, b (download=True)"
    assert describe_error(error, COMMAND) == "--layout must be one of a, b (--download)"
    assert describe_error(ValueError("layout is no field"), COMMAND) == "layout is no field"


NAMED = Message("must be above 0", about="length", resume=False)
IN_COMMAND = "--sequence-length must be above 0 (--no-resume)"


@pytest.mark.parametrize(
    "text",
    [
        f"run a: {NAMED}",
        "run a: {}".format(NAMED),  # noqa: UP032
        "run a: %s" % NAMED,  # noqa: UP031
        "run a: " + NAMED,
        ": ".join(["run a", NAMED]),
        "".join(["run a: ", str(NAMED)]),
        f"run a: {ValueError(NAMED)}",
        f"{ArgumentError(f'run a: {NAMED}')}",
    ],
)
def test_interpolated_messages_keep_their_arguments(text):
    assert name_options(text, COMMAND) == f"run a: {IN_COMMAND}"


def test_messages_inside_messages_and_words_keep_their_names():
    nested = Message(f"cannot start: {NAMED}", about="env", value="X")
    assert name_options(f"x: {nested}", COMMAND) == f"x: --env X cannot start: {IN_COMMAND}"
    assert name_options(Message("fails", about="env", value=r"a\1b"), COMMAND) == r"--env a\1b fails"
    assert name_options("episode_length must be above 0 (resume=False)", COMMAND).startswith("episode_length must")


def fail_with_a_message():
    raise ValueError(f"part 1: {ArgumentError('is too long', about='length', value=7)}")


def test_messages_from_other_processes_keep_their_arguments():
    with TaskProcess(fail_with_a_message) as process, pytest.raises(ValueError) as raised:
        process.result()
    assert describe_error(raised.value, COMMAND) == "part 1: --sequence-length 7 is too long"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (..., "--load name"), (True, "--load name"), (False, "--load name=false"), (None, "--load name=none"),
        (3, "--load name=3"), (0, "--load name=0"), (["a", "b"], "--load name=a,b"), ([], "--load name=none"),
        ({"discount": 1.0}, "--load name=discount:1.0"), ("boundary", "--load name=boundary"),
    ],
)  # fmt: skip
def test_assignments_are_described_as_they_are_written(value, written):
    option = AssignmentOption(["--load", "load_arguments"], assigned={"argument": "name"})
    assert option.describe("argument", value) == written
