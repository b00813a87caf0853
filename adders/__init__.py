"""Adders, which turn episodes into items: n-step transitions, windows, whole episodes, advantages and returns.

Each adder turns a dataset of episodes into a dataset of items, and can also be passed to `rlds2reverb.ingest` as
`adder`. The functions compute returns and advantages from tensors. DI-engine's `Adder` is in
`rlds2reverb.adders.di_engine`.
"""

from .chain import compose
from .column_adder import ColumnAdder, episode_columns
from .contract import check_adder
from .gae import GAE
from .goal_relabel import GoalRelabel
from .initial_priorities import InitialPriorities
from .n_step import NStep
from .off_policy import VTrace, retrace, v_trace
from .return_to_go import ReturnToGo
from .returns import (
    discounted_returns,
    generalized_advantage_estimation,
    lambda_returns,
    n_step_returns,
    returns_to_go,
    td_errors,
)
from .step_context_windows import StepContextWindows
from .step_episodes import StepEpisodes
from .step_windows import StepWindows

__all__ = [
    "GAE",
    "ColumnAdder",
    "GoalRelabel",
    "InitialPriorities",
    "NStep",
    "ReturnToGo",
    "StepContextWindows",
    "StepEpisodes",
    "StepWindows",
    "VTrace",
    "check_adder",
    "compose",
    "discounted_returns",
    "episode_columns",
    "generalized_advantage_estimation",
    "lambda_returns",
    "n_step_returns",
    "retrace",
    "returns_to_go",
    "td_errors",
    "v_trace",
]
