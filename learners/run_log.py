"""The log of a run: numbers collected since the last log entry, evaluations, and the latest value of each number."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2reverb.system.replacements import describe_unknown

from .monitor import Monitor
from .run_directory import RunDirectory, count_priorities
from .train_loop import CallResult

_LOG = logging.getLogger(__name__)
_HISTOGRAMS = ("priority_counts", "weight_counts")


class LogBuffer(dict[str, float]):
    """The numbers to be logged, by name; those of DI-engine's `log_buffer["scalar"]`, which is the same object."""

    def __missing__(self, name: str) -> LogBuffer:
        if name != "scalar":
            raise KeyError(describe_unknown("log_buffer", "key", name, self, "log_buffer"))
        return self


class RunLog:
    """The log of a run, without gaps or duplicates after a resume.

    A checkpoint may be saved before the log entry of the same step. It contains the numbers of that entry, so that the
    resumed run can log them again; entries of iterations that are lost are removed before the first new one.

    Attributes:
      latest: latest value of every logged number, by name.
      recorded_at: number of completed iterations at which each of these values was recorded.
      means: mean of each scalar over the iterations since the last entry.
      histograms: histograms of `count_priorities` since the last entry: `priority_counts` of the TD errors, and
        `weight_counts` of the importance weights; without those of which there were none.
      monitor: training speed over the last calls of the graph.
      best_return: highest mean return of an evaluation after the first update; -inf before the first.
      evaluated_at: number of completed iterations at the last evaluation; None before the first.
      is_new_best: whether the last evaluation is the one of `best_return`, and no checkpoint has been saved since.
    """

    best_return: float
    evaluated_at: int | None

    def __init__(self, run: RunDirectory, on_log: Callable[[int, dict[str, float]], None] | None = None):
        """Starts an empty log; the entries of an earlier run are removed by the first entry.

        Args:
          run: directory to write to.
          on_log: function called with the step and the logged numbers; None to log a line with `logging`.
        """
        self._run, self._on_log = run, on_log or _log_line
        self.latest: dict[str, float] = {}
        self.recorded_at: dict[str, int] = {}
        self.monitor = Monitor()
        self._load_buffer({})
        self._load_evaluations({})
        #: Steps of the last entry and the last evaluation of an earlier run to keep; None once later ones are removed.
        self._kept_steps: tuple[int, int] | None = (-1, -1)

    def add(self, step: int, result: CallResult, secs: float | None, *, has_priorities: bool) -> None:
        """Adds the results of a call that took `secs`, or None if its duration is not representative."""
        for name, values in result.metrics.items():
            old, mean = self._counts.get(name, 0), self.means.get(name, 0.0)
            total = self._sums.get(name, 0.0)
            if old and total / old != mean:  # A hook has replaced the mean.
                total = mean * old
            # One addition after the other, so that sums do not depend on how iterations are split into calls.
            self._sums[name] = total = float(np.add.accumulate([total, *values], dtype=np.float64)[-1])
            self._counts[name] = old + len(values)
            self.means[name] = total / self._counts[name]
        for name, numbers in zip(_HISTOGRAMS, (result.td_errors, getattr(result.info, "weight", None)), strict=True):
            if has_priorities and numbers is not None:
                self.histograms[name] = self.histograms.get(name, 0) + count_priorities(numbers)
        self._record(step, {name: self.means[name] for name in result.metrics})
        if secs is not None:
            self.monitor.add(result.num_iterations, secs, result.data_wait_secs)

    def show(self, step: int) -> None:
        """Writes an entry with the numbers in the buffer and the training speed, and empties the buffer."""
        self._remove_lost_entries()
        numbers = {**self.means, **self.monitor.rates(), **self.monitor.take_secs()}
        self._record(step, numbers)
        self._run.log(step, numbers)
        for name, write in zip(_HISTOGRAMS, (self._run.log_priorities, self._run.log_weights), strict=True):
            if name in self.histograms:
                write(step, self.histograms[name])
        self._on_log(step, numbers)
        self._load_buffer({})

    def show_evaluation(self, step: int, evaluation: Any) -> None:
        """Writes an entry for an evaluation: an `Evaluation` or a mean return."""
        self._remove_lost_entries()
        mean = float(getattr(evaluation, "mean", evaluation))
        numbers = {"evaluation/mean_return": mean}
        for key in ("std", "score", "success_rate"):
            value = getattr(evaluation, key, None)
            if value is not None:
                numbers[f"evaluation/{key}"] = float(value)
        numbers |= {f"evaluation/{name}": value for name, value in getattr(evaluation, "means", {}).items()}
        self._record(step, numbers)
        if hasattr(evaluation, "returns"):
            self._run.log_evaluation(step, evaluation)
        self._on_log(step, numbers)
        self.evaluated_at = step
        if step and mean > self.best_return:
            self.best_return, self.is_new_best = mean, True

    def forget_evaluations(self) -> None:
        """Forgets all evaluations, and removes them from the log, because they are not comparable to later ones."""
        self._load_evaluations({})
        if self._kept_steps is not None:
            self._kept_steps = (self._kept_steps[0], -1)
            self._remove_lost_entries()
        self.latest = {key: value for key, value in self.latest.items() if not key.startswith("evaluation/")}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        histograms = {name: counts.tolist() for name, counts in self.histograms.items()}
        best = None if math.isinf(self.best_return) else self.best_return
        return {
            "latest": {key: value for key, value in self.latest.items() if np.isfinite(value)},
            "recorded_at": self.recorded_at,
            "buffer": {"means": dict(self.means), "sums": self._sums, "counts": self._counts, **histograms},
            "monitor": self.monitor.state_dict(),
            "evaluations": {"best_return": best, "evaluated_at": self.evaluated_at},
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restores a state that `state_dict` returned after `step` iterations."""
        self.latest, self.recorded_at = dict(state.get("latest", {})), dict(state.get("recorded_at", {}))
        self._load_buffer(state.get("buffer", {}))
        self.monitor.load_state_dict(state.get("monitor", {}))
        self._load_evaluations(state.get("evaluations", {}))
        # An entry of this very step was written after the checkpoint if its numbers are still in the buffer.
        is_evaluated = self.evaluated_at == step
        self._kept_steps = (step - bool(self.means), step - (not is_evaluated))

    def _load_buffer(self, state: Mapping[str, Any]) -> None:
        self.means = LogBuffer(state.get("means", {}))
        self._sums: dict[str, float] = dict(state.get("sums", {}))
        self._counts: dict[str, int] = dict(state.get("counts", {}))
        self.histograms = {name: np.asarray(state[name], np.int64) for name in _HISTOGRAMS if state.get(name)}

    def _load_evaluations(self, state: Mapping[str, Any]) -> None:
        best, self.evaluated_at = state.get("best_return"), state.get("evaluated_at")
        self.best_return, self.is_new_best = -math.inf if best is None else best, False

    def _record(self, step: int, numbers: Mapping[str, float]) -> None:
        self.latest.update(numbers)
        self.recorded_at.update(dict.fromkeys(numbers, step))

    def _remove_lost_entries(self) -> None:
        if self._kept_steps is not None:
            self._run.cut_after(*self._kept_steps)
            self._kept_steps = None


def _log_line(step: int, numbers: dict[str, float]) -> None:
    _LOG.info("iteration %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
