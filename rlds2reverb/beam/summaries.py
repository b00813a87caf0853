"""The summary of a dataset, combined on Beam's workers."""

from __future__ import annotations

import tempfile
from typing import Any

from rlds2reverb.datasets.summary import Summary, SummaryParts

from .combiners import SummaryFn
from .datasets import BeamOptions, Workers, open_dataset, release_datasets
from .storage import WorkFolder

_DEFAULT_OPTIONS = BeamOptions()


def summarize_with_beam(
    source: Any,
    *,
    options: BeamOptions = _DEFAULT_OPTIONS,
    work_dir: str | None = None,
    reference_returns: tuple[float, float] | None = None,
    is_d4rl: bool = False,
    **load_options: Any,
) -> Summary:
    """Returns the same summary as `summarize(load(source))`, computed by Beam's workers.

    Args:
      source: a path, an address such as `gs://bucket/file.hdf5`, a pattern, a name, or a list of these.
      options: runner and options of the pipelines.
      work_dir: folder for intermediate results, which all workers can write to; None for a temporary one.
      reference_returns: see `summarize`.
      is_d4rl: see `summarize`.
      **load_options: further arguments of `load`.

    Raises:
      SourceError, FileNotFoundError: If a dataset cannot be opened or read.
    """
    with tempfile.TemporaryDirectory(prefix="rlds2reverb-") as folder, release_datasets():
        workers = Workers(options, WorkFolder(work_dir or folder))
        dataset, header = open_dataset(source, load_options, workers)
        parts = workers.combine(SummaryFn(), dataset, SummaryParts.as_dict, SummaryParts.from_dict)
    return parts.finish(header, reference_returns=reference_returns, is_d4rl=is_d4rl)
