"""The hooks that come with the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb._arguments import require_count, require_number

from .hook import LearnerHook, Position

if TYPE_CHECKING:
    from ..learner import Learner


class LoadCkptHook(LearnerHook):
    """Loads a checkpoint before the run, if there is one; DI-engine's hook of that name."""

    def __init__(self, name: str = "load_ckpt", priority: int = 20, *, load_path: str = "latest"):
        """Loads before the run.

        Args:
          name: see `Hook`.
          priority: see `Hook`.
          load_path: a checkpoint's directory, or 'latest' for the newest good one under the learner's `root_dir`.
        """
        super().__init__(name, priority, position="before_run")
        self.load_path = load_path

    def __call__(self, learner: Learner) -> None:
        """Loads it; an explicit path has to be there."""
        learner.load_checkpoint(None if self.load_path == "latest" else self.load_path)


class SaveCkptHook(LearnerHook):
    """Saves a checkpoint, on rank 0 only; DI-engine's hook of that name."""

    def __init__(
        self, name: str = "save_ckpt", priority: int = 20, *, position: Position = "after_iter", every: int = 10_000
    ):
        """Saves every so many iterations, or once with the position 'after_run'."""
        super().__init__(name, priority, position=position, every=every)

    def __call__(self, learner: Learner) -> None:
        """Saves it."""
        if learner.rank == 0:
            learner.save_checkpoint()


class LogReduceHook(LearnerHook):
    """Replaces what is about to be logged by its mean over replicas; DI-engine's hook of that name."""

    def __init__(self, name: str = "log_reduce", priority: int = 10, *, every: int = 100):
        """Reduces every so many iterations, before `LogShowHook` shows."""
        super().__init__(name, priority, position="after_iter", every=every)

    def __call__(self, learner: Learner) -> None:
        """Reduces the log buffer."""
        learner.log_buffer = learner.reduced(learner.log_buffer)


class LogShowHook(LearnerHook):
    """Shows and writes down what was logged since it was called last; DI-engine's hook of that name."""

    def __init__(self, name: str = "log_show", priority: int = 20, *, every: int = 100):
        """Shows every so many iterations."""
        super().__init__(name, priority, position="after_iter", every=every)

    def __call__(self, learner: Learner) -> None:
        """Hands the log buffer to the learner's log, and empties it."""
        if learner.rank == 0:
            learner.show_log()


class UpdatePrioritiesHook(LearnerHook):
    """Writes the TD errors of sampled items back as their priorities; `Learner(priorities=)` registers it.

        priority = |delta| + eps

    Schaul et al. (2016), section 3.3: raw and unweighted; Reverb applies the exponent. The items of all iterations
    since the last call of the graph are written in one go, so that priorities are at most `steps_per_call` iterations
    old, and those of the batches that were sampled ahead.
    """

    def __init__(self, writer: Any, name: str = "update_priorities", priority: int = 5, *, eps: float = 1e-2):
        """Writes after each call of the graph.

        Args:
          writer: a `PriorityWriter`.
          name: see `Hook`.
          priority: see `Hook`.
          eps: added, so that everything can be sampled; in [1e-12, 1].
        """
        super().__init__(name, priority, position="after_iter")
        require_number("eps", eps, 1e-12, 1)
        self.writer, self.eps = writer, eps

    def next_due(self, done: int) -> int:
        """Returns never: the learner calls it when there is something to write, wherever a call of the graph ends."""
        return 1 << 62

    def __call__(self, learner: Learner) -> None:
        """Writes what is in the learner's `priority_info`, if there is something."""
        given = learner.priority_info
        if given:
            self.writer.write(given["info"], given["td_error"].astype(np.float64) + self.eps)


class ReplayCheckpointHook(LearnerHook):
    """Makes a server write a checkpoint of its tables, and notes its path for the learner's own checkpoints."""

    def __init__(self, server: Any, name: str = "replay_checkpoint", priority: int = 15, *, every: int = 10_000):
        """Writes every so many iterations.

        Args:
          server: a `ReplayServer`, or anything with `checkpoint()` that returns a path.
          name: see `Hook`.
          priority: see `Hook`; below that of `SaveCkptHook`, whose checkpoint names the path.
          every: iterations.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        self._server = server

    def __call__(self, learner: Learner) -> None:
        """Writes the checkpoint."""
        learner.replay_checkpoint = str(self._server.checkpoint())


class EvaluateHook(LearnerHook):
    """Evaluates the policy, and tells the learner, which keeps the best one."""

    def __init__(
        self, evaluate: Callable[[Any], Any], name: str = "evaluate", priority: int = 10, *, every: int = 5_000
    ):
        """Evaluates every so many iterations.

        Args:
          evaluate: gives for a policy an `Evaluation`, or a number: the mean return.
          name: see `Hook`.
          priority: see `Hook`; below that of `SaveCkptHook`, whose checkpoint knows the score.
          every: iterations.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        self._evaluate = evaluate

    def __call__(self, learner: Learner) -> None:
        """Evaluates the learner's policy."""
        learner.record_evaluation(self._evaluate(learner.policy))


class EarlyStopHook(LearnerHook):
    """Stops the run where a metric has not got better for a while."""

    def __init__(
        self,
        metric: str = "evaluation/mean_return",
        name: str = "early_stop",
        priority: int = 30,
        *,
        every: int = 5_000,
        patience: int = 10,
        smallest_gain: float = 0.0,
        is_higher_better: bool = True,
    ):
        """Looks every so many iterations.

        Args:
          metric: of `Learner.latest`, such as 'loss' or 'evaluation/mean_return'.
          name: see `Hook`.
          priority: see `Hook`.
          every: iterations between two looks.
          patience: looks without a gain after which the run is stopped, at least 1.
          smallest_gain: what counts as better, at least 0.
          is_higher_better: whether the metric is to grow.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        require_count("patience", patience)
        require_number("smallest_gain", smallest_gain, 0, math.inf)
        self.metric, self.patience, self._gain = metric, patience, smallest_gain
        self._sign = 1 if is_higher_better else -1
        self._best, self._looks = -math.inf, 0

    def __call__(self, learner: Learner) -> None:
        """Stops the learner, if it is time."""
        if self.metric not in learner.latest:
            return
        value = self._sign * learner.latest[self.metric]
        if value > self._best + self._gain or self._best == -math.inf:
            self._best, self._looks = value, 0
            return
        self._looks += 1
        if self._looks >= self.patience:
            learner.stop(f"{self.metric} has not got better in {self.patience} looks")

    def state_dict(self) -> dict[str, Any]:
        """See `LearnerHook.state_dict`."""
        return {"best": self._best, "looks": self._looks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `LearnerHook.load_state_dict`."""
        self._best, self._looks = state["best"], state["looks"]


class TriggerHook(LearnerHook):
    """Calls a trigger of TF-Agents, such as `triggers.PolicySavedModelTrigger`, with the number of iterations done."""

    def __init__(self, trigger: Any, name: str = "trigger", priority: int = 40, *, every: int = 100):
        """Calls it every so many iterations; the trigger has an interval of its own.

        Args:
          trigger: an `IntervalTrigger` of TF-Agents, or anything that is called with a number.
          name: see `Hook`.
          priority: see `Hook`.
          every: iterations.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        self._trigger = trigger

    def __call__(self, learner: Learner) -> None:
        """Calls the trigger."""
        self._trigger(learner.last_iter + 1)
