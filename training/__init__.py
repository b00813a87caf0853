"""Training: a dataset in, a trained run out. This layer joins the core, the adders, the learners and the environments.

Names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Option, TrainingConfig
    from .data import TrainingData, open_data
    from .environment import Environment, resolve_environment, restore_environment
    from .experiments import Experiment, load_experiment, run_plan, sweep
    from .plans import PlannedRun, plan_seeds, plan_sweep
    from .presets import preset_names
    from .progress import Progress
    from .reports import Report, report_runs, report_source, report_tables
    from .training import Training, train

_EXPORTS = {
    "config": ("Option", "TrainingConfig"),
    "data": ("TrainingData", "open_data"),
    "environment": ("Environment", "resolve_environment", "restore_environment"),
    "experiments": ("Experiment", "load_experiment", "run_plan", "sweep"),
    "plans": ("PlannedRun", "plan_seeds", "plan_sweep"),
    "presets": ("preset_names",),
    "progress": ("Progress",),
    "reports": ("Report", "report_runs", "report_source", "report_tables"),
    "training": ("Training", "train"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "Environment",
    "Experiment",
    "Option",
    "PlannedRun",
    "Progress",
    "Report",
    "Training",
    "TrainingConfig",
    "TrainingData",
    "load_experiment",
    "open_data",
    "plan_seeds",
    "plan_sweep",
    "preset_names",
    "report_runs",
    "report_source",
    "report_tables",
    "resolve_environment",
    "restore_environment",
    "run_plan",
    "sweep",
    "train",
]


if not TYPE_CHECKING:  # Seeing this function, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
