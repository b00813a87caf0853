"""From an offline RL data set to trajectories in Reverb.

The names below are imported when they are first used, so that `import rlds2reverb` takes no time. The lines that
TensorFlow, gRPC, gym and Reverb print about themselves stay away unless `RLDS2REVERB_LOG=1` is in the environment.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from rlds2reverb._logs import quiet_libraries

if TYPE_CHECKING:
    from rlds2reverb._encoding.packing import Packing, packed_signature, packing_of, unpack
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb._writing.report import IngestReport, IngestWarning
    from rlds2reverb.episode_batches import EpisodeBatch
    from rlds2reverb.episodes import Episode
    from rlds2reverb.errors import (
        CheckpointError,
        DamagedFile,
        InUse,
        InvalidEpisode,
        KeyCollision,
        Problem,
        RateLimited,
        ResumeError,
        Rlds2ReverbError,
        ServerRestarted,
        ServerUnavailable,
        SourceError,
        SpecMismatch,
        StorageFull,
        TooLarge,
        TrainingDiverged,
    )
    from rlds2reverb.ingestion import IngestOptions, ingest
    from rlds2reverb.items import BatchAdder, ItemAdder, ItemBatch, Items
    from rlds2reverb.priorities import ByReturn
    from rlds2reverb.rlds_to_reverb import (
        convert_rlds_to_trajectories,
        create_trajectory_data_spec,
        get_rlds_step_features,
        push_rlds_to_reverb,
    )
    from rlds2reverb.sampling import (
        LinearSchedule,
        PriorityWriter,
        SampleInfo,
        as_experience,
        mixed_dataset,
        sample_dataset,
    )
    from rlds2reverb.sources import Source, Summary, load, summarize
    from rlds2reverb.sources.transforms import apply_transforms
    from rlds2reverb.tables import RateLimiter, Selector, TableConfig, item_signature
    from rlds2reverb.trajectories import trajectory_columns, trajectory_spec
    from rlds2reverb.windows import WholeEpisodes, Windows

__version__ = "0.1.0"

# In the root of a checkout this folder hides the installed package, which has the branches (adders, cli) as well.
__path__ = pkgutil.extend_path(__path__, __name__)

_HOMES = {
    "_encoding.packing": ("Packing", "packed_signature", "packing_of", "unpack"),
    "_server.replay_server": ("ReplayServer",),
    "_writing.report": ("IngestReport", "IngestWarning"),
    "episode_batches": ("EpisodeBatch",),
    "episodes": ("Episode",),
    "errors": (
        "CheckpointError",
        "DamagedFile",
        "InUse",
        "InvalidEpisode",
        "KeyCollision",
        "Problem",
        "RateLimited",
        "ResumeError",
        "Rlds2ReverbError",
        "ServerRestarted",
        "ServerUnavailable",
        "SourceError",
        "SpecMismatch",
        "StorageFull",
        "TooLarge",
        "TrainingDiverged",
    ),
    "ingestion": ("IngestOptions", "ingest"),
    "items": ("BatchAdder", "ItemAdder", "ItemBatch", "Items"),
    "priorities": ("ByReturn",),
    "rlds_to_reverb": (
        "convert_rlds_to_trajectories",
        "create_trajectory_data_spec",
        "get_rlds_step_features",
        "push_rlds_to_reverb",
    ),
    "sampling": ("LinearSchedule", "PriorityWriter", "SampleInfo", "as_experience", "mixed_dataset", "sample_dataset"),
    "sources": ("Source", "Summary", "load", "summarize"),
    "sources.transforms": ("apply_transforms",),
    "tables": ("RateLimiter", "Selector", "TableConfig", "item_signature"),
    "trajectories": ("trajectory_columns", "trajectory_spec"),
    "windows": ("WholeEpisodes", "Windows"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BatchAdder",
    "ByReturn",
    "CheckpointError",
    "DamagedFile",
    "Episode",
    "EpisodeBatch",
    "InUse",
    "IngestOptions",
    "IngestReport",
    "IngestWarning",
    "InvalidEpisode",
    "ItemAdder",
    "ItemBatch",
    "Items",
    "KeyCollision",
    "LinearSchedule",
    "Packing",
    "PriorityWriter",
    "Problem",
    "RateLimited",
    "RateLimiter",
    "ReplayServer",
    "ResumeError",
    "Rlds2ReverbError",
    "SampleInfo",
    "Selector",
    "ServerRestarted",
    "ServerUnavailable",
    "Source",
    "SourceError",
    "SpecMismatch",
    "StorageFull",
    "Summary",
    "TableConfig",
    "TooLarge",
    "TrainingDiverged",
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
    "mixed_dataset",
    "packed_signature",
    "packing_of",
    "push_rlds_to_reverb",
    "sample_dataset",
    "summarize",
    "trajectory_columns",
    "trajectory_spec",
    "unpack",
]


quiet_libraries()


if not TYPE_CHECKING:  # a type checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'rlds2reverb' has no attribute {name!r}")
        return getattr(importlib.import_module(f"rlds2reverb.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
