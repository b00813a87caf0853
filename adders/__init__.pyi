from .adder import ItemAdder as ItemAdder
from .adder_contract import check_adder as check_adder
from .arrays import namespace as namespace
from .chain import compose as compose
from .chunk_transitions import ChunkTransitions as ChunkTransitions
from .column_adder import ColumnAdder as ColumnAdder
from .gae import GAE as GAE
from .goal_relabel import GoalRelabel as GoalRelabel
from .initial_priorities import InitialPriorities as InitialPriorities
from .n_step import NStep as NStep, Transitions as Transitions
from .off_policy import VTrace as VTrace, retrace as retrace, v_trace as v_trace
from .places import Places as Places
from .return_to_go import ReturnToGo as ReturnToGo
from .returns import (
    discounted_returns as discounted_returns,
    generalized_advantage_estimation as generalized_advantage_estimation,
    lambda_returns as lambda_returns,
    n_step_returns as n_step_returns,
    returns_to_go as returns_to_go,
    td_errors as td_errors,
)
from .step_context_windows import StepContextWindows as StepContextWindows
from .step_episodes import StepEpisodes as StepEpisodes
from .step_offsets import StepOffsets as StepOffsets
from .step_windows import StepWindows as StepWindows
from .tf_data import episode_columns as episode_columns
from .trajectory_windows import TrajectoryEpisodes as TrajectoryEpisodes, TrajectoryWindows as TrajectoryWindows
from .window_adder import Ranges as Ranges, WindowAdder as WindowAdder, unpadded as unpadded
from .windows import Windows as Windows
