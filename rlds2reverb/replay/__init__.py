"""Replay buffers in this process, and a manager of several."""

from rlds2reverb.errors import RateLimitedError as RateLimitedError

from .batches import Batch as Batch
from .batches import BatchInfo as BatchInfo
from .buffer import ReplayBuffer as ReplayBuffer
from .configs import BufferConfig as BufferConfig
from .kinds import AdvancedReplayBuffer as AdvancedReplayBuffer
from .kinds import EpisodeReplayBuffer as EpisodeReplayBuffer
from .kinds import NaiveReplayBuffer as NaiveReplayBuffer
from .kinds import SequenceReplayBuffer as SequenceReplayBuffer
from .kinds import make_buffer as make_buffer
from .listeners import Listener as Listener
from .manager import BufferManager as BufferManager
from .monitors import BufferMonitor as BufferMonitor
from .monitors import MonitorConfig as MonitorConfig
from .refusals import SampleCheck as SampleCheck
