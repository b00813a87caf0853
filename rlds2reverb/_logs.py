"""Keeps the start-up lines of TensorFlow, gRPC, gym and Reverb off stderr.

`RLDS2REVERB_LOG=1` in the environment leaves everything as those libraries have it. Python's own logging, warnings and
`sys.stderr` are not touched, and variables that the user has set keep their values.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_BAD_BIT = 1  # of std::ios_base::iostate in libstdc++: a stream that has it writes nothing


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


def quiet_reverb() -> None:
    """Stops Reverb's lines about what it is doing, which it writes to the C++ stream `std::clog`.

    Fatal errors go to another stream and stay. Call it after Reverb is imported, since its C++ library is needed.
    """
    if asked_for():
        return
    with contextlib.suppress(OSError, AttributeError, ValueError):  # another C++ library: its lines stay
        library = ctypes.CDLL("libstdc++.so.6")
        clear = library._ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate
        clear.argtypes, clear.restype = [ctypes.c_void_p, ctypes.c_int], None
        stream = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4clog"))
        table = ctypes.c_void_p.from_address(stream).value or 0
        # The offset of an ostream's state lies three words before its table of virtual functions.
        state = stream + ctypes.c_ssize_t.from_address(table - 3 * ctypes.sizeof(ctypes.c_void_p)).value
        clear(state, _BAD_BIT)
