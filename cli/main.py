"""The group of commands, and what their errors mean to a shell."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from rlds2reverb.errors import InvalidEpisode, SourceError

from .output import fail
from .quiet import silence_logs

OK, USER_ERROR, INVALID_DATA, MAY_BE_RETRIED = 0, 1, 2, 75


_COMMANDS = ("convert", "inspect", "validate", "serve", "doctor", "demo")


class _LazyGroup(click.Group):
    """A group that imports a command when it is used, so that `doctor` runs where the others cannot be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"rlds2reverb.cli.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="rlds2reverb")
def cli() -> None:
    """From an offline RL data set (D4RL, RLDS/TFDS, Minari, robomimic) to trajectories in Reverb.

    \b
    SRC is one of
      hopper_medium-v2.hdf5           a D4RL or robomimic file
      ~/tensorflow_datasets/x/1.0.0   a directory that TFDS prepared
      d4rl_mujoco_hopper/v2-medium    a TFDS name
      mujoco/hopper/expert-v0         a Minari name, or its directory

    \b
    First steps
      rlds2reverb inspect hopper_medium-v2.hdf5            what is in it
      rlds2reverb convert hopper_medium-v2.hdf5 --serve    put it into a table and serve it

    Exit codes: 0 done, 1 wrong use, 2 invalid data, 75 the server did not answer, or the disk is full (may be retried).
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; errors become one sentence on stderr."""
    try:
        return cli.main(args=arguments, standalone_mode=False, prog_name="rlds2reverb") or OK
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return USER_ERROR
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        fail(f"{error.format_message()}{where}")
        return USER_ERROR
    except (click.Abort, KeyboardInterrupt):
        fail("stopped")
        return 130
    except (SourceError, InvalidEpisode) as error:
        fail(str(error))
        return INVALID_DATA
    except ConnectionError as error:
        fail(str(error))
        return MAY_BE_RETRIED
    except ImportError as error:
        fail(f"{error}; 'rlds2reverb doctor' says what is wrong with the installation")
        return USER_ERROR
    except (ValueError, OSError, MemoryError) as error:
        return _fail_with(error)


def _fail_with(error: Exception) -> int:
    from rlds2reverb.errors import CheckpointError, DamagedFile, StorageFull

    fail(error.strerror if isinstance(error, StorageFull) else str(error))
    if isinstance(error, StorageFull):
        return MAY_BE_RETRIED
    return INVALID_DATA if isinstance(error, (CheckpointError, DamagedFile)) else USER_ERROR


def main() -> None:
    """The console script. Leaves without destructors: those of a blocked Reverb writer would never end."""
    silence_logs()
    code = run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
