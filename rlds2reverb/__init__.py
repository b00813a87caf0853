"""Writes offline RL datasets to Reverb as items, and samples batches from it.

All names except the exceptions are imported on first use, so that `import rlds2reverb` is fast. The start-up messages
of TensorFlow, gRPC, gym and Reverb are suppressed unless `RLDS2REVERB_LOG=1` is set in the environment.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from rlds2reverb._keras import select_keras_2
from rlds2reverb._logs import quiet_libraries
from rlds2reverb.errors import (
    CheckpointError,
    CorruptFileError,
    InsufficientMemoryError,
    InvalidEpisodeError,
    KeyCollisionError,
    Problem,
    RateLimitedError,
    ResourceInUseError,
    ResumeError,
    Rlds2ReverbError,
    ServerRestartedError,
    ServerUnavailableError,
    SourceError,
    SpecMismatchError,
    StorageFullError,
    TrackerError,
    TrainingDivergedError,
)

if TYPE_CHECKING:
    from rlds2reverb._encoding.packing import Packing, find_packing, packed_signature, unpack
    from rlds2reverb._server.replay_server import ReplayServer
    from rlds2reverb._server.sharded_server import ShardedReplayServer
    from rlds2reverb._writing.report import IngestReport, IngestWarning
    from rlds2reverb.envs.film import Film, record_film
    from rlds2reverb.episode_batches import EpisodeBatch
    from rlds2reverb.episodes import Episode
    from rlds2reverb.evaluations import Evaluation, read_reference_returns
    from rlds2reverb.ingestion import IngestOptions, ingest
    from rlds2reverb.items import EpisodeAdder, EpisodeBatchAdder, ItemBatch, Items
    from rlds2reverb.learners.algorithms import register_agent
    from rlds2reverb.learners.runs import Run, load_run
    from rlds2reverb.priorities import ByReturn
    from rlds2reverb.rlds_to_reverb import (
        convert_rlds_to_trajectories,
        create_trajectory_data_spec,
        get_rlds_step_features,
        push_rlds_to_reverb,
    )
    from rlds2reverb.sampling import (
        LinearSchedule,
        MixedPriorities,
        PriorityWriter,
        SampleInfo,
        mixed_dataset,
        sample_dataset,
        to_experience,
    )
    from rlds2reverb.saved_policies import SavedPolicy, load_policy
    from rlds2reverb.sources import Source, Summary, load, summarize
    from rlds2reverb.sources.transforms import apply_transforms
    from rlds2reverb.sources.writing import WriteReport, write_dataset
    from rlds2reverb.tables import RateLimiter, Selector, TableConfig, item_signature
    from rlds2reverb.training.config import TrainingConfig
    from rlds2reverb.training.experiments import Experiment, load_experiment, sweep
    from rlds2reverb.training.reports import Report, report_runs, report_source, report_tables
    from rlds2reverb.training.training import Training, train
    from rlds2reverb.trajectories import trajectory_columns, trajectory_spec
    from rlds2reverb.trajectory_items import TrajectoryEpisodes, TrajectoryWindows

__version__ = "0.1.0"

# Started in the root of a checkout, Python finds this folder before the installed package, which also contains the
# sub-packages adders, cli and so on.
__path__ = pkgutil.extend_path(__path__, __name__)

#: The modules of the names that are imported on first use.
_EXPORTS = {
    "_encoding.packing": ("Packing", "packed_signature", "find_packing", "unpack"),
    "_server.replay_server": ("ReplayServer",),
    "_server.sharded_server": ("ShardedReplayServer",),
    "_writing.report": ("IngestReport", "IngestWarning"),
    "episode_batches": ("EpisodeBatch",),
    "episodes": ("Episode",),
    "envs.film": ("Film", "record_film"),
    "evaluations": ("Evaluation", "read_reference_returns"),
    "ingestion": ("IngestOptions", "ingest"),
    "learners.algorithms": ("register_agent",),
    "learners.runs": ("Run", "load_run"),
    "items": ("EpisodeBatchAdder", "EpisodeAdder", "ItemBatch", "Items"),
    "priorities": ("ByReturn",),
    "rlds_to_reverb": (
        "convert_rlds_to_trajectories",
        "create_trajectory_data_spec",
        "get_rlds_step_features",
        "push_rlds_to_reverb",
    ),
    "sampling": (
        "LinearSchedule",
        "MixedPriorities",
        "PriorityWriter",
        "SampleInfo",
        "mixed_dataset",
        "sample_dataset",
        "to_experience",
    ),
    "saved_policies": ("SavedPolicy", "load_policy"),
    "sources": ("Source", "Summary", "load", "summarize"),
    "sources.transforms": ("apply_transforms",),
    "sources.writing": ("WriteReport", "write_dataset"),
    "tables": ("RateLimiter", "Selector", "TableConfig", "item_signature"),
    "training.config": ("TrainingConfig",),
    "training.experiments": ("Experiment", "load_experiment", "sweep"),
    "training.reports": ("Report", "report_runs", "report_source", "report_tables"),
    "training.training": ("Training", "train"),
    "trajectories": ("trajectory_columns", "trajectory_spec"),
    "trajectory_items": ("TrajectoryEpisodes", "TrajectoryWindows"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "ByReturn",
    "CheckpointError",
    "CorruptFileError",
    "Episode",
    "EpisodeAdder",
    "EpisodeBatch",
    "EpisodeBatchAdder",
    "Evaluation",
    "Experiment",
    "Film",
    "IngestOptions",
    "IngestReport",
    "IngestWarning",
    "InsufficientMemoryError",
    "InvalidEpisodeError",
    "ItemBatch",
    "Items",
    "KeyCollisionError",
    "LinearSchedule",
    "MixedPriorities",
    "Packing",
    "PriorityWriter",
    "Problem",
    "RateLimitedError",
    "RateLimiter",
    "ReplayServer",
    "Report",
    "ResourceInUseError",
    "ResumeError",
    "Rlds2ReverbError",
    "Run",
    "SampleInfo",
    "SavedPolicy",
    "Selector",
    "ServerRestartedError",
    "ServerUnavailableError",
    "ShardedReplayServer",
    "Source",
    "SourceError",
    "SpecMismatchError",
    "StorageFullError",
    "Summary",
    "TableConfig",
    "TrackerError",
    "Training",
    "TrainingConfig",
    "TrainingDivergedError",
    "TrajectoryEpisodes",
    "TrajectoryWindows",
    "WriteReport",
    "apply_transforms",
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "find_packing",
    "get_rlds_step_features",
    "ingest",
    "item_signature",
    "load",
    "load_experiment",
    "load_policy",
    "load_run",
    "mixed_dataset",
    "packed_signature",
    "push_rlds_to_reverb",
    "read_reference_returns",
    "record_film",
    "register_agent",
    "report_runs",
    "report_source",
    "report_tables",
    "sample_dataset",
    "summarize",
    "sweep",
    "to_experience",
    "train",
    "trajectory_columns",
    "trajectory_spec",
    "unpack",
    "write_dataset",
]


quiet_libraries()
select_keras_2()


if not TYPE_CHECKING:  # With this function in sight, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'rlds2reverb' has no attribute {name!r}")
        return getattr(importlib.import_module(f"rlds2reverb.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
