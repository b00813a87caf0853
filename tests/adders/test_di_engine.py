"""Tests of DI-engine's `Adder`: hand-computed results, slow loops, and arguments that stay unmodified."""

import copy
import math
import re
from collections import deque

import numpy as np
import pytest
import tree
from reference_impls import assert_equal_nests, slow_gae, transitions

from rlds2reverb.adders.di_engine import Adder


def get_column(data, key):
    """Returns a field of all transitions as lists."""
    return [np.asarray(transition[key]).tolist() for transition in data]


default_gae = Adder.get_gae_with_default_last_value


# get_traj


def take_all(data, *arguments):
    """Takes trajectories until no transition is left."""
    out = []
    while data:
        out.append(Adder.get_traj(data, *arguments))
    return out


def test_trajectories_overlap_by_return_num():
    assert take_all(deque(range(10)), 4, 2) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]
    assert take_all(deque(range(10)), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # After the first trajectory only one transition is left, so only one is put back.
    assert take_all(deque(range(5)), 4, 3) == [[0, 1, 2, 3], [3, 4]]


def test_infinite_traj_len_takes_all_transitions():
    assert take_all(deque(range(5)), math.inf) == take_all(deque(range(5)), math.inf, 2) == [[0, 1, 2, 3, 4]]
    assert Adder.get_traj(deque(), 4) == Adder.get_traj(deque(), math.inf) == []


def test_get_traj_keeps_transitions_of_an_unfinished_episode():
    data = deque(transitions(4))
    assert get_column(Adder.get_traj(data, 4, 1), "action") == [0, 1, 2, 3]
    assert get_column(data, "action") == [3]
    data.extend(transitions(7)[4:])
    assert get_column(Adder.get_traj(data, 4, 1), "action") == [3, 4, 5, 6]
    assert get_column(Adder.get_traj(deque(transitions(4)), 5, 1), "action") == [0, 1, 2, 3]


@pytest.mark.parametrize("end", ["done", "truncated"])
def test_get_traj_keeps_no_transitions_of_a_finished_episode(end):
    data = deque(transitions(4, **{end: {3}}))
    Adder.get_traj(data, 4, 2)
    assert not data


def test_get_traj_raises_for_a_list():
    with pytest.raises(TypeError, match="^data must be a deque, got list$"):
        Adder.get_traj([1, 2], 4)


# get_gae


def expected_gae(data, last_value, gamma, gae_lambda, next_values=None):
    """Returns the advantages of the slow loop, `[T, A]`, computed for one agent at a time."""
    done, truncated = np.array(get_column(data, "done")), np.array(get_column(data, "truncated"))
    values = np.array(get_column(data, "value")).reshape(len(data), -1)
    rewards = np.array(get_column(data, "reward")).reshape(len(data), -1) * np.ones_like(values)
    if next_values is None:
        next_values = np.concatenate([values[1:], np.ones_like(values[:1]) * last_value])
    arguments = (rewards, values, np.asarray(next_values).reshape(values.shape))
    per_agent = [
        slow_gae(reward, gamma * ~done, value, after, done | truncated, gae_lambda)
        for reward, value, after in zip(*(array.T for array in arguments), strict=True)
    ]
    return np.stack(per_agent, 1)


def assert_gae(got, data, expected):
    assert type(got) is list and [list(transition)[-1] for transition in got] == ["adv"] * len(expected)
    adv = np.array(get_column(got, "adv"))
    assert adv.shape == np.array(get_column(data, "value"))[: len(got)].shape
    np.testing.assert_allclose(adv.reshape(expected.shape), expected, rtol=1e-5)
    assert_equal_nests([{k: v for k, v in step.items() if k != "adv"} for step in got], list(data)[: len(got)])


def test_get_gae_matches_hand_computed_values():
    # The deltas are 1 + 6/2 - 4 = 0, 2 + 8/2 - 6 = 0, and 3 + 14/2 - 8 = 2 with last value 14; the weight is 1/4.
    assert get_column(Adder.get_gae(transitions(3), 14, 0.5, 0.5), "adv") == [0.125, 0.5, 2]
    # The last transition is done: 3 - 8 = -5, whatever the last value.
    assert get_column(Adder.get_gae(transitions(3, done={2}), 14, 0.5, 0.5), "adv") == [-0.3125, -1.25, -5]


@pytest.mark.parametrize("kind", [list, deque, tuple])
@pytest.mark.parametrize(("agents", "agent_rewards"), [((), False), ((3,), False), ((3,), True), ((1,), True)])
@pytest.mark.parametrize("done", [(), (1,), (1, 4), (0, 1, 2, 3, 4)])
def test_get_gae_matches_the_slow_loop(kind, agents, agent_rewards, done):
    data = kind(transitions(5, done=done, agents=agents, agent_rewards=agent_rewards))
    last_value = np.full(agents, 20, np.float32)
    assert_gae(Adder.get_gae(data, last_value, 0.9, 0.8), data, expected_gae(data, 20, 0.9, 0.8))


@pytest.mark.parametrize("agents", [(), (2,)])
def test_get_gae_bootstraps_at_a_truncation_inside_the_trajectory(agents):
    data = transitions(5, done={4}, truncated={2}, agents=agents)
    after = np.arange(5 * math.prod(agents), dtype=np.float32).reshape(5, *agents) + 30
    got = Adder.get_gae(data, None, 0.9, 0.8, next_values=after)
    assert_gae(got, data, expected_gae(data, None, 0.9, 0.8, after))
    np.testing.assert_allclose(got[2]["adv"], data[2]["reward"] + 0.9 * after[2] - data[2]["value"], rtol=1e-5)


def test_default_last_value_when_done_truncated_or_continuing():
    data = deque(transitions(4))
    assert_gae(default_gae(data, True, 0.9, 0.8), data, expected_gae(data, 0, 0.9, 0.8))
    truncated = default_gae(data, False, 0.9, 0.8, truncated=True, bootstrap_value=7.0)
    assert_gae(truncated, data, expected_gae(data, 7, 0.9, 0.8))
    # The episode continues: the value of the last transition, 10, follows the third.
    assert_gae(default_gae(data, False, 0.9, 0.8), data, expected_gae(list(data)[:3], 10, 0.9, 0.8))
    agents = transitions(3, agents=(2,))
    assert_gae(default_gae(agents, True, 0.9, 0.8), agents, expected_gae(agents, 0, 0.9, 0.8))


def test_truncated_last_transition_uses_bootstrap_value():
    data = transitions(3, truncated={2})
    assert_gae(default_gae(data, False, 0.9, 0.8, bootstrap_value=7.0), data, expected_gae(data, 7, 0.9, 0.8))


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_get_gae_accepts_numpy_numbers(number):
    data = transitions(3)
    assert_gae(Adder.get_gae(data, 1.0, number(0.5), number(0.25)), data, expected_gae(data, 1, 0.5, 0.25))


@pytest.mark.parametrize("key", ["value", "reward", "done"])
def test_get_gae_names_the_missing_key(key):
    without = {name: value for name, value in transitions(1)[0].items() if name != key}
    with pytest.raises(ValueError, match=f"^transition 1 must have the key '{key}', got "):
        Adder.get_gae([*transitions(1), without], 0, 0.9, 0.8)


# get_nstep_return_data


def test_n_step_matches_hand_computed_values():
    # T = 6, n = 3, gamma = 0.9: 0.729 for three steps, then 0.81 and 0.9 for the last two steps and the last one.
    got = Adder.get_nstep_return_data(deque(transitions(6)), 3, gamma=0.9)
    np.testing.assert_allclose(get_column(got, "value_gamma"), [0.729] * 4 + [0.81, 0.9])
    assert get_column(got, "reward") == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 0], [6, 0, 0]]
    assert [np.asarray(step["next_obs"]["state"])[0] for step in got[:3]] == [13, 14, 15]
    assert [step["next_obs"] for step in got[3:]] == [15.5] * 3  # No later obs exists, so this is the last next_obs.
    assert get_column(got, "action") == [0, 1, 2, 3, 4, 5] and get_column(got, "done") == [False] * 6


