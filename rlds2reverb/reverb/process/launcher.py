"""A process that has imported Reverb, and forks one process per server, which then starts within milliseconds."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

from .silence import silence_reverb

_PR_SET_PDEATHSIG = 1
#: The terminal and service managers send these to all processes. Servers have to outlive them, because the process
#: that started them may still write a checkpoint; it then stops them.
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(descriptor: int) -> None:
    """Forks a server for each socket received over the inherited socket `descriptor`; ends when that is closed.

    Each message consists of one byte and one end of a socket pair, over which `server.serve` is controlled. This
    process must start neither threads nor gRPC, because a fork would copy their locks but not the threads.
    """
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Ended servers leave no zombies.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # Devices are for training.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)  # Reverb's version of TensorFlow does not have it.
    with socket.socket(fileno=descriptor) as control:
        from . import server

        silence_reverb()
        launcher = os.getpid()
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                os._exit(0)
            if os.fork():
                os.close(descriptors[0])
                continue
            end_with_parent(launcher)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            server.serve(socket.socket(fileno=descriptors[0]))


def end_with_parent(parent: int) -> None:
    """Makes the system kill this process when its parent ends, or ends it now if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
