"""Tables: a config that checks itself, and the Reverb table it stands for."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import tree

from rlds2reverb._arguments import require_count, require_one_of
from rlds2reverb.specs import Nest

if TYPE_CHECKING:
    import reverb

SelectorKind = Literal["uniform", "fifo", "lifo", "min_heap", "max_heap", "prioritized"]
LimiterKind = Literal["min_size", "sample_to_insert_ratio", "max_samples_per_insert", "queue", "stack"]
MAX_PRIORITY = 1e12
#: The largest number of items that Reverb takes for a table.
MAX_ITEMS = 2**31 - 1
#: Samples that "max_samples_per_insert" gives too early: rounding (49 * (1 / 49) < 1) refuses none that is due.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Selector:
    """Which item is sampled, or removed from a full table.

    Attributes:
      kind: 'uniform', 'fifo', 'lifo', 'min_heap', 'max_heap' or 'prioritized'.
      exponent: of 'prioritized': items are drawn with probability p^exponent / Σ p^exponent (Schaul et al. 2016,
        arXiv:1511.05952, eq. 1).
    """

    kind: SelectorKind
    exponent: float | None = None

    def __post_init__(self) -> None:
        require_one_of("selector", self.kind, get_args(SelectorKind))
        if self.kind == "prioritized":
            if self.exponent is None or not 0 <= self.exponent <= 100:
                raise ValueError(f"a prioritized selector's exponent is {self.exponent}, expected a number in [0, 100]")
        elif self.exponent is not None:
            raise ValueError(f"a {self.kind} selector takes no exponent, got {self.exponent}")

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Returns the selector of a text such as `uniform` or `prioritized:0.6` (without an exponent: 0.6)."""
        name, _, exponent = text.partition(":")
        kind = cast(SelectorKind, name)
        if kind == "prioritized":
            return cls(kind, _number(exponent, text) if exponent else 0.6)
        return cls(kind, _number(exponent, text) if exponent else None)

    def __str__(self) -> str:
        return self.kind if self.exponent is None else f"{self.kind}:{self.exponent:g}"

    def build(self) -> Any:
        """Returns the selector of Reverb."""
        import reverb

        if self.kind == "prioritized":
            return reverb.selectors.Prioritized(self.exponent)
        names = {"min_heap": "MinHeap", "max_heap": "MaxHeap"}
        return getattr(reverb.selectors, names.get(self.kind, self.kind.capitalize()))()


@dataclass(frozen=True)
class RateLimiter:
    """When a table lets samples and inserts pass.

    Attributes:
      kind: 'min_size', 'sample_to_insert_ratio', 'max_samples_per_insert' (which never holds inserts back), 'queue'
        or 'stack'.
      size: items before the first sample is given; for 'queue' and 'stack' the most items that wait.
      samples_per_insert: of 'sample_to_insert_ratio' and 'max_samples_per_insert'.
      error_buffer: of 'sample_to_insert_ratio': how far samples may run ahead or behind, in samples.
    """

    kind: LimiterKind = "min_size"
    size: int = 1
    samples_per_insert: float | None = None
    error_buffer: float | None = None

    def __post_init__(self) -> None:
        require_one_of("rate limiter", self.kind, get_args(LimiterKind))
        require_count("rate limiter's size", self.size, 1, MAX_ITEMS)
        ratio, buffer = self.samples_per_insert, self.error_buffer
        if self.kind not in ("sample_to_insert_ratio", "max_samples_per_insert"):
            if ratio is not None or buffer is not None:
                raise ValueError(f"a {self.kind} rate limiter takes neither samples_per_insert nor error_buffer")
            return
        if ratio is None or not 0 < ratio < math.inf:
            raise ValueError(f"samples_per_insert is {ratio}, expected a number above 0")
        if self.kind == "max_samples_per_insert":
            if buffer is not None:
                raise ValueError(f"a {self.kind} rate limiter takes no error_buffer, got {buffer}")
            return
        if buffer is None or not max(1.0, ratio) <= buffer < math.inf:
            raise ValueError(
                f"error_buffer is {buffer}, expected at least {max(1.0, ratio):g} (one insert or one sample)"
            )

    @classmethod
    def parse(cls, text: str) -> RateLimiter:
        """Returns the rate limiter of a text such as `str` gives.

        The forms are `min_size:N`, `queue:N`, `stack:N`, `max_samples_per_insert:SAMPLES_PER_INSERT:SIZE` and
        `sample_to_insert_ratio:SAMPLES_PER_INSERT:SIZE:ERROR_BUFFER`.
        """
        name, *numbers = text.split(":")
        kind = cast(LimiterKind, name)
        values = [_number(number, text) for number in numbers]
        if kind == "sample_to_insert_ratio" and len(values) == 3:
            return cls(kind, _whole(values[1], text), samples_per_insert=values[0], error_buffer=values[2])
        if kind == "max_samples_per_insert" and len(values) == 2:
            return cls(kind, _whole(values[1], text), samples_per_insert=values[0])
        if kind in ("min_size", "queue", "stack") and len(values) == 1:
            return cls(kind, _whole(values[0], text))
        raise ValueError(
            f"rate limiter {text!r} is not understood, expected min_size:N, queue:N, stack:N, "
            "max_samples_per_insert:SAMPLES_PER_INSERT:MIN_SIZE or "
            "sample_to_insert_ratio:SAMPLES_PER_INSERT:MIN_SIZE:ERROR_BUFFER"
        )

    def __str__(self) -> str:
        if self.kind == "sample_to_insert_ratio":
            return f"{self.kind}:{self.samples_per_insert:g}:{self.size}:{self.error_buffer:g}"
        if self.kind == "max_samples_per_insert":
            return f"{self.kind}:{self.samples_per_insert:g}:{self.size}"
        return f"{self.kind}:{self.size}"

    def build(self) -> Any:
        """Returns the rate limiter of Reverb."""
        import reverb

        limiters = reverb.rate_limiters
        if self.kind == "sample_to_insert_ratio":
            return limiters.SampleToInsertRatio(self.samples_per_insert, self.size, self.error_buffer)
        if self.kind == "max_samples_per_insert":
            return limiters.RateLimiter(self.samples_per_insert, self.size, -_ROUNDING, sys.float_info.max)
        return {"min_size": limiters.MinSize, "queue": limiters.Queue, "stack": limiters.Stack}[self.kind](self.size)

    def gives(self, num_inserted: int, num_sampled: int, size: int) -> bool:
        """Whether 'max_samples_per_insert' lets a table that has items give `size` more samples.

            num_inserted * samples_per_insert - num_sampled - size >= 0

        as Reverb has it: items that left stay counted among the inserted ones.
        """
        return num_inserted * (self.samples_per_insert or 0.0) - num_sampled - size >= -_ROUNDING


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} in {whole!r} is not a number") from None


