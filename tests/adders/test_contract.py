"""What every adder keeps to: `check_adder`, `compose`, and the two forms of data that `ColumnAdder` takes."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import slow_but
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


def some(lengths=LENGTHS, *, nested=True):
    """Episodes that are terminated and truncated by turns."""
    return [
        episode(length, terminal=at % 2 == 0, start=10 * (at + 1), nested=nested) for at, length in enumerate(lengths)
    ]


def columns_dataset(many):
    signature = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), many[0])
    return tf.data.Dataset.from_generator(lambda: iter(many), output_signature=signature)


def items_of(adder, many):
    out = []
    for index, steps in enumerate(many):
        items = adder(Episode(steps, index))
        for begin, length in zip(items.starts, items.lengths, strict=True):
            part = slice(begin, begin + length)
            run = tree.map_structure(lambda column, part=part: column[part], items.columns)
            out.append(tree.map_structure(lambda column: np.asarray(column[0]), run) if items.squeeze else run)
    return out


def assert_all_equal(got, wanted):
    assert len(got) == len(wanted)
    for item, want in zip(got, wanted, strict=True):
        assert_equal_nests(item, want)


# --- every adder


@pytest.mark.parametrize("adder", slow_but(ADDERS[:13:3], ADDERS), ids=repr)
def test_every_adder_keeps_the_contract(adder):
    many = some()
    assert check_adder(adder, many) > 0
    assert_all_equal(many, some())


def test_check_adder_counts_the_items():
    assert check_adder(NStep(3, 0.9), some(nested=False)) == 3 + 0 + 1 + 5 + 0 + 2


@pytest.mark.parametrize("adder", slow_but(ADDERS[:1], ADDERS[::7]), ids=repr)
def test_an_empty_episode_gives_nothing_and_the_order_is_kept(adder):
    """Columns and RLDS episodes give the same items, of the spec that was told."""
    many = some()
    from_columns, from_rlds = columns_dataset(many).apply(adder), rlds_dataset(many).apply(adder)
    assert from_columns.element_spec == from_rlds.element_spec == adder.item_spec(load(many).step_spec)
    got = list(from_rlds.as_numpy_iterator())
    assert_all_equal(list(from_columns.as_numpy_iterator()), got)
    if not adder.crosses_episodes:
        assert_all_equal(got, items_of(adder, many))
    assert adder.crosses_episodes or len(adder(Episode(many[2], 2))) == 0


def test_a_function_of_values_that_divides_keeps_the_contract():
    """TensorFlow turns a division by a constant into a product where it optimizes a graph."""
    adder = GAE(0.9, 0.8, lambda observations: observations[:, 0] / 10)
    assert check_adder(adder, some((50, 236), nested=False)) == 2


@pytest.mark.parametrize(
    "last", [StepEpisodes(4, "end"), StepEpisodes(4, "start"), StepWindows(4, end="last")], ids=repr
)
def test_an_episode_that_leaves_the_last_adder_no_rows_gives_no_item(last):
    """NStep makes nothing of an episode of one step: there is nothing to fill up."""
    adder, single = compose(NStep(2, 0.9), last), episode(1, terminal=True)
    assert len(list(rlds_dataset([single]).apply(adder))) == 0
    assert len(adder(Episode(single, 0))) == 0


@pytest.mark.parametrize("adder", [ADDERS[0], ADDERS[-1]], ids=repr)
def test_an_adder_that_was_used_can_be_sent_to_another_process(adder):
    many = some()
    wanted = items_of(adder, many)
    other = pickle.loads(pickle.dumps(adder))
    assert other == adder and repr(other) == repr(adder)
    assert_all_equal(items_of(other, many), wanted)


# --- check_adder finds what is wrong


class Plain(ColumnAdder):
    def row_spec(self, step_spec):
        return step_spec

    def rows(self, columns):
        return columns


class OtherDtype(Plain):
    def item_spec(self, step_spec):
        spec = super().item_spec(step_spec)
        return {**spec, "reward": tf.TensorSpec((None,), tf.float64)}


class OtherLength(Plain):
    item_length = 3


class OtherDatasetSpec(Plain):
    def _dataset(self, columns):
        return super()._dataset(columns).map(lambda item: {**item, "reward": item["reward"][:1]})


class Random(Plain):
    def rows(self, columns):
        return {**columns, "reward": columns["reward"] + tf.random.uniform([])}


class Writes(Plain):
    def __call__(self, episodes):
        if isinstance(episodes, Episode):
            episodes.steps["reward"][0] += 1
        return super().__call__(episodes)


class Reorders(Plain):
    def _dataset(self, columns):
        return super()._dataset(columns).shuffle(9, seed=1)


class Loses(Plain):
    def _dataset(self, columns):
        return super()._dataset(columns).take(2)


class Doubles(Plain):
    def _dataset(self, columns):
        return super()._dataset(columns).concatenate(super()._dataset(columns))


@pytest.mark.parametrize(
    ("adder", "error", "message"),
    [
        (
            OtherDtype(),
            SpecMismatchError,
            r"episode 0: item\['reward'\] is float32 \[4\], but item_spec expects float64 \[\?\]",
        ),
        (OtherLength(), SpecMismatchError, r"episode 0: item\[.*\] is .* \[4.*\], but item_spec expects .* \[3"),
        (OtherDatasetSpec(), AssertionError, "item 0 of the data set is not the one that was made of its episode"),
        (Random(), AssertionError, "episode 0: the adder made other items the second time"),
        (Writes(), AssertionError, "episode 0: the adder wrote into the episode"),
        (Reorders(), AssertionError, "item . of the data set is not the one that was made of its episode"),
        (Loses(), AssertionError, "the data set has 2 items, its episodes give 6"),
        (Doubles(), AssertionError, "item 6 of the data set is not the one that was made of its episode"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ColumnAdder) else None,
)
def test_a_bad_adder_is_told_what_is_wrong(adder, error, message):
    with pytest.raises(error, match=message):
        check_adder(adder, some(nested=False))


class Floats(Plain):
    def item_spec(self, step_spec):
        return tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, tf.float32), super().item_spec(step_spec))


class Crossing(Floats):
    crosses_episodes = True


def test_the_spec_of_the_data_set_is_compared_too():
    with pytest.raises(SpecMismatchError, match="the data set's element_spec is .*, item_spec says"):
        check_adder(type("Late", (Crossing,), {"_dataset": lambda self, columns: columns})(), some())


class SaysFloat(Plain):
    def row_spec(self, step_spec):
        return {**step_spec, "reward": tf.TensorSpec((), tf.float64)}


def test_rows_of_another_dtype_than_row_spec_are_an_error():
    with pytest.raises(ValueError, match=r"rows\['reward'\] are float32, row_spec says float64"):
        SaysFloat()(Episode(episode(3, terminal=True), 0))


def test_an_adder_of_ones_own_takes_part_in_compose():
    assert check_adder(Plain(), some()) == check_adder(compose(Plain(), ReturnToGo(), Plain()), some()) == NUM_EPISODES
    assert repr(Plain()) == "Plain()"


# --- compose


def test_composed_adders_are_those_one_after_the_other():
    many = some(nested=False)
    gae, n_step = GAE(0.9, 0.8, values), NStep(2, 0.9)
    chained = list(rlds_dataset(many).apply(compose(gae, n_step)).as_numpy_iterator())
    in_turn = list(rlds_dataset(many).apply(gae).apply(n_step).as_numpy_iterator())
    assert_all_equal(chained, in_turn)
    assert {"advantage", "next_advantage", "return_", "next_return_"} <= set(chained[0])
    assert compose(gae) is gae


def test_what_cannot_be_composed_is_refused():
    with pytest.raises(ValueError, match="compose got no adders, expected at least one"):
        compose()
    with pytest.raises(TypeError, match="compose got <class .*NStep'>, expected adders such as NStep"):
        compose(ReturnToGo(), NStep)
    for first in (StepWindows(2), StepEpisodes(9), compose(ReturnToGo(), StepWindows(2))):
        with pytest.raises(ValueError, match="cuts episodes into items, so that nothing can follow it"):
            compose(first, ReturnToGo())
    with pytest.raises(ValueError, match="NStep needs the field 'is_last'|NStep needs the field 'is_terminal'"):
        compose(NStep(2, 0.9), NStep(2, 0.9)).item_spec(load(some()).step_spec)


# --- what an adder takes


def test_neither_a_data_set_nor_an_episode_is_refused():
    for given_as in (some(), some()[0], load(some()), 3):
        with pytest.raises(TypeError, match="got a .*, expected a tf.data.Dataset of episodes or an Episode"):
            NStep(2, 0.9)(given_as)


def test_data_sets_of_steps_are_refused():
    steps = tf.data.Dataset.from_tensor_slices(some()[0])
    for dataset in (steps, tf.data.Dataset.range(3)):
        with pytest.raises(
            ValueError, match="the data set has elements of .*, expected episodes: {'steps': data set of"
        ):
            dataset.apply(ReturnToGo())


def test_columns_of_unequal_length_are_refused():
    steps = {**episode(4, terminal=True), "reward": np.ones(3, np.float32)}
    with pytest.raises(ValueError, match=r"episode 5 has columns of \[3, 4\] rows, expected equal ones"):
        ReturnToGo()(Episode(steps, 5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the columns of an episode differ in length"):
        list(columns_dataset([steps]).apply(ReturnToGo()))


def test_episode_columns_are_the_steps_put_together():
    many = some((3, 0, 1, 5))
    wanted = [steps for steps in many if len(steps["is_first"])]
    assert_all_equal(list(episode_columns(rlds_dataset(many)).as_numpy_iterator()), wanted)
    assert_all_equal(list(episode_columns(columns_dataset(wanted)).as_numpy_iterator()), wanted)


def test_a_spec_that_is_none_is_refused():
    for spec in ({}, {"reward": 3}, None):
        with pytest.raises(ValueError, match="the spec of a step is .*, expected a nest of tf.TensorSpecs"):
            ReturnToGo().item_spec(spec)
