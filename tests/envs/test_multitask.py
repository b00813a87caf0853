"""Several tasks in one environment, and their curriculum."""

import numpy as np
import pytest
from counting import Counting
from gymnasium.spaces import Dict

from rlds2reverb.envs import (
    BatchedEnvironment,
    Curriculum,
    GymnasiumEnvironment,
    Multitask,
    ParallelEnvironment,
    TaskProgress,
    suite_gym,
)
from rlds2reverb.errors import SpecMismatchError


def counting(length, **options):
    return GymnasiumEnvironment(Counting(length), **options)


def make_tasks(lengths=(2, 3), **options):
    return Multitask([counting(length) for length in lengths], **options)


def make_with_dicts():
    env = Counting(2)
    env.action_space = Dict(a=env.action_space)
    return Multitask([GymnasiumEnvironment(env)], selection="cycle")


def choose(task, action=1):
    return {"task_id": np.int64(task), "action": np.int64(action)}


def play(env, actions):
    return [env.step(action) for action in actions]


def read_tasks(steps):
    return [(int(step.step_type), int(step.env_info["task_id"])) for step in steps]


def test_action_that_starts_an_episode_selects_its_task():
    env = make_tasks(task_names=["short", "long"])
    assert env.task_names == ("short", "long") and env.num_tasks == 2
    steps = play(env, [choose(1), *[choose(1)] * 3, choose(0), choose(0), choose(1)])
    assert read_tasks(steps) == [(0, 1), (1, 1), (1, 1), (2, 1), (0, 0), (1, 0), (2, 0)]
    assert steps[3].prev_action == choose(1) and steps[3].discount == 0
    # A different task in the middle of an episode, as at the end of the last one, starts with the next episode.
    assert read_tasks([env.reset()]) == [(0, 1)] and env.task_id == 1
    env.select_task(0)
    assert read_tasks([env.reset()]) == [(0, 0)]
    with pytest.raises(ValueError, match="task_id must be an integer from 0 to 1, got 2"):
        env.select_task(2)
    with pytest.raises(ValueError, match=r"action\['task_id'\] must be in \[0, 1\], got 7"):
        env.step(choose(7))


