"""Conversion of datasets on Apache Beam, for datasets too large for one machine (requires the extra `beam`)."""

from .combiners import MomentsFn, ReturnRangeFn, SummaryFn
from .conversion import convert_with_beam
from .datasets import BeamOptions
from .preparation import prepare_with_beam
from .summaries import summarize_with_beam

__all__ = [
    "BeamOptions",
    "MomentsFn",
    "ReturnRangeFn",
    "SummaryFn",
    "convert_with_beam",
    "prepare_with_beam",
    "summarize_with_beam",
]
