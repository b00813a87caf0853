"""Slow reference implementations to compare the fast code with, and helpers to create and read data."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree
from hypothesis import strategies as st


def naive_trajectories(episodes: list[dict], discount_source: str = "step") -> list[dict]:
    """Returns a trajectory for every step of every episode, computed step by step."""
    stream = [
        {name: tree.map_structure(lambda column, t=t: column[t], nest) for name, nest in steps.items()}
        for steps in episodes
        for t in range(len(steps["is_first"]))
    ]
    out = []
    for now, after in itertools.zip_longest(stream, stream[1:]):
        after = after or {"is_first": True, "is_last": False, "is_terminal": False}
        kinds = [0 if step["is_first"] else 2 if step["is_last"] else 1 for step in (now, after)]
        if kinds == [0, 0]:
            kinds = [2, 2]
        discount = float(now["discount"])
        if discount_source == "next_terminal":
            discount = 1.0
        if discount_source != "step" and after["is_terminal"] and not now["is_last"]:
            discount = 0.0
        if now["is_last"] and now["is_terminal"]:
            discount = 0.0
        out.append(
            {
                "step_type": kinds[0],
                "next_step_type": kinds[1],
                "observation": now["observation"],
                "action": now["action"],
                "reward": now["reward"],
                "discount": np.float32(discount),
            }
        )
    return out


def episode(length: int, *, terminal: bool, start: float = 10.0, discount: float = 1.0, nested: bool = False) -> dict:
    """Returns a small RLDS episode with distinct numbers: observations 10, 11, 12 and rewards 100, 101, 102."""
    place = np.arange(start, start + length, dtype=np.float32)
    flat = np.stack([place, -place], axis=1).reshape(length, 2)
    observation = (
        {"image": np.tile(place.astype(np.uint8)[:, None, None], (1, 3, 2)), "state": flat} if nested else flat
    )
    return {
        "observation": observation,
        "action": {"move": place.astype(np.int32), "turn": flat} if nested else place[:, None],
        "reward": place + 90,
        "discount": np.full(length, discount, np.float32),
        "is_first": np.arange(length) == 0,
        "is_last": np.arange(length) == length - 1,
        "is_terminal": (np.arange(length) == length - 1) & terminal,
    }


def rlds_dataset(episodes: list[dict], example: dict | None = None) -> tf.data.Dataset:
    """Returns an RLDS dataset of episodes given as columns, with the spec of `example` or of the first episode."""
    if 0 < len(episodes) <= 8 and example is None:  # This takes a third of the time.
        return functools.reduce(tf.data.Dataset.concatenate, map(_make_episode_dataset, episodes))
    signature = tree.map_structure(
        lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), example or episodes[0]
    )
    columns = tf.data.Dataset.from_generator(lambda: iter(episodes), output_signature=signature)
    return columns.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)})


def _make_episode_dataset(steps: dict) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors({"steps": tf.data.Dataset.from_tensor_slices(steps)})


def assert_equal_nests(got: object, expected: object) -> None:
    """Asserts that two nests have the same leaves in the same order: dtypes, shapes and bits."""
    got_leaves, expected_leaves = tree.flatten(got), tree.flatten(expected)
    assert len(got_leaves) == len(expected_leaves)
    for have, want in zip(got_leaves, expected_leaves, strict=True):
        have, want = np.asarray(have), np.asarray(want)
        assert have.dtype == want.dtype and have.shape == want.shape, (have.dtype, have.shape, want.dtype, want.shape)
        is_equal = have.tolist() == want.tolist() if have.dtype == object else have.tobytes() == want.tobytes()
        assert is_equal, (have, want)


def read_items(address: str, table: str) -> list[object]:
    """Returns all items of a first-in-first-out table in order; its items must be limited to one sample."""
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, table, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1, rate_limiter_timeout_ms=200
    )
    return [sample.data for sample in dataset.as_numpy_iterator()]


_COLUMN_DTYPES = (np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_)


@st.composite
def episodes(draw: st.DrawFn, *, nested: bool = True, max_episodes: int = 4, max_length: int = 6) -> list[dict]:
    """Generates valid episodes of one spec: nested or flat, several dtypes, single steps, terminal and truncated."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def leaf() -> tuple:
        return draw(st.sampled_from(_COLUMN_DTYPES)), tuple(draw(st.lists(st.integers(1, 3), max_size=3)))

    def nest() -> object:
        names = draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1)) if nested else []
        return {name: leaf() for name in names} if nested and draw(st.booleans()) else leaf()

    observation, action, reward_dtype = nest(), nest(), draw(st.sampled_from([np.float32, np.float64]))

    def fill(spec: object, length: int) -> object:
        if isinstance(spec, dict):
            return {name: fill(inner, length) for name, inner in spec.items()}
        dtype, shape = spec
        values = generator.integers(0, 2 if dtype is np.bool_ else 200, (length, *shape))
        return (values / 7).astype(dtype) if np.dtype(dtype).kind == "f" else values.astype(dtype)

    out = []
    for _ in range(draw(st.integers(1, max_episodes))):
        length = draw(st.integers(1, max_length))
        out.append(
            {
                "observation": fill(observation, length),
                "action": fill(action, length),
                "reward": generator.normal(size=length).astype(reward_dtype),
                "discount": generator.choice([0.0, 0.5, 1.0], length).astype(np.float32),
                "is_first": np.arange(length) == 0,
                "is_last": np.arange(length) == length - 1,
                "is_terminal": (np.arange(length) == length - 1) & draw(st.booleans()),
            }
        )
    return out


