"""Training: from tables and data sets to a trained agent."""

from .checkpoints import Checkpoint, Checkpoints
from .dataloader import Dataloader, setup_dataloader
from .evaluation import Evaluation, Evaluator, load_policy, read_reference_returns
from .feeds import DatasetFeed, ResidentItems, gathered_items, require_experience
from .learner import Learner, TrainingDiverged
from .run_directory import RunDirectory, load_run

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Dataloader",
    "DatasetFeed",
    "Evaluation",
    "Evaluator",
    "Learner",
    "ResidentItems",
    "RunDirectory",
    "TrainingDiverged",
    "gathered_items",
    "load_policy",
    "load_run",
    "read_reference_returns",
    "require_experience",
    "setup_dataloader",
]
