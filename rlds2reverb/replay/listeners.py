"""Listeners: what a replay buffer tells those who watch it, and when."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import numpy as np

#: Why items leave: the buffer is full, they are too old for the learner, were sampled often enough, or all are cleared.
REASONS = ("full", "stale", "used", "cleared")


class Listener:
    """Is told what happens to a buffer, in the order in which it happens (`ReplayBuffer.add_listener`); does nothing.

    A call of the buffer has told everything of it when it returns. Listeners are called one at a time, without the
    buffer's lock, and may call the buffer. What one raises reaches the caller of the buffer, after what it tells of has
    happened. The arrays may be kept, but not changed: other listeners get the same.

    Attributes:
      wants_data: whether `on_remove` gets the data, which are copied only then.
    """

    wants_data: ClassVar[bool] = False

    def on_push(self, priorities: np.ndarray) -> None:
        """Items were added.

        Args:
          priorities: float64 `[N]` that they begin with.
        """

    def on_sample(self, use: np.ndarray, staleness: np.ndarray, priorities: np.ndarray) -> None:
        """A batch was sampled.

        Args:
          use: int64 `[B]`, how often each item was sampled, this time included.
          staleness: int64 `[B]`, the learner's iteration less the one an item was collected in; -1 where not known.
          priorities: float64 `[B]`, at the draw.
        """

    def on_update(self, priorities: np.ndarray) -> None:
        """Priorities were changed.

        Args:
          priorities: float64 `[M]`, the new ones of items that are still there.
        """

    def on_remove(self, numbers: np.ndarray, reason: str, data: Any) -> None:
        """Items left the buffer.

        Args:
          numbers: int64 `[M]`, of the items, counted from the first push.
          reason: one of `REASONS`.
          data: a nest of columns `[M, ...]`; of episodes a list of M nests. None unless a listener wants data.
        """


class NotifyingLock:
    """A lock that a thread may take again, and that tells what was noted under it once it is free.

    Notes keep the order of what happened: one thread at a time tells, and one that has noted something waits for it.
    """

    def __init__(self) -> None:
        """Free, with nothing noted."""
        self._lock, self._telling = threading.RLock(), threading.RLock()
        self._depth = 0
        self._is_noted = False
        self._teller: int | None = None
        self._notes: deque[Callable[[], None]] = deque()

    def note(self, tell: Callable[[], None]) -> None:
        """Notes what is to be told; the lock is held."""
        self._notes.append(tell)
        self._is_noted = True

    def acquire(self, blocking: bool = True) -> bool:
        """Takes the lock; `with` does so as well."""
        if not self._lock.acquire(blocking):
            return False
        self._depth += 1
        return True

    def free(self) -> bool:
        """Gives the lock back without telling, and says whether there is now something of this thread's to tell."""
        self._depth -= 1
        must_tell = self._is_noted and not self._depth
        if must_tell:
            self._is_noted = False
        self._lock.release()
        return must_tell

    def release(self) -> None:
        """Gives the lock back, and tells."""
        if self.free():
            self.tell()

    def tell(self) -> None:
        """Tells what was noted."""
        if self._teller == threading.get_ident():  # who tells goes on with it anyway
            return
        with self._telling:
            self._teller = threading.get_ident()
            try:
                while self._notes:
                    self._notes.popleft()()
            finally:
                self._teller = None

    def __enter__(self) -> NotifyingLock:
        self.acquire()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()


@contextmanager
def held_together(locks: Iterable[NotifyingLock]) -> Iterator[None]:
    """Holds several locks, taken in the order given; tells when all are free."""
    with ExitStack() as telling, ExitStack() as holding:

        def free(lock: NotifyingLock) -> None:
            if lock.free():
                telling.callback(lock.tell)

        for lock in locks:
            lock.acquire()
            holding.callback(free, lock)
        yield
