"""From episodes to items: n-step transitions, sequences, advantages and returns.

Each adder takes a data set of episodes and gives one of items, and is an `adder=` of `rlds2reverb.ingest` as well.
`Adder` has DI-engine's functions over lists of transitions.
"""

from .adder import Adder
from .chain import compose
from .context_windows import ContextWindows
from .contract import check_adder
from .episode_adder import EpisodeAdder, episode_columns
from .episode_items import EpisodeItems
from .gae import GAE
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
from .sequence import Sequence

__all__ = [
    "GAE",
    "Adder",
    "ContextWindows",
    "EpisodeAdder",
    "EpisodeItems",
    "InitialPriorities",
    "NStep",
    "ReturnToGo",
    "Sequence",
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
