"""A hook: something with a name that is called around iterations, and when it is due."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Literal

from rlds2reverb._arguments import require_count, require_one_of

if TYPE_CHECKING:
    from ..learner import Learner

#: When a hook is called; see `LearnerHook`.
Position = Literal["before_run", "after_run", "before_iter", "after_iter"]
POSITIONS: tuple[Position, ...] = ("before_run", "after_run", "before_iter", "after_iter")


class Hook(abc.ABC):
    """Something that is called with its owner.

    Attributes:
      name: for messages; several hooks may have the same.
      priority: hooks of a lower one are called first; those of equal ones in the order in which they were registered.
    """

    def __init__(self, name: str, priority: int = 50):
        """Sets its name and its priority, an integer of at least 0."""
        require_count("priority", priority, 0)
        self.name, self.priority = name, priority

    @abc.abstractmethod
    def __call__(self, owner: Any) -> None:
        """Is called with the owner, when it is due."""


class LearnerHook(Hook):
    """A hook of a `Learner`. One of your own says where it stands, how often, and what it does:

        class ShowLoss(LearnerHook):
            def __init__(self):
                super().__init__("show_loss", position="after_iter", every=100)
            def __call__(self, learner):
                print(learner.last_iter, learner.learn_info["loss"])

    'before_run' and 'after_run' are called once in each `Learner.start`. 'before_iter' is called before the iterations
    0, every, 2·every, ..., and 'after_iter' after each `every`-th one: after iteration `every` - 1 (`last_iter` is
    counted from 0), when `every` iterations are done.

    Attributes:
      position: see above.
      every: iterations between two calls, at least 1; `next_due` may be overridden for anything else.
    """

    def __init__(self, name: str, priority: int = 50, *, position: Position, every: int = 1):
        """Sets when it is called.

        Raises:
          ValueError: if the position is unknown, or a number is out of its range.
        """
        super().__init__(name, priority)
        require_one_of("position", position, POSITIONS)
        require_count("every", every)
        self.position, self.every = position, every

    @abc.abstractmethod
    def __call__(self, learner: Learner) -> None:
        """Is called with the learner, when it is due."""

    def next_due(self, done: int) -> int:
        """Returns the number of iterations, more than `done`, at which it is called next; at 0 'before_iter' is."""
        return (done // self.every + 1) * self.every

    def is_due(self, done: int) -> bool:
        """Returns whether it is called where so many iterations are done; around a run it always is."""
        if self.position.endswith("_run"):
            return True
        if done == 0:
            return self.position == "before_iter"
        return self.next_due(done - 1) == done

    def state_dict(self) -> dict[str, Any]:
        """Returns what has to be in a checkpoint: plain names and values; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
