"""Uses of TF-Agents internals: the settings of its Reverb observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tf_agents

from .versions import describe_missing_reverb, require_tested

try:
    from tf_agents.replay_buffers import reverb_utils
except ModuleNotFoundError as error:
    raise ImportError(describe_missing_reverb("writing through the observers of TF-Agents")) from error

if TYPE_CHECKING:
    from rlds2reverb.adders.trajectory_windows import Padding

require_tested("tf-agents", tf_agents.__version__, feature="writing through the observers of TF-Agents")

_KINDS = {
    reverb_utils.ReverbAddEpisodeObserver: "episode",
    reverb_utils.ReverbTrajectorySequenceObserver: "stream",
    reverb_utils.ReverbAddTrajectoryObserver: "trajectory",
}


@dataclass(frozen=True)
class ObserverSettings:
    """The settings of one of TF-Agents' Reverb observers.

    Attributes:
      kind: 'episode', 'stream' (windows that cross the ends of episodes) or 'trajectory'.
      tables: names of the tables that receive each item.
      priority: priority of every item.
      length: number of rows per item; for 'episode' the maximum.
      stride: number of rows between the starts of consecutive items; 1 for 'episode'.
      padding: see `adders.TrajectoryWindows`.
      bypass_long_episodes: whether 'episode' skips episodes with more rows instead of failing.
    """

    kind: str
    tables: tuple[str, ...]
    priority: float
    length: int
    stride: int = 1
    padding: Padding = "none"
    bypass_long_episodes: bool = False

    @classmethod
    def from_observer(cls, observer: Any) -> ObserverSettings:
        """Returns the settings of an observer.

        Raises:
          ValueError: If it is not one of TF-Agents' three, or holds steps of an unfinished episode.
        """
        kind, name = _KINDS.get(type(observer)), type(observer).__name__
        if kind is None:
            raise ValueError(
                f"the observer must be one of TF-Agents' Reverb observers, got a {name}; push with fast=False"
            )
        if num_cached := getattr(observer, "_cached_steps", 0):
            raise ValueError(
                f"the {name} holds {num_cached} steps of an unfinished episode; call its reset(), or push "
                "with fast=False"
            )
        common = kind, tuple(observer._table_names), float(observer._priority)
        if kind == "episode":
            return cls(*common, observer._max_sequence_length, bypass_long_episodes=observer._bypass_partial_episodes)
        padding: Padding = "none"
        if observer._pad_end_of_episodes:
            padding = "tile" if observer._tile_end_of_episodes else "short"
        return cls(*common, observer._sequence_length, observer._stride_length, padding)
