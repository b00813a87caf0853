"""Faults of parallel environments, with real processes: each kind, at each time, survived or raised."""

import functools
import os
import signal
import warnings

import gymnasium
import internals
import numpy as np
import pytest
from counting import Counting
from process_resources import list_resources
from properties import mark_slow_except
from worker_environments import Faulty, Interrupted

from rlds2reverb.envs import EnvironmentFailedError, GymnasiumEnvironment, ParallelEnvironment
from rlds2reverb.envs.seeded_episodes import EpisodeProgress, SeededEpisodes, make_episode_seed

NUM_ENVS, FAILING = 4, 3


def make(place, kind, folder, **options):
    def construct(index):
        return GymnasiumEnvironment(Faulty(place, kind, folder) if index == FAILING else Counting(6))

    constructors = [functools.partial(construct, index) for index in range(NUM_ENVS)]
    timeouts = {"timeout_secs": 2.0, "construction_timeout_secs": 15.0} if kind == "hang" else {}
    return ParallelEnvironment(constructors, **timeouts, **options)


#: What the message contains, besides the environments.
REASONS = {"raise": "the simulator exploded", "kill": "SIGKILL", "hang": "in fail", "exit": "exit code 3"}
CASES = [
    (place, kind, on_failure, num_workers)
    for place in ("step", "reset", "construction")
    for kind in ("raise", "kill", "hang", "exit")
    for on_failure in ("restart", "raise")
    for num_workers in (2, NUM_ENVS)
]
#: Other faults have fast tests below and in test_parallel_environment.py.
FAST = {("construction", "raise", "restart", 2)}


@pytest.mark.parametrize(("place", "kind", "on_failure", "num_workers"), mark_slow_except(FAST, CASES))
@pytest.mark.drill("F19")
def test_fault_is_survived_or_raised(place, kind, on_failure, num_workers, tmp_path):
    before = list_resources(os.getpid())
    env = make(place, kind, tmp_path, on_failure=on_failure, num_workers=num_workers, caller_steps=False)
    steps, caught = [env.reset()], []
    reason = REASONS["kill" if place == "construction" and on_failure == "raise" else kind]
    if on_failure == "raise":
        with pytest.raises(EnvironmentFailedError, match=rf"(?s)environments? .*3.* failed:.*{reason}"):
            for _ in range(20):
                env.step(np.zeros(NUM_ENVS, int))
        with pytest.raises(RuntimeError, match="the environment is closed"):
            env.step(np.zeros(NUM_ENVS, int))
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps += [env.step(np.zeros(NUM_ENVS, int)) for _ in range(20)]
        env.close()
        messages = "".join(str(warning.message) for warning in caught)
        assert f"{FAILING} failed and started new episodes" in messages
        assert place == "construction" or reason in messages
        check_steps(steps, place, kind, num_workers)
    assert not list_resources(os.getpid()) - before  # Other tests may release theirs meanwhile.


def check_steps(steps, place, kind, num_workers):
    step_types = np.stack([step.step_type for step in steps])
    counts = np.stack([step.observation[:, 0] for step in steps])
    lost = [FAILING] if num_workers == NUM_ENVS or (kind == "raise" and place != "construction") else [2, FAILING]
    period = [0, 1, 2, 3, 4, 5, 6]
    for env in range(NUM_ENVS):
        if env in lost and place != "reset":  # The fourth step is lost, and a new episode follows.
            expected = [0, 1, 2, 3, 3, *period, *period][: len(steps)]
            assert step_types[4, env] == 2 and steps[4].discount[env] == 1 and steps[4].reward[env] == 0
            assert [bool(step.has_failed[env]) for step in steps] == [number == 4 for number in range(len(steps))]
        else:
            expected = [*period, *period, *period][: len(steps)]
            assert not any(step.has_failed[env] for step in steps)
        assert counts[: len(expected), env].tolist() == expected, env
    assert np.stack([step.discount for step in steps])[step_types != 2].all()
    np.testing.assert_array_equal(step_types[1:] == 0, step_types[:-1] == 2)


@pytest.mark.parametrize("kind", mark_slow_except({"exit"}, ["raise", "kill", "hang", "exit"]))
@pytest.mark.drill("F19")
def test_environment_that_cannot_be_started_is_named(kind, tmp_path):
    before = list_resources(os.getpid())
    with pytest.raises(EnvironmentFailedError, match=rf"(?s)environments 2 to 3 cannot be created.*{REASONS[kind]}"):
        make("start", kind, tmp_path, num_workers=2, caller_steps=False)
    assert not list_resources(os.getpid()) - before  # Other tests may release theirs meanwhile.


def test_environment_of_the_caller_that_cannot_be_created_again_closes_the_batch():
    def construct():
        if os.environ.get("RLDS2REVERB_TEST_BROKEN"):
            raise OSError("the license has expired")
        return GymnasiumEnvironment(Counting(failure="raise", fails_at=1))

    with pytest.MonkeyPatch.context() as patch:
        env = ParallelEnvironment([construct], num_workers=0)
        env.reset()
        patch.setenv("RLDS2REVERB_TEST_BROKEN", "1")
        with pytest.raises(EnvironmentFailedError, match=r"(?s)exploded.*license has expired.*environment 0 cannot be"):
            env.step(np.zeros(1, int))
    with pytest.raises(RuntimeError, match="the environment is closed"):
        env.reset()


