"""The goals of transitions: their distributions, and the items that they make."""

import numpy as np
import pytest
import tensorflow as tf
from reference_impls import assert_equal_nests, episode

from rlds2reverb.adders import Transitions
from rlds2reverb.datasets.steps.goals import NUM_NUMBERS, GoalDistribution, GoalSampling
from rlds2reverb.datasets.steps.item_index import ItemIndex, draw_numbers
from rlds2reverb.datasets.steps.layout import Layout
from rlds2reverb.datasets.steps.step_columns import MemoryColumns
from rlds2reverb.learners.stored_items import StoredItems
from rlds2reverb.types.episode_batches import EpisodeBatch

LENGTHS = (9, 4, 2, 7)
FIRST, GAMMA, COUNT = 2, 0.8, 40_000
#: Row of each state in which a transition starts, in episodes that are sampled: all but the second one.
USED_ROWS = [*range(8), 13, *range(15, 21)]


def make_steps(**options):
    """Returns episodes whose observations are the numbers of their rows, and their negatives."""
    ends = np.cumsum(LENGTHS)
    episodes = [
        episode(length, terminal=number == 2, start=float(end - length), **options)
        for number, (length, end) in enumerate(zip(LENGTHS, ends, strict=True))
    ]
    columns = MemoryColumns(Layout.of_steps(episodes[0]))
    for one in episodes:
        columns.append(EpisodeBatch.from_columns(one, np.array([len(one["reward"])])))
    return columns.finish()


STEPS = make_steps()
IS_USED = np.arange(4) != 1


def sample(distribution, row=FIRST, last_row=7, seed=0):
    """Returns many goals of the state at a row of an episode."""
    index = ItemIndex(STEPS, Transitions(), IS_USED)
    rows, last_rows = np.full(COUNT, row), np.full(COUNT, last_row)
    numbers = draw_numbers(seed, 0, 1, 3 * COUNT).reshape(COUNT, 3)
    return distribution.sample(rows, last_rows, numbers, index, gamma=GAMMA)


def make_items(batch_size=6, seed=3, steps=STEPS, **sampling):
    distribution = GoalDistribution(0.2, 0.5, 0.3, geometric=True)
    goals = GoalSampling(distribution, GoalDistribution(0, 0.5, 0.5), gamma=GAMMA, **sampling)
    return StoredItems(steps, Transitions(), batch_size, seed=seed, is_used=IS_USED, goals=goals)


def current():
    return {FIRST: 1.0}


def uniform():
    return dict.fromkeys(range(FIRST + 1, 8), 1 / 5)


def geometric():
    chances = {FIRST + k: (1 - GAMMA) * GAMMA ** (k - 1) for k in range(1, 5)}
    return {**chances, 7: GAMMA**4}


def anywhere():
    return dict.fromkeys(USED_ROWS, 1 / len(USED_ROWS))


@pytest.mark.parametrize(
    ("shares", "is_geometric", "parts"),
    [
        ((1, 0, 0), True, [current]),
        ((0, 1, 0), False, [uniform]),
        ((0, 1, 0), True, [geometric]),
        ((0, 0, 1), False, [anywhere]),
        ((0.2, 0.5, 0.3), True, [current, geometric, anywhere]),
        ((0.1, 0.6, 0.3), False, [current, uniform, anywhere]),
    ],
)
def test_goals_follow_their_distribution(shares, is_geometric, parts):
    """Pearson's statistic is less than 3.5 standard deviations above its mean, the degrees of freedom."""
    goals, _ = sample(GoalDistribution(*shares, geometric=is_geometric))
    expected = np.zeros(21)
    for share, part in zip([share for share in shares if share], parts, strict=True):
        for row, chance in part().items():
            expected[row] += share * chance
    counts = np.bincount(goals, minlength=21)
    assert counts.sum() == COUNT and not counts[expected == 0].any() and expected.sum() == pytest.approx(1)
    is_possible = expected > 0
    terms = (counts - COUNT * expected)[is_possible] ** 2 / (COUNT * expected[is_possible])
    freedom = is_possible.sum() - 1
    assert terms.sum() <= freedom + 3.5 * (2 * freedom) ** 0.5


def test_choice_place_and_item_of_goals_are_independent():
    """Among future goals, the shares of places do not depend on how many goals are of this kind."""
    goals, limits = sample(GoalDistribution(0.5, 0.5, 0.0))
    future = goals[goals != FIRST]
    assert np.abs(np.bincount(future, minlength=8)[3:] / len(future) - 0.2).max() < 0.01
    np.testing.assert_array_equal(limits, goals)


def test_last_state_is_the_goal_of_itself_and_random_goals_lead_to_the_end_of_the_episode():
    for distribution in (GoalDistribution(), GoalDistribution(geometric=True)):
        assert set(sample(distribution, row=7)[0]) == {7}
    goals, limits = sample(GoalDistribution(0, 0, 1))
    assert set(goals) == set(USED_ROWS) and set(limits) == {7}


@pytest.mark.parametrize(("gamma", "row"), [(0.0, FIRST + 1), (1.0, 7)])
def test_geometric_goals_are_the_next_or_the_last_state_at_the_limits_of_gamma(gamma, row):
    index, numbers = ItemIndex(STEPS, Transitions()), draw_numbers(0, 0, 1, 300).reshape(100, 3)
    rows = np.full(100, FIRST)
    goals, _ = GoalDistribution(geometric=True).sample(rows, np.full(100, 7), numbers, index, gamma=gamma)
    assert set(goals) == {row}


