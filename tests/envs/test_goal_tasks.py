"""Environments with goals: the tasks of OGBench, and the desired goals of Gymnasium's goal environments."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from counting import Counting
from goal_reaching import Ring
from policies import FunctionPolicy
from properties import mark_slow_except
from tf_agents.specs import tensor_spec

from rlds2reverb.envs import Evaluator, GoalTasks, GymnasiumEnvironment, check_wrapper, record_episodes
from rlds2reverb.envs.creation import make_environment
from rlds2reverb.envs.goal_tasks import expects_goals
from rlds2reverb.errors import SpecMismatchError


class Reach(gymnasium.Env):
    """A goal environment of Gymnasium whose desired goal is the number of the episode."""

    place = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    names = ("observation", "achieved_goal", "desired_goal")
    observation_space = gymnasium.spaces.Dict(dict.fromkeys(names, place))
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    num_episodes = num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_episodes, self.num_steps = self.num_episodes + 1, 0
        return self.observe(), {}

    def step(self, action):
        self.num_steps += 1
        return self.observe(), 0.0, False, self.num_steps == 3, {}

    def observe(self):
        values = self.num_steps, 5, self.num_episodes
        return {name: np.array([value], np.float32) for name, value in zip(self.names, values, strict=True)}


def make_ring():
    return GoalTasks(GymnasiumEnvironment(Ring()))


def test_tasks_are_run_in_turn_and_their_goals_are_observed():
    env = make_ring()
    env.seed(3)
    for task in (4, 5, 1):
        steps = [env.reset(), env.step(np.float32([1]))]
        assert env.task_id == task
        start = 4 * task
        for step, cell in zip(steps, (start, start + 1), strict=True):
            np.testing.assert_allclose(step.observation["observation"], Ring.observe(cell), atol=1e-6)
            np.testing.assert_allclose(step.observation["goal"], Ring.observe(start - 5), atol=1e-6)
    check_wrapper(make_ring)


def test_desired_goals_are_observed():
    env = GoalTasks(GymnasiumEnvironment(Reach()))
    assert set(env.observation_spec()) == {"observation", "goal"} and env.task_id is None
    for episode in (1, 2):
        goals = [env.reset().observation["goal"], env.step(np.float32([0])).observation["goal"]]
        assert goals == [[episode], [episode]] and env.task_id is None


def test_environments_without_goals_raise():
    with pytest.raises(TypeError, match=r"requires the field 'desired_goal' in observations, or the tasks of an env"):
        GoalTasks(GymnasiumEnvironment(Counting(5)))


@pytest.mark.parametrize(("info", "got"), [({}, r"\[\]"), ({"goal": np.zeros(3)}, r"float32 \[3\]")])
def test_goals_that_do_not_match_raise(monkeypatch, info, got):
    monkeypatch.setattr(Ring, "reset", lambda self, seed=None, options=None: (np.zeros(2), info))
    with pytest.raises(
        SpecMismatchError, match=rf"info\['goal'\] of a reset with a task must be float32 \[2\], got {got}"
    ):
        make_ring().reset()


def test_evaluations_divide_episodes_over_tasks():
    """The policy knows the way to the goals of the first two tasks, and goes the wrong way otherwise."""
    known = Ring.observe(np.array([-1, 3])).astype(np.float32)

    def act(observation):
        distances = tf.reduce_max(tf.abs(observation["goal"][:, tf.newaxis] - known), axis=2)
        return tf.where(tf.reduce_min(distances, axis=1, keepdims=True) < 0.1, -1.0, 1.0)

    evaluator = Evaluator(Ring, num_episodes=10, max_episode_steps=8, with_goals=True)
    place, actions = tf.TensorSpec([2], tf.float32), tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    evaluation = evaluator.evaluate(FunctionPolicy({"observation": place, "goal": place}, actions, act))
    assert evaluation.tasks.tolist() == [1, 2, 3, 4, 5] * 2 and evaluation.success_rate == 0.4
    assert evaluation.success_rates == {1: 1, 2: 1, 3: 0, 4: 0, 5: 0}
    assert "success 40% (task 1: 100%, task 2: 100%, task 3: 0%" in str(evaluation)
    assert evaluation.as_dict()["success_rates"] == evaluation.success_rates


@pytest.mark.parametrize("num_envs", mark_slow_except({1}, [1, 2]))
def test_policies_with_goals_are_recorded_with_them(num_envs):
    place, actions = tf.TensorSpec([2], tf.float32), tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1)
    policy = FunctionPolicy(
        {"observation": place, "goal": place}, actions, lambda observation: observation["goal"][:, :1]
    )
    source = record_episodes(Ring, policy, num_episodes=6, num_envs=num_envs)
    assert source.env_spec is None and set(source.observation_space) == {"observation", "goal"}
    for episode in source:
        goals = episode.steps["observation"]["goal"]
        assert (goals == goals[0]).all()
        np.testing.assert_allclose(episode.steps["action"][:-1, 0], goals[:-1, 0], atol=1e-6)


def test_environments_that_show_their_goals_are_not_wrapped_again():
    env = make_ring()

    class Policy:
        time_step_spec = env.reset()._replace(observation=env.observation_spec())

    def make(made, policy):
        return make_environment(lambda: made, with_goals=expects_goals(policy))

    assert make(env, Policy()) is env and make(env.env, "random") is env.env
    assert isinstance(make(env.env, Policy()), GoalTasks)
