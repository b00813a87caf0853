from .adders import (
    StepOffsets as StepOffsets,
    TrajectoryEpisodes as TrajectoryEpisodes,
    TrajectoryWindows as TrajectoryWindows,
    Transitions as Transitions,
    Windows as Windows,
)
from .data_loader import Batches as Batches, batches as batches
from .datasets import (
    Finding as Finding,
    Source as Source,
    Summary as Summary,
    check_dataset as check_dataset,
    load as load,
    summarize as summarize,
)
from .datasets.transforms import apply_transforms as apply_transforms
from .datasets.writers.writing import WriteReport as WriteReport, write_dataset as write_dataset
from .envs.film import Film as Film, record_film as record_film
from .errors import (
    CheckpointError as CheckpointError,
    CorruptFileError as CorruptFileError,
    ErrorFinding as ErrorFinding,
    InsufficientMemoryError as InsufficientMemoryError,
    InvalidEpisodeError as InvalidEpisodeError,
    KeyCollisionError as KeyCollisionError,
    RateLimitedError as RateLimitedError,
    ResourceInUseError as ResourceInUseError,
    ResumeError as ResumeError,
    Rlds2ReverbError as Rlds2ReverbError,
    ServerRestartedError as ServerRestartedError,
    ServerUnavailableError as ServerUnavailableError,
    SourceError as SourceError,
    SpecMismatchError as SpecMismatchError,
    StorageFullError as StorageFullError,
    TrackerError as TrackerError,
    TrainingDivergedError as TrainingDivergedError,
)
from .ingestion import IngestOptions as IngestOptions, ingest as ingest
from .learners.algorithms import register_agent as register_agent
from .learners.runs import Run as Run, load_run as load_run
from .policies.onnx_policies import OnnxPolicy as OnnxPolicy, describe_policy as describe_policy
from .policies.saved_policies import SavedPolicy as SavedPolicy, load_policy as load_policy
from .reverb.sampling import (
    LinearSchedule as LinearSchedule,
    MixedPriorities as MixedPriorities,
    PriorityWriter as PriorityWriter,
    SampleInfo as SampleInfo,
    mixed_dataset as mixed_dataset,
    sample as sample,
    sample_dataset as sample_dataset,
    to_experience as to_experience,
)
from .reverb.server.replay_server import ReplayServer as ReplayServer
from .reverb.server.sharded_server import ShardedReplayServer as ShardedReplayServer
from .reverb.wire.packing import (
    Packing as Packing,
    find_packing as find_packing,
    packed_signature as packed_signature,
    unpack as unpack,
)
from .reverb.writing.report import IngestReport as IngestReport, IngestWarning as IngestWarning
from .rlds_to_reverb import (
    convert_rlds_to_trajectories as convert_rlds_to_trajectories,
    create_trajectory_data_spec as create_trajectory_data_spec,
    get_rlds_step_features as get_rlds_step_features,
    push_rlds_to_reverb as push_rlds_to_reverb,
)
from .training.config import TrainingConfig as TrainingConfig
from .training.experiments import (
    Experiment as Experiment,
    load_experiment as load_experiment,
    train_seeds as train_seeds,
)
from .training.off_policy_evaluation import evaluate_offline as evaluate_offline, rank_policies as rank_policies
from .training.policy_estimates import PolicyEstimate as PolicyEstimate
from .training.reports import (
    Report as Report,
    report_runs as report_runs,
    report_source as report_source,
)
from .training.training import Training as Training, train as train
from .types.episode_batches import EpisodeBatch as EpisodeBatch
from .types.episodes import Episode as Episode
from .types.evaluations import Evaluation as Evaluation, read_reference_returns as read_reference_returns
from .types.items import (
    EpisodeAdder as EpisodeAdder,
    EpisodeBatchAdder as EpisodeBatchAdder,
    ItemBatch as ItemBatch,
    Items as Items,
)
from .types.priorities import ByReturn as ByReturn
from .types.tables import (
    RateLimiter as RateLimiter,
    Selector as Selector,
    TableConfig as TableConfig,
    item_signature as item_signature,
)
from .types.trajectories import trajectory_columns as trajectory_columns, trajectory_spec as trajectory_spec

__version__: str
