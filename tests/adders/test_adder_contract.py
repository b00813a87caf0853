"""Tests of `check_adder` with every adder, of `compose`, and of the data that a `ColumnAdder` accepts."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tree
from properties import mark_slow_except
from reference_impls import assert_equal_nests, episode, rlds_dataset

from rlds2reverb.adders import (
    GAE,
    ChunkTransitions,
    ColumnAdder,
    InitialPriorities,
    NStep,
    ReturnToGo,
    StepContextWindows,
    StepEpisodes,
    StepOffsets,
    StepWindows,
    TrajectoryEpisodes,
    TrajectoryWindows,
    Transitions,
    WindowAdder,
    Windows,
    check_adder,
    compose,
    episode_columns,
)
from rlds2reverb.datasets import load
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.types.episodes import Episode


def estimate_values(observations):
    """Returns a number for each observation."""
    return tf.reduce_sum(tf.cast(tree.flatten(observations)[-1], tf.float32), axis=-1)


ADDERS = [
    NStep(3, 0.9),
    NStep(2, 0.9, grow_at_start=True, discount_power="m"),
    GAE(0.9, 0.8, estimate_values),
    ReturnToGo(),
    *(StepWindows(3, 2, end) for end in ("write", "last", "zero_pad", "truncate", "continue")),
    *(StepEpisodes(6, padding) for padding in ("none", "end", "start")),
    InitialPriorities("td", value_fn=estimate_values),
    compose(InitialPriorities("return", highest=500), GAE(0.9, 0.8, estimate_values), NStep(2, 0.9)),
    compose(ReturnToGo(), StepWindows(2, end="continue")),
    Transitions(3, 0.9),
    ChunkTransitions(2, 0.9),
    ChunkTransitions(2, 0.9, repeats_last=True),
    StepOffsets({"observation": [-1, 0], "action": range(3), "reward": 0}),
    Windows(2),
    StepOffsets({"observation": range(3), "discount": range(3)}),
    StepContextWindows(3),
    TrajectoryWindows(2),
    TrajectoryWindows(3, 2, "tile"),
    TrajectoryEpisodes(),
    compose(NStep(2, 0.9), StepContextWindows(3)),
    compose(NStep(2, 0.9), StepEpisodes(6, "end")),
]
LENGTHS = (4, 1, 0, 2, 6, 1, 3)
NUM_EPISODES = 6


def make_episodes(lengths=LENGTHS, *, nested=True):
    """Returns episodes that are alternately terminated and truncated."""
    return [episode(n, terminal=i % 2 == 0, start=10 * (i + 1), nested=nested) for i, n in enumerate(lengths)]


def make_columns_dataset(all_steps):
    signature = tree.map_structure(lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), all_steps[0])
    return tf.data.Dataset.from_generator(lambda: iter(all_steps), output_signature=signature)


def make_items(adder, all_steps):
    """Returns the items that an adder makes of single episodes."""
    out = []
    for index, steps in enumerate(all_steps):
        items = adder(Episode(steps, index))
        for begin, length in zip(items.starts, items.lengths, strict=True):
            part = slice(begin, begin + length)
            run = tree.map_structure(lambda column, part=part: column[part], items.columns)
            out.append(tree.map_structure(lambda column: np.asarray(column[0]), run) if items.squeeze else run)
    return out


def assert_all_equal(got, expected):
    assert len(got) == len(expected)
    for item, expected_item in zip(got, expected, strict=True):
        assert_equal_nests(item, expected_item)


# --- every adder


@pytest.mark.parametrize("adder", mark_slow_except([ADDERS[0]], ADDERS), ids=repr)
def test_check_adder_passes_for_every_adder(adder):
    all_steps = make_episodes()
    assert check_adder(adder, all_steps) > 0
    assert_all_equal(all_steps, make_episodes())


@pytest.mark.parametrize("adder", mark_slow_except([ADDERS[0], *ADDERS[-4:]], ADDERS), ids=repr)
def test_items_are_made_by_graphs_that_can_be_saved(adder):
    items = tf.data.Dataset.from_tensors(make_episodes()[0]).apply(adder)
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=items._variant_tensor, external_state_policy=2)
    assert b"MapDataset" in graph.numpy() and b"PyFunc" not in graph.numpy()


def test_each_adder_requires_its_fields_of_the_same_episode():
    steps = episode(4, terminal=True)
    del steps["reward"]
    assert len(StepWindows(2)(Episode(steps, 0)).starts) == 2
    for adder in (NStep(1, 0.9), ReturnToGo()):
        with pytest.raises(ValueError, match="reward"):
            adder(Episode(steps, 0))


@pytest.mark.slow
def test_check_adder_accepts_columns_of_strings_and_counts_the_items():
    all_steps = make_episodes((4, 1, 2, 6, 1, 3), nested=False)
    for steps in all_steps:
        steps["instruction"] = np.array([b"pick up number %d" % row for row in range(len(steps["reward"]))], object)
    assert check_adder(NStep(3, 0.9), all_steps) == 3 + 0 + 1 + 5 + 0 + 2


@pytest.mark.parametrize("adder", mark_slow_except(ADDERS[:1], ADDERS[::7]), ids=repr)
def test_columns_and_rlds_episodes_yield_equal_items_in_order(adder):
    all_steps = make_episodes()
    from_columns, from_rlds = make_columns_dataset(all_steps).apply(adder), rlds_dataset(all_steps).apply(adder)
    assert from_columns.element_spec == from_rlds.element_spec == adder.item_spec(load(all_steps).step_spec)
    got = list(from_rlds.as_numpy_iterator())
    assert_all_equal(list(from_columns.as_numpy_iterator()), got)
    if not adder.crosses_episodes:
        assert_all_equal(got, make_items(adder, all_steps))
    assert adder.crosses_episodes or len(adder(Episode(all_steps[2], 2))) == 0


@pytest.mark.slow
def test_check_adder_passes_for_a_value_fn_with_division():
    """When TensorFlow optimizes a graph, it replaces a division by a constant with a multiplication."""
    adder = GAE(0.9, 0.8, lambda observations: observations[:, 0] / 10)
    assert check_adder(adder, make_episodes((50, 236), nested=False)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "last",
    [StepEpisodes(4, "end"), StepEpisodes(4, "start"), StepWindows(4, end="last")],
    ids=repr,
)
def test_episode_without_rows_for_the_last_adder_has_no_items(last):
    """NStep has no row for an episode of one step, so there is nothing to pad."""
    adder, single = compose(NStep(2, 0.9), last), episode(1, terminal=True)
    assert len(list(rlds_dataset([single]).apply(adder))) == 0
    assert len(adder(Episode(single, 0))) == 0


@pytest.mark.parametrize("adder", mark_slow_except(ADDERS[-1:], [ADDERS[0], ADDERS[-1]]), ids=repr)
def test_used_adder_can_be_pickled(adder):
    all_steps = make_episodes()
    expected = make_items(adder, all_steps)
    other = pickle.loads(pickle.dumps(adder))
    assert other == adder and repr(other) == repr(adder)
    assert_all_equal(make_items(other, all_steps), expected)


# --- violations that check_adder detects


class Plain(ColumnAdder):
    """An adder that keeps the steps unchanged."""

    def row_spec(self, step_spec):
        return step_spec

    def make_rows(self, columns):
        return columns


def test_rows_of_a_dataset_are_made_of_every_episode_with_steps():
    assert check_adder(Plain(), make_episodes((1, 0, 2), nested=False)) == 2


class OtherDtype(Plain):
    def item_spec(self, step_spec):
        spec = super().item_spec(step_spec)
        return {**spec, "reward": tf.TensorSpec((None,), tf.float64)}


class OtherLength(Plain):
    item_length = 3


class OtherDatasetSpec(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).map(lambda item: {**item, "reward": item["reward"][:1]})


class RandomRewards(Plain):
    def make_rows(self, columns):
        return {**columns, "reward": columns["reward"] + tf.random.uniform([])}


class ModifiesEpisode(Plain):
    def __call__(self, episodes):
        if isinstance(episodes, Episode):
            episodes.steps["reward"][0] += 1
        return super().__call__(episodes)


class ReordersItems(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).shuffle(9, seed=1)


class DropsItems(Plain):
    def _convert_dataset(self, columns):
        return super()._convert_dataset(columns).take(2)


class CountsEpisodes(ColumnAdder):
    """Adds the number of episodes in the batch to the rewards."""

    def row_spec(self, step_spec):
        return step_spec

    def make_batch_rows(self, columns, num_steps):
        num_episodes = tf.cast(tf.size(num_steps), columns["reward"].dtype)
        return {**columns, "reward": columns["reward"] + num_episodes}, num_steps


class ShortensInBatches(ColumnAdder):
    """Drops the last row of each episode in batches of several episodes."""

    def row_spec(self, step_spec):
        return step_spec

    def make_batch_rows(self, columns, num_steps):
        is_single = tf.size(num_steps) == 1
        is_kept = is_single | ~columns["is_last"]
        columns = {name: column[is_kept] for name, column in columns.items()}
        return columns, tf.where(is_single, num_steps, tf.maximum(num_steps - 1, 0))


class RepeatsItems(Plain):
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
        (OtherDatasetSpec(), AssertionError, "item 0 of the dataset differs from the item made from its episode"),
        (RandomRewards(), AssertionError, "episode 0: the adder made different items the second time"),
        (ModifiesEpisode(), AssertionError, "episode 0: the adder modified the episode"),
        (CountsEpisodes(), AssertionError, "episode 0: the adder makes different items in a batch than alone"),
        (ShortensInBatches(), AssertionError, "episode 0: the adder makes different items in a batch than alone"),
        (ReordersItems(), AssertionError, "item . of the dataset differs from the item made from its episode"),
        (DropsItems(), AssertionError, "the dataset has 2 items, but its episodes have 6"),
        (RepeatsItems(), AssertionError, "item 6 of the dataset differs from the item made from its episode"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ColumnAdder) else None,
)
def test_check_adder_reports_violations(adder, error, message):
    with pytest.raises(error, match=message):
        check_adder(adder, make_episodes(nested=False))


class UnconvertedDataset(Plain):
    crosses_episodes = True

    def item_spec(self, step_spec):
        return tree.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, tf.float32), super().item_spec(step_spec))

    def _convert_dataset(self, columns):
        return columns


def test_check_adder_compares_the_spec_of_the_dataset():
    with pytest.raises(SpecMismatchError, match="element_spec of the dataset must be item_spec, .*, got "):
        check_adder(UnconvertedDataset(), make_episodes())


class WrongRowSpec(Plain):
    def row_spec(self, step_spec):
        return {**step_spec, "reward": tf.TensorSpec((), tf.float64)}


def test_rows_with_a_different_dtype_than_row_spec_raise():
    with pytest.raises(ValueError, match=r"rows\['reward'\] must be float64 according to row_spec, got float32"):
        WrongRowSpec()(Episode(episode(3, terminal=True), 0))


@pytest.mark.slow
def test_custom_adder_can_be_composed():
    assert check_adder(compose(Plain(), ReturnToGo(), Plain()), make_episodes()) == NUM_EPISODES
    assert repr(Plain()) == "Plain()"


# --- compose


@pytest.mark.slow
def test_compose_matches_adders_applied_in_order():
    all_steps = make_episodes(nested=False)
    gae, n_step = GAE(0.9, 0.8, estimate_values), NStep(2, 0.9)
    chained = list(rlds_dataset(all_steps).apply(compose(gae, n_step)).as_numpy_iterator())
    in_turn = list(rlds_dataset(all_steps).apply(gae).apply(n_step).as_numpy_iterator())
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


def test_adder_raises_for_unsupported_types():
    for argument in (make_episodes(), make_episodes()[0], load(make_episodes()), 3):
        with pytest.raises(TypeError, match="expected a tf.data.Dataset of episodes or an Episode, got "):
            NStep(2, 0.9)(argument)


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
        list(make_columns_dataset([steps]).apply(ReturnToGo()))


def test_episode_columns_match_the_steps():
    all_steps = make_episodes((3, 0, 1, 5))
    expected = [steps for steps in all_steps if len(steps["is_first"])]
    assert_all_equal(list(episode_columns(rlds_dataset(all_steps)).as_numpy_iterator()), expected)
    assert_all_equal(list(episode_columns(make_columns_dataset(expected)).as_numpy_iterator()), expected)


def test_invalid_step_spec_raises():
    for spec in ({}, {"reward": 3}, None):
        with pytest.raises(ValueError, match="step_spec must be a nest of tf.TensorSpecs"):
            ReturnToGo().item_spec(spec)


def test_window_adders_must_have_a_time_axis():
    with pytest.raises(
        TypeError, match="NoAxis cannot set squeeze, because windows have a time axis; derive from ItemAdder"
    ):
        type("NoAxis", (WindowAdder,), {"squeeze": True})
