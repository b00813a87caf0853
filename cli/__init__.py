"""The command line `rlds2reverb` (or `r2r`): parses options, calls the layers below, and prints."""

import os
import signal
from collections.abc import Sequence

__all__ = ["main", "run"]


def main() -> None:
    """Runs the console script."""
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:  # As `exit_on_sigint`, which takes too long to import.
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from .main import main as run_and_exit
    from .quiet import silence_logs

    silence_logs()
    signal.signal(signal.SIGINT, previous)
    run_and_exit()


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; see `main.run`."""
    from .main import run as run_command

    return run_command(arguments)
