"""`check_wrapper`: all wrappers keep the contract, and wrong ones are found."""

import functools

import numpy as np
import pytest
from counting import Counting
from goal_reaching import LineWithLives, Nested, TwoRewards
from properties import mark_slow_except

import rlds2reverb.envs as envs
from rlds2reverb.envs import (
    ActionObservation,
    ActionRepeat,
    AtariTerminalOnLifeLoss,
    BatchDimension,
    BatchedEnvironment,
    Curriculum,
    DiscreteAction,
    GoalConditioning,
    GymnasiumEnvironment,
    Multitask,
    NonEpisodicAgent,
    ObservationNormalizer,
    PerformanceProfiler,
    RandomFirstEpisodeLength,
    ScalarReward,
    TemporallyCorrelatedNoise,
    TimeLimit,
    TimeStep,
    Wrapper,
    check_wrapper,
    suite_gym,
)
from rlds2reverb.envs.time_steps import keep_untransformed


def pendulum(max_episode_steps=7):
    return suite_gym.load("Pendulum-v1", max_episode_steps=max_episode_steps)


def counting(length=5, *, terminates=True):
    return GymnasiumEnvironment(Counting(length, terminates=terminates))


def set_goal(env):
    return GoalConditioning(
        env,
        lambda time_step, random: random.normal(size=1),
        lambda achieved, desired, _: -np.abs(achieved - desired)[:, 0],
        get_achieved_goal=lambda observation: observation[:1],
        terminal_fn=lambda achieved, desired, _: np.abs(achieved - desired)[:, 0] < 0.1,
    )


def make_tasks(selection="action", observe_task=False):
    return Multitask([pendulum(4), pendulum(6)], selection=selection, observe_task=observe_task)


