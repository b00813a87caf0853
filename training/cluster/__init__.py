"""Training on a Ray cluster (extra `ray`): collectors, replay servers, learners and an evaluator as processes."""

from .config import ClusterConfig
from .coordinator import Coordinator
from .launch import ClusterTraining
from .reverb_comm_learner import ReplayTables, ReverbCommLearner

__all__ = ["ClusterConfig", "ClusterTraining", "Coordinator", "ReplayTables", "ReverbCommLearner"]
