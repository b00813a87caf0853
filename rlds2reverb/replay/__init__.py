"""Replay buffers in the learner's process, and a manager of several."""

from rlds2reverb.errors import RateLimitedError

from .batches import Batch, SampleCheck, SampleRefusal
from .buffer import (
    AdvancedReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    ReplayBuffer,
    SequenceReplayBuffer,
    make_buffer,
)
from .configs import BufferConfig
from .manager import BufferManager
from .monitors import BufferMonitor, MonitorConfig

__all__ = [
    "AdvancedReplayBuffer",
    "Batch",
    "BufferConfig",
    "BufferManager",
    "BufferMonitor",
    "EpisodeReplayBuffer",
    "MonitorConfig",
    "NaiveReplayBuffer",
    "RateLimitedError",
    "ReplayBuffer",
    "SampleCheck",
    "SampleRefusal",
    "SequenceReplayBuffer",
    "make_buffer",
]
