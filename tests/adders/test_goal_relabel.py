"""Hindsight goals: against numbers worked out by hand, a naive double loop, and the laws of episodes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, strategies as st
from properties import examples, mark_slow_except
from reference_impls import assert_equal_nests

from rlds2reverb import ingest, load
from rlds2reverb.adders import GoalRelabel, NStep, check_adder
from rlds2reverb.types.episodes import Episode, find_errors


def sparse_reward(achieved, desired, transitions):
    """Returns 0 if the goal is reached, else -1, as in the paper."""
    return -(np.abs(achieved - desired).max(-1) > 0.5).astype(np.float32)


def is_reached(achieved, desired, transitions):
    return np.abs(achieved - desired).max(-1) <= 0.5


def make_steps(positions, *, terminal=False, discount=0.9, goal=99):
    """Returns an episode that visits positions on a line; its actions are 10, 11, 12."""
    length = len(positions)
    column = np.array(positions, np.float32)[:, None]
    is_last = np.arange(length) == length - 1
    discounts = np.full(length, discount, np.float32)
    if terminal:
        discounts[-2:] = 0
    return {
        "observation": {"state": column * 10, "goals": {"now": column, "wanted": np.full((length, 1), goal, np.float32)}},
        "action": 10 + np.arange(length),
        "reward": np.full(length, -1, np.float32),
        "discount": discounts,
        "is_first": np.arange(length) == 0,
        "is_last": is_last,
        "is_terminal": is_last & terminal,
        "extra": np.arange(length),
    }  # fmt: skip


def make(strategy="final", **options):
    return GoalRelabel(
        sparse_reward, strategy, **{"achieved_goal": "goals.now", "desired_goal": "goals.wanted", **options}
    )


def describe(episodes):
    """Returns the positions, goals, rewards, discounts, and whether the end is terminal, of each episode."""
    described = []
    for episode in episodes:
        steps, goals = episode.steps, episode.steps["observation"]["goals"]
        assert not find_errors(episode)
        described.append(
            (
                goals["now"][:, 0].tolist(),
                goals["wanted"][:, 0].tolist(),
                steps["reward"].tolist(),
                np.round(steps["discount"].astype(float), 3).tolist(),
                episode.is_terminal,
            )
        )
    return described


def test_final_goal_of_an_episode_matches_hand_computed_copies():
    original, copy = make(unit="episode")(Episode(make_steps([0, 1, 2, 3]), 7))
    assert (original.index, copy.index) == (7, 8)
    assert describe([original]) == [([0, 1, 2, 3], [99] * 4, [-1] * 4, [0.9] * 4, False)]
    assert describe([copy]) == [([0, 1, 2, 3], [3] * 4, [-1, -1, 0, 0], [0.9] * 4, False)]
    assert copy.steps["action"].tolist() == [10, 11, 12, 13] and copy.steps["extra"].tolist() == [0, 1, 2, 3]
    assert original.steps["reward"].dtype == copy.steps["reward"].dtype == np.float32


@pytest.mark.parametrize("terminal", [False, True])
def test_copies_end_before_an_unknown_final_observation(terminal):
    episode = Episode(make_steps([1, 2, 3, 0], terminal=terminal), 0, unknown_final_observation=True)
    original, copy = make(unit="episode")(episode)
    assert original == episode
    assert describe([copy]) == [([1, 2, 3], [3] * 3, [-1, 0, 0], [0.9, 0.9, 0 if terminal else 0.9], False)]
    single = Episode(make_steps([1, 0], terminal=terminal), 0, unknown_final_observation=True)
    assert make(unit="episode")(single) == [single]


def test_final_goal_of_transitions_matches_hand_computed_copies():
    copies = make(keep_original=False)(Episode(make_steps([0, 1, 2, 3]), 0))
    assert describe(copies) == [
        ([0, 1], [3, 3], [-1, 0], [0.9, 0.9], False),
        ([1, 2], [3, 3], [-1, 0], [0.9, 0.9], False),
        ([2, 3], [3, 3], [0, 0], [0.9, 0.9], False),
    ]


def test_terminal_fn_ends_copies_at_the_first_success():
    """The positions reach 1 twice; the copy with the final goal 1 ends at the first visit, with the discount 0."""
    (copy,) = make(unit="episode", terminal_fn=is_reached, keep_original=False)(Episode(make_steps([0, 1, 2, 1]), 0))
    assert describe([copy]) == [([0, 1], [1, 1], [0, 0], [0, 0], True)]
    copies = make(terminal_fn=is_reached, keep_original=False)(Episode(make_steps([0, 1, 2, 1]), 0))
    assert [part[3:] for part in describe(copies)] == [([0, 0], True), ([0.9, 0.9], False), ([0, 0], True)]


def test_recorded_terminal_becomes_a_truncation_if_the_new_goal_is_not_reached():
    def never(achieved, desired, transitions):
        assert transitions["is_terminal"].tolist() == [False, False, True]
        assert transitions["next_observation"]["state"][:, 0].tolist() == [10, 20, 30]
        assert transitions["action"].tolist() == [10, 11, 12] and transitions["reward"].tolist() == [-1] * 3
        return np.zeros(3, bool)

    steps = make_steps([0, 1, 2, 3], terminal=True)
    (copy,) = make(unit="episode", terminal_fn=never, keep_original=False)(Episode(steps, 0))
    assert describe([copy])[0][3:] == ([0.9] * 4, False)
    (kept,) = make(unit="episode", keep_original=False)(Episode(steps, 0))
    assert describe([kept])[0][3:] == ([0.9, 0.9, 0, 0], True)
    (short,) = make(terminal_fn=lambda *_: [False], keep_original=False)(Episode(make_steps([0, 1], terminal=True), 0))
    assert describe([short])[0][3:] == ([1, 1], False)


def test_future_copies_of_episodes_end_with_their_goal():
    copies = make("future", unit="episode", num_goals=200, keep_original=False)(Episode(make_steps([0, 1, 2, 3]), 0))
    ends = [part[0][-1] for part in describe(copies)]
    assert all(part[0] == list(range(int(end) + 1)) for part, end in zip(describe(copies), ends, strict=True))
    assert all(set(part[1]) == {part[0][-1]} and part[2][-2] == 0 for part in describe(copies))
    assert all(50 < ends.count(end) < 85 for end in (1, 2, 3))


@pytest.mark.slow
def test_goals_of_transitions_are_uniform_among_later_or_all_steps():
    def count(strategy):
        copies = make(strategy, num_goals=600, keep_original=False)(Episode(make_steps([0, 1, 2, 3]), 0))
        pairs = [(part[0][0], part[1][0]) for part in describe(copies)]
        return {pair: pairs.count(pair) for pair in set(pairs)}

    future = count("future")
    assert set(future) == {(t, goal) for t in range(3) for goal in range(t + 1, 4)}
    assert all(abs(number - 600 / (3 - t)) < 60 for (t, _), number in future.items())
    anywhere = count("episode")
    assert set(anywhere) == {(t, goal) for t in range(3) for goal in range(4)}
    assert all(abs(number - 150) < 45 for number in anywhere.values())


def slow_copies(relabel, steps, number):
    """Returns the copies of an episode, step by step."""
    goals_now = steps["observation"]["goals"]["now"]
    starts, ends, goals = relabel.choose_segments(len(goals_now) - 1, np.random.default_rng((relabel.seed, number)))
    copies = []
    for start, end, goal in zip(starts, ends, goals, strict=True):
        rows = []
        for t in range(start, end + 1):
            row = {
                "observation": {
                    "state": steps["observation"]["state"][t],
                    "goals": {"now": goals_now[t], "wanted": goals_now[goal]},
                },
                "action": steps["action"][t],
                "reward": np.float32(0),
                "discount": steps["discount"][t],
                "is_first": np.bool_(t == start),
                "is_last": np.bool_(t == end),
                "is_terminal": np.bool_(False),
                "extra": steps["extra"][t],
            }
            if steps["is_terminal"][-1] and t >= len(goals_now) - 2:
                row["discount"] = steps["discount"][-3] if len(goals_now) > 2 else np.float32(1)
            rows.append(row)
            if t == start:
                continue
            distance = abs(float(goals_now[t, 0]) - float(goals_now[goal, 0]))
            rows[-2]["reward"] = sparse_reward(goals_now[t][None], goals_now[goal][None], None)[0]
            if distance <= 0.5 if relabel.terminal_fn else steps["is_terminal"][t]:
                rows[-2]["discount"] = rows[-1]["discount"] = np.float32(0)
                rows[-1]["is_terminal"] = rows[-1]["is_last"] = np.bool_(True)
                break
        copies.append(tf.nest.map_structure(lambda *values: np.stack(values), *rows))
    return copies


@examples(100)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.sampled_from(["final", "future", "episode"]),
    st.sampled_from(["transition", "episode"]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_copies_match_the_naive_loop(positions, strategy, unit, num_goals, ends, terminal, seed):
    relabel = make(
        strategy, num_goals=num_goals, unit=unit, terminal_fn=is_reached if ends else None, seed=seed,
        keep_original=False,
    )  # fmt: skip
    steps = make_steps(positions, terminal=terminal and len(positions) > 1)
    before = tf.nest.map_structure(np.copy, steps)
    copies = relabel(Episode(steps, 5))
    expected = slow_copies(relabel, steps, 0)
    assert len(copies) == len(expected)
    size = 1 if strategy == "final" else num_goals
    assert len(copies) == (len(positions) > 1) * size * (len(positions) - 1 if unit == "transition" else 1)
    for copy, slow in zip(copies, expected, strict=True):
        assert not find_errors(copy)
        assert_equal_nests(copy.steps, slow)
    assert_equal_nests(steps, before)
    assert_equal_nests([copy.steps for copy in relabel(Episode(steps, 5))], [copy.steps for copy in copies])


def make_source(num_episodes=3):
    steps = [make_steps(np.arange(length + 2) % 4, terminal=length % 2 > 0) for length in range(num_episodes)]
    return load(steps)


@pytest.mark.parametrize("unit", mark_slow_except({"episode"}, ["transition", "episode"]))
def test_source_becomes_a_source_of_relabelled_episodes(unit):
    relabel, source = make("future", unit=unit, num_goals=2, seed=3), make_source()
    made = list(relabel(source))
    assert [episode.index for episode in made] == list(range(len(made)))
    assert relabel(source).step_spec == source.step_spec
    assert len(made) == 3 + (12 if unit == "transition" else 6)
    for episode, again in zip(made, relabel(load(source.to_rlds(), last_step="boundary")), strict=True):
        assert_equal_nests(episode.steps, again.steps)
    other = [episode.steps["observation"]["goals"]["wanted"].tolist() for episode in make("future", seed=4)(source)]
    assert other != [episode.steps["observation"]["goals"]["wanted"].tolist() for episode in made]


@pytest.mark.slow
def test_items_of_a_dataset_have_one_goal():
    relabel, source = make("future", unit="episode", num_goals=2), make_source()
    items = list(relabel(source).to_rlds().apply(NStep(2, 0.99)).as_numpy_iterator())
    assert len(items) == check_adder(NStep(2, 0.99), relabel(source))
    for item in items:
        goals, following = item["observation"]["goals"], item["next_observation"]["goals"]
        assert goals["wanted"] == following["wanted"]


def test_ingested_source_has_an_item_for_each_transition_and_goal(tmp_path):
    report = ingest(make("episode", num_goals=4)(make_source()), str(tmp_path / "out"), adder=NStep(1, 0.99))
    assert (report.items, report.episodes) == (6 * 5, 3 + 6 * 4)


def test_empty_and_single_step_episodes_have_no_copies():
    empty = tf.nest.map_structure(lambda column: column[:0], make_steps([0, 1]))
    single = make_steps([0])
    assert make()(Episode(empty, 0)) == [] and len(make()(Episode(single, 0))) == 1
    assert make(keep_original=False)(Episode(single, 0)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "random"}, "strategy must be one of 'final', 'future', 'episode', got 'random'"),
        ({"unit": "step"}, "unit must be one of 'transition', 'episode', got 'step'"),
        ({"num_goals": 0}, "num_goals must be an integer >= 1, got 0"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
    ],
)
def test_out_of_range_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_goals_and_functions_that_do_not_fit_raise():
    source = make_source()
    with pytest.raises(
        ValueError, match="there is no path 'desired_goal' in the observation, which has the paths 'state', 'goals'"
    ):
        make(desired_goal="desired_goal")(source)
    with pytest.raises(ValueError, match="the goal 'goals' must be one array, got a nest"):
        make(desired_goal="goals")(source)
    steps = make_steps([0, 1])
    steps["observation"]["goals"]["wanted"] = np.zeros((2, 3), np.float32)
    with pytest.raises(
        ValueError, match=r"same shape, but 'goals.now' is float32 \[1\], and 'goals.wanted' is float32 \[3\]"
    ):
        make()(load([steps]))
    wrong = GoalRelabel(lambda achieved, *_: achieved, achieved_goal="goals.now", desired_goal="goals.wanted")
    with pytest.raises(
        ValueError, match=r"reward_fn must return one value per transition, shape \(4,\), got shape \(4, 1\)"
    ):
        wrong(source.first_episode)
    with pytest.raises(ValueError, match="GoalRelabel requires one reward per step, got float32"):
        make()(Episode({**make_steps([0, 1]), "reward": np.zeros((2, 2), np.float32)}, 0))
    with pytest.raises(TypeError, match="expected a Source or an Episode, got a list; open it with load"):
        make()([1])
