"""Uses of dm-reverb internals, for servers and Reverb's own writers: destructors and log messages."""

from __future__ import annotations

import atexit
import contextlib
import ctypes

import reverb

from rlds2reverb import _logs

# At exit, the destructor uses modules that Python has unloaded already.
atexit.register(setattr, reverb.Server, "__del__", lambda server: None)


def never_delete(writer: reverb.TrajectoryWriter) -> None:
    """Keeps a writer's C++ object until the process exits, since its destructor waits for a server that may be gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer._writer))


#: std::ios_base::badbit in libstdc++; a stream in this state writes nothing.
_BAD_BIT = 1


def _quiet_reverb() -> None:
    """Suppresses Reverb's informational messages by disabling the C++ stream `std::clog`, to which it writes them.

    Fatal errors go to a different stream and are still printed. Other C++ code that writes to `std::clog` is also
    silenced.
    """
    if _logs.library_logs_enabled():
        return
    # With a C++ library other than libstdc++, the messages are not suppressed.
    with contextlib.suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL("libstdc++.so.6")
        clear = library._ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate
        clear.argtypes, clear.restype = [ctypes.c_void_p, ctypes.c_int], None
        stream = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4clog"))
        vtable = ctypes.c_void_p.from_address(stream).value or 0
        # The offset of an ostream's state is stored three words before its vtable.
        state = stream + ctypes.c_ssize_t.from_address(vtable - 3 * ctypes.sizeof(ctypes.c_void_p)).value
        clear(state, _BAD_BIT)


_quiet_reverb()
