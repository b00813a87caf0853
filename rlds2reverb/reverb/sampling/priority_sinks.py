"""Sinks of new priorities: their common interface, and one for batches that were mixed from several datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.system.closing import Closing
from rlds2reverb.types.priorities import to_float64

from .priority_writer import PriorityWriter


class PrioritySink(Protocol):
    """A receiver of TD errors, which become the priorities of sampled items.

        priority = |delta| + eps

    Schaul et al. (2016), section 3.3: the errors are raw and unweighted, and the sampler applies the exponent. The sink
    has the constant, and may scale priorities as `PriorityWriter` does. `PriorityWriter`, `MixedPriorities`,
    `ReplayBuffer` and `BufferManager` are priority sinks.
    """

    def update(self, info: Any, td_errors: Any) -> Any:
        """Sets the priorities of items.

        Args:
          info: `SampleInfo` of arrays `[N]`, of one or more batches.
          td_errors: float `[N]`, the TD error of each item, of either sign. For duplicate items the last one wins.
        """


class MixedPriorities(Closing):
    """A sink for batches of `mixed_dataset`, which passes the items of each dataset to the sink of that dataset.

    priorities = MixedPriorities({"expert": PriorityWriter(server, "replay"), "online": buffer})
    """

    def __init__(self, sinks: Mapping[str, PrioritySink]):
        """Sets the sinks.

        Args:
          sinks: dict from the names passed to `mixed_dataset` to priority sinks.

        Raises:
          TypeError: If a sink has no `update`.
          ValueError: If there is no sink.
        """
        if not sinks:
            raise ValueError("sinks must have at least one dataset, got none")
        for name, sink in sinks.items():
            if not callable(getattr(sink, "update", None)):
                raise TypeError(f"the sink of dataset {name!r} must have a method update, got {type(sink).__name__}")
        self._sinks = [sinks[name] for name in sorted(sinks)]

    def close(self) -> None:
        """Closes the connections of sinks that are `PriorityWriter`s; buffers stay open."""
        for sink in self._sinks:
            if isinstance(sink, PriorityWriter):
                sink.close()

    def update(self, info: Any, td_errors: Any) -> None:
        """Implements `PrioritySink.update`.

        Raises:
          ServerUnavailableError: If a server does not accept the priorities in time; the other datasets are updated.
          ValueError: If the batch is not from `mixed_dataset`, there is no sink for one of its datasets, or the numbers
            of items and errors differ.
        """
        errors = to_float64(td_errors)
        if isinstance(getattr(info, "dataset_index", ()), tuple):
            raise ValueError("the batch is not from mixed_dataset; pass it to the sink of its own dataset")
        datasets = np.asarray(info.dataset_index)
        if errors.shape != datasets.shape:
            raise ValueError(
                f"td_errors must have one number per item, got shape {list(errors.shape)} for {list(datasets.shape)}"
            )
        if len(datasets) and not 0 <= datasets.min() <= datasets.max() < len(self._sinks):
            raise ValueError(
                f"the batch has items of dataset {datasets.max()}, but there are {len(self._sinks)} sinks; pass a sink "
                "for every dataset that was mixed"
            )
        failures: list[ServerUnavailableError] = []
        for index in np.unique(datasets).tolist():
            rows = datasets == index
            own = [np.asarray(column)[rows] if not isinstance(column, tuple) else () for column in info]
            try:
                self._sinks[index].update(type(info)(*own)._replace(dataset_index=()), errors[rows])
            except ServerUnavailableError as error:
                failures.append(error)
        if failures:
            raise failures[0]
