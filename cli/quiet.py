"""Keeps the start-up noise of TensorFlow, gRPC, gym and Reverb's C++ away from the user's terminal."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator


def silence_native_logs() -> None:
    """Sends what C++ libraries write to stderr to nowhere; Python's own stderr keeps its terminal.

    Has to run before TensorFlow is imported. `RLDS2REVERB_NATIVE_LOGS=1` leaves everything as it is.
    """
    if os.environ.get("RLDS2REVERB_NATIVE_LOGS") == "1":
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    warnings.simplefilter("ignore")
    sys.stderr.flush()
    own = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    sys.stderr = os.fdopen(own, "w", buffering=1)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    from absl import logging as absl_logging

    absl_logging.set_verbosity(absl_logging.ERROR)
    absl_logging.set_stderrthreshold(absl_logging.ERROR)


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """For imports of packages that print notices (gym does)."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def import_quietly(*names: str) -> None:
    """Imports slow and talkative packages, so that later imports of them say nothing."""
    with quiet_imports():
        for name in names:
            importlib.import_module(name)
