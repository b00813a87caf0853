"""Prints the progress of a training run."""

from __future__ import annotations

import sys


class ProgressLines:
    """Prints logged numbers on stderr: one line that is overwritten on a terminal, a line per log elsewhere.

    Args:
      num_iterations: total number of iterations of the run.
      quiet: whether to print nothing.
    """

    def __init__(self, num_iterations: int, *, quiet: bool):
        self._total, self._quiet, self._score = num_iterations, quiet, ""

    def __call__(self, done: int, numbers: dict[str, float]) -> None:
        """Prints the numbers logged after `done` iterations: an evaluation, or losses and rates."""
        if self._quiet:
            return
        if "evaluation/mean_return" in numbers:
            score = f" score {numbers['evaluation/score']:.1f}" if "evaluation/score" in numbers else ""
            self._score = f"return {numbers['evaluation/mean_return']:,.1f}{score}"
            self._show(f"{done:>9,} of {self._total:,}   {self._score}", keep=True)
            return
        rate = numbers.get("steps_per_sec", 0.0)
        parts = [f"{done:>9,} of {self._total:,}", f"loss {numbers.get('loss', float('nan')):.4g}"]
        if rate:
            parts += [f"{rate:,.0f} steps/s", f"data wait {numbers['data_wait_share']:.0%}"]
        if rate and done < self._total:
            secs = (self._total - done) / rate
            parts.append(f"{secs:.0f} s left" if secs < 60 else f"{secs / 60:.1f} min left")
        if self._score and sys.stderr.isatty():  # Elsewhere the score is on a previous line.
            parts.insert(2, self._score)
        self._show("   ".join(parts), keep=False)

    def _show(self, line: str, *, keep: bool) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if keep else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
