"""Configurations of Reverb tables: selectors, rate limiters, sizes and signatures."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import tree

from .arguments import require_count, require_number, require_one_of
from .specs import Nest, with_bounds

SelectorKind = Literal["uniform", "fifo", "lifo", "min_heap", "max_heap", "prioritized"]
LimiterKind = Literal["min_size", "sample_to_insert_ratio", "max_samples_per_insert", "queue", "stack"]
MAX_PRIORITY = 1e12
#: The largest `max_size` that Reverb accepts.
MAX_ITEMS = 2**31 - 1
#: Tolerance of 'max_samples_per_insert'; without it, rounding (49 * (1 / 49) < 1) would hold back samples that are due.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Selector:
    """The rule that selects the item to sample from a table, or to remove from a full one.

    Attributes:
      kind: 'uniform', 'fifo', 'lifo', 'min_heap', 'max_heap' or 'prioritized'.
      exponent: exponent of 'prioritized', in [0, 100]: items are sampled with probability p^exponent / Σ p^exponent
        (Schaul et al. 2016, arXiv:1511.05952, eq. 1). None for the other kinds.
    """

    kind: SelectorKind
    exponent: float | None = None

    def __post_init__(self) -> None:
        require_one_of("selector", self.kind, get_args(SelectorKind))
        if self.kind == "prioritized":
            require_number("exponent of a prioritized selector", self.exponent, 0, 100)
        elif self.exponent is not None:
            raise ValueError(f"a {self.kind} selector takes no exponent, got {self.exponent}")

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parses a string such as `uniform` or `prioritized:0.6`; the default exponent is 0.6."""
        name, _, exponent = text.partition(":")
        kind = cast(SelectorKind, name)
        if not exponent:
            return cls(kind, 0.6 if kind == "prioritized" else None)
        return cls(kind, _parse_number(exponent, text))

    def __str__(self) -> str:
        return self.kind if self.exponent is None else f"{self.kind}:{self.exponent:g}"


