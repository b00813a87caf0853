"""Tests of episodes built from transitions, and of errors found in episodes."""

import numpy as np
import pytest
from reference_impls import episode

from rlds2reverb.errors import InvalidEpisodeError
from rlds2reverb.types.episodes import Episode, find_errors, from_transitions
from rlds2reverb.types.specs import make_step_spec

OBSERVATIONS = np.array([[10.0], [11.0], [12.0]], np.float32)
ACTIONS = np.array([1, 2, 3])
REWARDS = np.array([100.0, 101.0, 102.0])


def test_final_observation_becomes_the_last_step():
    steps = from_transitions(
        OBSERVATIONS, ACTIONS, rewards=REWARDS, terminated=True, final_observation=np.array([13.0], np.float32)
    )
    assert steps["observation"].reshape(-1).tolist() == [10, 11, 12, 13]
    assert steps["action"].tolist() == [1, 2, 3, 0]
    assert steps["reward"].tolist() == [100, 101, 102, 0]
    assert steps["discount"].tolist() == [1, 1, 0, 0]
    assert steps["is_first"].tolist() == [True, False, False, False]
    assert steps["is_last"].tolist() == steps["is_terminal"].tolist() == [False, False, False, True]
    assert steps["action"].dtype == ACTIONS.dtype and steps["discount"].dtype == np.float32


def test_observations_may_include_the_final_one():
    longer = np.concatenate([OBSERVATIONS, [[13.0]]]).astype(np.float32)
    expected = from_transitions(
        OBSERVATIONS, ACTIONS, rewards=REWARDS, terminated=False, final_observation=np.array([13.0], np.float32)
    )
    steps = from_transitions(longer, ACTIONS, rewards=REWARDS, terminated=False)
    for name, column in expected.items():
        np.testing.assert_array_equal(steps[name], column)


def test_truncated_episode_keeps_discount_one():
    steps = from_transitions(
        OBSERVATIONS, ACTIONS, rewards=REWARDS, terminated=False, final_observation=np.array([13.0], np.float32)
    )
    assert steps["discount"].tolist() == [1, 1, 1, 1]
    assert not steps["is_terminal"].any() and steps["is_last"].tolist() == [False, False, False, True]


def test_missing_final_observation_is_zero_or_ends_a_truncation_early():
    terminal = from_transitions(OBSERVATIONS, ACTIONS, rewards=REWARDS, terminated=True)
    assert terminal["observation"][-1].tolist() == [0.0] and terminal["discount"].tolist() == [1, 1, 0, 0]
    truncated = from_transitions(OBSERVATIONS, ACTIONS, rewards=REWARDS, terminated=False)
    assert len(truncated["reward"]) == 3 and truncated["is_last"].tolist() == [False, False, True]
    assert truncated["observation"].tolist() == OBSERVATIONS.tolist()


def test_nested_observations_and_extras_have_a_final_row():
    nested = {"a": OBSERVATIONS, "b": {"c": ACTIONS}}
    steps = from_transitions(
        nested,
        ACTIONS,
        rewards=REWARDS,
        terminated=False,
        final_observation={"a": np.array([13.0], np.float32), "b": {"c": np.array(4)}},
        extras={"qpos": OBSERVATIONS},
    )
    assert steps["observation"]["b"]["c"].tolist() == [1, 2, 3, 4]
    assert steps["qpos"].reshape(-1).tolist() == [10, 11, 12, 0]


def make_invalid_episode(name: str, step: int, value: object) -> Episode:
    steps = episode(4, terminal=True)
    steps[name] = steps[name].copy()
    steps[name][step] = value
    return Episode(steps, 7)


@pytest.mark.parametrize(
    ("name", "step", "value", "message"),
    [
        (
            "is_first",
            0,
            False,
            "Last step of an episode must be followed by a first step. is_first is not set on the first step",
        ),
        ("is_first", 2, True, "Mid step should not be followed by a first step. is_first is set inside"),
        ("is_last", 1, True, "Last step of an episode must be followed by a first step. is_last is set before"),
        ("is_last", 3, False, "Mid step should not be followed by a first step. is_last is not set on the last step"),
        ("is_terminal", 2, True, "Terminal step must be the last step of an episode."),
        ("discount", 1, 1.5, "The discount must be in [0, 1], got 1.5."),
        ("discount", 1, -0.5, "The discount must be in [0, 1], got -0.5."),
        ("discount", 1, np.nan, "step['discount'] holds NaN."),
        ("reward", 1, np.inf, "step['reward'] holds Inf."),
        ("observation", 3, np.nan, "step['observation'] holds NaN."),
        ("action", 3, -np.inf, "step['action'] holds Inf."),
    ],
)
def test_find_errors_reports_episode_step_and_field(name, step, value, message):
    errors = find_errors(make_invalid_episode(name, step, value))
    matching = [error for error in errors if error.message.startswith(message)]
    assert len(matching) == 1, errors
    assert (matching[0].episode, matching[0].step, matching[0].field) == (7, step, name)
    assert f"(episode 7, step {step}, field {name})" in str(matching[0])


def test_end_is_known_unless_the_last_transition_or_its_observation_is_missing():
    steps = episode(3, terminal=False)
    marks = ["dropped_last_transition", "unknown_final_observation"]
    assert Episode(steps, 0).is_end_known and Episode(steps, 0, unterminated=True).is_end_known
    assert not any(Episode(steps, 0, **{mark: True}).is_end_known for mark in marks)


def test_valid_episode_has_no_errors():
    assert find_errors(Episode(episode(3, terminal=True, nested=True), 0)) == []


def test_missing_steps_and_uneven_columns_are_errors():
    steps = episode(3, terminal=True)
    empty = {name: column[:0] for name, column in steps.items()}
    assert [str(error) for error in find_errors(Episode(empty, 2))] == [
        "The episode has no steps; remove or skip it. (episode 2, field steps)"
    ]
    uneven = Episode({**steps, "reward": steps["reward"][:2]}, 0)
    (error,) = find_errors(uneven)
    assert error.message.startswith("step['reward'] must have 3 rows like is_first, got 2")


def test_invalid_episode_error_names_one_error_and_counts_the_others():
    errors = find_errors(make_invalid_episode("is_first", 0, False)) * 3
    error = InvalidEpisodeError(errors)
    assert str(error) == f"{errors[0]}; and 2 more" and error.errors == errors


def test_different_spec_is_an_error():
    spec = make_step_spec(episode(2, terminal=False))
    other = episode(2, terminal=False)
    other["reward"] = other["reward"].astype(np.float64)
    (error,) = find_errors(Episode(other, 3), spec)
    assert "step['reward'] is float64 [], but the first episode (this is episode 3) expects float32 []" in error.message


def test_episode_counts_and_terminal_flag():
    terminal, truncated = Episode(episode(4, terminal=True), 0), Episode(episode(1, terminal=False), 1)
    assert (terminal.num_steps, terminal.num_transitions, terminal.is_terminal) == (4, 3, True)
    assert (truncated.num_steps, truncated.num_transitions, truncated.is_terminal) == (1, 0, False)
