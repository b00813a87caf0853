"""Keeps the start-up lines of TensorFlow, gRPC, gym and Reverb off stderr.

`RLDS2REVERB_LOG=1` in the environment leaves everything as those libraries have it. Python's own logging, warnings and
`sys.stderr` are not touched, and variables that the user has set keep their values.
"""

from __future__ import annotations

import contextlib
import os


def asked_for() -> bool:
    """Returns whether the user wants the lines of other libraries, by `RLDS2REVERB_LOG`."""
    return os.environ.get("RLDS2REVERB_LOG", "") not in ("", "0")


def quiet_libraries() -> None:
    """Sets what has to be set before TensorFlow, gRPC and gym are first imported."""
    if asked_for():
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with contextlib.suppress(ImportError):
        from gym_notices.notices import notices  # gym prints the notice of its version when it is imported

        notices.clear()
