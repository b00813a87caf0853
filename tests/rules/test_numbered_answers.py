"""The rule of answers: nobody gets the answer to another request, and an interrupted call leaves no half-made step."""

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

import gymnasium
import internals
import numpy as np
import pytest

from rlds2reverb.envs import (
    ActionRepeat,
    BatchedEnvironment,
    GymnasiumEnvironment,
    ParallelEnvironment,
    ThreadEnvironment,
    TimeLimit,
)
from rlds2reverb.envs._deadline_thread import DeadlineThread

LIMIT, INTERRUPTED_STEP = 6, 3


@pytest.fixture(autouse=True)
def _default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored where tests run in the background.
    yield
    signal.signal(signal.SIGINT, before)


def make_env(pid=None, place="step"):
    """Returns an environment that counts its steps, and interrupts a process once, during a call of one kind."""

    class Counter(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1000, 1000, (1,), np.float32)
        action_space = gymnasium.spaces.Box(-1000, 1000, (1,), np.float32)
        render_mode = "rgb_array"
        num_frames, is_done = 0, False

        def interrupt(self, where):
            if pid is not None and where == place and not self.is_done:
                self.is_done = True
                os.kill(pid, signal.SIGINT)
                time.sleep(0.2)

        def reset(self, *, seed=None, options=None):
            self.interrupt("reset")
            self.num_steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.num_steps += 1
            if self.num_steps == INTERRUPTED_STEP:
                self.interrupt("step")
            return np.full(1, self.num_steps, np.float32), float(action[0]), False, False, {}

        def render(self):
            self.num_frames += 1
            frame = np.full((1, 1, 3), self.num_frames, np.uint8)
            self.interrupt("render")
            return frame

    return TimeLimit(GymnasiumEnvironment(Counter()), LIMIT)


def make_batch(pid, place):
    return BatchedEnvironment([make_env(), make_env(pid, place)])


def make_parallel(pid, place, **options):
    return ParallelEnvironment([make_env, functools.partial(make_env, pid, place)], **options)


PLACES = {
    "one environment": make_env,
    "a repeated action": lambda pid, place: ActionRepeat(make_env(pid, place), 1),
    "a batch": make_batch,
    "a thread": lambda pid, place: ThreadEnvironment(lambda: make_env(pid, place)),
    "a batch in a thread": lambda pid, place: ThreadEnvironment(lambda: make_batch(pid, place)),
    "the caller's share": functools.partial(make_parallel, num_workers=0),
    "a worker": functools.partial(make_parallel, num_workers=1),
}


@pytest.mark.parametrize("place", PLACES)
def test_steps_are_complete_after_an_interrupted_call(place):
    with PLACES[place](os.getpid(), "step") as env:
        action = np.zeros((env.batch_size, 1) if env.batched else 1, np.float32)
        steps = [env.reset()]
        for _ in range(INTERRUPTED_STEP - 1):
            steps.append(env.step(action))
        with pytest.raises(KeyboardInterrupt):
            env.step(action)
        steps += [env.step(action) for _ in range(2 * LIMIT)]
    for before, after in itertools.pairwise(steps):
        counts, previous = after.observation[..., 0], before.observation[..., 0]
        is_first = after.step_type == 0
        np.testing.assert_array_equal(counts, np.where(is_first, 0, previous + 1))
        np.testing.assert_array_equal(after.step_type == 2, counts == LIMIT)
    assert np.all(steps[INTERRUPTED_STEP].step_type == 0)


def test_interrupted_call_without_auto_reset_requires_a_reset():
    gym = make_env(os.getpid()).gym
    env = GymnasiumEnvironment(gym, auto_reset=False)
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(INTERRUPTED_STEP):
            env.step(np.zeros(1, np.float32))
    with pytest.raises(RuntimeError, match=r"the episode was interrupted; call reset\(\)"):
        env.step(np.zeros(1, np.float32))
    assert env.reset().step_type == 0


@pytest.mark.parametrize("name", [internals.RECV, pytest.param(internals.SEND, marks=pytest.mark.slow)])
def test_interrupted_message_is_complete(monkeypatch, name):
    with ParallelEnvironment([make_env, make_env], num_workers=2, caller_steps=False) as env:
        env.reset()
        transfer = getattr(Connection, name)

        def interrupt(*arguments):
            monkeypatch.undo()
            result = transfer(*arguments)
            signal.raise_signal(signal.SIGINT)
            return result

        monkeypatch.setattr(Connection, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.render()
        assert env.render().shape == (1, 1, 3)
        assert (env.step(np.zeros((2, 1), np.float32)).observation == 1).all()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_frames_are_new_after_an_interrupted_call(num_workers):
    constructors = [functools.partial(make_env, os.getpid(), "render"), make_env]
    with ParallelEnvironment(constructors, num_workers=num_workers, caller_steps=not num_workers) as env:
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            env.render()
        env.seed(3)
        assert [int(env.render().max()) for _ in range(2)] == [2, 3]
        assert env.step(np.zeros((2, 1), np.float32)).observation.tolist() == [[1], [1]]


def test_frames_and_the_end_wait_for_the_step_of_a_different_thread():
    started, steps = threading.Event(), []

    def make_slow():
        env = make_env()

        def step(action, step=env.gym.step):
            started.set()
            time.sleep(0.05)
            return step(action)

        env.gym.step = step
        return env

    env = ParallelEnvironment([make_slow, make_env], num_workers=0)
    env.reset()
    for call, number in ((env.render, 1), (env.close, 2)):
        started.clear()
        thread = threading.Thread(target=lambda: steps.append(env.step(np.zeros((2, 1), np.float32))))
        thread.start()
        started.wait()
        call()
        assert len(steps) == number
        thread.join()
    for call in (env.render, env.reset, lambda: env.seed(1), env.close):
        with contextlib.nullcontext() if call == env.close else pytest.raises(RuntimeError, match="is closed; create"):
            call()


@pytest.mark.parametrize("place", ["a thread", "a batch in a thread", "a worker"])
def test_threads_get_their_own_answers(place):
    wrong = []

    def run(number):
        action = np.full((env.batch_size, 1) if env.batched else 1, number, np.float32)
        for _ in range(60):
            step = env.step(action)
            if not np.all(np.where(step.step_type == 0, number, step.reward) == number):
                wrong.append(number)

    with PLACES[place](None, "step") as env:
        env.reset()
        threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_late_results_of_a_thread_are_not_those_of_the_next_call():
    with DeadlineThread("the object", 20.0) as thread:

        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            return "late"

        with pytest.raises(KeyboardInterrupt):
            thread.call(interrupt)
        assert [thread.call(lambda number=number: number) for number in range(3)] == [0, 1, 2]


@pytest.mark.slow
def test_late_errors_are_not_those_of_the_next_call():
    pid = os.getpid()

    def construct():
        def render():
            os.kill(pid, signal.SIGINT)
            time.sleep(0.2)
            raise RuntimeError("late")

        env = make_env()
        env.gym.render = render
        return env

    with ParallelEnvironment([construct], caller_steps=False, on_failure="raise") as env:
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            env.render()
        assert env.step(np.zeros((1, 1), np.float32)).observation.tolist() == [[1]]
        env.seed(1)
