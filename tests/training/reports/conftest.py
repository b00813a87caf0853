"""Fixtures of the tests of reports."""

import pytest
from figures_shown import figures  # noqa: F401

from rlds2reverb.training.reports import page


@pytest.fixture
def drawn():
    """Requests that figures are drawn."""


@pytest.fixture(autouse=True)
def no_images(request, monkeypatch):
    """Prevents figures from being drawn, which takes most of the time, unless a test is slow or asks for it."""
    if "drawn" not in request.fixturenames and request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(page, "render_png", lambda figure: b"")