def test_environment_that_is_created_again_has_a_different_seed():
    seeds = []

    class Recorded(Counting):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    construct = functools.partial(lambda: GymnasiumEnvironment(Recorded(failure="raise", fails_at=2)))
    with ParallelEnvironment([construct], num_workers=0, seed=5) as env:
        env.reset()
        env.step(np.zeros(1, int))
        with pytest.warns(RuntimeWarning, match="environment 0 failed"):
            env.step(np.zeros(1, int))
        env.step(np.zeros(1, int))
    assert len(seeds) == 2 and seeds[0] == 5 and seeds[1] not in (None, 5)


class Seeds(Counting):
    """Observes the seed of the episode, and fails as requested in one step of each episode."""

    observation_space = gymnasium.spaces.Box(0, 2**53, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        super().reset(seed=seed)
        return np.array([seed >> 16, seed & 0xFFFF]), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.array([self.seed >> 16, self.seed & 0xFFFF]), *rest


@pytest.mark.parametrize(("failure", "num_workers"), [("raise", 0), pytest.param("kill", 1, marks=pytest.mark.slow)])
def test_seeds_of_episodes_continue_after_failures_and_a_resumed_run(failure, num_workers):
    start = EpisodeProgress(7, (np.int64(0), np.int64(0)))  # As after a resumed run.

    def construct():
        return SeededEpisodes(GymnasiumEnvironment(Seeds(failure=failure, fails_at=4)), 5, 0, start=start)

    steps = []
    with ParallelEnvironment([construct], num_workers=num_workers, caller_steps=not num_workers) as env:
        steps.append(env.reset())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            steps += [env.step(np.zeros(1, int)) for _ in range(12)]
    step_types = [int(step.step_type[0]) for step in steps]
    assert step_types == [1, 1, 2, *[0, 1, 1, 1, 2] * 2]  # Only the first episode begins in the middle.
    assert [bool(step.has_failed[0]) for step in steps] == [step_type == 2 for step_type in step_types]
    seeds = [
        int(step.observation[0] @ [1 << 16, 1])
        for step, step_type in zip(steps, step_types, strict=True)
        if step_type == 2
    ]
    assert seeds == [make_episode_seed(5, 0, episode) for episode in (7, 8, 9)]


def test_environments_of_a_lost_worker_start_new_episodes_together_or_apart(tmp_path):
    def construct(length, place):
        env = Faulty(place, "kill", tmp_path)
        env.length = length
        return GymnasiumEnvironment(env)

    # The worker is lost in the reset of its first environment, in the middle of the second one's episode.
    constructors = [functools.partial(construct, 2, "reset"), functools.partial(construct, 9, "")]
    with ParallelEnvironment(constructors, num_workers=1, caller_steps=False) as env, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        steps = [env.reset(), *(env.step(np.zeros(2, int)) for _ in range(6))]
    assert np.stack([step.step_type for step in steps]).T.tolist() == [[0, 1, 2, 0, 1, 2, 0], [0, 1, 1, 2, 0, 1, 1]]
    assert np.stack([step.has_failed for step in steps])[:, 1].tolist() == [False] * 3 + [True] + [False] * 3


def test_environment_that_fails_in_every_first_step_raises():
    construct = functools.partial(lambda: GymnasiumEnvironment(Counting(failure="raise", fails_at=1)))
    with (
        ParallelEnvironment([construct], num_workers=0) as env,
        pytest.warns(RuntimeWarning, match="failed and started new episodes") as failures,
        pytest.raises(EnvironmentFailedError, match=r"(?s)environment 0 failed 4 times without a step.*exploded"),
    ):
        for _ in range(20):
            env.step(np.zeros(1, int))
    assert len(failures) == 3


def test_interrupted_step_is_followed_by_new_episodes():
    def construct(kind):
        return GymnasiumEnvironment(kind(20))

    constructors = [functools.partial(construct, kind) for kind in (Interrupted, Counting)]
    with ParallelEnvironment(constructors, num_workers=1) as env:
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            for _ in range(5):
                env.step(np.zeros(2, int))
        steps = [env.step(np.zeros(2, int)) for _ in range(3)]
        assert [step.step_type.tolist() for step in steps] == [[0, 0], [1, 1], [1, 1]]
        assert [step.observation[:, 0].tolist() for step in steps] == [[0, 0], [1, 1], [2, 2]]
        (worker,) = internals.get_workers(env)
    with pytest.raises(Exception, match="environment 1 has been stopped"):  # As after an interrupted restart.
        worker.wait(0.0, 0.0)


@pytest.mark.slow
@pytest.mark.drill("F19")
def test_worker_that_is_killed_while_idle_is_started_again():
    def construct():
        return GymnasiumEnvironment(Counting(20))

    with ParallelEnvironment([construct] * 2, num_workers=1) as env:
        env.reset()
        env.step(np.zeros(2, int))
        os.kill(internals.find_pid(internals.get_workers(env)[0]), signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="environment 1 failed"):
            step = env.step(np.zeros(2, int))
        assert step.step_type.tolist() == [1, 2] and step.observation[:, 0].tolist() == [2, 1]
