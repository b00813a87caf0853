"""The bookkeeping of evaluations: when the last one was, and which one is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class EvaluationRecord:
    """The last and the best evaluation of a run.

    Attributes:
      best_return: highest mean return; -inf before the first evaluation.
      evaluated_at: number of completed iterations at the last evaluation; None before the first.
      is_new_best: whether the last evaluation is the best one, and no checkpoint has been saved since.
    """

    def __init__(self) -> None:
        self.best_return, self.is_new_best = -math.inf, False
        self.evaluated_at: int | None = None

    def add(self, step: int, mean_return: float) -> None:
        """Records an evaluation after `step` iterations."""
        self.evaluated_at = step
        if mean_return > self.best_return:
            self.best_return, self.is_new_best = mean_return, True

    def forget_best(self) -> None:
        """Forgets the best evaluation, because its checkpoint belongs to a different run."""
        self.best_return = -math.inf

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        best = None if math.isinf(self.best_return) else self.best_return
        return {"best_return": best, "evaluated_at": self.evaluated_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` returned; an empty dict forgets all evaluations."""
        best = state.get("best_return")
        self.best_return, self.is_new_best = -math.inf if best is None else best, False
        self.evaluated_at = state.get("evaluated_at")
