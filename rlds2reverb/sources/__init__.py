"""Datasets read as episodes: one module per format, plus transforms and a summary."""

from rlds2reverb.errors import SourceError

from .data_checks import Finding, check_dataset
from .formats import Format
from .loading import load, register_format
from .source import Source
from .summary import Summary, summarize

__all__ = [
    "Finding",
    "Format",
    "Source",
    "SourceError",
    "Summary",
    "check_dataset",
    "load",
    "register_format",
    "summarize",
]
