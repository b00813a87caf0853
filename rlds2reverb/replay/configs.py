"""Configurations of replay buffers, which check themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb.tables import MAX_PRIORITY

KINDS = ("naive", "advanced", "episode", "sequence")
#: What becomes of an episode that is shorter than the window which is sampled from it.
SHORT_EPISODES = ("drop", "pad")
#: What windows are drawn over, and what importance weights are relative to.
WINDOWS_OVER, WEIGHTS = ("steps", "episodes"), ("buffer", "batch")

_MAX_SIZE = 100_000_000
_MAX_COUNT = 2**31 - 1
#: The sum of `_MAX_SIZE` times `MAX_PRIORITY` to this power is finite.
_MAX_ALPHA = 20
#: Between these, limits of pushes for each sample hold to the push, in spite of rounding.
_LOWEST_RATE, _HIGHEST_RATE = 1e-6, 1e6


@dataclass(frozen=True)
class BufferConfig:
    """A replay buffer: what it holds, how it is sampled, and when. Every option goes with every other.

    Attributes:
      kind: 'naive' (uniform), 'advanced' (prioritized), 'episode' (elements are episodes of any length) or 'sequence'
        (elements are `length` steps); the last two are prioritized as well.
      max_size: elements in the buffer; a new one takes the place of the oldest.
      alpha: elements are drawn with probability p^alpha / Σ p^alpha (Schaul et al. 2016, arXiv:1511.05952, eq. 1);
        0 is uniform. In [0, 20]; 'naive' takes no notice of it.
      beta: of the importance weights `(1 / (N P))^beta`, at first; in [0, 1] (section 3.4 there).
      anneal_step: samples in which beta rises to 1, in equal steps; 0 for never.
      weights: what they are divided by: 'buffer', the largest weight of all elements, as in DI-engine; or 'batch'.
      eps: added to every priority that an update gives, so that its element can be sampled.
      max_use: an element leaves after it was sampled so often; None for never. In one batch, too, it comes no more
        often than it has uses left.
      max_staleness: an element leaves when the learner's iteration is so far, or farther, from the one in which it was
        collected; None for never. Elements that do not say when they were collected stay.
      sample_min_limit_ratio: sampling B elements is refused while there are fewer than so many times B.
      push_sample_rate_limit: least and most elements pushed for each one sampled, all counted from the first push.
        Where it would fall below the least, a sample is refused; where it would rise above the most, a push is
        (`RateLimitedError`), but pushing is free until something was sampled.
      replace: whether an element may be in a batch several times.
      priority_decay: factor in (0, 1) by which each update lowers the highest priority that is remembered for new
        elements, though not below that of the update; None for never.
      length: steps of an element, for 'sequence'.
      window: steps that are sampled from within an episode, for 'episode'; None for whole episodes.
      windows_over: 'steps' draws each window of all episodes with the same chance (times the power of its episode's
        priority), so that a long episode is drawn from more often; 'episodes' draws the episode first.
      short_episodes: 'drop' refuses episodes that are shorter than the window, 'pad' fills them up with zeros.
    """

    kind: str = "advanced"
    max_size: int = 10_000
    alpha: float = 0.6
    beta: float = 0.4
    anneal_step: int = 100_000
    weights: str = "buffer"
    eps: float = 0.01
    max_use: int | None = None
    max_staleness: int | None = None
    sample_min_limit_ratio: float = 1.0
    push_sample_rate_limit: tuple[float, float] = (0.0, math.inf)
    replace: bool = True
    priority_decay: float | None = None
    length: int | None = None
    window: int | None = None
    windows_over: str = "steps"
    short_episodes: str = "drop"

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, KINDS)
        require_one_of("short_episodes", self.short_episodes, SHORT_EPISODES)
        require_one_of("windows_over", self.windows_over, WINDOWS_OVER)
        require_one_of("weights", self.weights, WEIGHTS)
        require_count("max_size", self.max_size, 1, _MAX_SIZE)
        require_count("anneal_step", self.anneal_step, 0, _MAX_COUNT)
        for name in ("max_use", "max_staleness", "length", "window"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1, _MAX_COUNT)
        require_number("alpha", self.alpha, 0, _MAX_ALPHA)
        require_number("beta", self.beta, 0, 1)
        require_number("eps", self.eps, 0, MAX_PRIORITY)
        require_number("sample_min_limit_ratio", self.sample_min_limit_ratio, 0, self.max_size)
        if self.priority_decay is not None and not 0 < self.priority_decay < 1:
            raise ValueError(f"priority_decay is {self.priority_decay}, expected a number between 0 and 1, or None")
        if (self.kind == "sequence") != (self.length is not None):
            raise ValueError(f"length is {self.length} for kind {self.kind!r}; 'sequence' needs it, others take none")
        if self.window is not None and self.kind != "episode":
            raise ValueError(f"window is {self.window} for kind {self.kind!r}; only 'episode' takes one")
        self._check_rates()

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
            require_number("the least of push_sample_rate_limit", limits[0], _LOWEST_RATE, _HIGHEST_RATE)

    @cached_property
    def exponent(self) -> float | None:
        """The exponent of priorities; None where draws are uniform."""
        return None if self.kind == "naive" else float(self.alpha)

    @cached_property
    def lowest_priority(self) -> float:
        """The lowest priority above 0 that an element may have: below, its power is rounded to 0, and never drawn.

        With exponents up to 1 only what is below 2.2e-308 is too low.
        """
        return 0.0 if self.exponent is None else float(np.finfo(np.float64).tiny ** (1 / max(1.0, self.exponent)))

    @property
    def has_time(self) -> bool:
        """Whether elements have a time axis."""
        return self.kind in ("episode", "sequence")

    @property
    def has_shares(self) -> bool:
        """Whether an element is drawn the more often the longer it is."""
        return self.window is not None and self.windows_over == "steps"

    @property
    def pads(self) -> bool:
        """Whether windows may be longer than their episodes."""
        return self.window is not None and self.short_episodes == "pad"

    @property
    def least_length(self) -> int:
        """Steps that an episode has to have to be stored."""
        return 0 if self.window is None or self.pads else self.window

    @property
    def has_mask(self) -> bool:
        """Whether batches say which steps there are."""
        return self.kind == "episode" and (self.window is None or self.pads)
