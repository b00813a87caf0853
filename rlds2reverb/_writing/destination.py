"""What a running server and a directory have in common as destinations of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol

from rlds2reverb._encoding.item_blocks import ItemBlock

#: What to say, with the difference, where a data set is not the one that an earlier run wrote.
OTHER_DATA = (
    "the data set is not the one that the earlier run wrote: {}; write to an empty table or a new directory, or "
    "without resuming (--no-resume), which keeps the items of both in a table"
)


@dataclass(frozen=True)
class TransferState:
    """How far a transfer is, for a run that continues it.

    Attributes:
      seen: episodes of the source that were read, whether they were written or left out.
      fingerprint: of the episodes that were written; see `sources.summary.Fingerprint`.
      items: written.
      episodes_too_short: episodes that gave no item.
    """

    seen: int
    fingerprint: str
    items: int
    episodes_too_short: int

    def as_dict(self) -> dict[str, Any]:
        """The same as a plain dict, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TransferState:
        """From what `as_dict` returned; further keys are ignored."""
        return cls(**{name: values[name] for name in ("seen", "fingerprint", "items", "episodes_too_short")})


class Destination(Protocol):
    """Takes the items of episodes, and remembers how far the transfer is. A context manager."""

    def open(self, *, resume: bool) -> TransferState | None:
        """Begins; with `resume`, returns the state of the last `write` of an earlier run that is safe, if any."""

    def write(self, blocks: Sequence[ItemBlock], state: TransferState) -> None:
        """Takes the items of some whole episodes; `state` is that of the transfer after them."""

    def finish(self, state: TransferState) -> None:
        """Waits until everything is safe."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
