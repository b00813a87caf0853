"""Uses of dm-reverb internals, for servers and Reverb's own writers: destructors and log messages."""

from __future__ import annotations

import atexit
import ctypes

import reverb

from rlds2reverb._server_process.quiet import silence_reverb

# At exit, the destructor uses modules that Python has unloaded already.
atexit.register(setattr, reverb.Server, "__del__", lambda server: None)


def never_delete(writer: reverb.TrajectoryWriter) -> None:
    """Keeps a writer's C++ object until the process exits, since its destructor waits for a server that may be gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer._writer))


silence_reverb()
