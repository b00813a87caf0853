"""The built-in hooks."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent import futures
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb._arguments import require_count, require_number

from .hook import LearnerHook, Position

if TYPE_CHECKING:
    from ..learner import Learner


class LoadCkptHook(LearnerHook):
    """A hook that loads a checkpoint before the run, named after DI-engine's."""

    def __init__(
        self,
        name: str = "load_ckpt",
        priority: int = 20,
        *,
        load_path: str = "latest",
        allow_config_mismatch: bool = False,
    ):
        """Sets the checkpoint to load.

        Args:
          name: see `Hook`.
          priority: see `Hook`.
          load_path: directory of a checkpoint, which must exist; or 'latest' for the latest valid one in the learner's
            `run_dir`, if there is one.
          allow_config_mismatch: see `Learner.load_checkpoint`.
        """
        super().__init__(name, priority, position="before_run")
        self.load_path, self._allow_config_mismatch = load_path, allow_config_mismatch

    def __call__(self, learner: Learner) -> None:
        """Loads the checkpoint."""
        path = None if self.load_path == "latest" else self.load_path
        learner.load_checkpoint(path, allow_config_mismatch=self._allow_config_mismatch)


class SaveCkptHook(LearnerHook):
    """A hook that saves a checkpoint, on rank 0 only, named after DI-engine's."""

    def __init__(
        self, name: str = "save_ckpt", priority: int = 20, *, position: Position = "after_iter", every: int = 10_000
    ):
        """Sets the interval in iterations; with the position 'after_run' the checkpoint is saved once."""
        super().__init__(name, priority, position=position, every=every)

    def __call__(self, learner: Learner) -> None:
        """Saves a checkpoint."""
        if learner.rank == 0:
            learner.save_checkpoint()


class LogReduceHook(LearnerHook):
    """A hook that replaces the numbers to be logged by their means over processes, named after DI-engine's."""

    def __init__(
        self,
        name: str = "log_reduce",
        priority: int = 10,
        *,
        every: int = 100,
        reduce: Callable[[dict[str, float]], dict[str, float]] | None = None,
    ):
        """Sets the reduction, which must run before `LogShowHook`.

        Args:
          name: see `Hook`.
          priority: see `Hook`; must be below that of `LogShowHook`.
          every: interval in iterations; must be that of `LogShowHook`.
          reduce: function from the numbers of this process to their means over all processes that train together; None
            for a single process.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        self._reduce = reduce

    def __call__(self, learner: Learner) -> None:
        """Reduces the log buffer."""
        if self._reduce is not None:
            learner.log_buffer = dict(self._reduce(learner.log_buffer))


class LogShowHook(LearnerHook):
    """A hook that logs the means since its last call, on rank 0 only, named after DI-engine's."""

    def __init__(self, name: str = "log_show", priority: int = 20, *, every: int = 100):
        """Sets the interval in iterations."""
        super().__init__(name, priority, position="after_iter", every=every)

    def __call__(self, learner: Learner) -> None:
        """Logs the learner's log buffer, and empties it."""
        if learner.rank == 0:
            learner.show_log()


class UpdatePrioritiesHook(LearnerHook):
    """A hook that writes the TD errors of sampled items back as priorities; `Learner(priorities=)` registers it.

        priority = |delta| + eps

    Schaul et al. (2016), section 3.3: raw and unweighted; Reverb applies the exponent. After each call of the graph, a
    thread writes the priorities of all its iterations while the next call runs; the call after that waits for it. A
    priority thus reaches the server at most `2 * steps_per_call` iterations after its iteration, and `flush` waits for
    all of them. Batches that were prefetched have older priorities.
    """

    def __init__(self, writer: Any, name: str = "update_priorities", priority: int = 5, *, eps: float = 1e-2):
        """Sets the writer and the constant.

        Args:
          writer: `PriorityWriter`, which this hook does not close.
          name: see `Hook`.
          priority: see `Hook`.
          eps: constant added to every priority so that each item can be sampled; in [1e-12, 1].
        """
        super().__init__(name, priority, position="after_iter")
        require_number("eps", eps, 1e-12, 1)
        self.writer, self.eps = writer, eps
        self._thread = futures.ThreadPoolExecutor(1, "rlds2reverb-priorities")
        self._pending: futures.Future[None] | None = None

    def next_due(self, done: int) -> int:
        """Returns a number that is never reached, so that no call of the graph ends early for this hook."""
        return 1 << 62

    def is_due(self, done: int) -> bool:
        """Returns True, because the hook is called after every call of the graph."""
        return True

    def __call__(self, learner: Learner) -> None:
        """Starts to write the priorities in the learner's `priority_info`, if there are any.

        Raises:
          ServerUnavailableError: If the previous priorities could not be written.
        """
        self.flush()
        if learner.priority_info:
            priorities = learner.priority_info["td_error"].astype(np.float64) + self.eps
            self._pending = self._thread.submit(self.writer.write, learner.priority_info["info"], priorities)

    def flush(self) -> None:
        """Waits until all priorities are written.

        Raises:
          ServerUnavailableError: If they could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Stops the thread after pending writes."""
        self._thread.shutdown()


