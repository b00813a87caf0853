"""Environments: ALF's time steps, wrappers and parallel environments on Gymnasium, for TF-Agents.

All names are imported on first use, so that worker processes import neither TensorFlow nor what they do not use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import suite_dm_control, suite_envpool, suite_gym
    from ._env_process import EnvironmentFailedError
    from .action_noise import TemporallyCorrelatedNoise
    from .batch import Batch
    from .batched_environment import BatchedEnvironment
    from .contract import check_wrapper
    from .curriculum import Curriculum, TaskProgress
    from .environment import Environment, Wrapper
    from .evaluation import Evaluator, evaluate
    from .film import Film, record_film
    from .goal_relabel import GoalRelabel
    from .gymnasium_adapter import to_gymnasium
    from .gymnasium_environment import GymnasiumEnvironment
    from .gymnasium_wrappers import NonEpisodic, ObservationClip, ObservationTransform, SparseReward
    from .image_wrappers import EpisodicRandomFrameCrop, FrameFlip, ImageChannelFirst
    from .life_loss import AtariTerminalOnLifeLoss
    from .loading import create_environment, load
    from .multitask import Multitask
    from .observation_normalizer import ObservationNormalizer
    from .parallel_environment import ParallelEnvironment
    from .performance_profiler import PerformanceProfile, PerformanceProfiler
    from .py_environment import to_py_environment
    from .recording import record_episodes
    from .specs import BoundedArraySpec
    from .thread_environment import ThreadEnvironment
    from .time_limit import TimeLimit
    from .time_steps import (
        TimeStep,
        from_tf_agents,
        restart,
        termination,
        to_rlds_step,
        to_tf_agents,
        transition,
        truncation,
    )
    from .wrappers import (
        ActionObservation,
        ActionRepeat,
        DiscreteAction,
        NonEpisodicAgent,
        RandomFirstEpisodeLength,
        ScalarReward,
    )

#: The modules of the names that are imported on first use.
_EXPORTS = {
    "_env_process": ("EnvironmentFailedError",),
    "batched_environment": ("BatchedEnvironment",),
    "contract": ("check_wrapper",),
    "evaluation": ("Evaluator", "evaluate"),
    "environment": ("Environment", "Wrapper"),
    "film": ("Film", "record_film"),
    "gymnasium_environment": ("GymnasiumEnvironment",),
    "gymnasium_wrappers": ("NonEpisodic", "ObservationClip", "ObservationTransform", "SparseReward"),
    "image_wrappers": ("EpisodicRandomFrameCrop", "FrameFlip", "ImageChannelFirst"),
    "loading": ("create_environment", "load"),
    "parallel_environment": ("ParallelEnvironment",),
    "py_environment": ("to_py_environment",),
    "recording": ("record_episodes",),
    "specs": ("BoundedArraySpec",),
    "thread_environment": ("ThreadEnvironment",),
    "time_limit": ("TimeLimit",),
    "time_steps": (
        "TimeStep",
        "from_tf_agents",
        "restart",
        "termination",
        "to_rlds_step",
        "to_tf_agents",
        "transition",
        "truncation",
    ),
    "gymnasium_adapter": ("to_gymnasium",),
    "action_noise": ("TemporallyCorrelatedNoise",),
    "batch": ("Batch",),
    "curriculum": ("Curriculum", "TaskProgress"),
    "goal_relabel": ("GoalRelabel",),
    "life_loss": ("AtariTerminalOnLifeLoss",),
    "multitask": ("Multitask",),
    "observation_normalizer": ("ObservationNormalizer",),
    "performance_profiler": ("PerformanceProfile", "PerformanceProfiler"),
    "wrappers": (
        "ActionObservation",
        "ActionRepeat",
        "DiscreteAction",
        "NonEpisodicAgent",
        "RandomFirstEpisodeLength",
        "ScalarReward",
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "ActionObservation",
    "ActionRepeat",
    "AtariTerminalOnLifeLoss",
    "Batch",
    "BatchedEnvironment",
    "BoundedArraySpec",
    "Curriculum",
    "DiscreteAction",
    "Environment",
    "EnvironmentFailedError",
    "EpisodicRandomFrameCrop",
    "Evaluator",
    "Film",
    "FrameFlip",
    "GoalRelabel",
    "GymnasiumEnvironment",
    "ImageChannelFirst",
    "Multitask",
    "NonEpisodic",
    "NonEpisodicAgent",
    "ObservationClip",
    "ObservationNormalizer",
    "ObservationTransform",
    "ParallelEnvironment",
    "PerformanceProfile",
    "PerformanceProfiler",
    "RandomFirstEpisodeLength",
    "ScalarReward",
    "SparseReward",
    "TaskProgress",
    "TemporallyCorrelatedNoise",
    "ThreadEnvironment",
    "TimeLimit",
    "TimeStep",
    "Wrapper",
    "check_wrapper",
    "create_environment",
    "evaluate",
    "from_tf_agents",
    "load",
    "record_episodes",
    "record_film",
    "restart",
    "suite_dm_control",
    "suite_envpool",
    "suite_gym",
    "termination",
    "to_gymnasium",
    "to_py_environment",
    "to_rlds_step",
    "to_tf_agents",
    "transition",
    "truncation",
]


if not TYPE_CHECKING:  # Seeing this function, type checkers would accept any attribute.

    def __getattr__(name: str) -> Any:
        if name.startswith("suite_") and name in __all__:
            return importlib.import_module(f".{name}", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
