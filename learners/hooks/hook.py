"""The base classes of hooks, which decide when a hook is called."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Literal

from rlds2reverb._arguments import require_count, require_one_of

if TYPE_CHECKING:
    from ..learner import Learner

#: Where a hook is called; see `LearnerHook`.
Position = Literal["before_run", "after_run", "before_iter", "after_iter"]
POSITIONS: tuple[Position, ...] = ("before_run", "after_run", "before_iter", "after_iter")


class Hook(abc.ABC):
    """A named callable that is called with its owner.

    Attributes:
      name: name of the hook, for messages; not necessarily unique.
      priority: rank among the hooks; lower numbers are called first, equal ones in the order of registration.
    """

    def __init__(self, name: str, priority: int = 50):
        """Sets the name and the priority, an integer of at least 0."""
        require_count("priority", priority, 0)
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
                print(learner.last_iter, learner.learn_info["loss"])

    Hooks at 'before_run' and 'after_run' are called once in each `Learner.start`. Hooks at 'before_iter' are called
    before iterations 0, every, 2·every, ..., and those at 'after_iter' when every, 2·every, ... iterations are
    completed, the first time with a `last_iter` of `every` - 1.

    Attributes:
      position: one of `POSITIONS`.
      every: number of iterations between two calls, at least 1; override `next_due` for other schedules.
    """

    def __init__(self, name: str, priority: int = 50, *, position: Position, every: int = 1):
        """Sets when the hook is called.

        Raises:
          ValueError: If the position is unknown, or a number is out of range.
        """
        super().__init__(name, priority)
        require_one_of("position", position, POSITIONS)
        require_count("every", every)
        self.position, self.every = position, every

    @abc.abstractmethod
    def __call__(self, learner: Learner) -> None:
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
