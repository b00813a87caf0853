"""Replay buffers in the learner's process, and a manager of several."""

from rlds2reverb.errors import RateLimitedError as RateLimitedError

from .batches import Batch as Batch
from .batches import SampleCheck as SampleCheck
from .batches import SampleRefusal as SampleRefusal
from .buffer import AdvancedReplayBuffer as AdvancedReplayBuffer
from .buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from .buffer import NaiveReplayBuffer as NaiveReplayBuffer
from .buffer import ReplayBuffer as ReplayBuffer
from .buffer import SequenceReplayBuffer as SequenceReplayBuffer
from .buffer import make_buffer as make_buffer
from .configs import BufferConfig as BufferConfig
from .listeners import Listener as Listener
from .manager import BufferManager as BufferManager
from .monitors import BufferMonitor as BufferMonitor
from .monitors import MonitorConfig as MonitorConfig
