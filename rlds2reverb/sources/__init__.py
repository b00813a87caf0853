"""From files and data sets to episodes as columns: one file for each kind, transforms, and a summary."""

from rlds2reverb.errors import SourceError

from .loading import load
from .source import Source
from .summary import Summary, summarize

__all__ = ["Source", "SourceError", "Summary", "load", "summarize"]
