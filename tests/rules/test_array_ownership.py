"""The rule of ownership: user code may modify and reuse every array that it hands over or is handed.

Each place runs twice: with code that leaves all arrays alone, and with code that overwrites them. Nothing else differs.
"""

import functools
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
import tree

from rlds2reverb.envs import (
    ActionObservation,
    ActionRepeat,
    AtariTerminalOnLifeLoss,
    BatchedEnvironment,
    Curriculum,
    DiscreteAction,
    GoalConditioning,
    GymnasiumEnvironment,
    Multitask,
    ObservationNormalizer,
    ParallelEnvironment,
    ScalarReward,
    TemporallyCorrelatedNoise,
    ThreadEnvironment,
    TimeLimit,
    Wrapper,
    restart,
    to_gymnasium,
    to_py_environment,
    transition,
)
from rlds2reverb.envs.env_specs import sample_action
from rlds2reverb.types.ownership import copy_arrays

# Workers would take seconds to import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def overwrite(nest):
    for leaf in tree.flatten(nest):
        if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
            leaf[...] = 0 if leaf.dtype.kind in "biu" else 77


def make_line(is_hostile):
    """Returns a `gymnasium.Env` of a point on a line, whose class is sent to workers by value."""

    class Line(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        render_mode = "rgb_array"

        def __init__(self):
            self.buffers = np.zeros(2, np.float32), np.zeros(1), np.zeros(2), np.zeros((2, 2, 3), np.uint8)

        def fill(self, position):
            self.position = position
            buffers = self.buffers if is_hostile else tuple(map(np.copy, self.buffers))
            for buffer, value in zip(buffers, ([position, self.time], position, position, self.time), strict=True):
                buffer[:] = value
            self.frame = buffers[3]
            return buffers

        def reset(self, *, seed=None, options=None):
            self.time = 0
            observation, _, info, _ = self.fill(0.5)
            return observation, {"twice": info, "lives": 3}

        def step(self, action):
            self.time += 1
            observation, reward, info, _ = self.fill(self.position + float(action[0]))
            if is_hostile:
                action *= 0.5
            return observation, reward, self.time == 5, False, {"twice": info, "lives": 3 - self.time // 2}

        def render(self):
            return self.frame

    return Line()


def make_env(is_hostile):
    return GymnasiumEnvironment(make_line(is_hostile), info_fields=["twice", "lives"])


def make_batch(is_hostile, number=2):
    return BatchedEnvironment([make_env(is_hostile) for _ in range(number)])


def make_parallel(is_hostile, **options):
    return ParallelEnvironment([lambda: make_env(is_hostile)] * 2, **options)


def set_goal(is_hostile):
    def spoil(function):
        def call(*arguments):
            result = np.array(function(*arguments))
            if is_hostile:
                overwrite([argument for argument in arguments if not isinstance(argument, np.random.Generator)])
            return result

        return call

    return GoalConditioning(
        make_env(is_hostile),
        spoil(lambda time_step, random: time_step.observation[:1] + 2),
        spoil(lambda achieved, desired, step: (desired - achieved)[:, 0] + step["observation"][:, 0]),
        get_achieved_goal=spoil(lambda observation: observation[:1]),
        terminal_fn=spoil(lambda achieved, desired, step: step["next_observation"][:, 0] > desired[:, 0]),
    )


def normalize(is_hostile):
    mean, divisor = np.ones(2), np.full(2, 2.0)
    env = ObservationNormalizer(make_env(is_hostile), mean, divisor)
    if is_hostile:
        overwrite([mean, divisor])
    return env


def weight(is_hostile):
    class TwoRewards(GymnasiumEnvironment):
        def reward_spec(self):
            return self.observation_spec()

        def _reset(self):
            return restart(super()._reset().observation, self.action_spec(), reward_spec=self.reward_spec())

        def _step(self, action):
            step = super()._step(action)
            return transition(step.observation, action, step.observation)

    weights = np.array([1, 2], np.float32)
    env = ScalarReward(TwoRewards(make_line(is_hostile)), weights)
    if is_hostile:
        overwrite(weights)
    return env


def make_tasks(is_hostile):
    return Multitask([make_env(is_hostile) for _ in range(2)])


#: All places where environments exchange arrays with user code.
PLACES = {
    "one environment": make_env,
    "a batch of one": functools.partial(make_batch, number=1),
    "a batch": make_batch,
    "the caller's share": functools.partial(make_parallel, num_workers=0),
    "workers": functools.partial(make_parallel, num_workers=1, caller_steps=False),
    "a thread": lambda is_hostile: ThreadEnvironment(lambda: make_env(is_hostile)),
    "TF-Agents": lambda is_hostile: to_py_environment(make_env(is_hostile)),
    "TF-Agents with a batch": lambda is_hostile: to_py_environment(make_batch(is_hostile)),
    "Gymnasium": lambda is_hostile: GymnasiumEnvironment(to_gymnasium(make_env(is_hostile))),
    "TimeLimit": lambda is_hostile: TimeLimit(make_env(is_hostile), 3),
    "ActionRepeat": lambda is_hostile: ActionRepeat(make_env(is_hostile), 2),
    "ActionObservation": lambda is_hostile: ActionObservation(make_env(is_hostile)),
    "DiscreteAction": lambda is_hostile: DiscreteAction(make_env(is_hostile), 3),
    "DiscreteAction of a batch": lambda is_hostile: DiscreteAction(make_batch(is_hostile), 3),
    "a batch of DiscreteAction": lambda is_hostile: BatchedEnvironment([DiscreteAction(make_env(is_hostile), 3)] * 2),
    "TemporallyCorrelatedNoise": lambda is_hostile: TemporallyCorrelatedNoise(make_env(is_hostile)),
    "AtariTerminalOnLifeLoss": lambda is_hostile: AtariTerminalOnLifeLoss(make_env(is_hostile)),
    "GoalConditioning": set_goal,
    "ObservationNormalizer": normalize,
    "ScalarReward": weight,
    "Multitask": make_tasks,
    "Curriculum": lambda is_hostile: Curriculum(BatchedEnvironment([make_tasks(is_hostile) for _ in range(2)])),
}


def play(make, is_hostile, num_steps=13):
    """Returns copies of what an environment returned, made at once, and the actions."""
    env, random = make(is_hostile), np.random.default_rng(0)
    spec = (
        getattr(env, "env", env).action_spec() if env.__class__.__name__ == "AgentsEnvironment" else env.action_spec()
    )
    copies, time_step = [], env.reset()
    for _ in range(num_steps):
        copies.append(copy_arrays(tuple(time_step)))
        if is_hostile:
            overwrite(time_step)
        actions = [sample_action(spec, random) for _ in range(env.batch_size or 1)]
        action = tree.map_structure(lambda *rows: np.array(rows), *actions) if env.batched else actions[0]
        time_step = env.step(action)
        if is_hostile:
            overwrite(action)
    env.close()
    return copies


@pytest.mark.parametrize("place", PLACES)
def test_user_code_may_modify_and_reuse_all_arrays(place):
    polite, hostile = (play(PLACES[place], is_hostile) for is_hostile in (False, True))
    for number, steps in enumerate(zip(polite, hostile, strict=True)):
        expected, got = map(tree.flatten_with_path, steps)
        for (path, value), (_, other) in zip(expected, got, strict=True):
            np.testing.assert_array_equal(other, value, err_msg=f"{path} of step {number}")


class Braking(Wrapper):
    """Modifies its actions in place."""

    def _step(self, action):
        action *= 0
        return super()._step(action)


def test_environments_may_modify_their_actions():
    constructors = [lambda: Braking(GymnasiumEnvironment(make_line(is_hostile=False)))] * 2
    with ParallelEnvironment(constructors, num_workers=0) as env:
        env.reset()
        action = np.full((2, 1), 0.5, np.float32)
        np.testing.assert_array_equal(env.step(action).prev_action, action)


@pytest.mark.parametrize("place", ["one environment", "a batch", pytest.param("workers", marks=pytest.mark.slow)])
def test_frames_do_not_change_when_the_environment_reuses_its_array(place):
    with PLACES[place](is_hostile=True) as env:
        env.reset()
        frame = env.render()
        env.step(np.zeros((env.batch_size or 1, 1), np.float32) if env.batched else np.zeros(1, np.float32))
        assert frame.max() == 0 and env.render().max() == 1
