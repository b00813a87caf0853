from .buffer import (
    AdvancedReplayBuffer as AdvancedReplayBuffer,
    EpisodeReplayBuffer as EpisodeReplayBuffer,
    NaiveReplayBuffer as NaiveReplayBuffer,
    ReplayBuffer as ReplayBuffer,
    SequenceReplayBuffer as SequenceReplayBuffer,
)
from .configs import BufferConfig as BufferConfig
from .contents import RateLimitedError as RateLimitedError
from .manager import BufferManager as BufferManager
from .monitors import BufferMonitor as BufferMonitor, MonitorConfig as MonitorConfig
from .sampled_batches import Batch as Batch, SampleCheck as SampleCheck, SampleRefusal as SampleRefusal
