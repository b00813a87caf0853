"""Items that are cut from stored steps when they are read: n-step transitions, windows, chunks of actions."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb import fields
from rlds2reverb._arguments import require_count, require_number
from rlds2reverb.specs import Nest, map_structure

#: Returns the steps at rows int64 `[N]`, as far as some fields are concerned; see `StepColumns.take`.
Take = Callable[[np.ndarray, Sequence[str]], dict[str, Any]]
_ENDS = (fields.IS_LAST, fields.IS_TERMINAL)


class Cut(abc.ABC):
    """A kind of item, of which one starts at each step of an episode except for the last few."""

    @property
    def num_unused(self) -> int:
        """The number of steps at the end of each episode at which no item starts: the last one, unless overridden."""
        return 1

    @abc.abstractmethod
    def read(self, take: Take, rows: np.ndarray, last_rows: np.ndarray) -> dict[str, Nest]:
        """Returns items.

        Args:
          take: function that reads steps.
          rows: int64 `[N]`, the rows at which the items start.
          last_rows: int64 `[N]`, the last row of the episode of each item.

        Returns:
          dict of nests of arrays `[N, ...]`.
        """

    def count(self, num_steps: np.ndarray) -> np.ndarray:
        """Returns the number of items of episodes with these numbers of steps, int64 `[E]`."""
        return np.maximum(num_steps - self.num_unused, 0)


@dataclass(frozen=True)
class Transitions(Cut):
    """n-step transitions, as `adders.NStep` makes them: observation, action, reward, discount, next_observation.

    Attributes:
      n: number of steps, at least 1; fewer at the end of an episode.
      gamma: discount factor of the sums, in [0, 1].
      other_fields: further fields of the first step.
      reads_next: whether to read the next observations. If not, the observations stand for them, for algorithms that do
        not use them: images then need not be decoded twice.
    """

    n: int = 1
    gamma: float = 0.99
    other_fields: tuple[str, ...] = ()
    reads_next: bool = True

    def __post_init__(self) -> None:
        require_count("n", self.n)
        require_number("gamma", self.gamma, 0, 1)

    def read(self, take: Take, rows: np.ndarray, last_rows: np.ndarray) -> dict[str, Nest]:
        """Implements `Cut.read`."""
        lengths = np.minimum(self.n, last_rows - rows)
        names = (fields.OBSERVATION, fields.ACTION, fields.REWARD, fields.DISCOUNT, *_ENDS, *self.other_fields)
        first = take(rows, names)
        last = take(rows + lengths, (*((fields.OBSERVATION,) if self.reads_next else ()), fields.IS_TERMINAL))
        if self.n == 1:
            reward = first[fields.REWARD]
            discount = np.where(last[fields.IS_TERMINAL], np.float32(0), first[fields.DISCOUNT])
        else:
            reward, discount = self._sum(take, first, rows, last_rows, lengths)
        return {
            fields.OBSERVATION: first[fields.OBSERVATION],
            fields.ACTION: first[fields.ACTION],
            fields.REWARD: reward,
            fields.DISCOUNT: discount.astype(np.float32),
            f"next_{fields.OBSERVATION}": (last if self.reads_next else first)[fields.OBSERVATION],
            **{name: first[name] for name in self.other_fields},
        }

    def _sum(
        self, take: Take, first: Any, rows: np.ndarray, last_rows: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rewards and discounts over the steps of each item, rounded as `adders.n_step_returns` does."""
        steps = [first]
        for number in range(1, self.n + 1):
            later = np.minimum(rows + number, last_rows)
            steps.append(take(later, (fields.REWARD, fields.DISCOUNT, *_ENDS)))
        rewards = np.stack([step[fields.REWARD] for step in steps[:-1]], axis=1)
        dtype = rewards.dtype if rewards.dtype.kind == "f" else np.dtype(np.float32)
        is_used = np.arange(self.n) < lengths[:, None]
        is_terminal = np.stack([step[fields.IS_TERMINAL] for step in steps[1:]], axis=1)
        factors = np.stack([step[fields.DISCOUNT] for step in steps[:-1]], axis=1).astype(dtype) * ~is_terminal
        rewards = np.where(is_used, rewards, 0).astype(dtype)
        sums, _ = _compose_windows(np.where(is_used, dtype.type(self.gamma) * factors, 0).astype(dtype), rewards)
        _, products = _compose_windows(np.where(is_used, factors, 1).astype(dtype), np.zeros_like(rewards))
        powers = np.float64(self.gamma) ** (lengths - 1)
        return sums, (powers * products).astype(np.float32)


@dataclass(frozen=True)
class ChunkTransitions(Transitions):
    """Transitions over a chunk of `n` actions, which are concatenated to one vector, `[N, n * A]`.

    Li, Zhou & Levine (2025), "Reinforcement Learning with Action Chunking", arXiv:2507.07969, section 4. Reward and
    discount are those of n-step transitions, and no item crosses the end of an episode. The last item ends with the
    last action, whether the episode is terminated or truncated there. The n - 1 steps after the first step of that item
    begin no items, because their chunks would be incomplete.

    Attributes:
      repeats_last: whether items start at these steps too, for behavioural cloning. The last action of the episode is
        then repeated, and the policy info contains `mask`, bool `[N, n]`, False for the repetitions.
    """

    repeats_last: bool = False

    @property
    def num_unused(self) -> int:
        """The last step, and those at which incomplete chunks would start."""
        return 1 if self.repeats_last else self.n

    def read(self, take: Take, rows: np.ndarray, last_rows: np.ndarray) -> dict[str, Nest]:
        """Implements `Cut.read`."""
        places, ends = rows[:, None] + np.arange(self.n), last_rows[:, None]
        actions = take(np.minimum(places, ends - 1).ravel(), (fields.ACTION,))[fields.ACTION]
        item = {**super().read(take, rows, last_rows), fields.ACTION: actions.reshape(len(rows), -1)}
        return {**item, fields.POLICY_INFO: {"mask": places < ends}} if self.repeats_last else item


