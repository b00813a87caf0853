"""The parameters of all commands, for tests of rules that each of them follows."""

import click

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
