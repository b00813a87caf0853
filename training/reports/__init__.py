"""Reports on datasets, tables and training runs: one HTML page each, with figures, that needs no network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .page import Report
    from .run_report import report_runs
    from .source_report import report_source
    from .table_report import report_tables

_MODULE_OF = {
    "Report": "page",
    "report_runs": "run_report",
    "report_source": "source_report",
    "report_tables": "table_report",
}

__all__ = ["Report", "report_runs", "report_source", "report_tables"]


if not TYPE_CHECKING:  # Seeing this function, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
