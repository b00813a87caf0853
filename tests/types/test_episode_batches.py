"""Tests of episode batches: which episodes are joined, and that a batch is equal to its episodes."""

import numpy as np
import pytest
import tree
from hypothesis import given, strategies as st
from properties import examples
from reference_impls import assert_equal_nests, episode, episodes

from rlds2reverb.adders.trajectory_windows import PADDINGS, TrajectoryEpisodes, TrajectoryWindows
from rlds2reverb.errors import InvalidEpisodeError
from rlds2reverb.types.episode_batches import EpisodeBatch, batch_episodes
from rlds2reverb.types.episodes import Episode, find_errors
from rlds2reverb.types.fingerprints import episode_digests
from rlds2reverb.types.items import ItemBatch, Items
from rlds2reverb.types.specs import make_step_spec
from rlds2reverb.types.trajectories import DISCOUNT_SOURCES


def make_episodes(all_steps):
    return [Episode(steps, index) for index, steps in enumerate(all_steps)]


def indices(batches):
    return [[episode.index for episode in batch.episodes] for batch in batches]


def test_small_consecutive_episodes_of_one_spec_are_joined():
    flat, nested = episode(3, terminal=True), episode(2, terminal=False, nested=True)
    empty = {name: column[:0] for name, column in flat.items()}
    uneven = {**flat, "reward": flat["reward"][:2]}
    all_steps = make_episodes([flat, flat, empty, flat, uneven, flat, nested, nested])
    assert indices(batch_episodes(all_steps)) == [[0, 1], [2], [3], [4], [5], [6, 7]]


def test_batches_respect_the_size_limit():
    large = make_episodes([episode(4000, terminal=False)] * 20)
    batches = list(batch_episodes(large))
    assert [index for batch in indices(batches) for index in batch] == list(range(20)) and len(batches) > 1
    assert all(sum(e.num_bytes for e in batch.episodes) <= 1 << 20 for batch in batches)


def test_batch_concatenates_the_steps_of_its_episodes():
    batch = EpisodeBatch(make_episodes([episode(2, terminal=True, start=10), episode(1, terminal=False, start=20)]))
    assert batch.steps["observation"][:, 0].tolist() == [10, 11, 20] and batch.num_steps.tolist() == [2, 1]


@pytest.mark.parametrize("position", [0, 1, 2])
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
def test_one_invalid_episode_makes_a_batch_invalid(position, field, step, value):
    all_steps = [episode(3, terminal=False) for _ in range(3)]
    batch = EpisodeBatch(make_episodes(all_steps))
    assert batch.is_valid(make_step_spec(all_steps[0])) and batch.is_valid()
    all_steps[position][field][step] = value
    assert find_errors(Episode(all_steps[position], 0))
    assert not EpisodeBatch(make_episodes(all_steps)).is_valid()


def test_require_valid_raises_with_the_errors_of_the_first_invalid_episode():
    all_steps = [episode(3, terminal=False) for _ in range(4)]
    batch = EpisodeBatch(make_episodes(all_steps))
    batch.require_valid(make_step_spec(all_steps[0]))
    all_steps[1]["is_first"][1] = all_steps[3]["is_first"][2] = True
    with pytest.raises(InvalidEpisodeError, match="is_first is set inside the episode") as raised:
        EpisodeBatch(make_episodes(all_steps)).require_valid()
    assert raised.value.errors == find_errors(Episode(all_steps[1], 1))


@examples(50)
@given(episodes(max_episodes=6))
def test_batch_of_columns_has_the_same_episodes(all_steps):
    for batch in batch_episodes(make_episodes(all_steps)):
        got = EpisodeBatch.from_columns(batch.steps, batch.num_steps)
        assert len(got.episodes) == len(batch.episodes) and [e.index for e in got.episodes[1:]] == list(
            range(1, len(batch.episodes))
        )
        for one, other in zip(got.episodes, batch.episodes, strict=True):
            assert_equal_nests(one.steps, other.steps)
        assert_equal_nests(EpisodeBatch(got.episodes).steps, batch.steps)


def test_different_spec_makes_a_batch_invalid():
    batch = EpisodeBatch(make_episodes([episode(3, terminal=False)]))
    assert not batch.is_valid(make_step_spec(episode(3, terminal=False, nested=True)))


@examples(50)
@given(episodes(max_episodes=6))
def test_fingerprint_does_not_depend_on_batching(all_steps):
    together = [digest for batch in batch_episodes(make_episodes(all_steps)) for digest in episode_digests(batch)]
    alone = [digest for single in make_episodes(all_steps) for digest in episode_digests(EpisodeBatch([single]))]
    assert together == alone


WINDOWS = st.builds(
    TrajectoryWindows,
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from(PADDINGS),
    st.sampled_from(DISCOUNT_SOURCES),
)


@examples(150)
@given(episodes(max_episodes=6), st.one_of(WINDOWS, st.builds(TrajectoryEpisodes, st.sampled_from(DISCOUNT_SOURCES))))
def test_items_of_a_batch_match_those_of_each_episode(all_steps, adder):
    for batch in batch_episodes(single for single in make_episodes(all_steps) if single.num_steps):
        items = adder.convert_batch(batch)
        for position, single in enumerate(batch.episodes):
            got, expected = items.episode_items(position), adder(single)
            assert_equal_nests(got.columns, expected.columns)
            tree.map_structure(
                np.testing.assert_array_equal, (got.starts, got.lengths), (expected.starts, expected.lengths)
            )


def test_item_batch_raises_when_row_totals_differ():
    items = Items(np.arange(3), np.array([0, 1]), np.array([2, 2]))
    with pytest.raises(ValueError, match=r"must be \(4, 2\), .*, got \(3, 2\)"):
        ItemBatch(items, np.array([4]), np.array([2]))
