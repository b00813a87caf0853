"""Datasets read as episodes: one module per format, plus transforms and a summary."""

from rlds2reverb.errors import SourceError

from .formats import Format
from .loading import load, register_format
from .source import Source
from .summary import Summary, summarize

__all__ = ["Format", "Source", "SourceError", "Summary", "load", "register_format", "summarize"]
