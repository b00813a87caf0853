"""Environments of EnvPool: the specs, ends of episodes and seeds of all other environments."""

import itertools
import sys

import numpy as np
import pytest

from rlds2reverb import SpecMismatchError
from rlds2reverb.envs import TimeLimit, create_environment, load, suite_gym

HINT = "EnvPool is not installed"


def make(name, num_parallel, **options):
    pytest.importorskip("envpool", reason=HINT)
    return create_environment(name, num_parallel, backend="envpool", **options)


def test_missing_package_raises_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"backend='envpool' requires EnvPool .*; run .*pip install .*envpool=="):
        create_environment("CartPole-v1", 2, backend="envpool")


def test_interrupted_step_is_followed_by_new_episodes(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with make("CartPole-v1", 2, seed=0) as env:
        first = env.reset()
        monkeypatch.setattr(env._pool, "_recv", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step(np.zeros(2, int))
        steps = [env.step(np.zeros(2, int)) for _ in range(3)]
    assert [step.step_type.tolist() for step in steps] == [[0, 0], [1, 1], [1, 1]]
    assert not np.array_equal(steps[0].observation, first.observation)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "FrozenLake-v1"])
def test_specs_equal_those_of_gymnasium(name):
    with make(name, 2, seed=0) as env, suite_gym.load(name) as other:
        assert env.time_step_spec() == other.time_step_spec()
        step = env.reset()
        for value, spec in [(step.observation, env.observation_spec()), (step.prev_action, env.action_spec())]:
            assert (value.shape, value.dtype) == ((2, *spec.shape), spec.dtype)


@pytest.mark.parametrize("limit", [7, 9, 10, 0])
def test_ends_of_episodes_keep_termination_and_truncation_apart(limit):
    # Under EnvPool's seed 5, CartPole falls over in step 9 if it is always pushed to the right.
    with make("CartPole-v1", 2, seed=5, max_episode_steps=limit) as env:
        steps = [env.step(np.array([1, index % 2])) for index in range(25)]
    step_types = np.stack([step.step_type for step in steps])
    discounts = np.stack([step.discount for step in steps])
    length = min(limit or 9, 9)
    assert step_types[: length + 2, 0].tolist() == [0, *[1] * (length - 1), 2, 0]
    assert discounts[length, 0] == (limit == 7)
    if limit:
        assert step_types[: limit + 2, 1].tolist() == [0, *[1] * (limit - 1), 2, 0]
        assert discounts[:, 1].tolist() == [1] * 25
    for before, step in itertools.pairwise(steps):
        is_first = step.step_type == 0
        np.testing.assert_array_equal(is_first, before.step_type == 2)
        np.testing.assert_array_equal(step.reward, np.where(is_first, 0, 1))
        assert not step.prev_action[is_first].any() and step.discount[is_first].all()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_time_steps_equal_those_of_envpool_and_do_not_change_later():
    env = make("Pendulum-v1", 3, seed=4, max_episode_steps=0)
    import envpool

    pool = envpool.make_gymnasium("Pendulum-v1", num_envs=3, seed=4, max_episode_steps=1000)
    steps, expected = [env.reset()], [pool.reset()]
    for index in range(30):
        action = np.full((3, 1), np.sin(index), np.float32)
        steps.append(env.step(action))
        expected.append(pool.step(action))
    np.testing.assert_array_equal([step.observation for step in steps], [values[0] for values in expected])
    np.testing.assert_array_equal([step.reward for step in steps[1:]], [values[1] for values in expected[1:]])
    env.close()


def test_environment_i_has_the_seed_plus_i():
    first, second = make("CartPole-v1", 3, seed=5), make("CartPole-v1", 2, seed=6)
    observation = first.reset().observation
    np.testing.assert_array_equal(observation[1:], second.reset().observation)
    first.seed(5)
    np.testing.assert_array_equal(first.step(None).observation, observation)
    assert not np.array_equal(make("CartPole-v1", 3).reset().observation, make("CartPole-v1", 3).reset().observation)
    with pytest.raises(ValueError, match="seed must be in"):
        first.seed(-1)


def test_nested_observations_become_dicts():
    with make("ReacherEasy-v1", 2, seed=0) as env:
        step = env.step(env.reset().prev_action)
        assert {key: value.shape for key, value in step.observation.items()} == {
            "position": (2, 2),
            "to_target": (2, 2),
            "velocity": (2, 2),
        }
        assert all(spec.contains(step.observation[key]) for key, spec in env.observation_spec().items())


def test_invalid_arguments_raise():
    for name, options, error, message in [
        ("CartPol-v1", {}, ValueError, "EnvPool has no environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"color": 3}, ValueError, r"EnvPool cannot create 'CartPole-v1' with {'color': 3}"),
        ("CartPole-v1", {"gym_wrappers": [TimeLimit]}, ValueError, "gym_wrappers cannot wrap environments of EnvPool"),
        ("CartPole-v1", {"env_id": 1}, ValueError, "env_id must be 0"),
        ("CartPole-v1", {"discount": 2}, ValueError, r"discount must be a number in \[0, 1\]"),
        ("CartPole-v1", {"max_episode_steps": -1}, ValueError, "max_episode_steps must be an integer >= 0"),
        ("CartPole-v1", {"parallel_options": {"num_workers": 1}}, ValueError, "parallel_options cannot be used"),
        ("CartPole-v1", {"suite": make}, ValueError, "backend='envpool' selects a suite and excludes"),
    ]:
        with pytest.raises(error, match=message):
            make(name, 2, **options)
    with pytest.raises(ValueError, match="creates batches of environments; set num_parallel"):
        make("CartPole-v1", None)
    with make("CartPole-v1", 2) as env:
        env.reset()
        with pytest.raises(ValueError, match=r"action must be in \[0, 1\], got 2 \(row 1\)"):
            env.step(np.array([0, 2]))
        with pytest.raises(SpecMismatchError, match=r"action must be int64 \[2\], got int64 \[3\]"):
            env.step(np.zeros(3, int))
    with pytest.raises(RuntimeError, match="the environment is closed; create a new one"):
        env.step(np.zeros(2, int))


def test_values_that_are_not_finite_raise(monkeypatch):
    with make("Pendulum-v1", 2, seed=0) as env:
        env.reset()
        receive = env._pool._recv

        def receive_nan():
            state = receive()
            state[-1][1, 2] = np.nan
            return state

        monkeypatch.setattr(
            env,
            "_pool",
            type("Pool", (), {"_send": env._pool._send, "_recv": staticmethod(receive_nan), "close": env._pool.close}),
        )
        with pytest.raises(ValueError, match="observation of environment 1 must be finite"):
            env.step(np.zeros((2, 1), np.float32))


def test_tf_agents_environment_has_envpool_as_backend():
    pytest.importorskip("envpool", reason=HINT)
    with load("Pendulum-v1", num_parallel=2, seed=0, backend="envpool", max_episode_steps=3) as env:
        steps = [env.step(np.zeros((2, 1), np.float32)) for _ in range(5)]
        assert [step.step_type.tolist() for step in steps] == [[0, 0], [1, 1], [1, 1], [2, 2], [0, 0]]
        assert env.batch_size == 2 and steps[3].discount.tolist() == [1, 1]
