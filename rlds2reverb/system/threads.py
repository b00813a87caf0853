"""Calls of functions in new threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def call_in_thread(function: Callable[[], _Result], *, daemon: bool) -> Future[_Result]:
    """Starts to call a function in a new thread, and returns its future result.

    Args:
      function: the function.
      daemon: whether the program may end during the call. Native code may abort the program then.
    """
    future: Future[_Result] = Future()
    threading.Thread(target=complete, args=(future, function), name="rlds2reverb-read", daemon=daemon).start()
    return future


def complete(future: Future[_Result], function: Callable[[], _Result]) -> None:
    """Calls a function, and sets its result or its error."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def map_ahead(function: Callable[[_Item], _Result], items: Iterable[_Item], num_ahead: int) -> Iterator[_Result]:
    """Yields what a function returns for each item, in order, while threads call it for up to `num_ahead` next items.

    An error of the function is raised in place of its result. An iterator that is dropped starts no more calls, and the
    program ends after those that have been started.
    """
    remaining, pending = iter(items), deque[Future[_Result]]()
    if not num_ahead:
        yield from map(function, remaining)
        return
    while True:
        for item in islice(remaining, num_ahead + 1 - len(pending)):
            pending.append(call_in_thread(lambda item=item: function(item), daemon=False))  # type: ignore[misc]
        if not pending:
            return
        yield pending.popleft().result()