def test_n_step_rewards_are_summed_with_cum_reward():
    # gamma = 0.5: 1 + 2/2 + 3/4, 2 + 3/2 + 4/4, 3 + 4/2, 4.
    got = Adder.get_nstep_return_data(transitions(4, done={3}), 3, cum_reward=True, gamma=0.5)
    assert get_column(got, "reward") == [2.75, 4.5, 5, 4]
    assert get_column(got, "done") == [False, True, True, True]


@pytest.mark.parametrize("end", ["done", "truncated"])
def test_n_step_stops_at_an_end_inside_the_trajectory(end):
    got = Adder.get_nstep_return_data(transitions(5, **{end: {1}}), 3, gamma=0.5)
    assert get_column(got, "reward") == [[1, 2, 0], [2, 0, 0], [3, 4, 5], [4, 5, 0], [5, 0, 0]]
    assert get_column(got, "value_gamma") == [0.25, 0.5, 0.125, 0.25, 0.5]
    assert get_column(got, "done") == [end == "done"] * 2 + [False] * 3
    assert get_column(got, "next_obs") == [11.5, 11.5, 14.5, 14.5, 14.5]
    cumulated = Adder.get_nstep_return_data(transitions(5, **{end: {1}}), 3, cum_reward=True, gamma=0.5)
    assert get_column(cumulated, "reward") == [2, 2, 6.25, 6.5, 5]


