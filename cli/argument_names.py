"""Replaces Python arguments in messages of the library by the options of a command."""

from __future__ import annotations

import re

import click

#: `name=value`, where the value is a word, a number, a quoted string or a list.
_WITH_VALUE = r"(?<![\w.\"'\[-])(?P<name>[a-z]\w*)=(?P<value>\[[^\]]*\]|'[^']*'|[\w.]+)"
#: A name of several words, such as `max_size`, that is not a key, a path or a call.
_BARE = r"(?<![\w.\"'\[/-])(?P<bare>[a-z]+(?:_[a-z]+)+)(?![\w.\"'\]/(=])"
#: `name=` without a value, as in "pass env= to choose an environment".
_WITHOUT_VALUE = r"(?<![\w.\"'\[-])(?P<empty>[a-z]\w*)=(?=[\s;,.)]|$)"
_ARGUMENT = re.compile(f"{_WITH_VALUE}|{_WITHOUT_VALUE}|{_BARE}")


def name_options(message: str, command: click.Command | None) -> str:
    """Returns a message with options of a command in place of arguments: `--download` for `download=True`.

    Args:
      message: a message of the library.
      command: the running command; None leaves the message unchanged.
    """
    parameters = command.params if command else []
    options = {each.name: each.opts[0] for each in parameters if isinstance(each, click.Option)}

    def replace(match: re.Match[str]) -> str:
        name, value, empty, bare = match.groups()
        if value == "False" and f"no_{name}" in options:
            return options[f"no_{name}"]
        option = options.get(name or empty or bare)
        if option is None:
            return match[0]
        if value is None or value == "True":
            return option
        unquoted = value.strip("'")
        return f"{option} {unquoted}"

    return _ARGUMENT.sub(replace, message)
