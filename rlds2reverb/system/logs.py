"""Suppresses the start-up messages that TensorFlow, gRPC, gym and Reverb print to stderr.

Setting `RLDS2REVERB_LOG=1` in the environment turns the suppression off. Python's own logging and warnings
are never touched, and environment variables that the user has set keep their values.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def library_logs_enabled() -> bool:
    """Returns whether `RLDS2REVERB_LOG` asks for the messages of other libraries."""
    return os.environ.get("RLDS2REVERB_LOG", "") not in ("", "0")


def quiet_libraries() -> None:
    """Sets the log levels that TensorFlow, gRPC and gym read on their first import."""
    if library_logs_enabled():
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietImport())
    with contextlib.suppress(ImportError):
        from gym_notices.notices import notices  # gym prints its version's notice on import

        notices.clear()


class _QuietImport(importlib.abc.MetaPathFinder):
    """Hides what TensorFlow's native code prints while it is imported, part of which ignores all log levels."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Returns the spec of TensorFlow, and None for all other modules."""
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_quietly(module: ModuleType) -> None:
                with hide_native_stderr():
                    execute(module)

            spec.loader.exec_module = execute_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def hide_native_stderr() -> Iterator[None]:
    """Hides what native code of the process writes to stderr; only for moments in which nothing else writes there."""
    try:
        saved = -1 if library_logs_enabled() else os.dup(2)
    except OSError:  # It is closed.
        saved = -1
    if saved < 0:
        yield
        return
    try:
        with open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
