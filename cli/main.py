"""The group of commands, and what their errors mean to a shell."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Sequence

import click

from rlds2reverb.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidEpisodeError,
    SourceError,
    SpecMismatchError,
    StorageFullError,
    TrainingDivergedError,
)

from .output import fail, print_json
from .quiet import silence_logs
from .stopping import Terminated

OK, USER_ERROR, INVALID_DATA, MAY_BE_RETRIED, INTERRUPTED = 0, 1, 2, 75, 130

#: How long libraries may take at the end.
_CLEANING_SECS = 3.0

#: The module and the function of each command.
_COMMANDS = {name: (name, name) for name in ("convert", "inspect", "validate", "serve", "train", "doctor", "demo")}
_COMMANDS |= {"eval": ("evaluate", "evaluate"), "plot": ("plot", "plot")}


class _LazyGroup(click.Group):
    """A group that imports a command when it is used, so that `doctor` runs where the others cannot be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, function = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"rlds2reverb.cli.{module}"), function)
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

    Exit codes: 0 done, 1 wrong use, 2 invalid data, 75 may be retried: the server did not
    answer, the disk is full, or SIGTERM came.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code.

    An error becomes one sentence on stderr, and with `--json` a document with `error` and `exit_code` on stdout.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return cli.main(args=list(arguments), standalone_mode=False, prog_name="rlds2reverb") or OK
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return USER_ERROR
    except (Exception, KeyboardInterrupt, Terminated) as error:
        code, sentence = _meaning(error)
        if code is None:
            raise
    fail(sentence)
    if "--json" in arguments:
        print_json({"error": sentence, "exit_code": code})
    return code


def _meaning(error: BaseException) -> tuple[int | None, str]:
    """Returns the exit code that an error stands for, None if it is a fault of ours, and the sentence for the user."""
    if isinstance(error, click.UsageError):
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return USER_ERROR, f"{error.format_message()}{where}"
    if isinstance(error, Terminated):
        return MAY_BE_RETRIED, "stopped by SIGTERM; start the same command again to continue"
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "stopped"
    if isinstance(error, StorageFullError):
        return MAY_BE_RETRIED, error.strerror or str(error)
    if isinstance(error, ConnectionError):
        return MAY_BE_RETRIED, str(error)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):  # of data sets whose server is gone
        return MAY_BE_RETRIED, error.message
    if isinstance(error, (SourceError, InvalidEpisodeError, CheckpointError, CorruptFileError, TrainingDivergedError)):
        return INVALID_DATA, str(error)
    if isinstance(error, SpecMismatchError) and error.details != str(error):
        return USER_ERROR, f"{error} {error.details}"
    if isinstance(error, ImportError):
        return USER_ERROR, f"{error}; 'rlds2reverb doctor' says what is wrong with the installation"
    return (USER_ERROR if isinstance(error, (ValueError, OSError, MemoryError)) else None), str(error)


def main() -> None:
    """The console script. Leaves without destructors: those of a blocked Reverb writer would never end."""
    silence_logs()
    code = run()
    sys.stdout.flush()
    sys.stderr.flush()
    cleaning = threading.Thread(target=atexit._run_exitfuncs, daemon=True)  # TensorFlow deletes its temporary files
    cleaning.start()
    cleaning.join(_CLEANING_SECS)
    os._exit(code)
