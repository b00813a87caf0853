"""Sampling: from tables on one or more Reverb servers to batches with importance weights, and new priorities back."""

from .dataset import SampleInfo, sample_dataset, to_experience
from .importance import LinearSchedule
from .mixing import mixed_dataset
from .priority_writer import PriorityWriter

__all__ = ["LinearSchedule", "PriorityWriter", "SampleInfo", "mixed_dataset", "sample_dataset", "to_experience"]
