"""The hooks of a learner: their order, the iterations at which they are due, and their states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .hook import LearnerHook, Phase


def merge_hooks(first: Iterable[LearnerHook], second: Iterable[LearnerHook]) -> list[LearnerHook]:
    """Returns all hooks in calling order: by phase, by priority, then those of `first` before those of `second`."""
    return sorted([*first, *second], key=lambda hook: (hook.phase, hook.priority))


class HookList:
    """The registered hooks, in calling order."""

    def __init__(self, hooks: Iterable[LearnerHook] = ()):
        """Registers hooks; raises as `register`."""
        self._hooks: list[LearnerHook] = []
        for hook in hooks:
            self.register(hook)

    def register(self, hook: LearnerHook) -> None:
        """Adds a hook.

        Raises:
          TypeError: If it is not an initialised `LearnerHook`.
        """
        if not isinstance(hook, LearnerHook):
            raise TypeError(f"hook must be a LearnerHook, got {hook!r}")
        if not all(hasattr(hook, name) for name in ("name", "priority", "position", "every")):
            raise TypeError(
                f"a hook of class {type(hook).__name__} has no name and position; call super().__init__(name, "
                "position=...) in its __init__"
            )
        self._hooks = merge_hooks(self._hooks, [hook])

    def due(self, position: str, step: int, phase: Phase) -> Iterator[LearnerHook]:
        """Yields the hooks of a position and phase that are due after `step` completed iterations."""
        for hook in self._hooks:
            if hook.position == position and hook.phase is phase and hook.is_due(step):
                yield hook

    def at(self, position: str, phases: Iterable[Phase]) -> Iterator[LearnerHook]:
        """Yields the hooks of a position and of some phases, whether or not they are due."""
        phases = tuple(phases)
        return (hook for hook in self._hooks if hook.position == position and hook.phase in phases)

    def next_due(self, step: int, limit: int) -> int:
        """Returns the number of completed iterations, up to `limit`, at which a hook around iterations is next due.

        Raises:
          ValueError: If a hook's own `next_due` does not return more than `step`.
        """
        for hook in self._hooks:
            if hook.position.endswith("_iter"):
                due = hook.next_due(step)
                if due <= step:
                    raise ValueError(
                        f"next_due of hook {hook.name!r} must return more than {step}, got {due}; fix the hook"
                    )
                limit = min(limit, due)
        return limit

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of each hook; hooks with the same name are numbered."""
        return {name: hook.state_dict() for name, hook in self._number().items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restores the states that `state_dict` returned, of those hooks that it contains."""
        for name, hook in self._number().items():
            if states.get(name):
                hook.load_state_dict(states[name])

    def _number(self) -> dict[str, LearnerHook]:
        named: dict[str, LearnerHook] = {}
        for hook in self._hooks:
            num_same_name = sum(other.name == hook.name for other in named.values())
            named[f"{hook.name} {num_same_name + 1}"] = hook
        return named
