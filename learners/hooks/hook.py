"""The base classes of hooks, which decide when a hook is called."""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rlds2reverb.system.replacements import ExplainingType, Replacing
from rlds2reverb.types.arguments import require_count, require_number, require_one_of

from .ext_args import ExtArgs, read_ext_args

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


class _HookType(ExplainingType):
    """The type of hooks, which handles DI-engine's argument `ext_args` of their constructors.

    The entries are options of built-in hooks. The constructors of other hooks get them with attributes.
    """

    if not TYPE_CHECKING:  # Type checkers would accept any arguments.

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Creates a hook."""
            if (allowed := cls.list_options()) is not None:
                name = kwargs.get("name", args[0] if args else cls.name)
                kwargs |= read_ext_args(name, kwargs.pop("ext_args", None), allowed)
            elif isinstance(kwargs.get("ext_args"), Mapping):
                kwargs["ext_args"] = ExtArgs(kwargs["ext_args"])
            return super().__call__(*args, **kwargs)


class Hook(Replacing, metaclass=_HookType):
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

    @classmethod
    def list_options(cls) -> list[str] | None:
        """Returns the arguments that `ext_args` may contain; None if the constructor has an argument `ext_args`."""
        return None

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
    positions: ClassVar[Sequence[str]] = POSITIONS

    def __init__(
        self,
        name: str,
        priority: float = 50,
        *,
        position: Position,
        every: int = 1,
        ext_args: Mapping[str, Any] | None = None,
    ):
        """Sets when the hook is called.

        Args:
          name: see `Hook`.
          priority: see `Hook`.
          position: see the class.
          every: see the class.
          ext_args: the subclass's own options, as in DI-engine, where `ext_args.freq` is one that the subclass applies
            itself; kept as the attribute `ext_args`.

        Raises:
          ValueError: If the position is unknown, or a number is out of range.
        """
        super().__init__(name, priority)
        require_one_of("position", position, POSITIONS)
        require_count("every", every)
        self.position, self.every, self.ext_args = position, every, ExtArgs(ext_args or {})

    @abc.abstractmethod
    def __call__(self, learner: Any) -> None:
        """Runs the hook.

        Args:
          learner: the `Learner`.
        """

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
