"""An environment in a thread: the same time steps, errors in the caller, and timeouts."""

import threading

import numpy as np
import pytest
from counting import Counting

from rlds2reverb.envs import BatchedEnvironment, GymnasiumEnvironment, ThreadEnvironment, TimeLimit, suite_gym


class Affine(GymnasiumEnvironment):
    """Remembers the threads that called it."""

    def __init__(self):
        super().__init__(Counting(3))
        self.threads = {threading.get_ident()}

    def _reset(self):
        self.threads.add(threading.get_ident())
        return super()._reset()

    def find_thread(self):
        return threading.get_ident()

    @property
    def here(self):
        return threading.get_ident()

    def close(self):
        self.threads.add(threading.get_ident())


def test_everything_happens_in_one_thread():
    with ThreadEnvironment(lambda: TimeLimit(Affine(), 2)) as env:
        assert env.duration == 2 and not env.batched and env.batch_size is None
        steps = [env.step(0) for _ in range(4)]
        assert [int(step.step_type) for step in steps] == [0, 1, 2, 0] and env.current_time_step() is steps[-1]
        found, threads = env.find_thread(), env.threads
        assert env.here == found != threading.get_ident()
    assert threads == {found}
    env.close()
    with pytest.raises(RuntimeError, match=r"the environment cannot be called after close\(\)"):
        env.reset()


def test_time_steps_equal_those_of_the_environment():
    def make():
        return BatchedEnvironment([suite_gym.load("CartPole-v1") for _ in range(2)])

    with ThreadEnvironment(make) as env, make() as other:
        assert env.time_step_spec() == other.time_step_spec() and env.batch_size == 2
        env.seed(3)
        other.seed(3)
        for index in range(30):
            step, expected = env.step(np.full(2, index % 2)), other.step(np.full(2, index % 2))
            np.testing.assert_array_equal(step.observation, expected.observation)
            np.testing.assert_array_equal(step.step_type, expected.step_type)


@pytest.mark.drill("user code")
def test_errors_are_raised_in_the_caller():
    with ThreadEnvironment(lambda: GymnasiumEnvironment(Counting(failure="raise", fails_at=1))) as env:
        env.reset()
        with pytest.raises(RuntimeError, match="the simulator exploded"):
            env.step(0)
        env.reset()
        with pytest.raises(ValueError, match=r"action must be in \[0, 2\], got 3"):
            env.step(3)
        with pytest.raises(AttributeError, match="no attribute 'missing'"):
            _ = env.missing
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        ThreadEnvironment(lambda: 1 / 0)
    with pytest.raises(TypeError, match="ThreadEnvironment requires an Environment, got a int"):
        ThreadEnvironment(lambda: 5)
    with pytest.raises(TypeError, match="constructor must be a function that creates an environment, got a Counting"):
        ThreadEnvironment(Counting())
    with pytest.raises(ValueError, match="timeout_secs must be above 0"):
        ThreadEnvironment(Affine, timeout_secs=0)
    assert not set(threading.enumerate()) - before


@pytest.mark.drill("user code")
def test_hanging_environment_raises_and_is_not_called_again():
    released = threading.Event()

    class Hanging(Affine):
        def _step(self, action):
            released.wait()
            return super()._step(action)

    env = ThreadEnvironment(Hanging, timeout_secs=2)
    env.reset()
    with pytest.raises(TimeoutError, match=r"(?s)the thread is at.*in _step.*did not answer within 2 s$"):
        env.step(0)
    with pytest.raises(TimeoutError, match="the environment did not answer an earlier call"):
        env.reset()
    env.close()
    released.set()
