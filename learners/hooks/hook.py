"""The base classes of hooks, which decide when a hook is called, and what hooks may use of a learner."""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from rlds2reverb._arguments import require_count, require_number, require_one_of

Position = Literal["before_run", "after_run", "before_iter", "after_iter"]

#: The points at which a hook can be called; see `LearnerHook`.
POSITIONS: tuple[Position, ...] = ("before_run", "after_run", "before_iter", "after_iter")


class Phase(enum.IntEnum):
    """The order of the hooks at one position and iteration, whatever their priorities are.

    Evaluations come first, so that all other hooks see their results. A checkpoint contains the states of the hooks
    before it. Logs come last: if the process is killed before they are written, the resumed run writes them.
    """

    LOAD = 0
    EVALUATE = 1
    OTHER = 2
    SAVE = 3
    REDUCE_LOG = 4
    LOG = 5


class HookedLearner(Protocol):
    """The part of a learner that hooks may use; `Learner` documents each name."""

    name: str
    rank: int
    run_dir: Path
    agent: Any
    learn_info: dict[str, float]
    priority_info: dict[str, Any]
    log_buffer: dict[str, float]
    load_path: str
    stop_reason: str

    @property
    def step(self) -> int:
        """The number of completed iterations."""

    @property
    def last_iter(self) -> int:
        """The index of the last iteration in 'after_iter' hooks, else the number of completed iterations."""

    @property
    def policy(self) -> Any:
        """The agent's greedy policy."""

    @property
    def latest(self) -> dict[str, float]:
        """The latest value of every logged number, by name."""

    @property
    def recorded_at(self) -> dict[str, int]:
        """The number of completed iterations at which each value of `latest` was recorded, by name."""

    @property
    def monitor(self) -> Any:
        """The training speed over the last calls."""

    @property
    def best_return(self) -> float:
        """The highest mean return of an evaluation; -inf before the first."""

    @property
    def evaluated_at(self) -> int | None:
        """The number of completed iterations at the last evaluation; None before the first."""

    @property
    def is_stopped_by_signal(self) -> bool:
        """Whether SIGTERM or SIGINT ended the run, or is about to."""

    def stop(self, reason: str) -> None:
        """Ends the run after the hooks of this iteration."""

    def show_log(self) -> None:
        """Logs the log buffer and the training speed, and empties the buffer."""

    def record_evaluation(self, evaluation: Any) -> None:
        """Logs an evaluation: an `Evaluation` or a mean return."""

    def save_checkpoint(self) -> Any:
        """Writes a checkpoint unless there is one with the current state."""

    def load_checkpoint(self, path: str | Path | None = None, *, allow_config_mismatch: bool = False) -> bool:
        """Resumes from a checkpoint, and returns whether there is one."""

    def flush_priorities(self) -> None:
        """Waits until all priorities are updated."""

    def export_policy(self, path: str | Path) -> Path:
        """Writes the greedy policy as a SavedModel."""


class Hook(abc.ABC):
    """A named callable that is called with its owner.

    Attributes:
      name: name of the hook, for messages; not necessarily unique.
      priority: rank among the hooks of a phase; lower numbers are called first, equal ones in the order of
        registration.
    """

    def __init__(self, name: str, priority: float = 50):
        """Sets the name and the priority, a number of at least 0."""
        require_number("priority", priority, 0)
        self.name, self.priority = name, priority

    @abc.abstractmethod
    def __call__(self, owner: Any) -> None:
        """Runs the hook."""


class LearnerHook(Hook):
    """The base class of hooks of a `Learner`, which decides when a hook is called; a subclass decides what it does:

        class ShowLoss(LearnerHook):
            def __init__(self):
                super().__init__("show_loss", position="after_iter", every=100)
            def __call__(self, learner):
                print(learner.step, learner.learn_info["loss"])

    Hooks at 'before_run' and 'after_run' are called once in each run. Hooks at 'before_iter' are called before
    iterations 0, every, 2·every, ..., and those at 'after_iter' when every, 2·every, ... iterations are completed, the
    first time with a `last_iter` of `every` - 1.

    Attributes:
      phase: place among the hooks at the same position, a class attribute; see `Phase`.
      position: one of `POSITIONS`.
      every: number of iterations between two calls, at least 1; override `next_due` for other schedules.
    """

    phase: ClassVar[Phase] = Phase.OTHER

    def __init__(self, name: str, priority: float = 50, *, position: Position, every: int = 1):
        """Sets when the hook is called.

        Raises:
          ValueError: If the position is unknown, or a number is out of range.
        """
        super().__init__(name, priority)
        require_one_of("position", position, POSITIONS)
        require_count("every", every)
        self.position, self.every = position, every

    @abc.abstractmethod
    def __call__(self, learner: HookedLearner) -> None:
        """Runs the hook."""

    def next_due(self, done: int) -> int:
        """Returns the number of completed iterations, greater than `done`, at which the hook is called next."""
        return (done // self.every + 1) * self.every

    def is_due(self, done: int) -> bool:
        """Returns whether the hook is called after `done` completed iterations; always true before and after a run."""
        if self.position.endswith("_run"):
            return True
        if done == 0:
            return self.position == "before_iter"
        return self.next_due(done - 1) == done

    def state_dict(self) -> dict[str, Any]:
        """Returns the state to save in checkpoints, as plain names and values; empty by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state that `state_dict` returned."""


def resolve_ext_args(hook: str, ext_args: Mapping[str, Any] | None, **options: Any) -> dict[str, Any]:
    """Returns the options of a hook, replaced by those in `ext_args`, in which DI-engine calls `every` `freq`.

    Raises:
      TypeError: If `ext_args` is not a dict.
      ValueError: If it contains an unknown option.
    """
    if ext_args is None:
        return options
    if not isinstance(ext_args, Mapping):
        raise TypeError(f"ext_args of hook {hook!r} must be a dict, got {ext_args!r}")
    given = {"every" if name == "freq" else name: value for name, value in ext_args.items()}
    unknown = [name for name in given if name not in options]
    if unknown:
        allowed = ["freq" if name == "every" else name for name in options]
        raise ValueError(f"ext_args of hook {hook!r} has the unknown key {unknown[0]!r}; use {', '.join(allowed)}")
    return {**options, **given}
