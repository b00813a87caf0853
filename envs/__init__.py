"""Environments: ALF's time steps, wrappers and parallel environments on Gymnasium, for TF-Agents.

All names are imported on first use, so that worker processes import neither TensorFlow nor what they do not use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .environment import Environment, Wrapper
    from .specs import BoundedArraySpec
    from .time_steps import (
        TimeStep,
        from_tf_agents,
        restart,
        termination,
        to_rlds_step,
        to_tf_agents,
        transition,
        truncation,
    )

#: The modules of the names that are imported on first use.
_EXPORTS = {
    "environment": ("Environment", "Wrapper"),
    "specs": ("BoundedArraySpec",),
    "time_steps": (
        "TimeStep",
        "from_tf_agents",
        "restart",
        "termination",
        "to_rlds_step",
        "to_tf_agents",
        "transition",
        "truncation",
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "BoundedArraySpec",
    "Environment",
    "TimeStep",
    "Wrapper",
    "from_tf_agents",
    "restart",
    "termination",
    "to_rlds_step",
    "to_tf_agents",
    "transition",
    "truncation",
]


if not TYPE_CHECKING:  # Seeing this function, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
