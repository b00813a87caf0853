"""Batches of episodes: what is joined, and that nothing of an episode is lost in it."""

import numpy as np
import pytest
import tree
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode, episodes

from rlds2reverb.episode_batches import EpisodeBatch, in_batches
from rlds2reverb.episodes import Episode, find_problems
from rlds2reverb.items import ItemBatch, Items
from rlds2reverb.sources.summary import Fingerprint
from rlds2reverb.specs import make_step_spec
from rlds2reverb.trajectories import DISCOUNT_SOURCES
from rlds2reverb.trajectory_items import PADDINGS, TrajectoryEpisodes, TrajectoryWindows


def made_of(many):
    return [Episode(steps, index) for index, steps in enumerate(many)]


def numbers(batches):
    return [[episode.index for episode in batch.episodes] for batch in batches]


def test_small_episodes_of_one_spec_that_follow_each_other_are_joined():
    three, nested = episode(3, terminal=True), episode(2, terminal=False, nested=True)
    empty = {name: column[:0] for name, column in three.items()}
    uneven = {**three, "reward": three["reward"][:2]}
    many = made_of([three, three, empty, three, uneven, three, nested, nested])
    assert numbers(in_batches(many)) == [[0, 1], [2], [3], [4], [5], [6, 7]]


def test_a_batch_ends_where_it_would_get_large():
    large = made_of([episode(4000, terminal=False)] * 20)
    batches = list(in_batches(large))
    assert [one for some in numbers(batches) for one in some] == list(range(20)) and len(batches) > 1
    assert all(sum(e.num_bytes for e in batch.episodes) <= 1 << 20 for batch in batches)


def test_a_batch_has_the_steps_of_its_episodes_one_after_the_other():
    batch = EpisodeBatch(made_of([episode(2, terminal=True, start=10), episode(1, terminal=False, start=20)]))
    assert batch.steps["observation"][:, 0].tolist() == [10, 11, 20] and batch.num_steps.tolist() == [2, 1]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("field", "step", "value"),
    [
        ("is_first", 0, False),
        ("is_first", 1, True),
        ("is_last", 0, True),
        ("is_last", 2, False),
        ("is_terminal", 1, True),
        ("discount", 1, 1.5),
        ("reward", 1, np.nan),
        ("observation", 2, np.inf),
    ],
)
def test_one_invalid_episode_makes_a_batch_invalid(number, field, step, value):
    many = [episode(3, terminal=False) for _ in range(3)]
    assert EpisodeBatch(made_of(many)).is_valid(make_step_spec(many[0]))
    many[number][field][step] = value
    assert find_problems(Episode(many[number], 0))
    assert not EpisodeBatch(made_of(many)).is_valid()


def test_another_spec_makes_a_batch_invalid():
    batch = EpisodeBatch(made_of([episode(3, terminal=False)]))
    assert not batch.is_valid(make_step_spec(episode(3, terminal=False, nested=True)))


@examples(50)
@given(episodes(max_episodes=6))
def test_a_batch_has_the_fingerprint_of_its_episodes(many):
    together, alone = Fingerprint(), Fingerprint()
    for batch in in_batches(made_of(many)):
        together.add_batch(batch)
    for one in made_of(many):
        alone.add(one)
    assert together.hexdigest() == alone.hexdigest()


WINDOWS = st.builds(
    TrajectoryWindows,
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from(PADDINGS),
    st.sampled_from(DISCOUNT_SOURCES),
)


@examples(150)
@given(episodes(max_episodes=6), st.one_of(WINDOWS, st.builds(TrajectoryEpisodes, st.sampled_from(DISCOUNT_SOURCES))))
def test_the_items_of_a_batch_are_those_of_each_episode(many, adder):
    for batch in in_batches(one for one in made_of(many) if one.num_steps):
        made = adder.convert_batch(batch)
        for number, one in enumerate(batch.episodes):
            got, wanted = made.of_episode(number), adder(one)
            assert_equal_nests(got.columns, wanted.columns)
            tree.map_structure(
                np.testing.assert_array_equal, (got.starts, got.lengths), (wanted.starts, wanted.lengths)
            )


def test_a_batch_of_items_has_as_many_rows_as_its_episodes():
    items = Items(np.arange(3), np.array([0, 1]), np.array([2, 2]))
    with pytest.raises(ValueError, match=r"a batch has \(3, 2\) rows and items, its episodes have \(4, 2\)"):
        ItemBatch(items, np.array([4]), np.array([2]))
