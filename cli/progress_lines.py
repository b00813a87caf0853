"""The progress of training, line by line."""

from __future__ import annotations

import sys


class ProgressLines:
    """Prints a line for each log: one that moves on a terminal, plain ones elsewhere."""

    def __init__(self, num_iterations: int, *, quiet: bool):
        """Prints nothing yet; nothing at all with `quiet`.

        Args:
          num_iterations: of the whole run.
          quiet: whether to print nothing.
        """
        self._total, self._quiet, self._found = num_iterations, quiet, ""

    def __call__(self, done: int, numbers: dict[str, float]) -> None:
        """Prints what was logged after so many iterations: an evaluation, or losses and rates."""
        if self._quiet:
            return
        if "evaluation/mean_return" in numbers:
            score = f" score {numbers['evaluation/score']:.1f}" if "evaluation/score" in numbers else ""
            self._found = f"return {numbers['evaluation/mean_return']:,.1f}{score}"
            self._show(f"{done:>9,} of {self._total:,}   {self._found}", lasting=True)
            return
        rate = numbers.get("steps_per_sec", 0.0)
        left = (self._total - done) / rate if rate else 0.0
        parts = [f"{done:>9,} of {self._total:,}", f"loss {numbers.get('loss', float('nan')):.4g}"]
        if rate:
            parts += [
                f"{rate:,.0f} steps/s",
                f"data wait {numbers['data_wait_share']:.0%}",
                f"{left / 60:.1f} min left",
            ]
        if self._found and sys.stderr.isatty():  # elsewhere it has a line of its own above
            parts.insert(2, self._found)
        self._show("   ".join(parts), lasting=False)

    def _show(self, line: str, *, lasting: bool) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if lasting else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
