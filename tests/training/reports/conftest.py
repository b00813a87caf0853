"""Fixtures of the tests of reports."""

from figures_shown import figures  # noqa: F401
