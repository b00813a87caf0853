"""Measurement of the time that an environment takes."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlds2reverb.types.arguments import require_count
from rlds2reverb.types.specs import Nest

from .environment import Environment, Wrapper
from .time_steps import TimeStep


@dataclass(frozen=True)
class PerformanceProfile:
    """The time that a number of steps took.

    Attributes:
      num_steps: number of steps; a step of a batch counts B times.
      env_secs: time in the environment, resets included.
      outside_secs: time between its calls, such as that of the policy and of learning.
      calls: profile of the functions that the environment called, or None; `calls.print_stats("cumulative")` shows it.
    """

    num_steps: int
    env_secs: float
    outside_secs: float
    calls: cProfile.Profile | None = None

    @property
    def steps_per_sec(self) -> float:
        """The number of steps per second of the total time; infinite if no time has passed."""
        secs = self.env_secs + self.outside_secs
        return self.num_steps / secs if secs else float("inf")

    @property
    def env_share(self) -> float:
        """The fraction of the time spent in the environment, in [0, 1]."""
        secs = self.env_secs + self.outside_secs
        return self.env_secs / secs if secs else 0.0

    def __str__(self) -> str:
        return f"{self.steps_per_sec:,.0f} steps/s, {self.env_share:.0%} of the time in the environment"


class PerformanceProfiler(Wrapper):
    """Measures the time in an environment and outside of it, and reports both at regular intervals.

    ALF's wrapper of this name reports only a `cProfile.Profile`, which slows down the environment; here it is optional.
    """

    def __init__(
        self,
        env: Environment,
        process_profile_fn: Callable[[PerformanceProfile], None] = lambda profile: print(profile),
        process_steps: int = 10_000,
        *,
        with_calls: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """Wraps an environment.

        Args:
          env: an environment, batched or not.
          process_profile_fn: function called with each profile; its own time is not counted. It prints by default.
          process_steps: number of steps per profile, at least 1.
          with_calls: whether to profile the functions that the environment calls in this thread.
          clock: function that returns the time in seconds.

        Raises:
          ValueError: If the number is out of range.
        """
        super().__init__(env)
        require_count("process_steps", process_steps)
        self._process, self._process_steps, self._clock = process_profile_fn, process_steps, clock
        self._with_calls = with_calls
        self._clear()

    @property
    def profile(self) -> PerformanceProfile:
        """The profile of the steps since the last report."""
        return PerformanceProfile(self._num_steps, self._env_secs, self._outside_secs, self._calls)

    def _clear(self) -> None:
        self._num_steps, self._env_secs, self._outside_secs = 0, 0.0, 0.0
        self._calls = cProfile.Profile() if self._with_calls else None
        self._last_end: float | None = None

    def _reset(self) -> TimeStep:
        with self._measure():
            return self.env.reset()

    def _step(self, action: Nest) -> TimeStep:
        with self._measure():
            return self.env.advance(action)

    def advance(self, action: Nest) -> TimeStep:
        """Executes an action; see `Environment`."""
        time_step = super().advance(action)
        self._num_steps += self.batch_size or 1
        if self._num_steps >= self._process_steps:
            profile, last_end = self.profile, self._last_end
            self._clear()
            before = self._clock()
            self._process(profile)
            if last_end is not None:
                self._last_end = last_end + self._clock() - before
        return time_step

    @contextmanager
    def _measure(self) -> Iterator[None]:
        start = self._clock()
        if self._last_end is not None:
            self._outside_secs += start - self._last_end
        if self._calls is not None:
            self._calls.enable()
        try:
            yield
        finally:
            if self._calls is not None:
                self._calls.disable()
            self._last_end = self._clock()
            self._env_secs += self._last_end - start
