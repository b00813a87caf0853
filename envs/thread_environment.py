"""An environment that lives in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlds2reverb.types.specs import Nest

from ._deadline_thread import DeadlineThread
from .environment import Environment, SpecifiedEnvironment, require_constructor, require_environment
from .time_steps import TimeStep


class ThreadEnvironment(SpecifiedEnvironment):
    """An environment that is created, stepped and closed in one thread, so that one that hangs raises an error.

    Some simulators must always be called from the thread that created them. All methods and attributes of the
    environment are accessed in its thread, including those that `Environment` does not have. Errors are raised in the
    calling thread. After ALF's `ThreadEnvironment`.

    Several threads may call; each gets the results of its calls. A step that was interrupted (Ctrl-C) is completed
    in the background, and the next one starts a new episode. If a call exceeds the timeout, the environment is lost:
    the thread cannot be ended, and later calls raise as well.
    """

    def __init__(self, constructor: Callable[[], Environment], *, timeout_secs: float = 60.0):
        """Starts the thread and creates the environment in it.

        Args:
          constructor: function that returns the environment, batched or not.
          timeout_secs: maximum duration of the construction and of each call.

        Raises:
          ValueError: If the timeout is out of range.
          TypeError: If the constructor is no function, or does not return an `Environment`.
          TimeoutError: If the environment is not created in time; the message contains the thread's stack trace.
          Exception: Any error of the constructor.
        """
        require_constructor(constructor, "constructor")
        self._thread = DeadlineThread("the environment", timeout_secs)
        try:
            self._env = self._thread.open(lambda: require_environment(constructor(), "ThreadEnvironment"))
            super().__init__(auto_reset=self._thread.call(lambda: self._env.auto_reset))
            self._batch_size = self._thread.call(lambda: self._env.batch_size)
            self._time_step_spec = self._thread.call(self._env.time_step_spec)
        except BaseException:
            self._thread.close()
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = self._thread.call(lambda: getattr(self._env, name))
        if not callable(value):
            return value
        return lambda *arguments, **keywords: self._thread.call(lambda: value(*arguments, **keywords))

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset` of the environment."""
        self._thread.call(lambda: self._env.seed(seed))

    def render(self, mode: str = "rgb_array") -> Any:
        """Returns an image of the environment."""
        return self._thread.call(lambda: self._env.render(mode))

    def close(self) -> None:
        """Closes the environment and ends its thread, unless the environment hangs. Idempotent.

        Raises:
          TimeoutError: If closing the environment takes too long.
        """
        self._thread.close()

    def _reset(self) -> TimeStep:
        return self._thread.call(self._env.reset)

    def _step(self, action: Nest) -> TimeStep:
        return self._thread.call(lambda: self._env.advance(action))
