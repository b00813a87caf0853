"""Replay buffers on Reverb tables, and a manager of several."""

from rlds2reverb.errors import RateLimited as RateLimited
from rlds2reverb.errors import TooManyDraws as TooManyDraws

from .buffer import ReplayBuffer as ReplayBuffer
from .configs import BufferConfig as BufferConfig
from .episode_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from .kinds import AdvancedReplayBuffer as AdvancedReplayBuffer
from .kinds import NaiveReplayBuffer as NaiveReplayBuffer
from .listeners import Listener as Listener
from .listeners import SilentListener as SilentListener
from .making import make_buffer as make_buffer
from .manager import BufferManager as BufferManager
from .monitors import BufferMonitor as BufferMonitor
from .monitors import MonitorConfig as MonitorConfig
from .refusals import SampleCheck as SampleCheck
from .sequence_buffer import SequenceReplayBuffer as SequenceReplayBuffer
