"""Names the options of a command where a message of the library names Python arguments."""

from __future__ import annotations

import re

import click

#: `name=value`, where the value is a word, a number or a list.
_WITH_VALUE = r"(?<![\w.\"'\[-])(?P<name>[a-z]\w*)=(?P<value>\[[^\]]*\]|[\w.]+)"
#: A name of several words that is no key, path or call.
_BARE = r"(?<![\w.\"'\[/-])(?P<bare>[a-z]+(?:_[a-z]+)+)(?![\w.\"'\]/(=])"
_ARGUMENT = re.compile(f"{_WITH_VALUE}|{_BARE}")


def name_options(message: str, command: click.Command | None) -> str:
    """Returns a message in which arguments are named as options of a command: `--download` for `download=True`.

    Args:
      message: a message of the library.
      command: the running command; None leaves the message unchanged.
    """
    parameters = [] if command is None else [each for each in command.params if isinstance(each, click.Option)]
    options = {each.name: each.opts[0] for each in parameters}

    def replace(match: re.Match[str]) -> str:
        name, value, bare = match.groups()
        if (name or bare) not in options:
            return match[0]
        return options[name or bare] if bare or value == "True" else f"{options[name]} {value}"

    return _ARGUMENT.sub(replace, message)
