"""Suppresses the start-up messages that TensorFlow, gRPC, gym and Reverb print to stderr.

Setting `RLDS2REVERB_LOG=1` in the environment turns the suppression off. Python's own logging, warnings and
`sys.stderr` are never touched, and environment variables that the user has set keep their values.
"""

from __future__ import annotations

import contextlib
import os


def library_logs_enabled() -> bool:
    """Returns whether `RLDS2REVERB_LOG` asks for the messages of other libraries."""
    return os.environ.get("RLDS2REVERB_LOG", "") not in ("", "0")


def quiet_libraries() -> None:
    """Sets the log levels that TensorFlow, gRPC and gym read on their first import."""
    if library_logs_enabled():
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with contextlib.suppress(ImportError):
        from gym_notices.notices import notices  # gym prints its version's notice on import

        notices.clear()