def test_n_step_windows_end_with_the_trajectory():
    got = Adder.get_nstep_return_data(transitions(5), 2, 3, gamma=0.5)
    assert get_column(got, "value_gamma") == [0.25, 0.25, 0.5, 0.25, 0.5]
    assert get_column(got, "reward") == [[1, 2], [2, 3], [3, 0], [4, 5], [5, 0]]
    assert [got[at]["next_obs"] for at in (1, 2, 3, 4)] == [12.5, 12.5, 14.5, 14.5]


def test_n_step_supports_agent_rewards_and_missing_next_obs():
    data = [{"obs": t, "reward": np.array([t, 10 * t], np.float32), "done": False} for t in (1, 2)]
    got = Adder.get_nstep_return_data(data, 2, gamma=0.5)
    assert get_column(got, "reward") == [[[1, 10], [2, 20]], [[2, 20], [0, 0]]] and "next_obs" not in got[0]
    # gamma = 0.5: 1 + 2/2, 10 + 20/2; 2, 20.
    assert get_column(Adder.get_nstep_return_data(data, 2, cum_reward=True, gamma=0.5), "reward") == [[2, 20], [2, 20]]


def test_n_step_flattens_rewards_of_one_number():
    data = [{"obs": t, "reward": np.array([t], np.float32), "done": False} for t in (1, 2)]
    assert get_column(Adder.get_nstep_return_data(data, 2), "reward") == [[1, 2], [2, 0]]


def test_one_step_returns_the_data_unchanged():
    data = transitions(3)
    assert Adder.get_nstep_return_data(data, 1) is data


# get_train_sample

NULL = {**transitions(1)[0], "action": np.int64(-7)}


@pytest.mark.parametrize(
    ("length", "kind", "actions"),
    [
        (6, "drop", [[0, 1, 2], [3, 4, 5]]),
        (6, "last", [[0, 1, 2], [3, 4, 5]]),
        (6, "null_padding", [[0, 1, 2], [3, 4, 5]]),
        (5, "drop", [[0, 1, 2]]),
        (5, "last", [[0, 1, 2], [2, 3, 4]]),
        (5, "null_padding", [[0, 1, 2], [3, 4, None]]),
        (2, "drop", []),
        (2, "last", [[0, 1, None]]),
        (1, "null_padding", [[0, None, None]]),
    ],
)
@pytest.mark.parametrize("null", [None, NULL])
def test_chunks_match_hand_computed_steps(length, kind, actions, null):
    data = transitions(length)
    got = Adder.get_train_sample(data, 3, kind, null)
    assert_equal_nests(got, Adder(3, kind, null).get_train_sample(data))
    for chunk, expected in zip(got, actions, strict=True):
        zeros = tree.map_structure(np.zeros_like, data[0])
        filler = {**(null or zeros), "done": True, "reward": np.float32(0)}
        steps = [filler if at is None else data[at] for at in expected]
        assert_equal_nests(chunk["mask"], np.array([at is not None for at in expected]))
        for key in ("action", "reward", "done", "next_obs", "value"):
            assert_equal_nests(chunk[key], np.stack([step[key] for step in steps]))
        assert_equal_nests(chunk["obs"]["state"], np.stack([step["obs"]["state"] for step in steps]))
        assert_equal_nests(chunk["obs"]["image"], [np.stack([step["obs"]["image"][0] for step in steps])])


