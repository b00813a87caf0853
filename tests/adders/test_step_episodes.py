"""Tests of `StepEpisodes`: padding, masks, and episodes that are too long."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode, rlds_dataset

from rlds2reverb.adders import ReturnToGo, StepEpisodes, compose
from rlds2reverb.types.episodes import Episode

PADDINGS = ("none", "end", "start")


def convert(adder, steps):
    items = adder(Episode(steps, 0))
    assert items.starts.tolist() == [0] and items.lengths.tolist() == [len(items.columns["mask"])] and not items.squeeze
    return items.columns


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("padding", "observations", "mask"),
    [
        ("none", [10, 11, 12], [1, 1, 1]),
        ("end", [10, 11, 12, 0, 0], [1, 1, 1, 0, 0]),
        ("start", [0, 0, 10, 11, 12], [0, 0, 1, 1, 1]),
    ],
)
def test_padding_matches_hand_computed_rows(padding, observations, mask, terminal):
    steps = episode(3, terminal=terminal)
    item = convert(StepEpisodes(5, padding), steps)
    assert item["observation"][:, 0].tolist() == observations and item["mask"].tolist() == [bool(flag) for flag in mask]
    assert_equal_nests({name: item[name][item["mask"]] for name in steps}, steps)
    zeros = tree.map_structure(lambda column: column[~item["mask"]], item)
    assert not any(np.any(column) for column in tree.flatten(zeros))


@pytest.mark.parametrize("padding", PADDINGS)
def test_episode_of_max_length_is_not_padded(padding):
    steps = episode(4, terminal=True, nested=True)
    item = convert(StepEpisodes(4, padding), steps)
    assert_equal_nests({name: item[name] for name in steps}, steps)
    assert item["mask"].tolist() == [True] * 4


def test_strings_are_padded_with_empty_strings():
    steps = {**episode(2, terminal=True), "text": np.array([b"a", b"b"], object)}
    (item,) = tf.data.Dataset.from_tensors(tree.map_structure(tf.constant, steps)).apply(StepEpisodes(3, "end"))
    assert item["text"].numpy().tolist() == [b"a", b"b", b""]


@pytest.mark.parametrize("padding", mark_slow_except(["start"], PADDINGS))
def test_too_long_episode_raises(padding):
    message = "an episode has more rows than max_length, 3; raise max_length, or cut episodes with StepWindows"
    all_steps = [episode(3, terminal=True), episode(4, terminal=True)]
    adder = StepEpisodes(3, padding)
    iterator = iter(rlds_dataset(all_steps).apply(adder))
    assert next(iterator)["mask"].shape == (3,)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iterator)
    with pytest.raises(ValueError, match=f"^episode 7: {message}$"):
        adder(Episode(all_steps[1], 7))


@pytest.mark.parametrize("padding", mark_slow_except(["end"], PADDINGS))
def test_item_spec_matches_the_dataset_and_empty_episodes_are_skipped(padding):
    all_steps = [episode(length, terminal=True, nested=True) for length in (1, 0, 3, 0)]
    adder = StepEpisodes(4, padding)
    spec = adder.item_spec(
        tree.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), all_steps[0])
    )
    dataset = rlds_dataset(all_steps).apply(adder)
    assert dataset.element_spec == spec
    assert spec["mask"] == tf.TensorSpec((None if padding == "none" else 4,), tf.bool)
    assert [int(item["mask"].sum()) for item in dataset.as_numpy_iterator()] == [1, 3]
    assert len(adder(Episode(all_steps[1], 1))) == 0


def test_fields_of_a_preceding_adder_are_padded():
    item = convert(compose(ReturnToGo(), StepEpisodes(4, "start")), episode(3, terminal=True))
    assert item["return_to_go"].tolist() == [0, 201, 101, 0] and item["mask"].tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, r"max_length must be an integer >= 1, got 0"),
        ({"max_length": None}, r"max_length must be an integer >= 1, got None"),
        ({"padding": "zero"}, "padding must be one of 'none', 'end', 'start', got 'zero'"),
    ],
)
def test_out_of_range_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        StepEpisodes(**{"max_length": 3, **options})


def test_steps_that_already_have_a_mask_raise():
    with pytest.raises(ValueError, match="steps must not have the field 'mask', which StepEpisodes adds"):
        StepEpisodes(3)(Episode({**episode(2, terminal=True), "mask": np.ones(2, bool)}, 0))
