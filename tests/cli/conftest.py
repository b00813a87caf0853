"""Fixtures of the command line's tests."""

import pytest
from figures_shown import figures  # noqa: F401

from rlds2reverb.cli import output


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch):
    """Prevents lines of progress, which only a slow machine would print."""
    monkeypatch.setattr(output, "SECS_BETWEEN_LINES", 600.0)
