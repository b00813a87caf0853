"""From the tables of one Reverb server or several to batches with importance weights, and priorities back."""

from .dataset import SampleInfo, sample_dataset, to_experience
from .importance import LinearSchedule
from .mixing import mixed_dataset
from .priority_writer import PriorityWriter

__all__ = ["LinearSchedule", "PriorityWriter", "SampleInfo", "mixed_dataset", "sample_dataset", "to_experience"]
