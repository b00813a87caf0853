"""Slow and plain: what the fast code is compared with, and helpers to make and read data."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf
import tree
from hypothesis import strategies as st


def naive_trajectories(episodes: list[dict], discount_source: str = "step") -> list[dict]:
    """One trajectory for every step of every episode, step by step, from the description of the conversion."""
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
    """A small RLDS episode whose numbers tell their place: observations 10, 11, 12; rewards 100, 101, 102."""
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


def rlds_dataset(episodes: list[dict], spec_of: dict | None = None) -> tf.data.Dataset:
    """An RLDS data set of episodes given as columns."""
    signature = tree.map_structure(
        lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), spec_of or episodes[0]
    )
    columns = tf.data.Dataset.from_generator(lambda: iter(episodes), output_signature=signature)
    return columns.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)})


def assert_equal_nests(got: object, wanted: object) -> None:
    """The same leaves in the same order: dtypes, shapes and bits."""
    got_leaves, wanted_leaves = tree.flatten(got), tree.flatten(wanted)
    assert len(got_leaves) == len(wanted_leaves)
    for have, want in zip(got_leaves, wanted_leaves, strict=True):
        have, want = np.asarray(have), np.asarray(want)
        assert have.dtype == want.dtype and have.shape == want.shape, (have.dtype, have.shape, want.dtype, want.shape)
        assert have.tobytes() == want.tobytes(), (have, want)


def read_items(address: str, table: str) -> list[object]:
    """All items of a first-in-first-out table whose items are sampled once, in order."""
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, table, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1, rate_limiter_timeout_ms=200
    )
    return [sample.data for sample in dataset.as_numpy_iterator()]


_COLUMN_DTYPES = (np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_)


@st.composite
def episodes(draw: st.DrawFn, *, nested: bool = True, max_episodes: int = 4, max_length: int = 6) -> list[dict]:
    """Valid episodes of one spec: nested or flat, several dtypes, single steps, terminal and truncated."""
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
