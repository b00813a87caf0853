"""Transitions over n steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf
import tree
from tf_agents.trajectories import PolicyStep, StepType, TimeStep, Transition

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb.specs import Nest

from .batches import is_last_transition, steps_left
from .column_adder import ColumnAdder
from .recurrence import MOST_STEPS
from .returns import n_step_returns
from .steps import require_fields, require_rewards, returns_dtype, transition_factors

_OWN = (fields.OBSERVATION, fields.ACTION, fields.REWARD, fields.DISCOUNT)
_ADDED = ("next_observation", "value_gamma")


@dataclass(frozen=True)
class NStep(ColumnAdder):
    """Transitions from s_t over m = min(n, T - t) steps, one for each of the T transitions of an episode.

        reward      = sum_{k<m} gamma^k * (prod_{j<k} d_{t+j}) * r_{t+k}
        discount    = gamma^(m-1) * prod_{j<m} d_{t+j}       (gamma^m with discount_power 'm')
        value_gamma = gamma^m

    Sutton & Barto (2018), eq. 7.1; d is 0 on the transition into a terminal state. The learner's target is
    `reward + gamma * discount * V(next_observation)`, as in Acme and TF-Agents.

    Item, a dict without a time axis: `observation` and `action` of step t, `reward`, `discount`, `next_observation` of
    step t + m, `value_gamma`, and every further field of the steps as it is at t, and at t + m under `next_` and its
    name. Reward has the dtype of the rewards (float32 if they are integers), discount and value_gamma are float32.
    `as_transition` makes a TF-Agents `Transition` of a batch of them.

    Rewards and discounts may be vectors or nests, as in Acme's NStepTransitionAdder: the sums are taken component by
    component. Where one of the two is a nest and the other is not, the latter counts for each part of the former;
    where their shapes differ they are broadcast as numpy does it. In the item both have the same nest, a reward has
    the broadcast shape, and a discount keeps its own.

    Both ends of an episode: the first item begins at the first step; with `grow_at_start` there are m = 1, 2, ..
    n - 1 steps from the first one before that, as Acme's NStepTransitionAdder has them. The windows shrink at the end,
    and nothing crosses it. A terminated episode has discount 0 where the window reaches the end; a truncated one keeps
    the bootstrap from its final observation, with the power of gamma of its own m. A single step gives no item.

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
        """See `ColumnAdder.row_spec`."""
        require_fields(step_spec, (fields.OBSERVATION, fields.ACTION), "NStep")
        require_rewards(step_spec, "NStep")
        rewards, discounts = _of_one_nest(step_spec[fields.REWARD], step_spec[fields.DISCOUNT])
        extras = {name: step_spec[name] for name in _extras(step_spec)}
        return {
            fields.OBSERVATION: step_spec[fields.OBSERVATION],
            fields.ACTION: step_spec[fields.ACTION],
            fields.REWARD: tree.map_structure(_reward_spec, rewards, discounts),
            fields.DISCOUNT: tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, tf.float32), discounts),
            "next_observation": step_spec[fields.OBSERVATION],
            "value_gamma": tf.TensorSpec((), tf.float32),
            **extras,
            **{f"next_{name}": spec for name, spec in extras.items()},
        }

    def batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """See `ColumnAdder.batch_rows`."""
        left = steps_left(num_steps)
        begins = tf.where(left > 0)[:, 0]
        n = tf.constant(min(self.n, MOST_STEPS), tf.int64)
        few = tf.maximum(tf.minimum(n, left[0]) - 1, 0) if self.grow_at_start else tf.constant(0, tf.int64)
        first = tf.concat([tf.zeros([few], tf.int64), begins], 0)
        steps = tf.concat([tf.range(1, few + 1), tf.minimum(n, tf.gather(left, begins))], 0)
        power = self._gamma_to(steps if self.discount_power == "m" else steps - 1)
        rewards, discounts = _of_one_nest(columns[fields.REWARD], columns[fields.DISCOUNT])

        def is_last(factors: tf.Tensor) -> tf.Tensor | None:
            return None if num_steps.shape[0] == 1 else is_last_transition(left, factors)

        def sums(rewards: tf.Tensor, discounts: tf.Tensor) -> tf.Tensor:
            factors = transition_factors(columns, discounts, returns_dtype(rewards.dtype))
            own, factors = _broadcast(tf.cast(rewards[:-1], factors.dtype), factors)
            found, _ = n_step_returns(own, factors, n=self.n, gamma=self.gamma, is_last=is_last(factors))
            found = tf.gather(found, begins)
            if not self.grow_at_start:
                return found
            growing = tf.cumsum(own * tf.math.cumprod(self.gamma * factors, exclusive=True))
            return tf.concat([growing[:few], found], 0)

        def products(rewards: tf.Tensor, discounts: tf.Tensor) -> tf.Tensor:
            factors = transition_factors(columns, discounts, returns_dtype(rewards.dtype))
            _, found = n_step_returns(tf.zeros_like(factors), factors, n=self.n, is_last=is_last(factors))
            products = tf.gather(found, begins)
            if self.grow_at_start:
                products = tf.concat([tf.math.cumprod(factors)[:few], products], 0)
            powers = tf.reshape(power, [-1] + [1] * (products.shape.rank - 1))
            return tf.cast(powers * tf.cast(products, tf.float64), tf.float32)

        at_first = {name: columns[name] for name in (fields.OBSERVATION, fields.ACTION, *_extras(columns))}
        at_last = {f"next_{name}": columns[name] for name in (fields.OBSERVATION, *_extras(columns))}
        rows = {
            **tree.map_structure(lambda column: tf.gather(column, first), at_first),
            **tree.map_structure(lambda column: tf.gather(column, first + steps), at_last),
            fields.REWARD: tree.map_structure(sums, rewards, discounts),
            fields.DISCOUNT: tree.map_structure(products, rewards, discounts),
            "value_gamma": tf.cast(self._gamma_to(steps), tf.float32),
        }
        return rows, tf.maximum(num_steps - 1, 0) + few

    @property
    def takes_batches(self) -> bool:
        """See `ColumnAdder.takes_batches`; the windows that grow at the start are made of one episode at a time."""
        return super().takes_batches and not self.grow_at_start

    def as_transition(self, items: Nest) -> Transition:
        """Returns a batch of items as TF-Agents' `Transition`, for the `train` of its agents.

        `next_time_step` has the reward and the discount over the m steps. The discount lacks one gamma, which the
        agent multiplies by itself: give the agent the gamma of this adder. As in TF-Agents' `to_transition`, reward
        and discount of `time_step` mean nothing and are 0. Its step type is MID, since every item begins with a step
        that was acted at; the next one's is LAST where all discounts are 0, else MID (a truncated end is not an end for
        the learner). A field `policy_info` becomes the policy's info.

        Args:
          items: nest of tensors or arrays `[B, ...]`, with the fields of an item.

        Raises:
          ValueError: if discount_power is 'm', whose discounts have the agent's gamma already, or a field is missing.
        """
        if self.discount_power == "m":
            raise ValueError(
                "discount_power is 'm', expected 'm-1': agents of TF-Agents multiply the discount by the last gamma "
                "themselves, so that it would count twice"
            )
        require_fields(items, (*_OWN, "next_observation"), "NStep.as_transition", of="in the items")
        items = tree.map_structure(tf.convert_to_tensor, items)
        ended = [tf.reduce_all(tf.reshape(leaf, [tf.shape(leaf)[0], -1]) == 0, 1) for leaf in _flat(items, "discount")]
        types = tf.where(tf.reduce_all(tf.stack(ended), 0), StepType.LAST, StepType.MID)
        info = items.get("policy_info", ())
        reward, discount = items[fields.REWARD], items[fields.DISCOUNT]
        zeros = tree.map_structure(tf.zeros_like, (reward, discount))
        return Transition(
            TimeStep(tf.fill(tf.shape(types), StepType.MID), *zeros, items[fields.OBSERVATION]),
            PolicyStep(items[fields.ACTION], (), info),
            TimeStep(types, reward, discount, items["next_observation"]),
        )

    def target_discounts(self, discounts: tf.Tensor) -> tf.Tensor:
        """Returns what the learner's target multiplies the value of `next_observation` by, from an item's discount."""
        return discounts if self.discount_power == "m" else discounts * self.gamma

    def _gamma_to(self, power: tf.Tensor) -> tf.Tensor:
        return tf.constant(self.gamma, tf.float64) ** tf.cast(power, tf.float64)

    def batch_bounds(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Every row is an item."""
        total = tf.reduce_sum(num_rows)
        return tf.range(total), tf.ones([total], tf.int64), num_rows


def _flat(items: Nest, name: str) -> list[tf.Tensor]:
    return list(tree.flatten(items[name]))


def _of_one_nest(rewards: Nest, discounts: Nest) -> tuple[Nest, Nest]:
    """Returns both in the nest of the one that is nested; `ValueError` where they are nested in two ways."""
    if not tree.is_nested(rewards):
        return tree.map_structure(lambda _: rewards, discounts), discounts
    if not tree.is_nested(discounts):
        return rewards, tree.map_structure(lambda _: discounts, rewards)
    try:
        tree.assert_same_structure(rewards, discounts)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"NStep needs rewards and discounts of one nest, or one of them without, found {rewards} and {discounts}"
        ) from error
    return rewards, discounts


def _reward_spec(reward: tf.TensorSpec, discount: tf.TensorSpec) -> tf.TensorSpec:
    try:
        shape = tf.broadcast_static_shape(reward.shape, discount.shape)
    except ValueError as error:
        raise ValueError(
            f"NStep needs rewards and discounts whose shapes broadcast, found {reward.shape} and {discount.shape}"
        ) from error
    return tf.TensorSpec(shape, returns_dtype(reward.dtype))


def _broadcast(one: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two columns `[T, ...]` in the shape to which their rows are broadcast."""
    if one.shape[1:] == other.shape[1:]:
        return one, other
    shape = tf.broadcast_static_shape(one.shape[1:], other.shape[1:])

    def widened(column: tf.Tensor) -> tf.Tensor:
        num = tf.shape(column)[0]
        ones = [1] * (shape.rank - column.shape.rank + 1)
        aligned = tf.reshape(column, tf.concat([[num], ones, tf.shape(column)[1:]], 0))
        return tf.ensure_shape(tf.broadcast_to(aligned, tf.concat([[num], shape], 0)), [None, *shape])

    return widened(one), widened(other)


def _extras(steps: Nest) -> list[str]:
    """Returns the fields besides those of every step; `ValueError` where one would hide a field of the item."""
    extras = [name for name in steps if name not in fields.STEP_FIELDS]
    names = [*_OWN, *_ADDED, *extras, *(f"next_{name}" for name in extras)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"NStep's items would have two fields {twice[0]!r}; rename the one in the steps")
    return extras
