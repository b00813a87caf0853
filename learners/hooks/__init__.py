"""Hooks: callables that a `Learner` calls around its iterations."""

from .built_in import (
    EarlyStopHook,
    EvaluateHook,
    LoadCkptHook,
    LogReduceHook,
    LogShowHook,
    ReplayCheckpointHook,
    SaveCkptHook,
    TriggerHook,
    UpdatePrioritiesHook,
)
from .configuration import HOOKS, hooks_from_config, merge_hooks, register_learner_hook
from .hook import POSITIONS, Hook, LearnerHook

__all__ = [
    "HOOKS",
    "POSITIONS",
    "EarlyStopHook",
    "EvaluateHook",
    "Hook",
    "LearnerHook",
    "LoadCkptHook",
    "LogReduceHook",
    "LogShowHook",
    "ReplayCheckpointHook",
    "SaveCkptHook",
    "TriggerHook",
    "UpdatePrioritiesHook",
    "hooks_from_config",
    "merge_hooks",
    "register_learner_hook",
]
