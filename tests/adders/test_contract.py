"""Tests of `check_adder` with every adder, of `compose`, and of the kinds of data that a `ColumnAdder` accepts."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode, rlds_dataset
from rlds2reverb.adders import (
    GAE,
    ColumnAdder,
    InitialPriorities,
    NStep,
    ReturnToGo,
    StepEpisodes,
    StepWindows,
    check_adder,
    compose,
    episode_columns,
)

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.sources import load


def values(observations):
    return tf.reduce_sum(tf.cast(tree.flatten(observations)[-1], tf.float32), axis=-1)


ADDERS = [
    NStep(3, 0.9),
    NStep(2, 0.9, grow_at_start=True, discount_power="m"),
    GAE(0.9, 0.8, values),
    ReturnToGo(),
    *(StepWindows(3, 2, end) for end in ("write", "last", "zero_pad", "truncate", "continue")),
    *(StepEpisodes(6, padding) for padding in ("none", "end", "start")),
    InitialPriorities("td", value_fn=values),
    compose(InitialPriorities("return", highest=500), GAE(0.9, 0.8, values), NStep(2, 0.9)),
    compose(ReturnToGo(), StepWindows(2, end="continue")),
    compose(NStep(2, 0.9), StepEpisodes(6, "end")),
]
LENGTHS = (4, 1, 0, 2, 6, 1, 3)
NUM_EPISODES = 6


def make_episodes(lengths=LENGTHS, *, nested=True):
    """Returns episodes that are alternately terminated and truncated."""
    return [
        episode(length, terminal=at % 2 == 0, start=10 * (at + 1), nested=nested) for at, length in enumerate(lengths)
    ]


def columns_dataset(many):
    signature = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), many[0])
    return tf.data.Dataset.from_generator(lambda: iter(many), output_signature=signature)


def make_items(adder, many):
    out = []
    for index, steps in enumerate(many):
        items = adder(Episode(steps, index))
        for begin, length in zip(items.starts, items.lengths, strict=True):
            part = slice(begin, begin + length)
            run = tree.map_structure(lambda column, part=part: column[part], items.columns)
            out.append(tree.map_structure(lambda column: np.asarray(column[0]), run) if items.squeeze else run)
    return out


def assert_all_equal(got, expected):
    assert len(got) == len(expected)
    for item, want in zip(got, expected, strict=True):
        assert_equal_nests(item, want)


# --- every adder


@pytest.mark.parametrize("adder", mark_slow_except(ADDERS[:13:3], ADDERS), ids=repr)
def test_check_adder_passes_for_every_adder(adder):
    many = make_episodes()
    assert check_adder(adder, many) > 0
    assert_all_equal(many, make_episodes())


def test_check_adder_counts_the_items():
    assert check_adder(NStep(3, 0.9), make_episodes(nested=False)) == 3 + 0 + 1 + 5 + 0 + 2


@pytest.mark.parametrize("adder", mark_slow_except(ADDERS[:1], ADDERS[::7]), ids=repr)
def test_columns_and_rlds_episodes_give_equal_items_in_order(adder):
    many = make_episodes()
    from_columns, from_rlds = columns_dataset(many).apply(adder), rlds_dataset(many).apply(adder)
    assert from_columns.element_spec == from_rlds.element_spec == adder.item_spec(load(many).step_spec)
    got = list(from_rlds.as_numpy_iterator())
    assert_all_equal(list(from_columns.as_numpy_iterator()), got)
    if not adder.crosses_episodes:
        assert_all_equal(got, make_items(adder, many))
    assert adder.crosses_episodes or len(adder(Episode(many[2], 2))) == 0


def test_check_adder_passes_for_a_value_fn_with_division():
    """TensorFlow replaces a division by a constant with a product when it optimizes a graph."""
    adder = GAE(0.9, 0.8, lambda observations: observations[:, 0] / 10)
    assert check_adder(adder, make_episodes((50, 236), nested=False)) == 2


@pytest.mark.parametrize(
    "last", [StepEpisodes(4, "end"), StepEpisodes(4, "start"), StepWindows(4, end="last")], ids=repr
)
def test_episode_without_rows_for_the_last_adder_has_no_item(last):
    """NStep has no row for an episode of one step, so there is nothing to pad."""
    adder, single = compose(NStep(2, 0.9), last), episode(1, terminal=True)
    assert len(list(rlds_dataset([single]).apply(adder))) == 0
    assert len(adder(Episode(single, 0))) == 0


@pytest.mark.parametrize("adder", [ADDERS[0], ADDERS[-1]], ids=repr)
def test_used_adder_can_be_pickled(adder):
    many = make_episodes()
    expected = make_items(adder, many)
    other = pickle.loads(pickle.dumps(adder))
    assert other == adder and repr(other) == repr(adder)
    assert_all_equal(make_items(other, many), expected)


# --- violations that check_adder detects


class Plain(ColumnAdder):
    def row_spec(self, step_spec):
        return step_spec

    def make_rows(self, columns):
        return columns


class OtherDtype(Plain):
    def item_spec(self, step_spec):
        spec = super().item_spec(step_spec)
        return {**spec, "reward": tf.TensorSpec((None,), tf.float64)}


class OtherLength(Plain):
    item_length = 3


class OtherDatasetSpec(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).map(lambda item: {**item, "reward": item["reward"][:1]})


class Random(Plain):
    def make_rows(self, columns):
        return {**columns, "reward": columns["reward"] + tf.random.uniform([])}


class Writes(Plain):
    def __call__(self, episodes):
        if isinstance(episodes, Episode):
            episodes.steps["reward"][0] += 1
        return super().__call__(episodes)


class Reorders(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).shuffle(9, seed=1)


class Loses(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).take(2)


class Doubles(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).concatenate(super()._convert_dataset(columns))


@pytest.mark.parametrize(
    ("adder", "error", "message"),
    [
        (
            OtherDtype(),
            SpecMismatchError,
            r"episode 0: item\['reward'\] is float32 \[4\], but item_spec expects float64 \[\?\]",
        ),
        (OtherLength(), SpecMismatchError, r"episode 0: item\[.*\] is .* \[4.*\], but item_spec expects .* \[3"),
        (OtherDatasetSpec(), AssertionError, "item 0 of the dataset differs from the one made of its episode"),
        (Random(), AssertionError, "episode 0: the adder made different items the second time"),
        (Writes(), AssertionError, "episode 0: the adder modified the episode"),
        (Reorders(), AssertionError, "item . of the dataset differs from the one made of its episode"),
        (Loses(), AssertionError, "the dataset has 2 items, but its episodes have 6"),
        (Doubles(), AssertionError, "item 6 of the dataset differs from the one made of its episode"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ColumnAdder) else None,
)
def test_check_adder_reports_violations(adder, error, message):
    with pytest.raises(error, match=message):
        check_adder(adder, make_episodes(nested=False))


class Floats(Plain):
    def item_spec(self, step_spec):
        return tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, tf.float32), super().item_spec(step_spec))


class Crossing(Floats):
    crosses_episodes = True


def test_check_adder_compares_the_spec_of_the_dataset():
    with pytest.raises(SpecMismatchError, match="element_spec of the dataset must be item_spec, .*, got "):
        check_adder(type("Late", (Crossing,), {"_convert_dataset": lambda self, columns: columns})(), make_episodes())


class WrongRowSpec(Plain):
    def row_spec(self, step_spec):
        return {**step_spec, "reward": tf.TensorSpec((), tf.float64)}


def test_rows_with_a_different_dtype_than_row_spec_raise():
    with pytest.raises(ValueError, match=r"rows\['reward'\] must be float64 according to row_spec, got float32"):
        WrongRowSpec()(Episode(episode(3, terminal=True), 0))


def test_custom_adder_can_be_composed():
    assert (
        check_adder(Plain(), make_episodes())
        == check_adder(compose(Plain(), ReturnToGo(), Plain()), make_episodes())
        == NUM_EPISODES
    )
    assert repr(Plain()) == "Plain()"


# --- compose


def test_compose_matches_adders_applied_in_order():
    many = make_episodes(nested=False)
    gae, n_step = GAE(0.9, 0.8, values), NStep(2, 0.9)
    chained = list(rlds_dataset(many).apply(compose(gae, n_step)).as_numpy_iterator())
    in_turn = list(rlds_dataset(many).apply(gae).apply(n_step).as_numpy_iterator())
    assert_all_equal(chained, in_turn)
    assert {"advantage", "next_advantage", "return_", "next_return_"} <= set(chained[0])
    assert compose(gae) is gae


def test_compose_raises_for_invalid_adders():
    with pytest.raises(ValueError, match="compose requires at least one adder, got none"):
        compose()
    with pytest.raises(TypeError, match="compose requires adders such as NStep.*, got <class .*NStep'>"):
        compose(ReturnToGo(), NStep)
    for first in (StepWindows(2), StepEpisodes(9), compose(ReturnToGo(), StepWindows(2))):
        with pytest.raises(ValueError, match="must be the last adder because it cuts episodes into items"):
            compose(first, ReturnToGo())
    with pytest.raises(ValueError, match="NStep requires the field 'is_last'|NStep requires the field 'is_terminal'"):
        compose(NStep(2, 0.9), NStep(2, 0.9)).item_spec(load(make_episodes()).step_spec)


# --- arguments of adders


def test_adder_raises_for_other_types():
    for episodes in (make_episodes(), make_episodes()[0], load(make_episodes()), 3):
        with pytest.raises(TypeError, match="expected a tf.data.Dataset of episodes or an Episode, got "):
            NStep(2, 0.9)(episodes)


def test_datasets_of_steps_raise():
    steps = tf.data.Dataset.from_tensor_slices(make_episodes()[0])
    for dataset in (steps, tf.data.Dataset.range(3)):
        with pytest.raises(
            ValueError, match="the dataset must contain episodes, {'steps': dataset of steps} .*, got elements"
        ):
            dataset.apply(ReturnToGo())


def test_columns_of_unequal_length_raise():
    steps = {**episode(4, terminal=True), "reward": np.ones(3, np.float32)}
    with pytest.raises(ValueError, match=r"the columns of episode 5 must have equal lengths, got \[3, 4\]"):
        ReturnToGo()(Episode(steps, 5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the columns of an episode must have equal lengths"):
        list(columns_dataset([steps]).apply(ReturnToGo()))


def test_episode_columns_match_the_steps():
    many = make_episodes((3, 0, 1, 5))
    expected = [steps for steps in many if len(steps["is_first"])]
    assert_all_equal(list(episode_columns(rlds_dataset(many)).as_numpy_iterator()), expected)
    assert_all_equal(list(episode_columns(columns_dataset(expected)).as_numpy_iterator()), expected)


def test_invalid_step_spec_raises():
    for spec in ({}, {"reward": 3}, None):
        with pytest.raises(ValueError, match="step_spec must be a nest of tf.TensorSpecs"):
            ReturnToGo().item_spec(spec)