def slow_discounted_returns(rewards: np.ndarray, factors: np.ndarray, final: float) -> list[float]:
    """Returns, for each step, the sum of later rewards and the final value, each times the factors before it."""
    out = []
    for first in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(first, len(rewards)):
            total += weight * float(rewards[k])
            weight *= float(factors[k])
        out.append(total + weight * float(final))
    return out


def slow_returns_to_go(rewards: np.ndarray, gamma: float) -> list[float]:
    """Returns, for each step, the sum of later rewards, each times gamma to the power of the distance."""
    return [
        sum(gamma ** (k - first) * float(rewards[k]) for k in range(first, len(rewards)))
        for first in range(len(rewards))
    ]


def slow_n_step_returns(rewards: np.ndarray, factors: np.ndarray, n: int) -> list[tuple[float, float]]:
    """Returns, for each step, the sum of up to n rewards times the factors before them, and the product of those."""
    out = []
    for first in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(first, min(first + n, len(rewards))):
            total += weight * float(rewards[k])
            weight *= float(factors[k])
        out.append((total, weight))
    return out


def slow_td_errors(rewards: np.ndarray, factors: np.ndarray, values: np.ndarray, following: np.ndarray) -> list[float]:
    """Returns the reward plus the discounted next value minus the value of each step."""
    return [float(rewards[t]) + float(factors[t]) * float(following[t]) - float(values[t]) for t in range(len(rewards))]


def slow_gae(
    rewards: np.ndarray,
    factors: np.ndarray,
    values: np.ndarray,
    following: np.ndarray,
    is_last: np.ndarray,
    lambda_: float,
) -> list[float]:
    """Returns, for each step, the sum of TD errors to the end of its episode, each times the weights before it."""
    errors, out = slow_td_errors(rewards, factors, values, following), []
    for first in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(first, len(rewards)):
            total += weight * errors[k]
            if is_last[k]:
                break
            weight *= lambda_ * float(factors[k])
        out.append(total)
    return out


def slow_lambda_returns(
    rewards: np.ndarray, factors: np.ndarray, following: np.ndarray, is_last: np.ndarray, lambda_: float
) -> list[float]:
    """Returns, for each step, its n-step returns to the end of its episode, weighted by (1 - lambda) lambda^(n-1)."""
    out = []
    for first in range(len(rewards)):
        total, partial, weight, share = 0.0, 0.0, 1.0, 1.0
        for k in range(first, len(rewards)):
            partial += weight * float(rewards[k])
            weight *= float(factors[k])
            n_step_return = partial + weight * float(following[k])
            if is_last[k] or k == len(rewards) - 1:
                total += share * n_step_return
                break
            total += share * (1 - lambda_) * n_step_return
            share *= lambda_
        out.append(total)
    return out


def slow_n_step_td_errors(
    rewards: np.ndarray, factors: np.ndarray, values: np.ndarray, following: np.ndarray, n: int
) -> list[float]:
    """Returns, for each step, its n-step return with bootstrap minus its value."""
    return [
        total + weight * float(following[min(first + n, len(rewards)) - 1]) - float(values[first])
        for first, (total, weight) in enumerate(slow_n_step_returns(rewards, factors, n))
    ]


def slow_v_trace(
    rewards: np.ndarray,
    factors: np.ndarray,
    values: np.ndarray,
    following: np.ndarray,
    ratios: np.ndarray,
    lambda_: float,
    clip_rho: float,
    clip_c: float,
) -> tuple[list[float], list[float]]:
    """Returns the sum of equation 1 of the paper for each step of one episode, and the advantages."""
    targets = []
    for first in range(len(rewards)):
        total, weight = float(values[first]), 1.0
        for t in range(first, len(rewards)):
            delta = float(rewards[t]) + float(factors[t]) * float(following[t]) - float(values[t])
            total += weight * min(clip_rho, float(ratios[t])) * delta
            weight *= float(factors[t]) * lambda_ * min(clip_c, float(ratios[t]))
        targets.append(total)
    advantages = []
    for t in range(len(rewards)):
        after = targets[t + 1] + float(following[t]) - float(values[t + 1]) if t + 1 < len(rewards) else following[t]
        error = float(rewards[t]) + float(factors[t]) * float(after) - float(values[t])
        advantages.append(min(clip_rho, float(ratios[t])) * error)
    return targets, advantages


