"""Episodes of an RLDS data set as arrays: taken whole where steps are slices of arrays, else read step by step."""

import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb._internals.tensorflow import sliced_arrays
from rlds2reverb.sources.rlds_episodes import read_columns


def steps_of(length, seed=0):
    """Columns of many kinds, under names whose order is not that of the alphabet."""
    random = np.random.default_rng(seed)
    return {
        "reward": random.normal(size=length).astype(np.float32),
        "observation": {
            "pixels": random.integers(0, 255, (length, 4, 4, 3), np.uint8),
            "pair": (random.normal(size=(length, 2)), random.integers(0, 9, length)),
        },
        "all_equal": np.ones((length, 2), np.float32),
        "flag": random.random(length) < 0.5,
        "half": random.normal(size=length).astype(np.float16),
        "text": np.array([f"step {step}".encode() for step in range(length)], "S8"),
    }


def assert_equal(got, wanted):
    tree.assert_same_structure(got, wanted)
    for mine, theirs in zip(tree.flatten(got), tree.flatten(wanted), strict=True):
        assert mine.dtype == (object if theirs.dtype.kind == "S" else theirs.dtype)
        np.testing.assert_array_equal(mine, theirs.astype(mine.dtype))


def slices(columns):
    return tf.data.Dataset.from_tensor_slices(columns)


def episodes(*lengths, change=lambda steps: steps):
    """A data set of one data set of steps for each length."""

    def of_length(seed, length):
        return tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": change(slices(steps_of(length, seed)))})

    whole = of_length(0, lengths[0])
    for seed, length in enumerate(lengths[1:], start=1):
        whole = whole.concatenate(of_length(seed, length))
    return whole


CHANGES = {
    "slices": lambda steps: steps,
    "mapped": lambda steps: steps.map(lambda step: {**step, "flag": ~~step["flag"]}),
    "joined": lambda steps: steps.take(2).concatenate(steps.skip(2)),
    "kept ready": lambda steps: steps.prefetch(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_columns_are_the_steps_in_their_order(change):
    lengths = (5, 1, 0, 7, 3) if change != "joined" else (5, 3, 7, 3)
    found = list(read_columns(episodes(*lengths, change=CHANGES[change])))
    assert len(found) == len(lengths)
    for seed, (got, length) in enumerate(zip(found, lengths, strict=True)):
        assert_equal(got, steps_of(length, seed))


@pytest.mark.parametrize("change", CHANGES)
def test_only_slices_are_taken_whole(change):
    (episode,) = episodes(4, change=CHANGES[change])
    arrays = sliced_arrays(tf.data.experimental.to_variant(episode["steps"]))
    assert (arrays is not None) == (change == "slices")


@pytest.mark.parametrize(
    "change", [lambda s: s.take(2), lambda s: s.skip(1), lambda s: s.repeat(2), lambda s: s.shard(2, 0)]
)
def test_parts_of_slices_are_not_taken_for_all(change):
    (wanted,) = change(slices({"x": np.arange(4)})).batch(10).as_numpy_iterator()
    (got,) = read_columns(tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": change(slices({"x": np.arange(4)}))}))
    assert_equal(got, wanted)


@pytest.mark.parametrize("first", ["slices", "mapped"])
def test_episodes_of_both_kinds_follow_each_other(first):
    second = {"slices": "mapped", "mapped": "slices"}[first]
    mixed = episodes(4, 2, change=CHANGES[first]).concatenate(episodes(3, 5, change=CHANGES[second]))
    found = [len(steps["reward"]) for steps in read_columns(mixed)]
    assert found == [4, 2, 3, 5]


def test_an_error_of_a_step_comes_after_the_episodes_before():
    def fail(step):
        tf.debugging.assert_less(step["x"], 6, "too large")
        return step

    dataset = tf.data.Dataset.range(4).map(
        lambda index: {"steps": slices({"x": tf.range(2) + 2 * tf.cast(index, tf.int32)}).map(fail)}
    )
    found = read_columns(dataset)
    assert [next(found)["x"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        next(found)


def test_an_error_of_an_episode_comes_after_the_episodes_before():
    def checked(index):
        tf.debugging.assert_less(index, np.int64(2), "too many")
        return {"steps": slices({"x": tf.fill([3], index)})}

    found = read_columns(tf.data.Dataset.range(4).map(checked))
    assert [next(found)["x"].tolist() for _ in range(2)] == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many"):
        next(found)


def test_steps_without_a_graph_are_read_step_by_step(monkeypatch):
    def refuse(**arguments):
        raise tf.errors.UnimplementedError(None, None, "no graph")

    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", refuse)
    for got, (seed, length) in zip(read_columns(episodes(4, 2)), enumerate((4, 2)), strict=True):
        assert_equal(got, steps_of(length, seed))
