"""Groups of commands."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb.system.text import suggest


class Group(click.Group):
    """A group that suggests a command for an unknown one, and refuses options that are passed repeatedly."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Returns the name, the command and its arguments."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"there is no command {args[0]!r}{suggest(args[0], self.list_commands(ctx))}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _require_single_values(click.Context(command, ctx, info_name=name), rest)
        return name, command, rest


def _require_single_values(ctx: click.Context, arguments: list[str]) -> None:
    """Raises `UsageError` if an option that is not repeatable has several values, of which click uses the last."""
    try:
        _, _, order = ctx.command.make_parser(ctx).parse_args(list(arguments))
    except click.UsageError:  # The command raises it again.
        return
    for number, parameter in enumerate(order):
        is_flag = isinstance(parameter, click.Option) and parameter.is_flag and not parameter.secondary_opts
        if parameter in order[:number] and not parameter.multiple and not is_flag:
            raise click.UsageError(f"{parameter.opts[0]} must be passed only once", ctx)
