"""Processes that end in the middle of a save, at a chosen operation that changes a file."""

from __future__ import annotations

import os
import sys

from faults import wrap_calls

EXIT_CODE = 9
_EVENTS = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "fsync")


class CrashAt:
    """Ends this process at the N-th operation from now on: a file opened for writing, renamed, linked, removed or synced.

    Attributes:
      num_operations: number of operations up to now.
    """

    def __init__(self, number: int):
        self._number, self.num_operations = number, 0
        sys.addaudithook(self._count)
        wrap_calls(os, "fsync", before=lambda: self._count("fsync"), after=lambda: self._count("fsync"))

    def _count(self, event: str, arguments: tuple = ()) -> None:
        mode = arguments[1] if event == "open" else None
        if event in _EVENTS or (isinstance(mode, str) and set(mode) & set("wax+")):
            self.num_operations += 1
            if self.num_operations == self._number:
                os._exit(EXIT_CODE)
