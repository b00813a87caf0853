"""Writing of TD errors back as priorities, while the next iterations run."""

from __future__ import annotations

from concurrent import futures
from typing import Any, Protocol

import numpy as np


class PrioritySink(Protocol):
    """A receiver of new priorities, such as a `PriorityWriter` or an in-process buffer."""

    def update(self, info: Any, td_errors: np.ndarray) -> None:
        """Updates the priorities of sampled items; another thread calls this method.

        Args:
          info: `SampleInfo` of arrays `[N]`.
          td_errors: float32 `[N]`, absolute TD errors. How they become priorities is up to the sink.
        """


def require_sink(sink: Any) -> None:
    """Raises `TypeError` unless a priority sink has an `update` method."""
    if not callable(getattr(sink, "update", None)):
        raise TypeError(
            "priorities must have a method update(info, td_errors), like PriorityWriter and ReplayBuffer, "
            f"got a {type(sink).__name__}"
        )


class PriorityUpdates:
    """A thread that passes TD errors to a priority sink, one call of the graph behind the training loop.

    While the thread passes on the TD errors of one call, the next call runs; the one after that waits for the thread. A
    priority thus reaches the sink at most two calls after its iteration, and `flush` waits for all of them. Batches
    that were prefetched were sampled with older priorities.

    Attributes:
      sink: the receiver of the priorities, or None.
    """

    def __init__(self, sink: PrioritySink | None):
        """Starts no thread until the first update.

        Args:
          sink: the receiver of the priorities, which is not closed here; None to ignore all updates.
        """
        self.sink = sink
        self._thread = futures.ThreadPoolExecutor(1, "rlds2reverb-priorities")
        self._pending: futures.Future[None] | None = None

    def submit(self, info: Any, td_error: np.ndarray) -> None:
        """Starts to update the priorities of a call's items, after waiting for those of the previous call.

        Args:
          info: `SampleInfo` of arrays `[N]`.
          td_error: float32 `[N]`, absolute TD errors.

        Raises:
          Exception: If the previous update failed; the sink's own error.
        """
        self.flush()
        if self.sink is not None:
            self._pending = self._thread.submit(self.sink.update, info, td_error)

    def flush(self) -> None:
        """Waits until all priorities are updated.

        Raises:
          Exception: If an update failed; the sink's own error.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Stops the thread after pending updates."""
        self._thread.shutdown()
