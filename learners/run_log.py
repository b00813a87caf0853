"""The log of a run: numbers collected since the last log entry, evaluations, and the latest value of each number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .evaluation_record import EvaluationRecord
from .log_buffer import LogBuffer
from .monitor import Monitor
from .run_directory import RunDirectory
from .train_loop import CallResult

_LOG = logging.getLogger(__name__)


class RunLog:
    """The log of a run, without gaps or duplicates after a resume.

    A checkpoint may be saved before the log entry of the same step. It contains the numbers of that entry, so that the
    resumed run can log them again; entries of iterations that are lost are removed before the first new one.

    Attributes:
      latest: latest value of every logged number, by name.
      recorded_at: number of completed iterations at which each of these values was recorded.
      buffer: numbers to log next.
      monitor: training speed over the last calls of the graph.
      evaluations: the last and the best evaluation.
    """

    def __init__(self, run: RunDirectory, on_log: Callable[[int, dict[str, float]], None] | None = None):
        """Starts an empty log; the entries of an earlier run are removed by the first entry.

        Args:
          run: directory to write to.
          on_log: function called with the step and the logged numbers; None to log a line with `logging`.
        """
        self._run, self._on_log = run, on_log or _log_line
        self.latest: dict[str, float] = {}
        self.recorded_at: dict[str, int] = {}
        self.buffer, self.monitor, self.evaluations = LogBuffer(), Monitor(), EvaluationRecord()
        #: Steps of the last entry and the last evaluation of an earlier run to keep; None once later ones are removed.
        self._kept_steps: tuple[int, int] | None = (-1, -1)

    def add(self, step: int, result: CallResult, secs: float | None, *, has_priorities: bool) -> None:
        """Adds the results of a call that took `secs`, or None if its duration is not representative."""
        items = {"priority_counts": result.td_errors, "weight_counts": getattr(result.info, "weight", None)}
        self.buffer.add(result.metrics, result.num_iterations, items if has_priorities else {})
        self._record(step, result.metrics)
        if secs is not None:
            self.monitor.add(result.num_iterations, secs, result.data_wait_secs)

    def show(self, step: int) -> None:
        """Writes an entry with the numbers in the buffer and the training speed, and empties the buffer."""
        self._remove_lost_entries()
        numbers = {**self.buffer.means, **self.monitor.rates(), **self.monitor.take_secs()}
        self._record(step, numbers)
        self._run.log(step, numbers)
        writers = {"priority_counts": self._run.log_priorities, "weight_counts": self._run.log_weights}
        for name, counts in self.buffer.histograms.items():
            writers[name](step, counts)
        self._on_log(step, numbers)
        self.buffer.clear()

    def show_evaluation(self, step: int, evaluation: Any) -> None:
        """Writes an entry for an evaluation: an `Evaluation` or a mean return."""
        self._remove_lost_entries()
        mean = float(getattr(evaluation, "mean", evaluation))
        numbers = {"evaluation/mean_return": mean}
        for key in ("std", "score", "success_rate"):
            value = getattr(evaluation, key, None)
            if value is not None:
                numbers[f"evaluation/{key}"] = float(value)
        self._record(step, numbers)
        if hasattr(evaluation, "returns"):
            self._run.log_evaluation(step, evaluation)
        self._on_log(step, numbers)
        self.evaluations.add(step, mean)

    def forget_evaluations(self) -> None:
        """Forgets all evaluations, and removes them from the log, because they are not comparable to later ones."""
        self.evaluations.load_state_dict({})
        if self._kept_steps is not None:
            self._kept_steps = (self._kept_steps[0], -1)
            self._remove_lost_entries()
        self.latest = {key: value for key, value in self.latest.items() if not key.startswith("evaluation/")}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        latest = {key: value for key, value in self.latest.items() if np.isfinite(value)}
        return {
            "latest": latest,
            "recorded_at": self.recorded_at,
            **{name: part.state_dict() for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restores a state that `state_dict` returned after `step` iterations."""
        self.latest, self.recorded_at = dict(state.get("latest", {})), dict(state.get("recorded_at", {}))
        for name, part in self._parts().items():
            part.load_state_dict(state.get(name, {}))
        # An entry of this very step was written after the checkpoint if its numbers are still in the buffer.
        is_evaluated = self.evaluations.evaluated_at == step
        self._kept_steps = (step - bool(self.buffer.means), step - (not is_evaluated))

    def _record(self, step: int, numbers: Mapping[str, float]) -> None:
        self.latest.update(numbers)
        self.recorded_at.update(dict.fromkeys(numbers, step))

    def _parts(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "monitor": self.monitor, "evaluations": self.evaluations}

    def _remove_lost_entries(self) -> None:
        if self._kept_steps is not None:
            self._run.cut_after(*self._kept_steps)
            self._kept_steps = None


def _log_line(step: int, numbers: dict[str, float]) -> None:
    _LOG.info("iteration %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
