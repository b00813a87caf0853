"""The priorities with which items begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb import fields
from rlds2reverb._arguments import require_number, require_one_of
from rlds2reverb.episodes import Episode
from rlds2reverb.items import Items
from rlds2reverb.specs import Nest

from .episode_adder import EpisodeAdder
from .padding import MASK
from .returns import td_errors
from .steps import require_single_rewards, transitions, with_added, with_last_zero
from .values import ValueFn, require_values, values_of

PRIORITY = "priority"

#: What a priority is taken from; see `InitialPriorities`.
KINDS = ("constant", "return", "td", "max")


@dataclass(frozen=True)
class InitialPriorities(EpisodeAdder):
    """Adds `priority` to every step, and gives an item that of its steps.

        'constant':  p_t = constant
        'return':    p_t = (return of the episode - lowest) / (highest - lowest), within [eps, 1]
        'td', 'max': p_t = |delta_t| + eps, delta_t = r_t + gamma * d_t * V(s_{t+1}) - V(s_t)

    An item of several steps has, as in R2D2 (Kapturowski et al. 2019, sec. 2.3),

        p = eta * max_t p_t + (1 - eta) * mean_t p_t

    over its real steps that are not the last of an episode; 'max' is eta = 1. The TD error is that of prioritized
    replay (Schaul et al. 2016, eq. 1 with p = |delta| + eps). All are raw: Reverb applies the exponent itself.

    It is a `priority=` of `ingest` as well, beside an adder that has it:
    `ingest(source, server, adder=compose(p, NStep(3, 0.99)), priority=p)`.

    Item: a whole episode, a dict of columns `[N, ...]`: the steps' fields and `priority`, float32, at least 0.

    Both ends of an episode: the first step is like any. A terminated episode ends with value 0, a truncated one with
    the value of its final observation. The last step, where nothing is done, has eps with 'td' and 'max'.

    Attributes:
      kind: 'constant', 'return', 'td' or 'max'.
      constant: the priority of 'constant', in [0, 1e12].
      lowest, highest: the returns that 'return' takes for 0 and 1.
      gamma: in [0, 1], for 'td' and 'max'.
      eta: the share of the largest, in [0, 1].
      eps: added, so that everything can be sampled; in [1e-12, 1].
      value_fn: see `GAE`; None if the values are the column `value`.
    """

    kind: str = "constant"
    constant: float = 1.0
    lowest: float = 0.0
    highest: float = 1.0
    gamma: float = 0.99
    eta: float = 0.9
    eps: float = 1e-2
    value_fn: ValueFn | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, KINDS)
        require_number("constant", self.constant, 0, 1e12)
        require_number("lowest", self.lowest, -1e300, 1e300)
        require_number("highest", self.highest, -1e300, 1e300)
        if self.lowest >= self.highest:
            raise ValueError(f"returns go from {self.lowest} to {self.highest}, expected the second above the first")
        require_number("eps", self.eps, 1e-12, 1)
        require_number("gamma", self.gamma, 0, 1)
        require_number("eta", self.eta, 0, 1)

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `EpisodeAdder.row_spec`."""
        require_single_rewards(step_spec, "InitialPriorities")
        if self.kind in ("td", "max"):
            require_values(step_spec, self.value_fn, f"InitialPriorities({self.kind!r})")
        return with_added(step_spec, "InitialPriorities", **{PRIORITY: tf.TensorSpec((), tf.float32)})

    def rows(self, columns: Nest) -> Nest:
        """See `EpisodeAdder.rows`."""
        rewards, discounts = transitions(columns)
        num_rows = tf.shape(columns[fields.IS_LAST])[0]
        if self.kind == "constant":
            return {**columns, PRIORITY: tf.fill([num_rows], tf.constant(self.constant, tf.float32))}
        if self.kind == "return":
            share = (tf.reduce_sum(tf.cast(rewards, tf.float64)) - self.lowest) / (self.highest - self.lowest)
            return {**columns, PRIORITY: tf.fill([num_rows], tf.cast(tf.clip_by_value(share, self.eps, 1), tf.float32))}
        values = values_of(columns, self.value_fn)
        errors = td_errors(rewards, discounts, values=values[:-1], next_values=values[1:], gamma=self.gamma)
        return {**columns, PRIORITY: tf.cast(tf.abs(with_last_zero(errors)) + self.eps, tf.float32)}

    def __call__(self, episodes: Any, items: Items | None = None) -> Any:
        """See `EpisodeAdder`; and with an episode's items their priorities, float64 `[M]`, as `ingest` asks for them.

        Raises:
          ValueError: if the items have no column `priority`.
        """
        return super().__call__(episodes) if items is None else self._of_items(episodes, items)

    def _of_items(self, episode: Episode, items: Items) -> np.ndarray:
        if not isinstance(items.columns, dict) or PRIORITY not in items.columns:
            raise ValueError(
                "the items have no 'priority': put the InitialPriorities into the adder too, with "
                "compose(priorities, ...)"
            )
        own = items.columns[PRIORITY].astype(np.float64)
        nowhere = np.zeros(len(own), bool)
        counted = items.columns.get(MASK, ~nowhere) & ~items.columns.get(fields.IS_LAST, nowhere)
        eta = 1.0 if self.kind == "max" else self.eta
        return np.where(_any(counted, items), _mixed(own, counted, items, eta), _mixed(own, ~nowhere, items, eta))


def _mixed(priorities: np.ndarray, counted: np.ndarray, items: Items, eta: float) -> np.ndarray:
    """`[M]`, over the rows of each item that count; they are at least 0."""
    chosen = np.where(counted, priorities, 0)
    means = _reduced(np.add, chosen, items) / np.maximum(_reduced(np.add, counted.astype(np.float64), items), 1)
    return eta * _reduced(np.maximum, chosen, items) + (1 - eta) * means


def _any(flags: np.ndarray, items: Items) -> np.ndarray:
    return _reduced(np.maximum, flags.astype(np.float64), items) > 0


def _reduced(function: np.ufunc, column: np.ndarray, items: Items) -> np.ndarray:
    """A function over the rows of each item."""
    bounds = np.stack([items.starts, items.starts + items.lengths], axis=1).reshape(-1)
    return function.reduceat(np.append(column, 0.0), bounds)[::2] if len(bounds) else np.zeros(0)
