"""Groups of commands."""

from __future__ import annotations

from typing import Any

import click

from rlds2reverb._system.text import suggest


class Group(click.Group):
    """A group that suggests a command for an unknown one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Returns the name, the command and its arguments."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"there is no command {args[0]!r}{suggest(args[0], self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)
