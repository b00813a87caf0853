"""The hooks that come with the package."""

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
    """Loads a checkpoint before the run, if there is one; DI-engine's hook of that name."""

    def __init__(
        self, name: str = "load_ckpt", priority: int = 20, *, load_path: str = "latest", override: bool = False
    ):
        """Loads before the run.

        Args:
          name: see `Hook`.
          priority: see `Hook`.
          load_path: a checkpoint's directory, or 'latest' for the newest good one under the learner's `run_dir`.
          override: see `Learner.load_checkpoint`.
        """
        super().__init__(name, priority, position="before_run")
        self.load_path, self._override = load_path, override

    def __call__(self, learner: Learner) -> None:
        """Loads it; an explicit path has to be there."""
        learner.load_checkpoint(None if self.load_path == "latest" else self.load_path, override=self._override)


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

    def __init__(
        self,
        name: str = "log_reduce",
        priority: int = 10,
        *,
        every: int = 100,
        reduce: Callable[[dict[str, float]], dict[str, float]] | None = None,
    ):
        """Reduces every so many iterations, before `LogShowHook` shows.

        Args:
          name: see `Hook`.
          priority: see `Hook`; below that of `LogShowHook`.
          every: iterations; those of `LogShowHook`.
          reduce: gives for the numbers of this process their means over all that train together; None where there is
            one process, whose numbers are the means.
        """
        super().__init__(name, priority, position="after_iter", every=every)
        self._reduce = reduce

    def __call__(self, learner: Learner) -> None:
        """Reduces the log buffer."""
        if self._reduce is not None:
            learner.log_buffer = dict(self._reduce(learner.log_buffer))


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

    Schaul et al. (2016), section 3.3: raw and unweighted; Reverb applies the exponent. Where a call of the graph ends,
    the items of its iterations are written in one go by a thread, while the next call runs; a call that ends before
    that waits. So a priority is on the server at most `2 * steps_per_call` iterations after its iteration, and all of
    them are where `flush` returns. Batches that were sampled ahead have older ones.
    """

    def __init__(self, writer: Any, name: str = "update_priorities", priority: int = 5, *, eps: float = 1e-2):
        """Writes after each call of the graph.

        Args:
          writer: a `PriorityWriter`, which stays open.
          name: see `Hook`.
          priority: see `Hook`.
          eps: added, so that everything can be sampled; in [1e-12, 1].
        """
        super().__init__(name, priority, position="after_iter")
        require_number("eps", eps, 1e-12, 1)
        self.writer, self.eps = writer, eps
        self._thread = futures.ThreadPoolExecutor(1, "rlds2reverb-priorities")
        self._under_way: futures.Future[None] | None = None

    def next_due(self, done: int) -> int:
        """Returns never: no call of the graph has to end for it."""
        return 1 << 62

    def is_due(self, done: int) -> bool:
        """Returns True: it is called wherever a call of the graph ends."""
        return True

    def __call__(self, learner: Learner) -> None:
        """Begins to write what is in the learner's `priority_info`, if there is something.

        Raises:
          ServerUnavailableError: if those before could not be written.
        """
        self.flush()
        given = learner.priority_info
        if given:
            priorities = given["td_error"].astype(np.float64) + self.eps
            self._under_way = self._thread.submit(self.writer.write, given["info"], priorities)

    def flush(self) -> None:
        """Waits until everything is written.

        Raises:
          ServerUnavailableError: if it could not be.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Ends the thread, when what is under way is written."""
        self._thread.shutdown()


class ReplayCheckpointHook(LearnerHook):
    """Makes a server write a checkpoint of its tables, and notes its path for the learner's own checkpoints."""

    def __init__(
        self,
        server: Any,
        name: str = "replay_checkpoint",
        priority: int = 15,
        *,
        position: Position = "after_iter",
        every: int = 10_000,
    ):
        """Writes every so many iterations, or once with the position 'after_run'.

        Args:
          server: a `ReplayServer`, or anything with `checkpoint()` that returns a path.
          name: see `Hook`.
          priority: see `Hook`; below that of `SaveCkptHook`, whose checkpoint names the path.
          position: 'after_iter' or 'after_run'.
          every: iterations.
        """
        super().__init__(name, priority, position=position, every=every)
        self._server = server

    def __call__(self, learner: Learner) -> None:
        """Writes the checkpoint, when all priorities are on the server."""
        learner.flush_priorities()
        learner.replay_checkpoint = str(self._server.checkpoint())


class EvaluateHook(LearnerHook):
    """Evaluates the policy, and tells the learner, which keeps the best one."""

    def __init__(
        self,
        evaluate: Callable[[Any], Any],
        name: str = "evaluate",
        priority: int = 10,
        *,
        position: Position = "after_iter",
        every: int = 5_000,
    ):
        """Evaluates every so many iterations, or once with the position 'after_run'.

        Args:
          evaluate: gives for a policy an `Evaluation`, or a number: the mean return.
          name: see `Hook`.
          priority: see `Hook`; below that of `SaveCkptHook`, whose checkpoint knows the score.
          position: 'after_iter' or 'after_run'.
          every: iterations.
        """
        super().__init__(name, priority, position=position, every=every)
        self._evaluate = evaluate

    def __call__(self, learner: Learner) -> None:
        """Evaluates the learner's policy; after a run only if it was not just done, and no signal ended the run."""
        done = learner.last_iter + (self.position == "after_iter")
        if self.position == "after_run" and (learner.evaluated_at == done or learner.is_stopped_by_signal):
            return
        learner.record_evaluation(self._evaluate(learner.policy))


class EarlyStopHook(LearnerHook):
    """Stops the run where a metric has not got better for a while."""

    def __init__(
        self,
        metric: str = "evaluation/mean_return",
        name: str = "early_stop",
        priority: int = 15,
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
          priority: see `Hook`; above that of `EvaluateHook`, and below that of `SaveCkptHook`, which saves its state.
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
