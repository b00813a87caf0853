"""Keeps the warnings and notices of other libraries away from the user's terminal, and shows that something happens."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator

from rich.console import Console

from rlds2reverb import _logs


def silence_logs() -> None:
    """Drops the Python warnings and log lines of other libraries, unless `RLDS2REVERB_LOG=1` asks for them.

    Their native lines are off already: see `rlds2reverb._logs`.
    """
    if _logs.asked_for():
        return
    warnings.simplefilter("ignore")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.ERROR)
    absl_logging.set_stderrthreshold(absl_logging.ERROR)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Hides what packages print and warn of while they are imported."""
    if _logs.asked_for():
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def import_quietly(*names: str) -> None:
    """Imports slow packages without their notices; meanwhile a terminal shows what is going on."""
    with status("loading TensorFlow and Reverb"), quiet_imports():
        for name in names:
            importlib.import_module(name)


@contextlib.contextmanager
def status(doing: str) -> Iterator[None]:
    """Shows a moving line on stderr while the body runs, if that is a terminal."""
    with Console(file=sys.stderr, highlight=False).status(f"{doing} ..."):
        yield
