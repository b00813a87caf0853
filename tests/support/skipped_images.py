"""Figures without images, which take most of the time of a report or of a short run."""

from rlds2reverb.learners import figure_style as figures
from rlds2reverb.training.reports import page

_RENDER_PNG = figures.render_png


def choose_rendering(*, is_drawn: bool) -> None:
    """Makes the images of figures show them, or be empty."""
    for module in (figures, page):
        module.render_png = _RENDER_PNG if is_drawn else lambda figure: b""
