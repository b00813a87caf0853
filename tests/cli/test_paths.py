"""Rules of the paths on the command line, for the options of all commands."""

import click
import pytest

from rlds2reverb.cli import run
from rlds2reverb.cli.declarations import PATH
from rlds2reverb.cli.main import cli


def list_parameters(group=cli, names=()):
    """Returns the words of each command with each of its parameters."""
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            found += list_parameters(command, (*names, name))
        else:
            found += [((*names, name), parameter) for parameter in command.params]
    return found


def list_bare_paths():
    return [entry for entry in list_parameters() if isinstance(entry[1].type, click.Path)]


def test_every_path_has_the_type_that_refuses_an_empty_string():
    assert len(list_bare_paths()) > 20
    for names, parameter in list_bare_paths():
        assert isinstance(parameter.type, type(PATH)), (names, parameter.name)


def test_every_file_to_write_is_checked_before_the_command_runs():
    for names, parameter in list_bare_paths():
        assert parameter.type.dir_okay or parameter.type.exists, (names, parameter.name)


@pytest.mark.parametrize(
    "command", ["train --algo bc --data none --run-dir", "convert x --out", "ope . --data x --out"]
)
def test_empty_paths_are_reported(capsys, command):
    assert run([*command.split(), ""]) == 1
    assert "must be a path, got ''" in capsys.readouterr().err
