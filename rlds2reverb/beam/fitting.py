"""Transforms of episodes, fitted to statistics that Beam's workers combine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlds2reverb import fields
from rlds2reverb.sources import Source
from rlds2reverb.sources.moments import ObservationMoments
from rlds2reverb.sources.transforms import (
    ClipActions,
    Clipping,
    EpisodeFn,
    NormalizeObservations,
    ScaleRewardsByReturns,
    Transform,
    apply_transforms,
)

from .combiners import MergeFn, MomentsFn, ReturnRangeFn
from .datasets import BeamOptions, Dataset, Slice, combine_on_workers
from .storage import WorkFolder


def fit_transforms(
    dataset: Dataset,
    source: Source,
    transforms: Sequence[Transform],
    slices: Sequence[Slice],
    options: BeamOptions,
    work: WorkFolder,
) -> tuple[Dataset, Source]:
    """Returns the transformed dataset, and the transformed source with the statistics of `apply_transforms`.

    Args:
      dataset: the dataset, as workers read it.
      source: the same dataset, as this process reads it.
      transforms: the transforms, in order. Those of unknown classes are fitted in this process.
      slices: slices of the dataset.
      options: runner and options of the pipelines.
      work: folder through which they travel.
    """
    for transform in transforms:
        fitted = _fit(transform, dataset, source, slices, options, work)
        source, _ = apply_transforms(source, [_Fitted(*fitted)])
        dataset = replace(dataset, functions=(*dataset.functions, fitted[0]))
    return dataset, source


def _fit(
    transform: Transform,
    dataset: Dataset,
    source: Source,
    slices: Sequence[Slice],
    options: BeamOptions,
    work: WorkFolder,
) -> tuple[EpisodeFn, dict[str, Any]]:
    if isinstance(transform, NormalizeObservations):
        spec = source.step_spec[fields.OBSERVATION]
        values = combine_on_workers(MomentsFn(spec), ObservationMoments.as_dict, dataset, slices, options, work)
        moments = ObservationMoments.from_dict(spec, values)
        moments.require_usable(source.name)
        return transform.fit_moments(moments)
    if isinstance(transform, ScaleRewardsByReturns):
        returns = combine_on_workers(ReturnRangeFn(), list, dataset, slices, options, work)
        return transform.fit_returns(returns, source.name).fit(source)
    if isinstance(transform, ClipActions):
        clipping = transform.make_clipping(source)
        combiner = MergeFn(functools.partial(Clipping, clipping.spec, transform.eps))
        clipping.counts = combine_on_workers(combiner, lambda each: each.counts, dataset, slices, options, work)
        return transform.fit_clipping(clipping, source)
    return transform.fit(source)


class _Fitted:
    """A transform that is fitted already."""

    def __init__(self, function: EpisodeFn, statistics: dict[str, Any]):
        self._fitted = function, statistics

    def fit(self, source: Source) -> tuple[EpisodeFn, dict[str, Any]]:
        return self._fitted