def slow_retrace(
    rewards: np.ndarray,
    factors: np.ndarray,
    values: np.ndarray,
    following: np.ndarray,
    ratios: np.ndarray,
    lambda_: float,
) -> list[float]:
    """Returns the sum of equation 3 of the paper for each step of one episode."""
    out = []
    for first in range(len(rewards)):
        total, weight = float(values[first]), 1.0
        for t in range(first, len(rewards)):
            if t > first:
                weight *= lambda_ * min(1.0, float(ratios[t]))
            total += weight * (float(rewards[t]) + float(factors[t]) * float(following[t]) - float(values[t]))
            weight *= float(factors[t])
        out.append(total)
    return out


CHUNK_COLUMNS = ("rewards", "discounts", "values", "next_values", "is_last")


class Chunk(NamedTuple):
    """A chunk of random numbers, `[T, ...]`, with episode ends inside; `final` has no time axis."""

    rewards: Any
    discounts: Any
    values: Any
    next_values: Any
    is_last: Any
    final: Any
    gamma: float = 0.9
    lambda_: float = 0.7
    n: int = 3

    @property
    def factors(self) -> np.ndarray:
        return self.gamma * self.discounts.astype(np.float64)

    @property
    def shifted(self) -> np.ndarray:
        """The value after each step, if it is that of the next step."""
        return np.append(self.values[1:], self.final)[: len(self.values)]

    @property
    def ratios(self) -> np.ndarray:
        """Ratios of two policies' probabilities, at least 0: some around 1, some far above it."""
        return np.abs(self.next_values) / 5

    @property
    def episodes(self) -> list[Chunk]:
        """The episodes of a chunk `[T]`; their `final` is the last next value."""
        ends = [*(np.flatnonzero(self.is_last[:-1]) + 1), len(self.rewards)]
        parts = [self.map_columns(lambda c, a=a, b=b: c[a:b]) for a, b in itertools.pairwise([0, *ends])]
        return [part._replace(final=part.next_values[-1]) for part in parts if len(part.rewards)]

    def map_columns(self, function: Callable) -> Chunk:
        """Returns the chunk with a function applied to each column."""
        return self._replace(**{name: function(getattr(self, name)) for name in CHUNK_COLUMNS})

    def call(self, function: Callable, *names: str, **named: Any) -> Any:
        """Calls a function with rewards, discounts, gamma, and the fields with the given names."""
        named |= {name: getattr(self, name) for name in names}
        return function(self.rewards, self.discounts, gamma=self.gamma, **named)


def random_chunk(shape: tuple, seed: int = 0, dtype: type = np.float32, **numbers: Any) -> Chunk:
    """Returns a chunk of random numbers around 10, with some discounts of 0 and some last steps."""
    generator = np.random.default_rng(seed)
    rewards, values, next_values = (generator.normal(size=(3, *shape)) * 10).astype(dtype)
    discounts = generator.choice([0, 0.5, 0.9, 1, 1], shape).astype(dtype)
    is_last, final = generator.random(shape) < 0.2, (generator.normal(size=shape[1:]) * 10).astype(dtype)
    return Chunk(rewards, discounts, values, next_values, is_last, final, **numbers)


@st.composite
def chunks(draw: st.DrawFn, min_length: int = 0) -> Chunk:
    """Generates chunks of up to 40 steps, with either float dtype and gamma and lambda from 0 to 1."""
    fractions = st.sampled_from([0.0, 0.5, 0.9, 1.0])
    shape, dtype = (draw(st.integers(min_length, 40)),), draw(st.sampled_from([np.float32, np.float64]))
    numbers = {"gamma": draw(fractions), "lambda_": draw(fractions), "n": draw(st.integers(1, 45))}
    return random_chunk(shape, draw(st.integers(0, 2**32 - 1)), dtype, **numbers)


def transitions(
    length: int, *, done: Any = (), truncated: Any = (), agents: tuple = (), agent_rewards: bool = False
) -> list[dict]:
    """Returns DI-engine's transitions: obs 10, 11, 12; next_obs 10.5, 11.5, 12.5; rewards 1, 2, 3; values 4, 6, 8."""
    return [
        {
            "obs": {"state": np.full(2, 10 + t, np.float32), "image": [np.array([t], np.uint8)]},
            "next_obs": np.float32(10.5 + t),
            "action": np.int64(t),
            "reward": np.arange(t + 1, t + 1 + agents[0], dtype=np.float32) if agent_rewards else np.float32(t + 1),
            "value": np.float32(4 + 2 * t) + np.arange(math.prod(agents), dtype=np.float32).reshape(agents),
            "done": t in done,
            "truncated": t in truncated,
        }
        for t in range(length)
    ]
