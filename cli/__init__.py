"""The command line `rlds2reverb` (or `r2r`): the only place that joins trunk and branches."""

from .main import main, run

__all__ = ["main", "run"]
