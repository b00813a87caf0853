"""Hooks: callables that a `Learner` calls around its iterations."""

from .built_in import (
    EarlyStopHook,
    EvaluateHook,
    LoadCkptHook,
    LogReduceHook,
    LogShowHook,
    SaveCkptHook,
    TriggerHook,
)
from .configuration import HOOKS, hooks_from_config, make_hooks, register_learner_hook
from .hook import POSITIONS, Hook, HookedLearner, LearnerHook, Phase
from .hook_list import merge_hooks

__all__ = [
    "HOOKS",
    "POSITIONS",
    "EarlyStopHook",
    "EvaluateHook",
    "Hook",
    "HookedLearner",
    "LearnerHook",
    "LoadCkptHook",
    "LogReduceHook",
    "LogShowHook",
    "Phase",
    "SaveCkptHook",
    "TriggerHook",
    "hooks_from_config",
    "make_hooks",
    "merge_hooks",
    "register_learner_hook",
]
