"""The built-in hooks. Those of DI-engine have its names, and accept its `ext_args`, which precede other arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from rlds2reverb.types.arguments import require_count, require_number

from .hook import LearnerHook, Phase, Position

if TYPE_CHECKING:
    from ..learner import Learner


@dataclass(eq=False, repr=False)
class BuiltInHook(LearnerHook):
    """The base class of built-in hooks, whose default names are their types in configurations; see `LearnerHook`."""

    name: str
    priority: float = 20
    _: KW_ONLY
    position: Position = "after_iter"
    every: int = 1

    def __post_init__(self) -> None:
        super().__init__(self.name, self.priority, position=self.position, every=self.every)

    @classmethod
    def list_options(cls) -> list[str]:
        """Implements `Hook.list_options`."""
        return [field.name for field in fields(cls) if field.name not in ("name", "priority", "position")]


@dataclass(eq=False, repr=False)
class LoadCkptHook(BuiltInHook):
    """A hook that loads a checkpoint before the run, named after DI-engine's.

    Attributes:
      position: must be 'before_run'.
      load_path: directory of a checkpoint, which must exist; 'latest' for the latest valid one in the learner's
        `run_dir`, if there is one; or '' to load none.
      allow_config_mismatch: see `Learner.load_checkpoint`.

    Raises:
      ValueError: If the position is not 'before_run'.
    """

    phase: ClassVar[Phase] = Phase.LOAD

    name: str = "load_ckpt"
    _: KW_ONLY
    position: Position = "before_run"
    load_path: str = "latest"
    allow_config_mismatch: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position != "before_run":
            raise ValueError(f"position of hook {self.name!r} must be 'before_run' because it loads a checkpoint")

    def __call__(self, learner: Learner) -> None:
        """Loads the checkpoint."""
        if self.load_path != "":
            path = None if self.load_path == "latest" else self.load_path
            learner.load_checkpoint(path, allow_config_mismatch=self.allow_config_mismatch)


@dataclass(eq=False, repr=False)
class SaveCkptHook(BuiltInHook):
    """A hook that saves a checkpoint, named after DI-engine's; a single one at 'after_run'."""

    phase: ClassVar[Phase] = Phase.SAVE

    name: str = "save_ckpt"
    _: KW_ONLY
    every: int = 10_000

    def __call__(self, learner: Learner) -> None:
        """Saves a checkpoint."""
        learner.save_checkpoint()


@dataclass(eq=False, repr=False)
class LogReduceHook(BuiltInHook):
    """A hook that replaces the numbers to be logged by their means over processes, named after DI-engine's.

    Attributes:
      every: interval in iterations; must be that of `LogShowHook`, which runs after the reduction.
      reduce: function from the numbers of this process to their means over all processes that train together; None for
        a single process.
    """

    phase: ClassVar[Phase] = Phase.REDUCE_LOG

    name: str = "log_reduce"
    priority: float = 10
    _: KW_ONLY
    every: int = 100
    reduce: Callable[[dict[str, float]], dict[str, float]] | None = None

    def __call__(self, learner: Learner) -> None:
        """Reduces the log buffer."""
        if self.reduce is not None:
            learner.log_buffer = dict(self.reduce(learner.log_buffer))


@dataclass(eq=False, repr=False)
class LogShowHook(BuiltInHook):
    """A hook that logs the means since its last call, named after DI-engine's.

    It is called once more at the end of a run, for the iterations since then.
    """

    phase: ClassVar[Phase] = Phase.LOG

    name: str = "log_show"
    _: KW_ONLY
    every: int = 100

    def __call__(self, learner: Learner) -> None:
        """Logs the learner's log buffer, and empties it."""
        learner.show_log()


class EvaluateHook(LearnerHook):
    """A hook that evaluates the policy and reports the result to the learner, which keeps the best policy."""

    phase = Phase.EVALUATE

    def __init__(
        self,
        evaluate: Callable[[Any], Any],
        name: str = "evaluate",
        priority: float = 10,
        *,
        position: Position = "after_iter",
        every: int = 5_000,
    ):
        """Sets the evaluation and the interval.

        Args:
          evaluate: function from a policy to an `Evaluation` or a mean return; or to None if a signal has stopped it.
          name: see `Hook`.
          priority: see `Hook`.
          position: 'after_iter'; 'after_run' for a single evaluation; or 'before_run' for one of the policy before the
            first update, and for one that was due at the end of the last run, but was stopped.
          every: interval in iterations.
        """
        super().__init__(name, priority, position=position, every=every)
        self._evaluate = evaluate

    def __call__(self, learner: Learner) -> None:
        """Evaluates the policy; before and after a run only if it was not evaluated at this iteration."""
        if self.position != "after_iter" and (learner.evaluated_at == learner.step or learner.is_stopped_by_signal):
            return
        if self.position == "before_run" and learner.step % self.every:
            return
        evaluation = self._evaluate(learner.policy)
        if evaluation is not None:
            learner.record_evaluation(evaluation)


@dataclass(eq=False, repr=False)
class EarlyStopHook(BuiltInHook):
    """A hook that stops the run when a metric no longer improves.

    Attributes:
      every: number of iterations between two checks; a value that was already checked does not count again.
      metric: key of `Learner.latest`, such as 'loss' or 'evaluation/mean_return'.
      patience: number of consecutive values without improvement before the run is stopped, at least 1.
      min_delta: minimum change that counts as an improvement, at least 0.
      higher_is_better: whether an improvement is an increase.
    """

    name: str = "early_stop"
    priority: float = 15
    _: KW_ONLY
    every: int = 5_000
    metric: str = "evaluation/mean_return"
    patience: int = 10
    min_delta: float = 0.0
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("patience", self.patience)
        require_number("min_delta", self.min_delta, 0, math.inf)
        self._sign = 1 if self.higher_is_better else -1
        self._best, self._num_without_gain = -math.inf, 0
        self._checked_at: int | None = None

    def __call__(self, learner: Learner) -> None:
        """Checks the metric, and stops the run when patience runs out."""
        recorded_at = learner.recorded_at.get(self.metric)
        if self.metric not in learner.latest or (recorded_at is not None and recorded_at == self._checked_at):
            return
        self._checked_at = recorded_at
        value = self._sign * learner.latest[self.metric]
        if value > self._best + self.min_delta:  # False for NaN.
            self._best, self._num_without_gain = value, 0
            return
        self._num_without_gain += 1
        if self._num_without_gain >= self.patience:
            learner.stop(f"{self.metric} has not improved in {self.patience} checks")

    def state_dict(self) -> dict[str, Any]:
        """Implements `LearnerHook.state_dict`."""
        return {"best": self._best, "num_without_gain": self._num_without_gain, "checked_at": self._checked_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Implements `LearnerHook.load_state_dict`."""
        self._best, self._num_without_gain = state["best"], state["num_without_gain"]
        self._checked_at = state.get("checked_at")


class TriggerHook(LearnerHook):
    """A hook that calls a TF-Agents trigger, such as `PolicySavedModelTrigger`, with the number of iterations."""

    def __init__(self, trigger: Any, name: str = "trigger", priority: float = 40, *, every: int = 100):
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
        self._trigger(learner.step)
