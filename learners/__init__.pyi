from .algorithms import register_agent as register_agent
from .checkpoints import Checkpoint as Checkpoint, Checkpoints as Checkpoints
from .comm_learner import BaseCommLearner as BaseCommLearner
from .ensemble_fit import FitOptions as FitOptions
from .feeds import (
    Feed as Feed,
    InMemoryDataset as InMemoryDataset,
    StreamingDataset as StreamingDataset,
    collect_items as collect_items,
    make_feed as make_feed,
    require_experience as require_experience,
)
from .learner import Learner as Learner, TrainingDivergedError as TrainingDivergedError
from .random_shift import RandomShift as RandomShift
from .run_directory import RunDirectory as RunDirectory
from .runs import Run as Run, load_run as load_run
from .stored_items import StoredItems as StoredItems
from .tasks import make_task as make_task
