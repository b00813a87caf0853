from .cluster_config import ClusterConfig as ClusterConfig
from .coordinator import Coordinator as Coordinator
from .launch import ClusterTraining as ClusterTraining
from .reverb_comm_learner import ReplayTables as ReplayTables, ReverbCommLearner as ReverbCommLearner
