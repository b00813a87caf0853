"""Adders of n-step transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from rlds2reverb.types import fields
from rlds2reverb.types.arguments import require_count, require_number, require_one_of
from rlds2reverb.types.specs import Nest, map_structure

from .adder import ItemAdder
from .arrays import Array, arange, cast, namespace, split_axis, to_numpy_dtype
from .observation_history import NO_HISTORY, ObservationHistory
from .places import Places, Take
from .recurrence import compose_windows

if TYPE_CHECKING:
    from tf_agents.trajectories import Transition

#: The fields from which the rewards and discounts of items are computed. Transforms of rewards require `is_last`.
_SUMMED = (fields.REWARD, fields.DISCOUNT, fields.IS_LAST, fields.IS_TERMINAL)
#: The number of terms of sums that are read at a time, to limit memory.
MAX_TERMS = 1 << 22


@dataclass(frozen=True)
class Transitions(ItemAdder):
    """n-step transitions with the fields that agents learn from; see `NStep`, which keeps all fields.

    Item, a dict: observation, action, reward, discount, next_observation, and `other_fields`.

    Attributes:
      n: number of steps, at least 1; fewer at the end of an episode.
      gamma: discount factor of the sums, in [0, 1].
      other_fields: further fields of the first step.
      reads_next: whether to read the next observations. If not, the observations stand for them, for algorithms that do
        not use them: images then need not be decoded twice.
      history: the steps that observations and next observations contain.
    """

    n: int = 1
    gamma: float = 0.99
    other_fields: tuple[str, ...] = ()
    reads_next: bool = True
    history: ObservationHistory = NO_HISTORY

    def __post_init__(self) -> None:
        require_count("n", self.n)
        require_number("gamma", self.gamma, 0, 1)

    @property
    def uses_all_actions(self) -> bool:
        """Implements `ItemAdder.uses_all_actions`."""
        return not self.reads_next

    def read(self, take: Take, places: Places) -> Any:
        """Implements `ItemAdder.read`."""
        xp, rows = namespace(places.row), places.row
        lengths = xp.minimum(self.n, places.last - rows)
        take = self.history.extend(take, places.first)
        first = take(rows, (fields.OBSERVATION, fields.ACTION, *_SUMMED, *self.other_fields))
        next_fields = (fields.OBSERVATION, fields.IS_TERMINAL) if self.reads_next else (fields.IS_TERMINAL,)
        last_rows = rows + lengths
        if self.uses_all_actions:
            last_rows = xp.minimum(last_rows, places.last_observation)
        last = take(last_rows, next_fields)
        rewards, discounts = _sum_steps(take, rows, last_rows, lengths, self, first, last)
        power = 0 if self.n == 1 else lengths - 1
        return {
            **{name: first[name] for name in (fields.OBSERVATION, fields.ACTION)},
            fields.REWARD: rewards,
            fields.DISCOUNT: map_structure(lambda leaf: _raise_and_multiply(self.gamma, power, leaf), discounts),
            fields.NEXT_OBSERVATION: (last if self.reads_next else first)[fields.OBSERVATION],
            **{name: first[name] for name in self.other_fields},
        }


@dataclass(frozen=True)
class NStep(ItemAdder):
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

    Time grows with n times the length of an episode, and for datasets memory as well.

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

    def __post_init__(self) -> None:
        require_count("n", self.n)
        require_number("gamma", self.gamma, 0, 1)
        require_one_of("discount_power", self.discount_power, ("m-1", "m"))

    def require_steps(self, step_spec: Nest) -> None:
        """Implements `ItemAdder.require_steps`."""
        from .step_fields import require_broadcast, require_fields, require_rewards

        require_fields(step_spec, (fields.OBSERVATION, fields.ACTION), "NStep")
        require_rewards(step_spec, "NStep")
        _get_extra_fields(step_spec)
        matched = _match_nests(step_spec[fields.REWARD], step_spec[fields.DISCOUNT])
        for reward, discount in zip(*map(tree.flatten, matched), strict=True):
            require_broadcast(reward, discount, "NStep")

    def count(self, num_steps: Array) -> Array:
        """Implements `ItemAdder.count`."""
        return super().count(num_steps) + self._count_growing(num_steps - 1)

    def read(self, take: Take, places: Places) -> Any:
        """Implements `ItemAdder.read`."""
        xp, num_growing = namespace(places.row), self._count_growing(places.last - places.first)
        rows = places.first + xp.maximum(places.number - num_growing, 0)
        lengths = xp.minimum(self.n, places.last - rows)
        if self.grow_at_start:
            lengths = xp.where(places.number < num_growing, places.number + 1, lengths)
        last_rows = rows + lengths
        first, last = take(rows, None), take(last_rows, None)
        rewards, discounts = _sum_steps(take, rows, last_rows, lengths, self, first, last)
        power = lengths if self.discount_power == "m" else lengths - 1
        extra_fields = _get_extra_fields(first)
        return {
            **{name: first[name] for name in (fields.OBSERVATION, fields.ACTION)},
            fields.REWARD: rewards,
            fields.DISCOUNT: map_structure(lambda leaf: _raise_and_multiply(self.gamma, power, leaf), discounts),
            fields.NEXT_OBSERVATION: last[fields.OBSERVATION],
            "value_gamma": _raise_and_multiply(self.gamma, lengths, xp.ones_like(lengths)),
            **{name: first[name] for name in extra_fields},
            **{f"next_{name}": last[name] for name in extra_fields},
        }

    def _count_growing(self, num_transitions: Array) -> Array:
        """Returns the number of windows that grow at the start of episodes."""
        if not self.grow_at_start:
            return 0
        xp = namespace(num_transitions)
        return xp.maximum(xp.minimum(num_transitions, self.n) - 1, 0)

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
        from rlds2reverb.types.experience import as_transition

        from .step_fields import require_fields

        require_fields(items, fields.TRANSITION_FIELDS, "NStep.as_transition", place="in the items")
        return as_transition(items)

    def target_discounts(self, discounts: Array) -> Array:
        """Returns the factors of V(next_observation) in the learner's target, given the discounts of items."""
        return discounts if self.discount_power == "m" else discounts * self.gamma