@dataclass(frozen=True)
class Windows(Cut):
    """Consecutive steps of one episode, `[N, length, ...]`: all of their fields, the boundary row included.

    Attributes:
      length: number of steps, at least 1.
      field_names: fields of the items; None for those of RLDS.
    """

    length: int
    field_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_count("length", self.length)

    @property
    def num_unused(self) -> int:
        """One less than the length."""
        return self.length - 1

    def read(self, take: Take, rows: np.ndarray, last_rows: np.ndarray) -> dict[str, Nest]:
        """Implements `Cut.read`."""
        places = rows[:, None] + np.arange(self.length)
        steps = take(places.ravel(), self.field_names or fields.STEP_FIELDS)
        return map_structure(lambda column: column.reshape(*places.shape, *column.shape[1:]), steps)


@dataclass(frozen=True)
class ActionChunks(Cut):
    """The observation of a step with the next actions, as policies predict several actions at once.

    Zhao et al. (2023), "Learning fine-grained bimanual manipulation with low-cost hardware", section 4.

    Item: observation; `action`, `[length, ...]`, from the action of this step on; `mask`, bool `[length]`, False for
    the zeros after the last action of the episode; and `field_names`. An item starts at each step but the last one,
    which has no action.

    Attributes:
      length: number of actions, at least 1.
      field_names: further fields of the step, such as 'language_instruction'.
    """

    length: int
    field_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_count("length", self.length)
        if taken := {fields.ACTION, "mask"}.intersection(self.field_names):
            raise ValueError(f"field_names must not contain {taken.pop()!r}, which is in each item; leave it out")

    def read(self, take: Take, rows: np.ndarray, last_rows: np.ndarray) -> dict[str, Nest]:
        """Implements `Cut.read`."""
        places = rows[:, None] + np.arange(self.length)
        mask = places < last_rows[:, None]
        actions = take(np.minimum(places, last_rows[:, None]).ravel(), (fields.ACTION,))[fields.ACTION]
        return {**take(rows, (fields.OBSERVATION, *self.field_names)), fields.ACTION: _pad(actions, mask), "mask": mask}


@dataclass(frozen=True)
class PaddedWindows(Cut):
    """Up to `length` consecutive steps of one episode, padded on the left, as sequence models learn from them.

    Chen et al. (2021), "Decision Transformer", arXiv:2106.01345; the authors' code, gym/experiment.py.

    Item: `[N, length, ...]` of the fields, and `mask`, bool `[N, length]`. An item starts at each step but the last
    one, which has no action and is in no item. The items at the end of an episode have fewer steps, which follow zeros;
    the mask is False for these.

    Attributes:
      length: maximum number of steps, at least 1.
      field_names: fields of the items; None for those of RLDS.
    """

    length: int
    field_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_count("length", self.length)
        if "mask" in (self.field_names or ()):
            raise ValueError("field_names must not contain 'mask', which is in each item; leave it out")

    def read(self, take: Take, rows: np.ndarray, last_rows: np.ndarray) -> dict[str, Nest]:
        """Implements `Cut.read`."""
        ends = np.minimum(rows + self.length, last_rows)
        places = ends[:, None] + np.arange(-self.length, 0)
        mask = places >= rows[:, None]
        steps = take(np.maximum(places, rows[:, None]).ravel(), self.field_names or fields.STEP_FIELDS)
        return {**_pad(steps, mask), "mask": mask}


def _pad(columns: Nest, mask: np.ndarray) -> Nest:
    """Returns columns `[N * T, ...]` as `[N, T, ...]`, with zeros or empty strings where the mask `[N, T]` is False."""

    def pad(column: np.ndarray) -> np.ndarray:
        column = column.reshape(*mask.shape, *column.shape[1:]).copy()
        column[~mask] = b"" if column.dtype == object else 0
        return column

    return map_structure(pad, columns)


def _compose_windows(factors: np.ndarray, terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums and products over windows `[N, n]`, in the order of `adders.recurrence.compose_windows`."""
    n = factors.shape[1]
    sums, products, width = terms, factors, 1
    for digit in f"{n:b}"[1:]:
        sums, products = _compose(sums, products, sums, products, width)
        width *= 2
        if digit == "1":
            sums, products = _compose(terms, factors, sums, products, 1)
            width += 1
    return sums[:, 0], products[:, 0]


def _compose(
    sums: np.ndarray, products: np.ndarray, later_sums: np.ndarray, later_products: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    added, factors = np.zeros_like(sums), np.ones_like(products)
    added[:, :-width], factors[:, :-width] = later_sums[:, width:], later_products[:, width:]
    is_used = products != 0  # A factor of 0 cuts off everything after it, including NaN and Inf.
    return sums + np.where(is_used, added, 0) * products, np.where(is_used, factors, 0) * products
