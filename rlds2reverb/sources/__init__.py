"""Sources: one file for each kind of data set, all giving episodes as columns."""

from .loading import load
from .source import Source, SourceError

__all__ = ["Source", "SourceError", "load"]
