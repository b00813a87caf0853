"""Tests of reading RLDS episodes: arrays are taken from the graph if steps are slices, else read step by step."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import mark_slow_except

from rlds2reverb.datasets.readers.rlds_episodes import read_episodes
from rlds2reverb.libraries.tensorflow_internals import extract_sliced_arrays


def make_steps(length, seed=0):
    """Returns columns of various types under names that are not in alphabetical order."""
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


def assert_equal(got, expected):
    tree.assert_same_structure(got, expected)
    for actual, desired in zip(tree.flatten(got), tree.flatten(expected), strict=True):
        assert actual.dtype == (object if desired.dtype.kind == "S" else desired.dtype)
        np.testing.assert_array_equal(actual, desired.astype(actual.dtype))


def slice_steps(columns):
    return tf.data.Dataset.from_tensor_slices(columns)


def make_episodes(*lengths, change=lambda steps: steps):
    """Returns a dataset of episodes of these lengths."""

    def make_episode(seed, length):
        return tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": change(slice_steps(make_steps(length, seed)))})

    dataset = make_episode(0, lengths[0])
    for seed, length in enumerate(lengths[1:], start=1):
        dataset = dataset.concatenate(make_episode(seed, length))
    return dataset


CHANGES = {
    "slices": lambda steps: steps,
    "mapped": lambda steps: steps.map(lambda step: {**step, "flag": ~~step["flag"]}),
    "joined": lambda steps: steps.take(2).concatenate(steps.skip(2)),
    "prefetched": lambda steps: steps.prefetch(1),
}


@pytest.mark.parametrize("change", mark_slow_except(["slices", "joined"], CHANGES))
def test_columns_match_the_steps_in_order(change):
    lengths = (5, 1, 0, 7, 3) if change != "joined" else (5, 3, 7, 3)
    episodes = [steps for steps, _ in read_episodes(make_episodes(*lengths, change=CHANGES[change]))]
    assert len(episodes) == len(lengths)
    for seed, (got, length) in enumerate(zip(episodes, lengths, strict=True)):
        assert_equal(got, make_steps(length, seed))


@pytest.mark.parametrize("change", CHANGES)
def test_arrays_are_extracted_only_from_slices(change):
    (episode,) = make_episodes(4, change=CHANGES[change])
    arrays = extract_sliced_arrays(tf.data.experimental.to_variant(episode["steps"]))
    assert (arrays is not None) == (change == "slices")


@pytest.mark.parametrize(
    "change", [lambda s: s.take(2), lambda s: s.skip(1), lambda s: s.repeat(2), lambda s: s.shard(2, 0)]
)
def test_subsets_of_slices_are_read_step_by_step(change):
    (expected,) = change(slice_steps({"x": np.arange(4)})).batch(10).as_numpy_iterator()
    ((got, _),) = read_episodes(
        tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": change(slice_steps({"x": np.arange(4)}))})
    )
    assert_equal(got, expected)


@pytest.mark.slow
def test_reading_many_datasets_warns_of_no_retracing(caplog, monkeypatch):
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    for length in range(1, 8):
        assert len(list(read_episodes(make_episodes(length, change=CHANGES["mapped"])))) == 1
    assert "retracing" not in caplog.text


@pytest.mark.parametrize("first", mark_slow_except(["mapped"], ["slices", "mapped"]))
def test_sliced_and_mapped_episodes_can_be_mixed(first):
    second = {"slices": "mapped", "mapped": "slices"}[first]
    mixed = make_episodes(4, 2, change=CHANGES[first]).concatenate(make_episodes(3, 5, change=CHANGES[second]))
    assert [len(steps["reward"]) for steps, _ in read_episodes(mixed)] == [4, 2, 3, 5]


def test_error_in_a_step_is_raised_after_the_previous_episodes():
    def fail(step):
        tf.debugging.assert_less(step["x"], 6, "too large")
        return step

    dataset = tf.data.Dataset.range(4).map(
        lambda index: {"steps": slice_steps({"x": tf.range(2) + 2 * tf.cast(index, tf.int32)}).map(fail)}
    )
    episodes = (steps for steps, _ in read_episodes(dataset))
    assert [next(episodes)["x"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        next(episodes)


def test_error_in_an_episode_is_raised_after_the_previous_ones():
    def make_episode(index):
        tf.debugging.assert_less(index, np.int64(2), "too many")
        return {"steps": slice_steps({"x": tf.fill([3], index)})}

    episodes = (steps for steps, _ in read_episodes(tf.data.Dataset.range(4).map(make_episode)))
    assert [next(episodes)["x"].tolist() for _ in range(2)] == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many"):
        next(episodes)


def test_datasets_without_a_graph_are_read_step_by_step(monkeypatch):
    def refuse(**arguments):
        raise tf.errors.UnimplementedError(None, None, "no graph")

    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", refuse)
    for (got, _), (seed, length) in zip(read_episodes(make_episodes(4, 2)), enumerate((4, 2)), strict=True):
        assert_equal(got, make_steps(length, seed))
