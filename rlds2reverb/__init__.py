"""From an offline RL data set to trajectories in Reverb.

The names below are imported when they are first used, so that `import rlds2reverb` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds2reverb.checkpoints import CheckpointError, StorageFull
    from rlds2reverb.episodes import Episode, InvalidEpisode, Problem
    from rlds2reverb.importance import LinearSchedule
    from rlds2reverb.ingestion import ingest
    from rlds2reverb.items import Adder, Items
    from rlds2reverb.memory import TooLarge
    from rlds2reverb.priorities import ByReturn
    from rlds2reverb.priority_writing import PriorityWriter
    from rlds2reverb.reports import IngestReport
    from rlds2reverb.rlds_to_reverb import (
        convert_rlds_to_trajectories,
        create_trajectory_data_spec,
        get_rlds_step_features,
        push_rlds_to_reverb,
    )
    from rlds2reverb.runs import ResumeError
    from rlds2reverb.sampling import SampleInfo, as_experience, sample_dataset
    from rlds2reverb.service import ServerUnavailable
    from rlds2reverb.serving import ReplayServer
    from rlds2reverb.sources import Source, SourceError, load
    from rlds2reverb.specs import SpecMismatch
    from rlds2reverb.summaries import Summary, summarize
    from rlds2reverb.tables import RateLimiter, Selector, TableConfig, item_signature
    from rlds2reverb.trajectories import trajectory_columns, trajectory_spec
    from rlds2reverb.transforms import apply_transforms
    from rlds2reverb.windows import WholeEpisodes, Windows

__version__ = "0.1.0"

_HOMES = {
    "checkpoints": ("CheckpointError", "StorageFull"),
    "episodes": ("Episode", "InvalidEpisode", "Problem"),
    "importance": ("LinearSchedule",),
    "ingestion": ("ingest",),
    "items": ("Adder", "Items"),
    "memory": ("TooLarge",),
    "priorities": ("ByReturn",),
    "priority_writing": ("PriorityWriter",),
    "reports": ("IngestReport",),
    "rlds_to_reverb": (
        "convert_rlds_to_trajectories",
        "create_trajectory_data_spec",
        "get_rlds_step_features",
        "push_rlds_to_reverb",
    ),
    "runs": ("ResumeError",),
    "sampling": ("SampleInfo", "as_experience", "sample_dataset"),
    "service": ("ServerUnavailable",),
    "serving": ("ReplayServer",),
    "sources": ("Source", "SourceError", "load"),
    "specs": ("SpecMismatch",),
    "summaries": ("Summary", "summarize"),
    "tables": ("RateLimiter", "Selector", "TableConfig", "item_signature"),
    "trajectories": ("trajectory_columns", "trajectory_spec"),
    "transforms": ("apply_transforms",),
    "windows": ("WholeEpisodes", "Windows"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adder",
    "ByReturn",
    "CheckpointError",
    "Episode",
    "IngestReport",
    "InvalidEpisode",
    "Items",
    "LinearSchedule",
    "PriorityWriter",
    "Problem",
    "RateLimiter",
    "ReplayServer",
    "ResumeError",
    "SampleInfo",
    "Selector",
    "ServerUnavailable",
    "Source",
    "SourceError",
    "SpecMismatch",
    "StorageFull",
    "Summary",
    "TableConfig",
    "TooLarge",
    "WholeEpisodes",
    "Windows",
    "apply_transforms",
    "as_experience",
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "get_rlds_step_features",
    "ingest",
    "item_signature",
    "load",
    "push_rlds_to_reverb",
    "sample_dataset",
    "summarize",
    "trajectory_columns",
    "trajectory_spec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rlds2reverb' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlds2reverb.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
