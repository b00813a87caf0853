"""Listeners to the events of a replay buffer, and the lock that calls them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import numpy as np

#: Why items leave: the buffer is full, they are stale, they were sampled `max_use` times, or the buffer was cleared.
REASONS = ("full", "stale", "used", "cleared")


class Listener:
    """Base class of listeners, which are called for the events of a buffer in order (`ReplayBuffer.add_listener`).

    All events of a call to the buffer are reported before it returns. Listeners are called one at a time, without the
    buffer's lock, and may call the buffer. Their exceptions reach the caller of the buffer, after the event has
    happened. The arrays can be kept but not changed, because all listeners get the same ones.

    Attributes:
      wants_data: whether `on_remove` gets the data, which are copied only then.
    """

    wants_data: ClassVar[bool] = False

    def on_push(self, priorities: np.ndarray) -> None:
        """Handles a push.

        Args:
          priorities: float64 `[N]`, initial priorities of the new items.
        """

    def on_sample(self, use: np.ndarray, staleness: np.ndarray, priorities: np.ndarray) -> None:
        """Handles a sampled batch.

        Args:
          use: int64 `[B]`, how many times each item was sampled up to now, including this time.
          staleness: int64 `[B]`, number of learner iterations since each item was collected; -1 if unknown.
          priorities: float64 `[B]`, priorities when the items were sampled.
        """

    def on_update(self, priorities: np.ndarray) -> None:
        """Handles an update of priorities.

        Args:
          priorities: float64 `[M]`, new priorities of the items that are still in the buffer.
        """

    def on_remove(self, numbers: np.ndarray, reason: str, data: Any) -> None:
        """Handles the removal of items.

        Args:
          numbers: int64 `[M]`, numbers of the items, counted from the first push.
          reason: one of `REASONS`.
          data: nest of columns `[M, ...]`, or a list of M nests for episodes; None unless a listener wants data.
        """


class NotifyingLock:
    """A reentrant lock that runs deferred notifications once it is released.

    Notifications run in the order in which they were deferred: one thread at a time runs them, and a thread that has
    deferred one waits until it has run.
    """

    def __init__(self) -> None:
        self._lock, self._notifying = threading.RLock(), threading.RLock()
        self._depth = 0
        self._has_deferred = False
        self._notifier: int | None = None
        self._deferred: deque[Callable[[], None]] = deque()

    def defer(self, notification: Callable[[], None]) -> None:
        """Schedules a notification for the release of the lock, which the caller holds."""
        self._deferred.append(notification)
        self._has_deferred = True

    def acquire(self, blocking: bool = True) -> bool:
        """Acquires the lock, as `with` does."""
        if not self._lock.acquire(blocking):
            return False
        self._depth += 1
        return True

    def release_only(self) -> bool:
        """Releases the lock without notifying; returns whether this thread must call `notify` now."""
        self._depth -= 1
        must_notify = self._has_deferred and not self._depth
        if must_notify:
            self._has_deferred = False
        self._lock.release()
        return must_notify

    def release(self) -> None:
        """Releases the lock and runs the deferred notifications."""
        if self.release_only():
            self.notify()

    def notify(self) -> None:
        """Runs the deferred notifications."""
        if self._notifier == threading.get_ident():  # A notification got here, and the loop below runs the new ones.
            return
        with self._notifying:
            self._notifier = threading.get_ident()
            try:
                while self._deferred:
                    self._deferred.popleft()()
            finally:
                self._notifier = None

    def __enter__(self) -> NotifyingLock:
        self.acquire()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()


@contextmanager
def hold_all(locks: Iterable[NotifyingLock]) -> Iterator[None]:
    """Holds several locks, acquired in the order given; notifies only when all of them are released."""
    with ExitStack() as notifications, ExitStack() as held:

        def release(lock: NotifyingLock) -> None:
            if lock.release_only():
                notifications.callback(lock.notify)

        for lock in locks:
            lock.acquire()
            held.callback(release, lock)
        yield