def test_tasks_are_random_or_cycle_and_are_observed():
    steps = play(make_tasks((1, 1, 1), selection="cycle", observe_task=True), [1] * 8)
    assert [step.observation["task_id"] for step in steps] == [0, 0, 1, 1, 2, 2, 0, 0]
    assert steps[1].untransformed.observation.tolist() == [1, 1] and steps[1].prev_action == 1
    env = make_tasks((1, 1, 1), selection="random")
    env.seed(3)
    tasks = [int(step.env_info["task_id"]) for step in play(env, [1] * 60)][::2]
    assert set(tasks) == {0, 1, 2}
    env.seed(3)
    assert [int(env.reset().env_info["task_id"]) for _ in range(30)] == tasks


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Multitask([]), ValueError, "envs must contain at least one environment, got none"),
        (lambda: make_tasks(task_names=["a", "a"]), ValueError, r"task_names must be 2 different names, .* got \['a', 'a'\]"),
        (lambda: make_tasks(selection="first"), ValueError, "selection must be one of 'action', 'random', 'cycle'"),
        (
            lambda: Multitask([counting(2), suite_gym.load("Pendulum-v1")]),
            SpecMismatchError,
            "observation is .* in environment 0, but .* in environment 1",
        ),
        (lambda: Multitask([make_tasks()]), ValueError, "env_info must not have the field 'task_id', which Multitask adds"),
        *((lambda make=make: Curriculum(make()), TypeError, "Curriculum requires a Multitask with selection='action', got act")
          for make in (lambda: counting(2), make_with_dicts)),
        (lambda: Curriculum(make_tasks(), task_names=["a"]), ValueError, "task_names must be 2 different names"),
        (lambda: Curriculum(make_tasks(), progress_favor=0.5), ValueError, r"progress_favor must be a number in \[1, inf\]"),
        (lambda: TaskProgress(2, past_score_update_rate=1.0), ValueError, "past_score_update_rate must be a number in"),
        (lambda: TaskProgress(2, past_score_update_rate=0), ValueError, "past_score_update_rate must be above 0"),
    ],
)  # fmt: skip
def test_invalid_arguments_raise(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_probabilities_match_hand_computed_ones():
    """Checks that with rates 1/2 and 1/4, returns 8 and 16 average to 10 / (3/4) = 40/3 and 5.5 / (7/16) = 88/7."""
    progress = TaskProgress(
        3, progress_favor=10, current_score_update_rate=0.5, past_score_update_rate=0.25, warmup_period=1
    )
    progress.add(0, 8.0, 4)
    np.testing.assert_allclose(progress.probabilities, [1 / 3] * 3)  # The first score is no progress.
    progress.add(0, 16.0, 4)
    assert progress.scores == pytest.approx([40 / 3, 0, 0]) and progress.counts.tolist() == [2, 0, 0]
    favor = 10 ** (2 / 3)  # 2 of 3 episodes of the warm-up
    np.testing.assert_allclose(progress.probabilities, np.array([favor, 1, 1]) / (favor + 2))
    progress.add(1, 0.0, 1)
    np.testing.assert_allclose(progress.probabilities, np.array([10, 1, 1]) / 12)
    # Task 1 goes from 0 to 6 in 1 step: (3 / 0.75 - 1.5 / 0.4375) / 1 = 4/7; task 0: (40/3 - 88/7) / 4 = 4/21.
    progress.add(1, 6.0, 1)
    expected = 10 ** np.array([1 / 3, 1, 0])
    np.testing.assert_allclose(progress.probabilities, expected / expected.sum(), rtol=1e-6)


def test_curriculum_prefers_tasks_with_progress():
    class Improving(Counting):
        """Its rewards grow with each episode."""

        num_episodes = 0

        def reset(self, **options):
            self.num_episodes += 1
            return super().reset(**options)

        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float(self.num_episodes), *rest

    tasks = Multitask([counting(1), GymnasiumEnvironment(Improving(1))], task_names=["known", "new"])
    env = Curriculum(tasks, current_score_update_rate=0.1, past_score_update_rate=0.05, warmup_period=5)
    env.seed(0)
    assert env.action_spec() == counting(1).action_spec()
    steps = play(env, [1] * 400)
    ends = [step for step in steps if step.step_type == 2]
    counts = [float(ends[-1].env_info["curriculum_task_count"][name]) for name in ("known", "new")]
    assert sum(counts) == len(ends) == 200 and counts[1] > 3 * counts[0]
    assert env.progress.probabilities[1] == pytest.approx(10 / 11)
    assert ends[-1].env_info["curriculum_task_prob"]["new"] == np.float32(env.progress.probabilities[1])
    assert ends[-1].env_info["curriculum_task_score"]["known"] == 10
    assert steps[0].env_info["curriculum_task_count"] == {"known": 0, "new": 0} and steps[1].prev_action == 1


def test_curriculum_of_a_batch_counts_the_episodes_of_all_environments():
    constructors = [make_tasks, make_tasks]
    env = Curriculum(BatchedEnvironment([make() for make in constructors]), task_names=["a", "b"])
    env.seed(1)
    steps = play(env, [np.ones(2, int)] * 40)
    ends = sum(int(np.sum(step.step_type == 2)) for step in steps)
    assert env.progress.counts.sum() == ends > 15 and min(env.progress.counts) > 0
    for step in steps:
        shown = step.env_info["curriculum_task_prob"]["a"]
        assert np.array_equal(shown > 0, step.step_type == 2)
    # Task a has the return 10 + 11 in 2 steps, task b 10 + 11 + 12 in 3.
    assert env.progress.scores == pytest.approx([21, 33])


@pytest.mark.slow
def test_curriculum_of_parallel_environments_equals_that_of_a_batch():
    with Curriculum(ParallelEnvironment([make_tasks] * 3)) as one:
        other = Curriculum(BatchedEnvironment([make_tasks() for _ in range(3)]))
        for env in (one, other):
            env.seed(5)
        for first, second in zip(play(one, [np.ones(3, int)] * 60), play(other, [np.ones(3, int)] * 60), strict=True):
            for name in ("step_type", "reward", "prev_action"):
                assert np.array_equal(getattr(first, name), getattr(second, name))
            assert np.array_equal(first.env_info["task_id"], second.env_info["task_id"])