def read(items, step, count=1):
    data, _ = items.read(step, count)
    assert len(data) == count
    rows = ItemIndex(items.steps, Transitions(), IS_USED).find_places(items.sample_indices(step, count).ravel()).row
    experience = items.to_experience(tf.constant(data.reshape(-1, data.shape[-1])))
    return tf.nest.map_structure(lambda column: column.numpy(), experience), rows


@pytest.mark.parametrize("is_negative", [True, False])
def test_items_contain_the_goals_and_rewards_of_a_loop(is_negative):
    items = make_items(200, is_negative=is_negative, subgoal_steps=3)
    experience, rows = read(items, 5)
    begin, end, goals = experience.time_step, experience.next_time_step, experience.action_step.info
    episodes = np.searchsorted(STEPS.ends, rows, side="right")
    row_of = {name: goal[:, 0].astype(int) for name, goal in goals.items()}
    reached = begin.observation["goal"][:, 0].astype(int)
    for number, (row, last) in enumerate(zip(rows, STEPS.ends[episodes] - 2, strict=True)):
        assert (
            begin.observation["observation"][number, 0] == row and end.observation["observation"][number, 0] == row + 1
        )
        assert end.observation["goal"][number, 0] == reached[number] and experience.action_step.action[number, 0] == row
        is_reached = int(reached[number] == row)
        assert end.reward[number] == is_reached - is_negative and end.discount[number] == 1 - is_reached
        assert row_of["low_goal"][number] == min(row + 3, last)
        actor_goal, subgoal = row_of["actor_goal"][number], row_of["subgoal"][number]
        assert subgoal == row_of["subgoal_state"][number] and row <= subgoal <= min(row + 3, last)
        if not row <= actor_goal <= last:  # A random goal.
            assert subgoal == min(row + 3, last) and actor_goal in USED_ROWS
        elif actor_goal < row + 3:
            assert subgoal in (actor_goal, min(row + 3, last))
    assert 0.15 < (end.discount == 0).mean() < 0.4


def test_goals_depend_on_the_seed_and_the_iteration_alone():
    items = make_items()
    whole, _ = items.read(0, 4)
    for step in range(4):
        assert_equal_nests(items.read(step, 1)[0][0], whole[step])
    assert_equal_nests(make_items().read(2, 2)[0], whole[2:])
    assert not np.array_equal(make_items(seed=4).read(0, 1)[0], whole[:1])
    assert_equal_nests(items.resize(6).read(0, 4)[0], whole)


def test_goals_without_an_actor_are_only_in_the_observations():
    goals = GoalSampling(GoalDistribution(), gamma=GAMMA)
    items = StoredItems(STEPS, Transitions(), 4, goals=goals, is_used=IS_USED)
    assert "policy_info" not in items.read_items(np.arange(4))


def test_goals_of_goal_environments_are_those_that_states_achieve():
    place = np.arange(5, dtype=np.float32)[:, None]
    steps = episode(5, terminal=False)
    steps["observation"] = {"observation": place, "achieved_goal": 10 * place, "desired_goal": 0 * place}
    columns = MemoryColumns(Layout.of_steps(steps))
    columns.append(EpisodeBatch.from_columns(steps, np.array([5])))
    goals = GoalSampling(GoalDistribution(1, 0, 0), GoalDistribution(), subgoal_steps=2)
    items = StoredItems(columns.finish(), Transitions(), 4, goals=goals).read_items(np.arange(4))
    assert set(items["observation"]) == {"observation", "goal"}
    np.testing.assert_array_equal(items["observation"]["goal"], 10 * place[:4])
    np.testing.assert_array_equal(items["policy_info"]["subgoal"], 10 * items["policy_info"]["subgoal_state"])


@pytest.mark.parametrize("shares", [(0.5, 0.2, 0.2), (1.2, -0.2, 0), (0, 0, 0)])
def test_probabilities_that_are_none_raise(shares):
    with pytest.raises(
        ValueError, match=r"must add up to 1, got|each probability of a goal must be a number in \[0, 1\]"
    ):
        GoalDistribution(*shares)


def test_invalid_sampling_raises():
    with pytest.raises(ValueError, match=r"gamma must be a number in \[0, 1\], got 2"):
        GoalSampling(GoalDistribution(), gamma=2)
    with pytest.raises(ValueError, match=r"subgoal_steps must be an integer >= 1, got 0"):
        GoalSampling(GoalDistribution(), subgoal_steps=0)


def test_nothing_is_bootstrapped_from_an_unknown_final_observation():
    steps = episode(4, terminal=False)
    steps["observation"][-1] = 0  # The zeros that stand for it, and the discount of the transition to them.
    unknown = {**steps, "discount": np.array([1, 1, 0, 1], np.float32)}
    for columns, expected in ((unknown, 0), (steps, 1)):
        layout = MemoryColumns(Layout.of_steps(columns))
        layout.append(EpisodeBatch.from_columns(columns, np.array([4])))
        random_goals = GoalSampling(GoalDistribution(current=0, future=0, random=1))
        items = StoredItems(layout.finish(), Transitions(), 64, seed=0, goals=random_goals)
        batch = items.read_items(np.full(64, 2), draw_numbers(0, 0, 1, 64 * NUM_NUMBERS).reshape(64, NUM_NUMBERS))
        is_other = (batch["observation"]["goal"] != steps["observation"][2]).reshape(64, -1).any(axis=1)
        assert is_other.any() and (batch["discount"][is_other] == expected).all()
