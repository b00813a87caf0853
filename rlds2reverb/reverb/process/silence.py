"""Suppression of Reverb's informational messages."""

from __future__ import annotations

import contextlib
import ctypes
import os

#: std::ios_base::badbit in libstdc++; a stream in this state writes nothing.
_BAD_BIT = 1


def silence_reverb() -> None:
    """Disables the C++ stream `std::clog`, to which Reverb writes its messages, unless `RLDS2REVERB_LOG=1` is set.

    Fatal errors go to a different stream and are still printed. Other C++ code that writes to `std::clog` is also
    silenced.
    """
    if os.environ.get("RLDS2REVERB_LOG", "") not in ("", "0"):
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