@dataclass(frozen=True)
class RateLimiter:
    """The rule that decides when a table blocks samples and inserts.

    Attributes:
      kind: 'min_size', 'sample_to_insert_ratio', 'max_samples_per_insert' (which never blocks inserts), 'queue' or
        'stack'.
      size: minimum number of items before sampling starts; for 'queue' and 'stack' the maximum number of items.
      samples_per_insert: target of 'sample_to_insert_ratio', and upper bound of 'max_samples_per_insert'.
      error_buffer: tolerance of 'sample_to_insert_ratio', in samples ahead of or behind the target.
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
        elif ratio is None or not 0 < ratio < math.inf:
            raise ValueError(f"samples_per_insert must be a finite number above 0, got {ratio}")
        elif self.kind == "max_samples_per_insert":
            if buffer is not None:
                raise ValueError(f"a {self.kind} rate limiter takes no error_buffer, got {buffer}")
        elif buffer is None or not max(1.0, ratio) <= buffer < math.inf:
            raise ValueError(
                f"error_buffer must be at least {max(1.0, ratio):g} (one insert or one sample) and finite, got {buffer}"
            )

    @classmethod
    def parse(cls, text: str) -> RateLimiter:
        """Parses a string as returned by `str`.

        The forms are `min_size:N`, `queue:N`, `stack:N`, `max_samples_per_insert:SAMPLES_PER_INSERT:MIN_SIZE` and
        `sample_to_insert_ratio:SAMPLES_PER_INSERT:MIN_SIZE:ERROR_BUFFER`.
        """
        name, *numbers = text.split(":")
        kind = cast(LimiterKind, name)
        values = [_parse_number(number, text) for number in numbers]
        if kind == "sample_to_insert_ratio" and len(values) == 3:
            return cls(kind, _to_integer(values[1], text), samples_per_insert=values[0], error_buffer=values[2])
        if kind == "max_samples_per_insert" and len(values) == 2:
            return cls(kind, _to_integer(values[1], text), samples_per_insert=values[0])
        if kind in ("min_size", "queue", "stack") and len(values) == 1:
            return cls(kind, _to_integer(values[0], text))
        raise ValueError(
            "rate limiter must be min_size:N, queue:N, stack:N, "
            "max_samples_per_insert:SAMPLES_PER_INSERT:MIN_SIZE or "
            f"sample_to_insert_ratio:SAMPLES_PER_INSERT:MIN_SIZE:ERROR_BUFFER, got {text!r}"
        )

    def __str__(self) -> str:
        if self.kind == "sample_to_insert_ratio":
            return f"{self.kind}:{self.samples_per_insert:g}:{self.size}:{self.error_buffer:g}"
        if self.kind == "max_samples_per_insert":
            return f"{self.kind}:{self.samples_per_insert:g}:{self.size}"
        return f"{self.kind}:{self.size}"

    def as_reverb_values(self) -> dict[str, float]:
        """Returns the values of Reverb's rate limiter, by the names that Reverb gives them.

        Samples and inserts block if they would move `samples_per_insert * inserts - samples` out of the interval from
        `min_diff` to `max_diff`.
        """
        ratio, lowest, highest = float(self.samples_per_insert or 1.0), -sys.float_info.max, sys.float_info.max
        min_size = self.size
        if self.kind == "sample_to_insert_ratio":
            lowest, highest = (ratio * self.size + sign * (self.error_buffer or 0.0) for sign in (-1, 1))
        elif self.kind == "max_samples_per_insert":
            lowest = -_ROUNDING
        elif self.kind in ("queue", "stack"):
            min_size, lowest, highest = 1, 0.0, float(self.size)
        return {"samples_per_insert": ratio, "min_size_to_sample": min_size, "min_diff": lowest, "max_diff": highest}


def _parse_number(number: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(f"{number!r} in {text!r} is not a number") from None


def _to_integer(value: float, text: str) -> int:
    if not value.is_integer():  # This rejects infinities and NaN as well.
        raise ValueError(f"{value:g} in {text!r} must be an integer")
    return int(value)


@dataclass(frozen=True)
class TableConfig:
    """The configuration of a Reverb table.

    Attributes:
      name: name of the table, 1 to 100 printable characters.
      sampler: selector of the item to sample.
      remover: selector of the item to remove when the table is full.
      max_size: maximum number of items, from 1 to 2,147,483,647; None for the largest, so that in effect only memory
        limits the table. Set it if actors write indefinitely: a full table removes one item per new item.
      max_times_sampled: number of times after which a sampled item is removed; 0 for no limit.
      rate_limiter: rule that decides when samples and inserts block.
    """

    name: str = "replay"
    sampler: Selector = Selector("prioritized", 0.6)
    remover: Selector = Selector("fifo")
    max_size: int | None = None
    max_times_sampled: int = 0
    rate_limiter: RateLimiter = RateLimiter()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable() or len(self.name) > 100:
            raise ValueError(f"name of a table must be 1 to 100 printable characters, got {self.name!r:.120}")
        for name, kind in (("sampler", Selector), ("remover", Selector), ("rate_limiter", RateLimiter)):
            if not isinstance(value := getattr(self, name), kind):
                advice = f"use {kind.__name__}.parse for text"
                raise TypeError(f"{name} of table {self.name!r} must be a {kind.__name__}, got {value!r}; {advice}")
        require_count(f"max_size of table {self.name!r}", self.capacity, 1, MAX_ITEMS)
        require_count(f"max_times_sampled of table {self.name!r}", self.max_times_sampled, 0, 2**31 - 1)
        limiter = self.rate_limiter
        if limiter.kind in ("queue", "stack"):
            order = "fifo" if limiter.kind == "queue" else "lifo"
            if self.sampler.kind != order or self.remover.kind != order or self.max_times_sampled != 1:
                raise ValueError(
                    f"a {limiter.kind} (table {self.name!r}) requires sampler and remover {order} and "
                    f"max_times_sampled 1, got {self.sampler}, {self.remover} and {self.max_times_sampled}"
                )
            if self.max_size != limiter.size:
                raise ValueError(
                    f"a {limiter.kind} of {limiter.size} (table {self.name!r}) requires max_size {limiter.size}, "
                    f"got {self.max_size}"
                )
        elif limiter.size > self.capacity:
            raise ValueError(
                f"rate limiter's size of table {self.name!r} must be at most max_size {self.capacity}, got "
                f"{limiter.size}; the table would wait forever"
            )

    @property
    def capacity(self) -> int:
        """The maximum number of items, as Reverb expects it."""
        return MAX_ITEMS if self.max_size is None else self.max_size

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableConfig:
        """Restores a config from the result of `as_dict`.

        Raises:
          ValueError: If a value is missing, unknown or out of range.
        """
        try:
            selectors = {name: Selector(**values[name]) for name in ("sampler", "remover")}
            return cls(**{**values, **selectors, "rate_limiter": RateLimiter(**values["rate_limiter"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{values} is not a table configuration ({error})") from error

    @classmethod
    def queue(cls, name: str, size: int) -> TableConfig:
        """Returns the config of a FIFO queue, which yields each item once."""
        fifo = Selector("fifo")
        return cls(name, fifo, fifo, size, 1, RateLimiter("queue", size))

    def build(self, signature: Nest | None = None) -> Any:
        """Returns a `reverb.Table` for a `reverb.Server` in this process; requires dm-reverb in this environment.

        The table's items must match the signature unless it is None; see `item_signature`. `ReplayServer` builds its
        tables itself.
        """
        from rlds2reverb.reverb.process.reverb_tables import build_table

        return build_table(self.as_reverb_values(), signature)

    def as_reverb_values(self) -> dict[str, Any]:
        """Returns the config as plain values for `reverb_tables.build_table`."""
        return {**self.as_dict(), "max_size": self.capacity, "rate_limiter": self.rate_limiter.as_reverb_values()}

    def as_dict(self) -> dict[str, Any]:
        """Returns the config as plain dicts, for JSON."""
        return asdict(self)


def list_options(tables: Sequence[TableConfig]) -> dict[str, Any]:
    """Returns the names of tables as 'tables', and their options by names such as "sampler of table 'replay'"."""
    options: dict[str, Any] = {"tables": [table.name for table in tables]}
    for table in tables:
        options |= {f"{name} of table {table.name!r}": value for name, value in vars(table).items() if name != "name"}
    return options


def find_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the argument whose option is the first that differs, and a phrase about the difference."""
    name = next(name for name in {**old, **new} if old.get(name) != new.get(name))
    return name.partition(" ")[0], f"{name} was {old.get(name)}, is now {new.get(name)}"


def item_signature(trajectory_spec: Nest, sequence_length: int | None) -> Nest:
    """Returns the signature of a table whose items are `sequence_length` trajectories, `[sequence_length, ...]`.

    None allows items of any length. Reverb stores the bounds of observations and actions without checking them.
    """
    import tensorflow as tf

    def convert(leaf: tf.TensorSpec) -> tf.TensorSpec:
        return with_bounds(tf.TensorSpec((sequence_length, *leaf.shape), leaf.dtype), leaf)

    return tree.map_structure(convert, trajectory_spec)
