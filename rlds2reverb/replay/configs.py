"""Configurations of replay buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.types.arguments import require_count, require_defaults, require_keys, require_number, require_one_of
from rlds2reverb.types.tables import MAX_PRIORITY

#: The learner iteration of an element without a `collect_iter`.
UNKNOWN_ITER = -1
#: DI-engine's names of options.
_NAMES = {"type": "kind", "buffer_type": "kind", "replay_buffer_size": "max_size"}
_MAX_SIZE = 100_000_000
_MAX_COUNT = 2**31 - 1
#: The sum of `_MAX_SIZE` times `MAX_PRIORITY` to this power is finite.
_MAX_ALPHA = 20
#: Within this range, rounding cannot change which push or sample a rate limit refuses.
_MIN_RATE, _MAX_RATE = 1e-6, 1e6


@dataclass(frozen=True)
class BufferConfig:
    """The configuration of a replay buffer. All options can be combined, except those that require a certain `kind`.

    Attributes:
      kind: 'naive' (uniform), 'advanced' (prioritized), 'episode' (elements are episodes of any length) or 'sequence'
        (elements have `length` steps); the last two are prioritized as well.
      max_size: capacity in elements; once the buffer is full, a new element replaces the oldest one.
      alpha: exponent of the priorities, in [0, 20]: an element is sampled with probability p^alpha / Σ p^alpha (Schaul
        et al. 2016, arXiv:1511.05952, eq. 1). 0 samples uniformly. Ignored by 'naive'.
      beta: initial exponent of the importance weights `(1 / (N P))^beta`, in [0, 1] (section 3.4 there).
      anneal_step: number of samples in which beta rises linearly to 1; 0 keeps it constant.
      weight_normalization: divisor of the importance weights: 'buffer', the largest weight of all elements, as in
        DI-engine; or 'batch', the largest weight in the batch.
      priority_eps: constant added to every updated priority, so that its element can still be sampled.
      max_use: number of times an element can be sampled before it is removed; None for no limit. It also holds within
        one batch.
      max_staleness: number of learner iterations after its collection at which an element is removed; None for no
        limit. Elements without a `collect_iter` stay.
      sample_min_limit_ratio: a sample of B elements is refused while the buffer has fewer than this many times B.
      push_sample_rate_limit: minimum and maximum number of pushed elements per sampled element, counted from the first
        push. A sample that would take the ratio below the minimum is refused; a push that would take it above the
        maximum raises `RateLimitedError`. Pushes are not limited before the first sample.
      with_replacement: whether an element can occur more than once in a batch.
      priority_decay: factor in (0, 1) by which every update lowers the highest known priority, which new elements get,
        though not below the updated ones; None for no decay.
      length: number of steps of an element; required by 'sequence', and not allowed for other kinds.
      window: number of consecutive steps to sample from an episode; None for whole episodes. Only allowed
        for 'episode'.
      window_sampling: 'steps' gives every window of all episodes the same probability (times the power of its episode's
        priority), so that long episodes are sampled more often; 'episodes' samples an episode first.
      short_episodes: 'drop' does not store episodes shorter than the window, 'pad' pads them with zeros.
    """

    kind: str = "advanced"
    max_size: int = 10_000
    alpha: float = 0.6
    beta: float = 0.4
    anneal_step: int = 100_000
    weight_normalization: str = "buffer"
    priority_eps: float = 0.01
    max_use: int | None = None
    max_staleness: int | None = None
    sample_min_limit_ratio: float = 1.0
    push_sample_rate_limit: tuple[float, float] = (0.0, math.inf)
    with_replacement: bool = True
    priority_decay: float | None = None
    length: int | None = None
    window: int | None = None
    window_sampling: str = "steps"
    short_episodes: str = "drop"

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, ("naive", "advanced", "episode", "sequence"))
        require_one_of("short_episodes", self.short_episodes, ("drop", "pad"))
        require_one_of("window_sampling", self.window_sampling, ("steps", "episodes"))
        require_one_of("weight_normalization", self.weight_normalization, ("buffer", "batch"))
        require_count("max_size", self.max_size, 1, _MAX_SIZE)
        require_count("anneal_step", self.anneal_step, 0, _MAX_COUNT)
        for name in ("max_use", "max_staleness", "length", "window"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1, _MAX_COUNT)
        require_number("alpha", self.alpha, 0, _MAX_ALPHA)
        require_number("beta", self.beta, 0, 1)
        require_number("priority_eps", self.priority_eps, 0, MAX_PRIORITY)
        require_number("sample_min_limit_ratio", self.sample_min_limit_ratio, 0, self.max_size)
        if self.priority_decay is not None and not 0 < self.priority_decay < 1:
            raise ValueError(f"priority_decay must be a number between 0 and 1, or None, got {self.priority_decay}")
        if self.kind == "sequence" and self.length is None:
            raise ValueError("kind 'sequence' requires length, the number of steps of an element")
        for name, kind in (("length", "sequence"), ("window", "episode")):
            if self.kind != kind and getattr(self, name) is not None:
                raise ValueError(f"{name} cannot be set for kind {self.kind!r}; use it with kind {kind!r}")
        if self.window is None:
            require_defaults(self, ("window_sampling", "short_episodes"), "without a window")
        self._check_rates()

    @classmethod
    def read(cls, config: BufferConfig | Mapping[str, Any], kind: str | None = None) -> BufferConfig:
        """Returns a configuration: itself, or one with the options of a dict, under their names here or in DI-engine.

        Args:
          config: a configuration, or a dict of options.
          kind: value of `kind` if the dict has none; None for the default.

        Raises:
          TypeError: If it is neither.
          ValueError: If an option is unknown or out of range.
        """
        if isinstance(config, cls):
            return config
        if not isinstance(config, Mapping):
            raise TypeError(f"the configuration of a buffer must be a BufferConfig or a dict, got {config!r}")
        given = {**config, **config.get("thruput_controller", {})}
        options = {_NAMES.get(name, name): value for name, value in given.items() if name != "thruput_controller"}
        require_keys("config", options, [field.name for field in fields(cls)], "buffer config")
        for name in ("max_use", "max_staleness"):
            if options.get(name) == math.inf:
                options[name] = None
        if isinstance(limits := options.get("push_sample_rate_limit"), Mapping):
            options["push_sample_rate_limit"] = limits["min"], limits["max"]
        return cls(**({"kind": kind} if kind else {}) | options)

    def _check_rates(self) -> None:
        limits = self.push_sample_rate_limit
        if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
            raise ValueError(
                f"push_sample_rate_limit must be (minimum, maximum) with 0 <= minimum < maximum, got {limits}; equal "
                "limits would allow neither a push nor a sample"
            )
        # Converts a list from JSON, or numpy numbers, so that equal configurations compare equal.
        object.__setattr__(self, "push_sample_rate_limit", (float(limits[0]), float(limits[1])))
        if limits[0]:
            require_number("the minimum of push_sample_rate_limit", limits[0], _MIN_RATE, _MAX_RATE)

    @cached_property
    def exponent(self) -> float | None:
        """The exponent of priorities; None if samples are uniform."""
        return None if self.kind == "naive" else float(self.alpha)

    @cached_property
    def min_positive_priority(self) -> float:
        """The lowest priority above 0 whose power is not rounded to 0; for exponents up to 1 it is 2.2e-308."""
        return 0.0 if self.exponent is None else float(np.finfo(np.float64).tiny ** (1 / max(1.0, self.exponent)))

    @property
    def time_axes(self) -> tuple[int | None, ...]:
        """The time axis of elements: `(length,)`, `(None,)` if lengths vary, or `()` without a time axis."""
        return (self.length,) if self.kind in ("episode", "sequence") else ()

    @property
    def _pads_windows(self) -> bool:
        return self.window is not None and self.short_episodes == "pad"

    @property
    def min_length(self) -> int:
        """The minimum number of steps of an episode; shorter ones are not stored."""
        return 0 if self.window is None or self._pads_windows else self.window

    @property
    def has_mask(self) -> bool:
        """True if batches have a mask that marks padding."""
        return self.kind == "episode" and (self.window is None or self._pads_windows)
