"""The command group `rlds2reverb`, and the exit code of each kind of error."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Sequence

import click

from rlds2reverb.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidEpisodeError,
    SourceError,
    SpecMismatchError,
    StorageFullError,
    TrackerError,
    TrainingDivergedError,
)
from rlds2reverb.system.installation import explain_left_out
from rlds2reverb.system.signals import Terminated, exit_on_sigint
from rlds2reverb.system.terminal import outlive_readers

from .assignments import AssignmentOption
from .groups import Group
from .output import describe_error, fail, name_options, print_json

OK, USER_ERROR, INVALID_DATA, TEMPORARY_FAILURE, INTERRUPTED = 0, 1, 2, 75, 130

#: Maximum duration of the exit handlers of libraries.
_CLEANUP_SECS = 3.0

#: The commands, whose functions and modules have their names, apart from the one below.
_COMMANDS = (
    *("inspect", "validate", "train", "cluster", "agents", "eval", "export", "ope", "plot"),
    *("convert", "record", "serve", "store", "doctor", "demo"),
)
_NAMES = {"eval": "evaluate"}


class _LazyGroup(Group):
    """A group that imports a command when it is used, so that `doctor` runs even if others cannot be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = _NAMES.get(cmd_name, cmd_name)
        with exit_on_sigint():
            command: click.Command = getattr(importlib.import_module(f"rlds2reverb.cli.{name}"), name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="rlds2reverb")
