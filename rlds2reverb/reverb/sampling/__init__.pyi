from .batch_dataset import (
    sample_dataset as sample_dataset,
    to_experience as to_experience,
    translate_error as translate_error,
)
from .importance import LinearSchedule as LinearSchedule
from .mixing import mixed_dataset as mixed_dataset
from .priority_sinks import MixedPriorities as MixedPriorities, PrioritySink as PrioritySink
from .priority_writer import PriorityWriter as PriorityWriter
from .sample_iterator import (
    ReplaySample as ReplaySample,
    SampleInfo as SampleInfo,
    SampleIterator as SampleIterator,
    SamplePlan as SamplePlan,
    sample as sample,
)
