"""Batches with a fixed number of items from each of several datasets, such as half expert and half online data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.libraries.python_datasets import make_batch_spec, make_dataset
from rlds2reverb.replay import Batch
from rlds2reverb.types.arguments import require_count, require_number
from rlds2reverb.types.mixtures import allocate_items, join_batches, require_same_items
from rlds2reverb.types.sample_info import ReplaySample
from rlds2reverb.types.specs import make_step_spec

_ROUNDING = 1e-6


def mixed_dataset(
    datasets: Mapping[str, Callable[[int], tf.data.Dataset]],
    batch_size: int,
    *,
    weights: Mapping[str, float],
    prefetch: int = 1,
) -> tf.data.Dataset:
    """Returns an endless dataset of batches that contain items of several datasets in exact proportions.

    RLPD takes half of each batch from offline data and half from online data (Ball et al. 2023, arXiv:2302.02948,
    section 4.1):

        servers = {"expert": expert, "online": online}
        datasets = {name: partial(sample_dataset, server, "replay") for name, server in servers.items()}
        batches = mixed_dataset(datasets, 256, weights={"expert": 0.5, "online": 0.5})
        priorities = MixedPriorities({name: PriorityWriter(server, "replay") for name, server in servers.items()})

    In-process buffers are mixed in the same way, also with servers:

        datasets = {"expert": partial(sample_dataset, server, "replay"), "online": buffer.dataset}
        priorities = MixedPriorities({"expert": PriorityWriter(server, "replay"), "online": buffer})

    Each batch contains `weight * batch_size` items of a dataset. If that is not an integer, it is rounded down, and the
    remaining items go to the datasets with the largest remainders (the first by name if equal), so that all batches
    have the same counts. The items of a dataset are adjacent, and the datasets are in the order of their names.

    Each dataset is sampled ahead on its own, and a batch waits for all of them. If one times out, iterating raises its
    error, and no other dataset takes its place. (Within a dataset, servers still replace each other.)

    Args:
      datasets: dict from names to functions that return a dataset for its number of items per batch, such as
        `sample_dataset` with a server and a table, or `buffer.dataset`.
      batch_size: number of items per batch.
      weights: dict from the same names to the fraction of each dataset, above 0; they must add up to 1.
      prefetch: number of batches to prepare ahead, in addition to those of the datasets.

    Returns:
      A dataset of `ReplaySample`, as `sample_dataset` returns it. `info.dataset_index` is the index of the
      item's dataset among the sorted names, which `MixedPriorities` uses, and `info.server` the item's server within
      that dataset. `info.weight` compensates for the priorities within the item's own dataset and is relative to the
      maximum there (or in its tables, with `min_priority`); it does not compensate for `weights`.

    Raises:
      SpecMismatchError: If the items of the datasets differ, naming the field and both datasets.
      TypeError: If a dataset is not a function, or returns anything but batches of samples.
      ValueError: If the names in `weights` and `datasets` differ, the weights do not add up to 1, one is too small
        for a single item, a number is out of its range, or a dataset is a mixture itself; and whatever a dataset
        raises.
    """
    require_count("prefetch", prefetch)
    counts = allocate_items(batch_size, _normalize_weights(weights, datasets))
    samples = {name: datasets[name](count) for name, count in counts.items()}
    specs = {name: dataset.element_spec for name, dataset in samples.items()}
    _require_same_items(specs)
    openers = [getattr(samples, "open_batches", samples.as_numpy_iterator) for samples in samples.values()]
    spec = make_batch_spec(_join(*(tf.nest.map_structure(_make_empty, spec) for spec in specs.values())), batch_size)
    return make_dataset(lambda: map(_join, *(open_batches() for open_batches in openers)), spec, prefetch=prefetch)


def _join(*parts: Any) -> ReplaySample:
    data, info = join_batches(parts, range(len(parts)))
    return ReplaySample(info, data)


def _make_empty(spec: tf.TensorSpec) -> np.ndarray:
    return np.zeros((0, *(size or 0 for size in spec.shape[1:])), spec.dtype.as_numpy_dtype)


def _normalize_weights(weights: Mapping[str, float], datasets: Mapping[str, Any]) -> dict[str, float]:
    """Returns the weights sorted by name and scaled to a sum of exactly 1; raises if an argument is invalid."""
    for name, open_dataset in datasets.items():
        if not callable(open_dataset):
            raise TypeError(
                f"dataset {name!r} must be a function of its number of items per batch, such as "
                f"functools.partial(sample_dataset, server, table), got {type(open_dataset).__name__}"
            )
    if not datasets or set(weights) != set(datasets):
        raise ValueError(
            "weights and datasets must have the same names, at least one, got weights of "
            f"{_format_names(weights)} and datasets {_format_names(datasets)}"
        )
    for name, weight in weights.items():
        require_number(f"the weight of dataset {name!r}", weight, 0, 1)
        if not weight:
            raise ValueError(f"the weight of dataset {name!r} must be above 0, got 0; remove the dataset instead")
    total = sum(weights.values())
    if abs(total - 1) > _ROUNDING:
        raise ValueError(f"weights must add up to 1, got {dict(weights)}, which add up to {total:g}")
    return {name: weights[name] / total for name in sorted(weights)}


def _require_same_items(specs: Mapping[str, Any]) -> None:
    for name, spec in specs.items():
        if not isinstance(spec, (ReplaySample, Batch)):
            raise TypeError(f"dataset {name!r} must return batches as sample_dataset does, got elements {spec}")
        if not isinstance(spec.info.dataset_index, tuple):
            raise ValueError(f"dataset {name!r} is a mixture itself; pass its parts, each with its own weight")
    require_same_items(
        {name: make_step_spec(spec.data) for name, spec in specs.items()},
        {name: not isinstance(spec.info.mask, tuple) for name, spec in specs.items()},
    )


def _format_names(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