def cli() -> None:
    """Train agents from offline RL datasets, or convert the datasets into Reverb tables.

    \b
    First steps:
      rlds2reverb inspect hopper_medium-v2.hdf5
      rlds2reverb train --algo iql --data hopper_medium-v2.hdf5 --run-dir runs/iql
      rlds2reverb serve hopper_medium-v2.hdf5
      rlds2reverb record Pendulum-v1 --out pendulum.hdf5

    \b
    SRC, the dataset, is one of:
      hopper_medium-v2.hdf5            file of D4RL, robomimic, Isaac Lab or ManiSkill
      ~/tensorflow_datasets/x/1.0.0    directory of a prepared TFDS dataset
      d4rl_mujoco_hopper/v2-medium     TFDS name
      mujoco/hopper/expert-v0          Minari name or directory
      data/pusht                       LeRobot directory (contains meta/info.json)
      hopper-medium-v2                 D4RL name, if D4RL has downloaded it
      aloha/transfer_cube              ALOHA folder (episode_0.hdf5, ...)
      replay_buffer.zarr               Diffusion Policy folder or zip file
      recordings/*.mcap                MCAP files or ROS 2 bags (--load topics=FILE)
      cartpole_swingup/64px            V-D4RL or DrQ-v2 folder, or V-D4RL file
      Breakout/1/replay_logs           Atari DQN Replay folder
      cube-single-play-v0.npz          OGBench file, or OGBench name; also D4RL's and
                                       NeoRL's columns in an npz file

    \b
    Exit codes:
      0     success
      1     wrong usage, or a missing file or package
      2     invalid data, or training that diverged or failed
      75    temporary failure (server unreachable, disk full, or stopped by
            SIGTERM; training also by Ctrl-C): run the same command again
      130   interrupted by Ctrl-C
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code.

    An error is printed as one sentence on stderr and, with `--json`, as a document with `error` and `exit_code` on
    stdout.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with explain_left_out("this command"):
            return cli.main(args=list(arguments), standalone_mode=False, prog_name="rlds2reverb") or OK
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return USER_ERROR
    except (Exception, KeyboardInterrupt, Terminated) as error:
        code, message = _explain(error, _find_command(arguments))
        if code is None:
            raise
    fail(message)
    if "--json" in arguments:
        print_json({"error": message, "exit_code": code})
    return code


def _find_command(arguments: Sequence[str]) -> click.Command | None:
    """Returns the command of a command line, or None if it cannot be imported."""
    command: click.Command | None = cli
    names = (argument for argument in arguments if not argument.startswith("-"))
    with contextlib.suppress(ImportError):
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), next(names, ""))
        return command
    return None


def name_command_options(command: str, message: str) -> str:
    """Returns a message with the options of a command, also in a process that does not run the command."""
    return name_options(message, _find_command([command]))


def _explain(error: BaseException, command: click.Command | None) -> tuple[int | None, str]:
    """Returns the exit code of an error, or None for a bug in rlds2reverb, and the message for the user."""
    if isinstance(error, click.UsageError):
        hint = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return USER_ERROR, f"{_describe_usage(error)}{hint}"
    if isinstance(error, Terminated):
        return TEMPORARY_FAILURE, "stopped by SIGTERM; run the same command again to continue"
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, StorageFullError):
        return TEMPORARY_FAILURE, error.strerror or str(error)
    if isinstance(error, ConnectionError):
        return TEMPORARY_FAILURE, describe_error(error, command)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):  # A tf.data pipeline lost its server.
        return TEMPORARY_FAILURE, error.message
    has_option = command is not None and any(option.name == "on_invalid" for option in command.params)
    if isinstance(error, InvalidEpisodeError):
        way = "use" if has_option else "write a copy with convert --format rlds"
        return INVALID_DATA, f"{error}; to leave out such episodes, {way} --on-invalid skip_episode"
    if isinstance(error, SourceError) and has_option and re.search(r": episode \d+[:,]", str(error)):
        advice = "to leave out episodes that cannot be read, use --on-invalid skip_episode"
        return INVALID_DATA, f"{describe_error(error, command)}; {advice}"
    if isinstance(error, (SourceError, CheckpointError, CorruptFileError, TrainingDivergedError)):
        return INVALID_DATA, describe_error(error, command)
    if isinstance(error, SpecMismatchError) and error.details != str(error):
        return USER_ERROR, f"{error} {error.details}"
    if _is_from_custom_code(error):
        return None, describe_error(error, command)
    if isinstance(error, OSError) and error.strerror and str(error).startswith("[Errno"):
        subject = "the system refused an operation" if error.filename is None else f"cannot use {str(error.filename)!r}"
        return USER_ERROR, f"{subject}: {error.strerror}; check the paths of this command and their permissions"
    if isinstance(error, ImportError):
        advice = "" if "; " in str(error) else "; run 'rlds2reverb doctor' to check the installation"
        return USER_ERROR, f"{error}{advice}"
    is_known = isinstance(error, (ValueError, OSError, MemoryError, TrackerError))
    return (USER_ERROR if is_known else None), describe_error(error, command)


def _is_from_custom_code(error: BaseException) -> bool:
    """Returns whether the user's own code, such as a hook, has raised an error: only a traceback shows where."""
    libraries = tuple(sysconfig.get_paths().values())
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        path = frame.f_code.co_filename
        if not path.startswith("<frozen") and not os.path.abspath(path).startswith(libraries):
            is_import = isinstance(error, ImportError) and frame.f_code.co_name == "<module>"  # Of a broken package.
            return not is_import and not str(frame.f_globals.get("__name__")).startswith("rlds2reverb")
    return False


def _describe_usage(error: click.UsageError) -> str:
    """Returns click's message as one sentence."""
    if isinstance(error, click.NoSuchOption):
        argument = error.option_name.lstrip("-").replace("-", "_")
        for option in [] if error.ctx is None else error.ctx.command.params:
            if isinstance(option, AssignmentOption) and argument in option.assigned:
                return f"there is no option {error.option_name}; pass {option.describe(argument, ...)}=VALUE"
        similar = f"; did you mean {' or '.join(error.possibilities)}?" if error.possibilities else ""
        return f"there is no option {error.option_name}{similar}"
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        hint = error.param_hint or (error.param and error.ctx and error.param.get_error_hint(error.ctx)) or ""
        name, message = str(hint).replace("'", ""), error.message.rstrip(".")
        return f"{name} {message}" if message.startswith("must ") else f"{name}: {_uncapitalize(message)}"
    return _uncapitalize(error.format_message().rstrip("."))


def _uncapitalize(message: str) -> str:
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def main() -> None:
    """Runs the console script. Skips destructors at exit, because the one of a blocked Reverb writer never returns."""
    outlive_readers()
    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The command has ended.
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow deletes its temporary files in an exit handler.
    cleanup = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    cleanup.start()
    cleanup.join(_CLEANUP_SECS)
    os._exit(code)
