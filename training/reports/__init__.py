"""Reports on datasets, tables and training runs: one HTML page each, with figures, that needs no network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .page import Report
    from .source_report import report_source

_MODULE_OF = {
    "Report": "page",
    "report_source": "source_report",
}

__all__ = ["Report", "report_source"]


if not TYPE_CHECKING:  # Seeing this function, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
