"""Transitions over n steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf
import tree

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb.specs import Nest

from .episode_adder import EpisodeAdder
from .recurrence import MOST_STEPS
from .returns import n_step_returns
from .steps import require_fields, require_single_rewards, transitions

_OWN = (fields.OBSERVATION, fields.ACTION, fields.REWARD, fields.DISCOUNT)
_ADDED = ("next_observation", "value_gamma")


@dataclass(frozen=True)
class NStep(EpisodeAdder):
    """Transitions from s_t over m = min(n, T - t) steps, one for each of the T transitions of an episode.

        reward      = sum_{k<m} gamma^k * (prod_{j<k} d_{t+j}) * r_{t+k}
        discount    = gamma^(m-1) * prod_{j<m} d_{t+j}       (gamma^m with discount_power 'm')
        value_gamma = gamma^m

    Sutton & Barto (2018), eq. 7.1; d is 0 on the transition into a terminal state. The learner's target is
    `reward + gamma * discount * V(next_observation)`, as in Acme and TF-Agents.

    Item, a dict without a time axis: `observation` and `action` of step t, `reward`, `discount`, `next_observation` of
    step t + m, `value_gamma`, and every further field of the steps as it is at t, and at t + m under `next_` and its
    name. Reward has the dtype of the rewards (float32 if they are integers), discount and value_gamma are float32.

    Both ends of an episode: the first item begins at the first step; with `grow_at_start` there are m = 1, 2, ..
    n - 1 steps from the first one before that, as Acme's NStepTransitionAdder has them. The windows shrink at the end,
    and nothing crosses it. A terminated episode has discount 0 where the window reaches the end; a truncated one keeps
    the bootstrap from its final observation, with the power of gamma of its own m. An episode of one step gives none.

    Attributes:
      n: steps, at least 1.
      gamma: the agent's discount factor, in [0, 1].
      grow_at_start: whether windows grow at the start.
      discount_power: 'm-1' where the learner multiplies by the last gamma itself, 'm' where it does not.
    """

    n: int
    gamma: float
    grow_at_start: bool = False
    discount_power: str = "m-1"

    squeeze: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("n", self.n)
        require_number("gamma", self.gamma, 0, 1)
        require_one_of("discount_power", self.discount_power, ("m-1", "m"))

    def row_spec(self, step_spec: Nest) -> Nest:
        """See `EpisodeAdder.row_spec`."""
        require_fields(step_spec, (fields.OBSERVATION, fields.ACTION), "NStep")
        dtype = require_single_rewards(step_spec, "NStep")
        extras = {name: step_spec[name] for name in _extras(step_spec)}
        return {
            fields.OBSERVATION: step_spec[fields.OBSERVATION],
            fields.ACTION: step_spec[fields.ACTION],
            fields.REWARD: tf.TensorSpec((), dtype),
            fields.DISCOUNT: tf.TensorSpec((), tf.float32),
            "next_observation": step_spec[fields.OBSERVATION],
            "value_gamma": tf.TensorSpec((), tf.float32),
            **extras,
            **{f"next_{name}": spec for name, spec in extras.items()},
        }

    def rows(self, columns: Nest) -> Nest:
        """See `EpisodeAdder.rows`."""
        rewards, discounts = transitions(columns)
        sums, _ = n_step_returns(rewards, discounts, n=self.n, gamma=self.gamma)
        _, products = n_step_returns(rewards, discounts, n=self.n)
        num = tf.shape(rewards)[0]
        n = min(self.n, MOST_STEPS)
        first = tf.range(num)
        steps = tf.minimum(n, num - first)
        if self.grow_at_start:
            few = tf.maximum(tf.minimum(n, num) - 1, 0)
            weighted = rewards * tf.math.cumprod(self.gamma * discounts, exclusive=True)
            sums = tf.concat([tf.cumsum(weighted)[:few], sums], 0)
            products = tf.concat([tf.math.cumprod(discounts)[:few], products], 0)
            first = tf.concat([tf.zeros([few], tf.int32), first], 0)
            steps = tf.concat([tf.range(1, few + 1), steps], 0)
        power = steps if self.discount_power == "m" else steps - 1
        at_first = {name: columns[name] for name in (fields.OBSERVATION, fields.ACTION, *_extras(columns))}
        at_last = {f"next_{name}": columns[name] for name in (fields.OBSERVATION, *_extras(columns))}
        return {
            **tree.map_structure(lambda column: tf.gather(column, first), at_first),
            **tree.map_structure(lambda column: tf.gather(column, first + steps), at_last),
            fields.REWARD: sums,
            fields.DISCOUNT: tf.cast(self._gamma_to(power) * tf.cast(products, tf.float64), tf.float32),
            "value_gamma": tf.cast(self._gamma_to(steps), tf.float32),
        }

    def _gamma_to(self, power: tf.Tensor) -> tf.Tensor:
        return tf.constant(self.gamma, tf.float64) ** tf.cast(power, tf.float64)

    def item_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Every row is an item."""
        return tf.range(num_rows), tf.ones([num_rows], tf.int64)


def _extras(steps: Nest) -> list[str]:
    """Fields beside those of every step; `ValueError` where one would hide a field of the item."""
    extras = [name for name in steps if name not in fields.STEP_FIELDS]
    names = [*_OWN, *_ADDED, *extras, *(f"next_{name}" for name in extras)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"NStep's items would have two fields {twice[0]!r}; rename the one in the steps")
    return extras
