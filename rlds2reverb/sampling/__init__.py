"""Sampling: from tables on one or more Reverb servers to batches with importance weights, and new priorities back."""

from rlds2reverb._internals.batch_datasets import translate_error
from rlds2reverb.experience import to_experience
from rlds2reverb.sample_info import ReplaySample, SampleInfo

from .batches import SampleIterator, SamplePlan, sample
from .dataset import sample_dataset
from .importance import LinearSchedule
from .mixing import mixed_dataset
from .priority_sinks import MixedPriorities, PrioritySink
from .priority_writer import PriorityWriter

__all__ = [
    "LinearSchedule",
    "MixedPriorities",
    "PrioritySink",
    "PriorityWriter",
    "ReplaySample",
    "SampleInfo",
    "SampleIterator",
    "SamplePlan",
    "mixed_dataset",
    "sample",
    "sample_dataset",
    "to_experience",
    "translate_error",
]
