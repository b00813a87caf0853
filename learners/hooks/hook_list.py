"""The hooks of a learner: their order, the iterations at which they are due, and their states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlds2reverb.system.code_fingerprints import describe_reference

from .hook import LearnerHook, Phase

_PLAIN = (type(None), bool, int, float, str)


def merge_hooks(first: Iterable[LearnerHook], second: Iterable[LearnerHook]) -> list[LearnerHook]:
    """Returns all hooks in calling order: by phase, by priority, then those of `first` before those of `second`."""
    return sorted([*first, *second], key=lambda hook: (hook.phase, hook.priority))


class HookList:
    """The registered hooks, in calling order."""

    def __init__(self, hooks: Iterable[LearnerHook] = ()):
        """Registers hooks; raises as `register`."""
        self._hooks: list[LearnerHook] = []
        self._settings: dict[int, dict[str, Any]] = {}
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
        self._settings[id(hook)] = _find_settings(hook)

    def at(self, position: str, phases: Collection[Phase], step: int | None = None) -> Iterator[LearnerHook]:
        """Yields the hooks of a position and of some phases; with `step`, only those due after that many iterations."""
        for hook in self._hooks:
            if hook.position == position and hook.phase in phases and (step is None or hook.is_due(step)):
                yield hook

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

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns the state of each hook that has one, with the settings by which the hook is found again."""
        states = [(hook, hook.state_dict()) for hook in self._hooks]
        return [{**self._settings[id(hook)], "state": state} for hook, state in states if state]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restores the states that `state_dict` returned, of those hooks that it contains.

        The order of the hooks may be different. Of hooks with the same class and name, each gets the state of the one
        whose settings are most similar.
        """
        pairs = []
        for place, hook in enumerate(self._hooks):
            settings = self._settings[id(hook)]
            for number, entry in enumerate(states):
                if (entry["name"], entry["class"]) == (settings["name"], settings["class"]):
                    pairs.append((-len(entry["values"].items() & settings["values"].items()), place, number))
        pairs.sort()
        while pairs:
            _, place, number = pairs[0]
            self._hooks[place].load_state_dict(states[number]["state"])
            pairs = [pair for pair in pairs if pair[1] != place and pair[2] != number]


def _find_settings(hook: LearnerHook) -> dict[str, Any]:
    """Returns what distinguishes a hook from others: its class, its name, and its attributes that are plain values."""
    values = {name: repr(value) for name, value in vars(hook).items() if isinstance(value, _PLAIN)}
    return {"class": describe_reference(type(hook)), "name": hook.name, "values": values}