def _sum_steps(
    take: Take, rows: Array, last_rows: Array, lengths: Array, adder: Transitions | NStep, first: Any, last: Any
) -> tuple[Nest, Nest]:
    """Returns the discounted sums of the rewards over the steps of each item, and the products of the discounts.

    Both are computed with the discounts of steps, which are 0 into a terminal state; the sums, as in
    `returns.n_step_returns`, also with gamma.

    Args:
      take: function that reads steps.
      rows: int64 `[N]`, the rows at which the items begin.
      last_rows: int64 `[N]`, the rows at which they end.
      lengths: int64 `[N]`, their numbers of steps, at least 1.
      adder: the adder, for n and gamma.
      first: the steps at `rows`; used, like `last`, if n is 1.
      last: the steps at `last_rows`.
    """
    xp = namespace(rows)
    if adder.n == 1:
        size: Any = 1
        steps = {
            name: map_structure(lambda column: column[None], first[name]) for name in (fields.REWARD, fields.DISCOUNT)
        }
        is_terminal = last[fields.IS_TERMINAL][None]
    else:
        size = xp.minimum(adder.n, xp.amax(xp.concatenate([lengths, [1]])))
        if isinstance(rows, np.ndarray) and len(rows) > 1 and len(rows) * size > MAX_TERMS:
            middle = len(rows) // 2
            halves = [
                _sum_steps(take, rows[half], last_rows[half], lengths[half], adder, first, last)
                for half in (slice(middle), slice(middle, None))
            ]
            return tree.map_structure(lambda *parts: np.concatenate(parts), *halves)
        chosen = xp.minimum(rows + arange(size + 1, rows)[:, None], last_rows)
        taken = take(xp.ravel(chosen), _SUMMED)
        taken = map_structure(lambda column: split_axis(column, chosen), taken)
        steps, is_terminal = map_structure(lambda column: column[:-1], taken), taken[fields.IS_TERMINAL][1:]

    def compose(reward: Array, discount: Array) -> tuple[Array, Array]:
        dtype = to_numpy_dtype(reward)
        dtype = np.dtype(np.float32) if dtype.kind in "iub" else dtype
        rank = max(len(reward.shape), len(discount.shape))
        zero, one = np.zeros((), dtype), np.ones((), dtype)
        factors = cast(_align(discount, rank), dtype)
        terms = cast(_align(reward, rank), dtype)
        factors = xp.where(_align(is_terminal, rank), zero, factors)
        if terms.shape[2:] != factors.shape[2:]:
            terms = terms + xp.zeros_like(factors)
        sums, products = terms[0], factors[0]
        if adder.n > 1:
            used = _align(arange(size, rows)[:, None] < lengths, rank)
            discounted = xp.where(used, dtype.type(adder.gamma) * factors, zero)
            sums = compose_windows(discounted, xp.where(used, terms, zero), adder.n)[0][0]
            products = xp.prod(xp.where(used, factors, one), axis=0)
        while len(products.shape) > len(discount.shape) - 1:
            products = products[:, 0]
        return sums, products

    rewards, discounts = _match_nests(steps[fields.REWARD], steps[fields.DISCOUNT])
    pairs = [compose(*pair) for pair in zip(tree.flatten(rewards), tree.flatten(discounts), strict=True)]
    sums, products = (tree.unflatten_as(rewards, list(part)) for part in zip(*pairs, strict=True))
    return sums, products


def _align(column: Array, rank: int) -> Array:
    """Returns a column `[n, N, ...]` with as many axes of size 1 after these two as it takes to have a rank."""
    return column[(slice(None), slice(None), *[None] * (rank - len(column.shape)))]


def _raise_and_multiply(gamma: float, power: Array | int, products: Array) -> Array:
    """Returns `gamma ** power * products`, computed in float64, as float32 `[N, ...]`."""
    if isinstance(power, int) and power == 0:
        return cast(products, np.float32)
    powers = namespace(power).power(np.float64(gamma), power)
    return cast(powers[(slice(None), *[None] * (len(products.shape) - 1))] * cast(products, np.float64), np.float32)


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


def _get_extra_fields(steps: Nest) -> list[str]:
    """Returns the fields besides the required ones; raises `ValueError` if one collides with a field of the item."""
    extras = [name for name in steps if name not in fields.STEP_FIELDS]
    names = [*fields.TRANSITION_FIELDS, "value_gamma", *extras, *(f"next_{name}" for name in extras)]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"NStep's items would have two fields {duplicates[0]!r}; rename the one in the steps")
    return extras
