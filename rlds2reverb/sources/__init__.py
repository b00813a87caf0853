"""Datasets read as episodes: one module per format, plus transforms and a summary."""

from rlds2reverb.errors import SourceError

from .loading import load
from .source import Source
from .summary import Summary, summarize

__all__ = ["Source", "SourceError", "Summary", "load", "summarize"]
