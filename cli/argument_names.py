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
#: A name of any kind, as in "different arguments: stride was 1, is now 2" or "algo must be ...", or a transform.
_NAMED = r"(?P<named>(?<=arguments: )[a-z]\w*|transforms\.\w+|^[a-z]\w*(?= (?:must|is|contains|requires|cannot)\b))"
_ARGUMENT = re.compile(f"{_NAMED}|{_WITH_VALUE}|{_WITHOUT_VALUE}|{_BARE}")
#: Parameters of commands that stand for an argument of the library with a different name.
_PARAMETERS = {
    "env": ("environment",),
    "adder": ("sequence_length", "n_step"),
    "length": ("sequence_length",),
    "n": ("n_step",),
    "tables": ("table_names",),
    "transforms.DropFields": ("drop_fields",),
}


def name_options(message: str, command: click.Command | None) -> str:
    """Returns a message with options of a command in place of arguments: `--download` for `download=True`.

    Args:
      message: a message of the library.
      command: the running command; None leaves the message unchanged.
    """
    parameters = command.params if command else []
    options = {parameter.name: parameter.opts[0] for parameter in parameters if isinstance(parameter, click.Option)}

    def replace(match: re.Match[str]) -> str:
        named, name, value, empty, bare = match.groups()
        if value == "False" and f"no_{name}" in options:
            return options[f"no_{name}"]
        argument = named or name or empty or bare
        names = [argument] if argument in options else _PARAMETERS.get(argument, ())
        option = ", ".join(options[name] for name in names if name in options)
        if not option:
            return match[0]
        if value is None or value == "True":
            return option
        return f"{option} {'none' if value == 'None' else _unquote(value)}"

    return _ARGUMENT.sub(replace, message)


def _unquote(value: str) -> str:
    """Returns a quoted string, or the only one in a list, without quotes; other values are returned unchanged."""
    match = re.fullmatch(r"\['([^']*)'\]|'([^']*)'", value)
    return value if match is None else match[1] or match[2] or ""