#: All wrappers of the package, by class and a suffix.
WRAPPED = {
    "Wrapper": lambda: Wrapper(pendulum()),
    "TimeLimit": lambda: TimeLimit(pendulum(), 5),
    "TimeLimit of terminated episodes": lambda: TimeLimit(counting(5), 5),
    "ActionRepeat": lambda: ActionRepeat(pendulum(), 3),
    "NonEpisodicAgent": lambda: NonEpisodicAgent(counting(), 0.5),
    "RandomFirstEpisodeLength": lambda: RandomFirstEpisodeLength(counting(), 9, num_episodes=3),
    "ScalarReward": lambda: ScalarReward(TwoRewards(), [1.0, 2.0]),
    "ActionObservation": lambda: ActionObservation(pendulum()),
    "DiscreteAction": lambda: DiscreteAction(pendulum(), 3),
    "DiscreteAction of a batch": lambda: DiscreteAction(BatchedEnvironment([pendulum(5), pendulum()]), 3),
    "TemporallyCorrelatedNoise": lambda: TemporallyCorrelatedNoise(pendulum()),
    "AtariTerminalOnLifeLoss": lambda: AtariTerminalOnLifeLoss(
        GymnasiumEnvironment(LineWithLives(), info_fields=["lives"])
    ),
    "PerformanceProfiler": lambda: PerformanceProfiler(pendulum(), lambda profile: None, 10),
    "ObservationNormalizer": lambda: ObservationNormalizer(pendulum(), np.ones(3), [1, 2, np.inf]),
    "ObservationNormalizer of a nest": lambda: ObservationNormalizer(
        GymnasiumEnvironment(Nested()), {"robot": ({"joints": [0, 0.5]}, 0), "image": 0}, {"robot": ({"joints": [2, 3]},)},
        fields="robot.0",
    ),
    "GoalConditioning": lambda: set_goal(pendulum()),
    "Multitask": make_tasks,
    "Multitask at random": lambda: make_tasks("random", observe_task=True),
    "Multitask in cycles": lambda: make_tasks("cycle"),
    "Curriculum": lambda: Curriculum(make_tasks()),
    "Curriculum of a batch": lambda: Curriculum(BatchedEnvironment([make_tasks(), make_tasks()])),
    "BatchDimension": lambda: BatchDimension(counting()),
    "several": lambda: ActionObservation(DiscreteAction(TimeLimit(ActionRepeat(pendulum(), 2), 5), 3)),
    "ObservationNormalizer of a batch": lambda: ObservationNormalizer(
        ActionObservation(BatchDimension(pendulum())), {"observation": np.ones(3)}, {"observation": np.ones(3)}, fields="observation"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    mark_slow_except(
        [name for name in WRAPPED if not name.endswith((" of a batch", " at random", " in cycles"))], WRAPPED
    ),
)
def test_wrappers_keep_the_contract(name):
    check_wrapper(WRAPPED[name], num_steps=24)


def test_every_wrapper_is_checked():
    exported = [getattr(envs, name) for name in envs.__all__]
    wrappers = {part.__name__ for part in exported if isinstance(part, type) and issubclass(part, Wrapper)}
    wrappers -= {"GoalTasks"}  # Checked in test_goal_tasks.
    assert wrappers | {"BatchDimension", "Multitask"} <= {name.split(" ")[0] for name in WRAPPED}


class WithoutSpec(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return step._replace(observation=step.observation[:2], untransformed=step)


class WrongDtype(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return keep_untransformed(step, step._replace(observation=step.observation.astype(np.float64)))


class WrongRewardDtype(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return keep_untransformed(step, step._replace(reward=float(step.reward)))


class OtherTimeStepSpec(Wrapper):
    def time_step_spec(self):
        spec = super().time_step_spec()
        return spec._replace(observation={"observation": spec.observation})


class OutOfBounds(Wrapper):
    def _reset(self):
        step = super()._reset()
        return keep_untransformed(step, step._replace(observation=step.observation + np.float32(9)))


class HidesStarts(Wrapper):
    def _reset(self):
        return super()._reset()._replace(step_type=np.int32(1))


class HidesEnds(Wrapper):
    def _step(self, action):
        return super()._step(action)._replace(step_type=np.int32(1))


class TransformsSilently(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return step._replace(observation=step.observation * np.float32(0.5))


class ScalesRewardsSilently(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return step._replace(reward=step.reward * np.float32(0.5))


class LosesUntransformed(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        changed = step._replace(observation=step.observation * np.float32(0.5))
        return changed._replace(untransformed=changed)


class Unseeded(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return keep_untransformed(step, step._replace(reward=np.float32(np.random.default_rng().uniform())))


class TerminalMid(Wrapper):
    def _step(self, action) -> TimeStep:
        return super()._step(action)._replace(discount=np.float32(0))


class LosesTerminations(Wrapper):
    def _step(self, action):
        return super()._step(action)._replace(discount=np.float32(1))


class TerminatesAtTheTimeLimit(Wrapper):
    def _step(self, action):
        step = super()._step(action)
        return step._replace(discount=np.float32(0)) if step.step_type == 2 else step


class ForgetsActions(Wrapper):
    def _step(self, action):
        return super()._step(action * 0)


class ReusesArrays(Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.buffer = np.zeros(3, np.float32)

    def _step(self, action):
        step = super()._step(action)
        self.buffer[:] = step.observation
        return step._replace(observation=self.buffer)


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (WithoutSpec, r"observation of step 1 is float32 \[2\], its spec is float32 \[3\]"),
        (WrongDtype, r"observation of step 1 is float64 \[3\], its spec is float32 \[3\]"),
        (WrongRewardDtype, r"reward of step 1 is float64 \[\], its spec is float32 \[\]"),
        (
            OtherTimeStepSpec,
            r"observation is float32 \[3\].* in the environment's own spec, but nothing in time_step_spec",
        ),
        (OutOfBounds, "observation of step 0 is outside the bounds of its spec"),
        (HidesEnds, "step 6 is LAST in the wrapped environment, but not in the wrapper"),
        (HidesStarts, "step_type of step 0 must be FIRST"),
        (
            TransformsSilently,
            r"observation of step 1 was transformed, but untransformed is \(\); use keep_untransformed",
        ),
        (ScalesRewardsSilently, r"reward of step 1 was transformed, but untransformed is \(\)"),
        (LosesUntransformed, "untransformed of step 1 is not the time step before the first transformation"),
        (Unseeded, "reward of step 1 differs between two environments with the same seed"),
        (
            TerminalMid,
            "discount of step 1 is 0, which only LAST steps may have|step 1 is not terminated in the wrapped",
        ),
        (TerminatesAtTheTimeLimit, "step 6 is not terminated in the wrapped .* truncated episodes keep their discount"),
        (ForgetsActions, "prev_action of step 1 is not the action"),
        (ReusesArrays, "observation of step 1 changed after it was returned; return new arrays in each step"),
    ],
)
def test_check_wrapper_finds_violations(wrapper, message):
    with pytest.raises((AssertionError, envs.env_specs.SpecMismatchError), match=message):
        check_wrapper(lambda: wrapper(pendulum(6)), num_steps=20)


def test_check_wrapper_finds_lost_terminations_in_any_layer():
    with pytest.raises(
        AssertionError, match="step 5 is terminated in the wrapped environment, but the wrapper changed"
    ):
        check_wrapper(lambda: TimeLimit(LosesTerminations(counting(5)), 9), num_steps=20)


def test_check_wrapper_finds_violations_in_a_batch():
    with pytest.raises(AssertionError, match="prev_action of step 1 is not the action"):
        check_wrapper(lambda: BatchedEnvironment([pendulum(), ForgetsActions(pendulum())]), num_steps=9)
    check_wrapper(lambda: BatchedEnvironment([pendulum(5), pendulum()]), num_steps=20)


def test_check_wrapper_resets_environments_without_auto_reset():
    check_wrapper(lambda: GymnasiumEnvironment(Counting(4), auto_reset=False), num_steps=20)


def test_wrappers_of_single_environments_reject_batches():
    batch = BatchedEnvironment([counting()])
    for wrap in (
        functools.partial(ActionRepeat, times=2),
        functools.partial(RandomFirstEpisodeLength, max_length=2),
        functools.partial(TimeLimit, duration=2),
        TemporallyCorrelatedNoise,
        AtariTerminalOnLifeLoss,
        set_goal,
        lambda env: Multitask([env]),
        BatchDimension,
    ):
        with pytest.raises(TypeError, match="requires an environment that is not batched"):
            wrap(batch)
