"""Training: from tables and data sets to a trained agent."""

from .checkpoints import Checkpoint, Checkpoints
from .dataloader import Dataloader, setup_dataloader
from .feeds import DatasetFeed, ResidentItems, gathered_items, require_experience
from .learner import Learner, TrainingDiverged

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Dataloader",
    "DatasetFeed",
    "Learner",
    "ResidentItems",
    "TrainingDiverged",
    "gathered_items",
    "require_experience",
    "setup_dataloader",
]
