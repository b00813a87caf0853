"""Hides the warnings and notices of other libraries, and shows a status line while they load."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

from rlds2reverb.system import logs
from rlds2reverb.system.signals import exit_on_sigint
from rlds2reverb.system.terminal import make_console


def silence_logs() -> None:
    """Hides Python warnings and log lines of other libraries, unless `RLDS2REVERB_LOG=1` is set.

    `rlds2reverb.system.logs` has already disabled the log lines of their native code.
    """
    if logs.library_logs_enabled():
        return
    warnings.simplefilter("ignore")
    for name in ("urllib3", "matplotlib"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.ERROR)
    absl_logging.set_stderrthreshold(absl_logging.ERROR)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Hides the warnings of packages and their output on stderr, also that of native code, while they are imported."""
    if logs.library_logs_enabled():
        yield
        return
    with logs.hide_native_stderr(), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def import_quietly(*names: str) -> None:
    """Imports slow packages without their notices, with a status line on a terminal."""
    with status("loading TensorFlow and Reverb"), exit_on_sigint(), quiet_imports():
        for name in names:
            importlib.import_module(name)


@contextlib.contextmanager
def hide_other_processes() -> Iterator[None]:
    """Hides what child processes and loggers write to stderr while the body runs, but not the messages of this one."""
    with os.fdopen(os.dup(2), "w") as own, logs.hide_native_stderr(), contextlib.redirect_stderr(own):
        yield


def status(activity: str) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which stderr shows an animated status line, if it is a terminal."""
    return make_console().status(f"{activity} ...")
