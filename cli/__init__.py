"""The command line `rlds2reverb` (or `r2r`): parses options, calls the layers below, and prints."""

from .main import main, run

__all__ = ["main", "run"]
