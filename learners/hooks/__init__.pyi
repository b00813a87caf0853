from .built_in import (
    EarlyStopHook as EarlyStopHook,
    EvaluateHook as EvaluateHook,
    LoadCkptHook as LoadCkptHook,
    LogReduceHook as LogReduceHook,
    LogShowHook as LogShowHook,
    SaveCkptHook as SaveCkptHook,
    TriggerHook as TriggerHook,
)
from .configuration import (
    HOOKS as HOOKS,
    hooks_from_config as hooks_from_config,
    make_hooks as make_hooks,
    register_learner_hook as register_learner_hook,
)
from .hook import (
    POSITIONS as POSITIONS,
    Hook as Hook,
    LearnerHook as LearnerHook,
    Phase as Phase,
)
from .hook_list import merge_hooks as merge_hooks