def _whole(value: float, whole: str) -> int:
    if not value.is_integer():  # false for inf and nan, too
        raise ValueError(f"{value:g} in {whole!r}: expected an integer")
    return int(value)


@dataclass(frozen=True)
class TableConfig:
    """A Reverb table.

    Attributes:
      name: the table's name.
      sampler: which item is sampled.
      remover: which item leaves a full table.
      max_size: the most items that the table holds, from 1 to 2,147,483,647; None for no limit but that and memory.
        Give a number where actors write without an end: a full table removes an item for each new one.
      max_times_sampled: an item leaves after it was sampled this often; 0 for never.
      rate_limiter: when samples and inserts pass.
    """

    name: str = "replay"
    sampler: Selector = Selector("prioritized", 0.6)
    remover: Selector = Selector("fifo")
    max_size: int | None = None
    max_times_sampled: int = 0
    rate_limiter: RateLimiter = RateLimiter()

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or len(self.name) > 100:
            raise ValueError(f"a table's name is {self.name[:120]!r}, expected 1 to 100 printable characters")
        require_count(f"max_size of table {self.name!r}", self.capacity, 1, MAX_ITEMS)
        require_count(f"max_times_sampled of table {self.name!r}", self.max_times_sampled, 0, 2**31 - 1)
        limiter = self.rate_limiter
        if limiter.kind in ("queue", "stack"):
            order = "fifo" if limiter.kind == "queue" else "lifo"
            if self.sampler.kind != order or self.remover.kind != order or self.max_times_sampled != 1:
                raise ValueError(
                    f"a {limiter.kind} (table {self.name!r}) needs sampler and remover {order} and max_times_sampled "
                    f"1, got {self.sampler}, {self.remover} and {self.max_times_sampled}"
                )
            if self.max_size != limiter.size:
                raise ValueError(
                    f"a {limiter.kind} of {limiter.size} (table {self.name!r}) needs max_size {limiter.size}, "
                    f"got {self.max_size}"
                )
        elif limiter.size > self.capacity:
            raise ValueError(
                f"table {self.name!r} waits for {limiter.size} items and holds {self.capacity}; it would wait forever"
            )

    @property
    def capacity(self) -> int:
        """The most items that the table holds."""
        return MAX_ITEMS if self.max_size is None else self.max_size

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableConfig:
        """Returns the config that `as_dict` was called on.

        Raises:
          ValueError: if anything is missing, too much or out of range.
        """
        try:
            parts = {
                "sampler": Selector(**values["sampler"]),
                "remover": Selector(**values["remover"]),
                "rate_limiter": RateLimiter(**values["rate_limiter"]),
            }
            return cls(**{**values, **parts})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{values} is not the configuration of a table ({error})") from error

    @classmethod
    def queue(cls, name: str, size: int) -> TableConfig:
        """Returns the config of a queue: first in, first out, each item sampled once."""
        fifo = Selector("fifo")
        return cls(name, fifo, fifo, size, 1, RateLimiter("queue", size))

    def build(self, signature: Nest | None = None) -> reverb.Table:
        """Returns the table of Reverb, with the signature of its items (`item_signature`)."""
        import reverb

        return reverb.Table(
            self.name,
            sampler=self.sampler.build(),
            remover=self.remover.build(),
            max_size=self.capacity,
            max_times_sampled=self.max_times_sampled,
            rate_limiter=self.rate_limiter.build(),
            signature=signature,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the same as plain dicts, for JSON."""
        return asdict(self)


def item_signature(trajectory_spec: Nest, sequence_length: int | None) -> Nest:
    """Returns the signature of a table of windows of `sequence_length` trajectories, `[sequence_length, ...]`.

    With None, items may have any length. Bounds and names, which Reverb does not check, are left out.
    """
    import tensorflow as tf

    return tree.map_structure(lambda leaf: tf.TensorSpec((sequence_length, *leaf.shape), leaf.dtype), trajectory_spec)
