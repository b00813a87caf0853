"""Training loop and agents: batches in, a trained agent out. Names are imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlds2reverb.errors import TrainingDivergedError

if TYPE_CHECKING:
    from .algorithms import register_agent
    from .checkpoints import Checkpoint, Checkpoints
    from .comm_learner import BaseCommLearner
    from .dataloader import Dataloader, setup_dataloader
    from .feeds import Feed, InMemoryDataset, StreamingDataset, collect_items, make_feed, require_experience
    from .learner import Learner
    from .run_directory import RunDirectory
    from .runs import Run, load_run
    from .tasks import make_task

_EXPORTS = {
    "algorithms": ("register_agent",),
    "checkpoints": ("Checkpoint", "Checkpoints"),
    "comm_learner": ("BaseCommLearner",),
    "dataloader": ("Dataloader", "setup_dataloader"),
    "feeds": ("Feed", "StreamingDataset", "InMemoryDataset", "collect_items", "make_feed", "require_experience"),
    "learner": ("Learner",),
    "run_directory": ("RunDirectory",),
    "runs": ("Run", "load_run"),
    "tasks": ("make_task",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "BaseCommLearner",
    "Checkpoint",
    "Checkpoints",
    "Dataloader",
    "Feed",
    "InMemoryDataset",
    "Learner",
    "Run",
    "RunDirectory",
    "StreamingDataset",
    "TrainingDivergedError",
    "collect_items",
    "load_run",
    "make_feed",
    "make_task",
    "register_agent",
    "require_experience",
    "setup_dataloader",
]


if not TYPE_CHECKING:  # Seeing this function, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