class ReplayCheckpointHook(LearnerHook):
    """A hook that checkpoints the tables of a server, and records the path for the learner's own checkpoints."""

    def __init__(
        self,
        server: Any,
        name: str = "replay_checkpoint",
        priority: int = 15,
        *,
        position: Position = "after_iter",
        every: int = 10_000,
    ):
        """Sets the server and the interval.

        Args:
          server: `ReplayServer`, or any object whose `checkpoint()` returns a path.
          name: see `Hook`.
          priority: see `Hook`; must be below that of `SaveCkptHook`, whose checkpoint contains the path.
          position: 'after_iter', or 'after_run' for a single checkpoint.
          every: interval in iterations.
        """
        super().__init__(name, priority, position=position, every=every)
        self._server = server

    def __call__(self, learner: Learner) -> None:
        """Writes the checkpoint after all pending priorities."""
        learner.flush_priorities()
        learner.replay_checkpoint = str(self._server.checkpoint())


class EvaluateHook(LearnerHook):
    """A hook that evaluates the policy and reports the result to the learner, which keeps the best policy."""

    def __init__(
        self,
        evaluate: Callable[[Any], Any],
        name: str = "evaluate",
        priority: int = 10,
        *,
        position: Position = "after_iter",
        every: int = 5_000,
    ):
        """Sets the evaluation and the interval.

        Args:
          evaluate: function from a policy to an `Evaluation` or a mean return.
          name: see `Hook`.
          priority: see `Hook`; must be below that of `SaveCkptHook`, whose checkpoint contains the score.
          position: 'after_iter', or 'after_run' for a single evaluation.
          every: interval in iterations.
        """
        super().__init__(name, priority, position=position, every=every)
        self._evaluate = evaluate

    def __call__(self, learner: Learner) -> None:
        """Evaluates the policy; after a run only if it was not just evaluated and no signal ended the run."""
        done = learner.last_iter + (self.position == "after_iter")
        if self.position == "after_run" and (learner.evaluated_at == done or learner.is_stopped_by_signal):
            return
        learner.record_evaluation(self._evaluate(learner.policy))


class EarlyStopHook(LearnerHook):
    """A hook that stops the run when a metric no longer improves."""

    def __init__(
        self,
        metric: str = "evaluation/mean_return",
        name: str = "early_stop",
        priority: int = 15,
        *,
        every: int = 5_000,
        patience: int = 10,
        min_delta: float = 0.0,
        higher_is_better: bool = True,
    ):
        """Sets the metric and the stopping criterion.

        Args:
          metric: key of `Learner.latest`, such as 'loss' or 'evaluation/mean_return'.
          name: see `Hook`.
          priority: see `Hook`; must be above that of `EvaluateHook`, and below that of `SaveCkptHook`, which saves this
            hook's state.
          every: number of iterations between two checks.
          patience: number of consecutive checks without improvement before the run is stopped, at least 1.
          min_delta: minimum change that counts as an improvement, at least 0.
          higher_is_better: whether an improvement is an increase.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        require_count("patience", patience)
        require_number("min_delta", min_delta, 0, math.inf)
        self.metric, self.patience, self._min_delta = metric, patience, min_delta
        self._sign = 1 if higher_is_better else -1
        self._best, self._num_without_gain = -math.inf, 0

    def __call__(self, learner: Learner) -> None:
        """Checks the metric, and stops the run when patience runs out."""
        if self.metric not in learner.latest:
            return
        value = self._sign * learner.latest[self.metric]
        if value > self._best + self._min_delta or self._best == -math.inf:
            self._best, self._num_without_gain = value, 0
            return
        self._num_without_gain += 1
        if self._num_without_gain >= self.patience:
            learner.stop(f"{self.metric} has not improved in {self.patience} checks")

    def state_dict(self) -> dict[str, Any]:
        """Implements `LearnerHook.state_dict`."""
        return {"best": self._best, "num_without_gain": self._num_without_gain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Implements `LearnerHook.load_state_dict`."""
        self._best, self._num_without_gain = state["best"], state["num_without_gain"]


class TriggerHook(LearnerHook):
    """A hook that calls a TF-Agents trigger, such as `PolicySavedModelTrigger`, with the number of iterations."""

    def __init__(self, trigger: Any, name: str = "trigger", priority: int = 40, *, every: int = 100):
        """Sets the trigger and the interval of calling it; the trigger also has its own interval.

        Args:
          trigger: `IntervalTrigger` of TF-Agents, or any callable that takes a number.
          name: see `Hook`.
          priority: see `Hook`.
          every: interval in iterations.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        self._trigger = trigger

    def __call__(self, learner: Learner) -> None:
        """Calls the trigger."""
        self._trigger(learner.last_iter + 1)
