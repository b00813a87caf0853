"""Configurations of replay buffers, which check themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlds2reverb.tables import MAX_PRIORITY, Selector, TableConfig

from .refusals import limiter_of

KINDS = ("naive", "advanced", "episode", "sequence")
#: What becomes of an episode that is shorter than the window which is sampled from it.
SHORT_EPISODES = ("drop", "pad")

_OTHER_SELECTORS = ("uniform", "prioritized")
_MAX_SIZE = 100_000_000
_MAX_COUNT = 2**31 - 1
#: The sum of `_MAX_SIZE` times `MAX_PRIORITY` to this power is finite: at infinity Reverb draws wrongly.
_MAX_ALPHA = 20
#: Between these, limits of pushes for each sample hold to the push, in spite of rounding.
_LOWEST_RATE, _HIGHEST_RATE = 1e-6, 1e6


@dataclass(frozen=True)
class BufferConfig:
    """A replay buffer: what it holds, how it is sampled, and when.

    Attributes:
      kind: 'naive' (uniform), 'advanced' (prioritized), 'episode' (elements are episodes of any length) or 'sequence'
        (elements are `length` steps); the last two are prioritized as well.
      max_size: elements in the buffer; a new one takes the place of the oldest.
      alpha: elements are drawn with probability p^alpha / Σ p^alpha (Schaul et al. 2016, arXiv:1511.05952, eq. 1);
        0 is uniform. In [0, 20]; 'naive' takes no notice of it.
      beta: of the importance weights `(1 / (N P))^beta`, at first; in [0, 1] (section 3.4 there).
      anneal_step: samples in which beta rises to 1, in equal steps; 0 for never.
      eps: added to every priority that an update gives, so that its element can be sampled.
      max_use: an element leaves after it was sampled so often; None for never.
      max_staleness: an element leaves when the learner's iteration is so far, or farther, from the one in which it was
        collected; None for never. Elements that do not say when they were collected stay.
      sample_min_limit_ratio: sampling B elements is refused while there are fewer than so many times B.
      push_sample_rate_limit: least and most elements pushed for each one sampled, all counted from the first push,
        samples that others took (`dataset`, Reverb's clients) as well. Where it would fall below the least, `sample` is
        refused, and others wait at Reverb's rate limiter, which keeps this side, for each table by itself. Where it
        would rise above the most, a push is refused (`RateLimited`); pushing is free until something was sampled. This
        side is the buffer's, over the samples of all tables together: all pushes go through it, and a limiter of Reverb
        has the same slope for both. Neither `sample` nor a push ever waits for the other. A least above 0 does not go
        with `replace=False` or `sample_range`, whose draws that are thrown away count at the limiter.
      replace: whether an element may be in a batch several times.
      priority_decay: factor in (0, 1) by which each update lowers the highest priority that is remembered for new
        elements, though not below that of the update; None for never.
      length: steps of an element, for 'sequence'.
      window: steps that are sampled from within an episode, for 'episode'; None for whole episodes.
      short_episodes: 'drop' refuses episodes that are shorter than the window, 'pad' fills them up with zeros.
      other_tables: selectors ('uniform' or 'prioritized') by name of further tables with the same elements, which share
        their data. `sample` and `dataset` draw from the buffer's own table, or from that of a name. They do not go with
        max_use, since Reverb counts the uses of each table by itself.
    """

    kind: str = "advanced"
    max_size: int = 10_000
    alpha: float = 0.6
    beta: float = 0.4
    anneal_step: int = 100_000
    eps: float = 0.01
    max_use: int | None = None
    max_staleness: int | None = None
    sample_min_limit_ratio: float = 1.0
    push_sample_rate_limit: tuple[float, float] = (0.0, math.inf)
    replace: bool = True
    priority_decay: float | None = None
    length: int | None = None
    window: int | None = None
    short_episodes: str = "drop"
    other_tables: Mapping[str, Selector] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("kind", self.kind, KINDS),
            ("short_episodes", self.short_episodes, SHORT_EPISODES),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}")
        _require_whole("max_size", self.max_size, 1, _MAX_SIZE)
        _require_whole("anneal_step", self.anneal_step, 0, _MAX_COUNT)
        for name in ("max_use", "max_staleness", "length", "window"):
            if getattr(self, name) is not None:
                _require_whole(name, getattr(self, name), 1, _MAX_COUNT)
        _require_within("alpha", self.alpha, 0, _MAX_ALPHA)
        _require_within("beta", self.beta, 0, 1)
        _require_within("eps", self.eps, 0, MAX_PRIORITY)
        _require_within("sample_min_limit_ratio", self.sample_min_limit_ratio, 0, self.max_size)
        if self.priority_decay is not None and not 0 < self.priority_decay < 1:
            raise ValueError(f"priority_decay is {self.priority_decay}, expected a number between 0 and 1, or None")
        self._check_rates()
        self._check_kind()
        self._check_others()

    def _check_rates(self) -> None:
        limits = self.push_sample_rate_limit
        if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
            raise ValueError(
                f"push_sample_rate_limit is {limits}, expected (least, most) with 0 <= least < most: between them "
                "there has to be room for a push or a sample"
            )
        limits = float(limits[0]), float(limits[1])  # also of the list that JSON makes of them, or of numpy's
        object.__setattr__(self, "push_sample_rate_limit", limits)
        if limits[0]:
            _require_within("the least of push_sample_rate_limit", limits[0], _LOWEST_RATE, _HIGHEST_RATE)
            if not self.replace:
                raise ValueError(
                    "push_sample_rate_limit with a least above 0 does not go with replace=False: draws that are thrown "
                    "away count as samples on the server; leave one of them out"
                )

    def _check_kind(self) -> None:
        if (self.kind == "sequence") != (self.length is not None):
            raise ValueError(f"length is {self.length} for kind {self.kind!r}; 'sequence' needs it, others take none")
        if self.window is not None and self.kind != "episode":
            raise ValueError(f"window is {self.window} for kind {self.kind!r}; only 'episode' takes one")
        if self.max_use is not None and not self.replace:
            raise ValueError(
                "max_use does not go with replace=False: draws that are thrown away count as uses on the server; "
                "leave one of them out"
            )

    def _check_others(self) -> None:
        if not isinstance(self.other_tables, Mapping):
            raise TypeError(
                f"other_tables is a {type(self.other_tables).__name__}, expected a dict of selectors by name"
            )
        others = {name: _selector(name, given) for name, given in self.other_tables.items()}
        object.__setattr__(self, "other_tables", others)  # its own, and of one type however it was given
        if others and self.max_use is not None:
            raise ValueError(
                "other_tables do not go with max_use: Reverb counts the uses of each table by itself; leave one of "
                "them out"
            )

    def tables(self, name: str) -> tuple[TableConfig, ...]:
        """The tables of a buffer of that name, its own first.

        Raises:
          ValueError: if another table has that name.
        """
        if name in self.other_tables:
            raise ValueError(f"other_tables has {name!r}, which is the buffer's own table; give it another name")
        own = Selector("uniform") if self.kind == "naive" else Selector("prioritized", float(self.alpha))
        samplers = {name: own, **{other: self.other_tables[other] for other in sorted(self.other_tables)}}
        limiter = limiter_of(self.push_sample_rate_limit[0])
        return tuple(
            TableConfig(table, sampler, Selector("fifo"), self.max_size, self.max_use or 0, limiter)
            for table, sampler in samplers.items()
        )


def _selector(name: str, given: Selector | Mapping[str, Any]) -> Selector:
    """The selector of another table, also from the dict that `dataclasses.asdict` makes of one."""
    if not isinstance(name, str):
        raise TypeError(f"other_tables has {name!r} for a name, expected text")
    selector = Selector(**given) if isinstance(given, Mapping) else given
    if not isinstance(selector, Selector):
        raise TypeError(f"other_tables[{name!r}] is a {type(given).__name__}, expected a Selector")
    if selector.kind not in _OTHER_SELECTORS:
        wanted = " or ".join(_OTHER_SELECTORS)
        raise ValueError(f"the selector of other_tables[{name!r}] is {selector}, expected {wanted}")
    if selector.exponent is not None:
        _require_within(f"the exponent of other_tables[{name!r}]", selector.exponent, 0, _MAX_ALPHA)
    TableConfig(name, selector)  # which checks the name
    return selector


def _require_whole(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected an integer from {low} to {high:,}")


def _require_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # nor is nan
        raise ValueError(f"{name} is {value}, expected a number from {low:g} to {high:g}")
