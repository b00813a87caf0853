"""Transforms of episodes, fitted to statistics that Beam's workers combine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from rlds2reverb.datasets import Source
from rlds2reverb.datasets.moments import ObservationMoments
from rlds2reverb.datasets.transforms import (
    ClipActions,
    Clipping,
    EpisodeFn,
    NormalizeObservations,
    ScaleRewardsByReturns,
    Transform,
    apply_fitted,
)
from rlds2reverb.types import fields

from .combiners import MergeFn, MomentsFn, ReturnRange, ReturnRangeFn
from .datasets import Dataset, Workers


def fit_transforms(
    dataset: Dataset, source: Source, transforms: Sequence[Transform], workers: Workers
) -> tuple[Dataset, Source]:
    """Returns the transformed dataset, and the transformed source with the statistics of `apply_transforms`.

    Args:
      dataset: the dataset, as workers read it.
      source: the same dataset, as this process reads it.
      transforms: the transforms, in order. Those of unknown classes are fitted in this process.
      workers: the workers.
    """
    for transform in transforms:
        function, fitted = _fit(transform, dataset, source, workers)
        source = apply_fitted(source, function, fitted)
        dataset = replace(dataset, functions=(*dataset.functions, function))
    return dataset, source


def combine_returns(dataset: Dataset, workers: Workers) -> tuple[float, float]:
    """Returns the lowest and the highest undiscounted return of a dataset."""
    lowest, highest = workers.combine(ReturnRangeFn(), dataset, astuple, lambda values: ReturnRange(*values))
    return lowest, highest


def _fit(transform: Transform, dataset: Dataset, source: Source, workers: Workers) -> tuple[EpisodeFn, dict[str, Any]]:
    if isinstance(transform, NormalizeObservations):
        spec = source.step_spec[fields.OBSERVATION]
        from_dict = functools.partial(ObservationMoments.from_dict, spec)
        moments = workers.combine(MomentsFn(spec), dataset, ObservationMoments.as_dict, from_dict)
        moments.require_usable(source.name)
        return transform.fit_moments(moments)
    if isinstance(transform, ScaleRewardsByReturns):
        return transform.fit_returns(combine_returns(dataset, workers), source.name).fit(source)
    if isinstance(transform, ClipActions):
        create = functools.partial(Clipping, transform.make_clipping(source).spec, transform.eps)
        clipping = workers.combine(MergeFn(create), dataset, lambda counted: counted.counts, create)
        return transform.fit_clipping(clipping, source)
    return transform.fit(source)
