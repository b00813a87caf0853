"""An adder of n-step transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf
import tree
from tf_agents.trajectories import Transition

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_number, require_one_of
from rlds2reverb.experience import TRANSITION_FIELDS, as_transition
from rlds2reverb.specs import Nest

from .batches import count_steps_left, mark_last_transitions
from .column_adder import ColumnAdder
from .recurrence import MAX_STEPS
from .returns import n_step_returns
from .steps import get_returns_dtype, get_transition_discounts, require_fields, require_rewards


@dataclass(frozen=True)
class NStep(ColumnAdder):
    """Transitions from s_t over m = min(n, T - t) steps, one for each of the T transitions of an episode.

        reward      = sum_{k<m} gamma^k * (prod_{j<k} d_{t+j}) * r_{t+k}
        discount    = gamma^(m-1) * prod_{j<m} d_{t+j}       (gamma^m with discount_power 'm')
        value_gamma = gamma^m

    Sutton & Barto (2018), eq. 7.1; d is 0 on the transition into a terminal state. The learner's target is
    `reward + gamma * discount * V(next_observation)`, as in Acme and TF-Agents.

    Item, a dict without a time axis: `observation` and `action` of step t, `reward`, `discount`, `next_observation` of
    step t + m, `value_gamma`, and every other field of the steps, both at t and, prefixed with `next_`, at t + m.
    Reward has the dtype of the rewards (float32 for integers); discount and value_gamma are float32. `as_transition`
    converts a batch of items to a TF-Agents `Transition`.

    Rewards and discounts may be vectors or nests, as in Acme's NStepTransitionAdder; the sums are computed component by
    component. If only one of the two is a nest, the other applies to each of its parts. Different shapes are broadcast
    as in numpy. In the item both have the same nest, a reward has the broadcast shape, and a discount keeps its own.

    Both ends of an episode: the first item begins at the first step; with `grow_at_start`, items with m = 1, 2, ..,
    n - 1 steps from the first step precede it, as in Acme's NStepTransitionAdder. Windows shrink at the end and never
    cross it. If the window reaches the end of a terminated episode, the discount is 0; if the episode was truncated,
    the bootstrap from its final observation remains, with the power of gamma of its own m. An episode of a single step
    has no item.

    Attributes:
      n: number of steps, at least 1.
      gamma: the agent's discount factor, in [0, 1].
      grow_at_start: whether windows grow at the start.
      discount_power: 'm-1' if the learner multiplies by the last gamma itself, 'm' if it does not.
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
        """Implements `ColumnAdder.row_spec`."""
        require_fields(step_spec, (fields.OBSERVATION, fields.ACTION), "NStep")
        require_rewards(step_spec, "NStep")
        rewards, discounts = _match_nests(step_spec[fields.REWARD], step_spec[fields.DISCOUNT])
        extras = {name: step_spec[name] for name in _get_extra_fields(step_spec)}
        return {
            fields.OBSERVATION: step_spec[fields.OBSERVATION],
            fields.ACTION: step_spec[fields.ACTION],
            fields.REWARD: tree.map_structure(_make_reward_spec, rewards, discounts),
            fields.DISCOUNT: tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, tf.float32), discounts),
            "next_observation": step_spec[fields.OBSERVATION],
            "value_gamma": tf.TensorSpec((), tf.float32),
            **extras,
            **{f"next_{name}": spec for name, spec in extras.items()},
        }

    def make_batch_rows(self, columns: Nest, num_steps: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Implements `ColumnAdder.make_batch_rows`."""
        left = count_steps_left(num_steps)
        starts = tf.where(left > 0)[:, 0]
        n = tf.constant(min(self.n, MAX_STEPS), tf.int64)
        num_growing = tf.maximum(tf.minimum(n, left[0]) - 1, 0) if self.grow_at_start else tf.constant(0, tf.int64)
        first = tf.concat([tf.zeros([num_growing], tf.int64), starts], 0)
        lengths = tf.concat([tf.range(1, num_growing + 1), tf.minimum(n, tf.gather(left, starts))], 0)
        power = self._raise_gamma_to(lengths if self.discount_power == "m" else lengths - 1)
        rewards, discounts = _match_nests(columns[fields.REWARD], columns[fields.DISCOUNT])

        def mark_ends(factors: tf.Tensor) -> tf.Tensor | None:
            return None if num_steps.shape[0] == 1 else mark_last_transitions(left, factors)

        def sum_rewards(rewards: tf.Tensor, discounts: tf.Tensor) -> tf.Tensor:
            factors = get_transition_discounts(columns, discounts, get_returns_dtype(rewards.dtype))
            terms, factors = _broadcast(tf.cast(rewards[:-1], factors.dtype), factors)
            sums, _ = n_step_returns(terms, factors, n=self.n, gamma=self.gamma, is_last=mark_ends(factors))
            sums = tf.gather(sums, starts)
            if not self.grow_at_start:
                return sums
            growing = tf.cumsum(terms * tf.math.cumprod(self.gamma * factors, exclusive=True))
            return tf.concat([growing[:num_growing], sums], 0)

        def multiply_discounts(rewards: tf.Tensor, discounts: tf.Tensor) -> tf.Tensor:
            factors = get_transition_discounts(columns, discounts, get_returns_dtype(rewards.dtype))
            _, products = n_step_returns(tf.zeros_like(factors), factors, n=self.n, is_last=mark_ends(factors))
            products = tf.gather(products, starts)
            if self.grow_at_start:
                products = tf.concat([tf.math.cumprod(factors)[:num_growing], products], 0)
            powers = tf.reshape(power, [-1] + [1] * (products.shape.rank - 1))
            return tf.cast(powers * tf.cast(products, tf.float64), tf.float32)

        extra_fields = _get_extra_fields(columns)
        at_first = {name: columns[name] for name in (fields.OBSERVATION, fields.ACTION, *extra_fields)}
        at_last = {f"next_{name}": columns[name] for name in (fields.OBSERVATION, *extra_fields)}
        rows = {
            **tree.map_structure(lambda column: tf.gather(column, first), at_first),
            **tree.map_structure(lambda column: tf.gather(column, first + lengths), at_last),
            fields.REWARD: tree.map_structure(sum_rewards, rewards, discounts),
            fields.DISCOUNT: tree.map_structure(multiply_discounts, rewards, discounts),
            "value_gamma": tf.cast(self._raise_gamma_to(lengths), tf.float32),
        }
        return rows, tf.maximum(num_steps - 1, 0) + num_growing

    @property
    def supports_batches(self) -> bool:
        """False with `grow_at_start`, whose growing windows are made for one episode at a time."""
        return super().supports_batches and not self.grow_at_start

    def as_transition(self, items: Nest) -> Transition:
        """Converts a batch of items to TF-Agents' `Transition`, for the `train` method of its agents.

        `next_time_step` has the reward and the discount over the m steps. The agent multiplies the discount by the last
        gamma itself, so it must have the gamma of this adder. See `experience.as_transition` for the other fields.

        Args:
          items: nest of tensors or arrays `[B, ...]`, with the fields of an item.

        Raises:
          ValueError: If discount_power is 'm', whose discounts include the agent's gamma, or a field is missing.
        """
        if self.discount_power == "m":
            raise ValueError(
                "discount_power must be 'm-1' for agents of TF-Agents, got 'm'; they multiply the discount by the last "
                "gamma themselves, so it would count twice"
            )
        require_fields(items, TRANSITION_FIELDS, "NStep.as_transition", place="in the items")
        return as_transition(items)

    def target_discounts(self, discounts: tf.Tensor) -> tf.Tensor:
        """Returns the factors of V(next_observation) in the learner's target, given the discounts of items."""
        return discounts if self.discount_power == "m" else discounts * self.gamma

    def _raise_gamma_to(self, power: tf.Tensor) -> tf.Tensor:
        return tf.constant(self.gamma, tf.float64) ** tf.cast(power, tf.float64)

    def cut_batch_items(self, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Implements `ColumnAdder.cut_batch_items`; every row is an item."""
        total = tf.reduce_sum(num_rows)
        return tf.range(total), tf.ones([total], tf.int64), num_rows


def _match_nests(rewards: Nest, discounts: Nest) -> tuple[Nest, Nest]:
    """Returns both in the same nest, repeating one that is not nested; raises `ValueError` if their nests differ."""
    if not tree.is_nested(rewards):
        return tree.map_structure(lambda _: rewards, discounts), discounts
    if not tree.is_nested(discounts):
        return rewards, tree.map_structure(lambda _: discounts, rewards)
    try:
        tree.assert_same_structure(rewards, discounts)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"NStep requires rewards and discounts with the same nest, or one without, got {rewards} and {discounts}"
        ) from error
    return rewards, discounts


def _make_reward_spec(reward: tf.TensorSpec, discount: tf.TensorSpec) -> tf.TensorSpec:
    try:
        shape = tf.broadcast_static_shape(reward.shape, discount.shape)
    except ValueError as error:
        raise ValueError(
            f"NStep requires rewards and discounts whose shapes broadcast, got {reward.shape} and {discount.shape}"
        ) from error
    return tf.TensorSpec(shape, get_returns_dtype(reward.dtype))


def _broadcast(one: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Broadcasts the rows of two columns `[T, ...]` to a common shape."""
    if one.shape[1:] == other.shape[1:]:
        return one, other
    shape = tf.broadcast_static_shape(one.shape[1:], other.shape[1:])

    def widen(column: tf.Tensor) -> tf.Tensor:
        num_rows = tf.shape(column)[0]
        ones = [1] * (shape.rank - column.shape.rank + 1)
        aligned = tf.reshape(column, tf.concat([[num_rows], ones, tf.shape(column)[1:]], 0))
        return tf.ensure_shape(tf.broadcast_to(aligned, tf.concat([[num_rows], shape], 0)), [None, *shape])

    return widen(one), widen(other)


def _get_extra_fields(steps: Nest) -> list[str]:
    """Returns the fields besides the required ones; raises `ValueError` if one collides with a field of the item."""
    extras = [name for name in steps if name not in fields.STEP_FIELDS]
    names = [*TRANSITION_FIELDS, "value_gamma", *extras, *(f"next_{name}" for name in extras)]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"NStep's items would have two fields {duplicates[0]!r}; rename the one in the steps")
    return extras