def test_null_padding_is_zero_in_all_fields():
    (_, last) = Adder.get_train_sample(transitions(5), 3, "null_padding")
    assert last["action"].tolist() == [3, 4, 0] and last["obs"]["state"].tolist() == [[13, 13], [14, 14], [0, 0]]
    assert last["next_obs"].tolist() == [13.5, 14.5, 0] and last["obs"]["image"][0].tolist() == [[3], [4], [0]]
    assert last["done"].tolist() == [False, False, True] and last["mask"].tolist() == [True, True, False]


def make_transitions_with(length, **values):
    """Returns transitions with additional fields, one value per transition."""
    return [{**step, **{name: row[t] for name, row in values.items()}} for t, step in enumerate(transitions(length))]


def test_none_is_replaced_with_zeros_if_other_transitions_have_values():
    """A recurrent policy has no state before the first step, and a random action has no logit."""
    state, logit = np.ones(2, np.float32), {"a": np.arange(2.0), "b": [np.int32(7)]}
    data = make_transitions_with(
        4, prev_state=[None, state, state, state], logit=[logit, None, None, None], nothing=[None] * 4
    )
    first, second = Adder.get_train_sample(data, 3, "null_padding")
    assert first["prev_state"].tolist() == [[0, 0], [1, 1], [1, 1]] and first["prev_state"].dtype == np.float32
    assert first["logit"]["a"].tolist() == [[0, 1], [0, 0], [0, 0]] and first["logit"]["b"][0].tolist() == [7, 0, 0]
    assert second["prev_state"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert second["logit"]["a"].tolist() == [[0, 0]] * 3 and second["logit"]["b"][0].dtype == np.int32
    assert first["nothing"] is None and second["nothing"] is None
    assert data[0]["prev_state"] is None and data[1]["logit"] is None
    parts = make_transitions_with(2, state=[{"h": None, "c": state}, {"h": state, "c": None}])
    (chunk,) = Adder.get_train_sample(parts, 2)
    assert chunk["state"]["h"].tolist() == [[0, 0], [1, 1]] and chunk["state"]["c"].tolist() == [[1, 1], [0, 0]]


def test_get_gae_without_done_assumes_a_continuing_episode():
    """DI-engine accepts transitions with only value and reward."""
    data = [{"value": step["value"], "reward": step["reward"]} for step in transitions(3)]
    assert get_column(Adder.get_gae(data, 14, 0.5, 0.5), "adv") == [0.125, 0.5, 2]
    assert get_column(default_gae(data, True, 0.5, 0.5), "adv") == get_column(Adder.get_gae(data, 0, 0.5, 0.5), "adv")


def test_unroll_len_one_returns_the_data_unchanged():
    data = transitions(3)
    assert Adder.get_train_sample(data, 1) is data and Adder(1).get_train_sample(data) is data


# Invalid arguments

LONE, TWO, CUT_INSIDE = transitions(1), transitions(2), transitions(3, truncated={1})
INVALID = [
    (lambda: Adder.get_traj(deque(TWO), 4, 5), "return_num must be at most traj_len, 4, got 5"),
    (lambda: Adder.get_traj(deque(TWO), 4, -1), "return_num must be an integer >= 0, got -1"),
    (lambda: Adder.get_traj(deque(TWO), 0), "traj_len must be an integer >= 1, got 0"),
    (lambda: Adder.get_traj(deque(TWO), 2.5), "traj_len must be an integer >= 1, got 2.5"),
    (lambda: default_gae(LONE, False, 0.9, 0.8), "the trajectory continues after its only transition"),
    (lambda: default_gae(TWO, False, 0.9, 0.8, truncated=True), "the trajectory is truncated; pass bootstrap_value"),
    (lambda: default_gae(CUT_INSIDE[:2], False, 0.9, 0.8), "the trajectory is truncated; pass bootstrap_value"),
    (lambda: default_gae(TWO, True, 0.9, -1), "gae_lambda must be a number in"),
    (lambda: Adder.get_gae(TWO, 0, 1.5, 0.8), "gamma must be a number in"),
    (lambda: Adder.get_gae(TWO, None, 0.9, 0.8), "pass last_value, the value after the last transition"),
    (lambda: Adder.get_gae([], 0, 0.9, 0.8), "data must contain at least one transition, got none"),
    (lambda: Adder.get_gae(CUT_INSIDE, 0, 0.9, 0.8), "a transition before the last is truncated; pass next_values"),
    (
        lambda: Adder.get_gae([{**LONE[0], "reward": np.ones(2)}], 0, 0.9, 0.8),
        "a reward must have one number or as many as a value, 1, got 2",
    ),
    (lambda: Adder.get_nstep_return_data(TWO, 0), "nstep must be an integer >= 1, got 0"),
    (lambda: Adder.get_nstep_return_data(TWO, 2, gamma=2.0), "gamma must be a number in"),
    (lambda: Adder.get_nstep_return_data(TWO, 2, 0), "traj_len must be an integer >= 1, got 0"),
    (lambda: Adder.get_nstep_return_data([], 2), "data must contain at least one transition, got none"),
    (
        lambda: Adder.get_nstep_return_data([{"obs": 0, "done": False}], 2),
        "transition 0 must have the key 'reward', got",
    ),
    (lambda: Adder.get_train_sample(TWO, 0), "unroll_len must be an integer >= 1, got 0"),
    (lambda: Adder(0), "unroll_len must be an integer >= 1, got 0"),
    (
        lambda: Adder.get_train_sample(TWO, 2, "zero"),
        "last_fn_type must be one of 'last', 'drop', 'null_padding', got 'zero'",
    ),
    (lambda: Adder(2, "zero"), "last_fn_type must be one of 'last', 'drop', 'null_padding', got 'zero'"),
    (lambda: Adder.get_train_sample([], 2), "data must contain at least one transition, got none"),
    (lambda: Adder.get_train_sample([*LONE, {"obs": 0}], 2), "transition 1 must have the fields of the first"),
    (
        lambda: Adder.get_train_sample(make_transitions_with(2, x=[{"a": 1}, {"b": 1}]), 2),
        "'x' must have the same nest in all transitions, got {'a': 1} and {'b': 1}",
    ),
    (
        lambda: Adder.get_gae([{**LONE[0], "value": None}], 0, 0.9, 0.8),
        "'value' of transition 0 must be a number or an array, got None",
    ),
]


@pytest.mark.parametrize(("call", "message"), INVALID, ids=[message for _, message in INVALID])
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


# The arguments are not modified

CALLS = {
    "get_gae": lambda data: Adder.get_gae(data, 1.0, 0.9, 0.8),
    "default done": lambda data: default_gae(data, True, 0.9, 0.8),
    "default continues": lambda data: default_gae(data, False, 0.9, 0.8),
    "n-step": lambda data: Adder.get_nstep_return_data(data, 3),
    "n-step sum": lambda data: Adder.get_nstep_return_data(data, 3, 2, cum_reward=True),
    "drop": lambda data: Adder.get_train_sample(data, 3, "drop"),
    "last": lambda data: Adder.get_train_sample(data, 3, "last"),
    "null_padding": lambda data: Adder.get_train_sample(data, 3, "null_padding"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", [list, deque])
def test_functions_do_not_modify_their_data(call, kind):
    data = kind(transitions(5, done={1}))
    before, members = copy.deepcopy(data), list(data)
    call(data)
    assert all(now is then for now, then in zip(data, members, strict=True))
    assert [list(step) for step in data] == [list(step) for step in before]
    assert_equal_nests(list(data), list(before))
