"""Evaluation of policies: returns worked by hand, in environments of a few steps, and the real ones twice the same."""

import json

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from policies import PENDULUM, CountingPolicy, FunctionPolicy, LinearPolicy, save_policy
from rlds2reverb.learners.batched_policy import load_policy
from rlds2reverb.learners.evaluation import Evaluation, Evaluator, read_reference_returns
from tf_agents.specs import tensor_spec

from rlds2reverb.errors import SpecMismatchError


class Counter(gymnasium.Env):
    """Observes 100 * seed + t; the reward is the action; episode `seed` ends after `seed + 2` steps."""

    opened = 0

    def __init__(self, *, action_space=None, observe=None, observation_space=None, ends=True, reward=None):
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if action_space is None else action_space
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self._observe = observe or (lambda value: np.array([value], np.float64))
        self._ends, self._reward = ends, reward
        self.actions = []
        Counter.opened += 1

    def reset(self, *, seed=None, options=None):
        self._seed, self._t = seed, 0
        return self._observe(100.0 * seed), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._t += 1
        done = self._ends and self._t == self._seed + 2
        reward = float(np.sum(action)) if self._reward is None else self._reward
        terminated = done and self._seed % 2 == 0
        return self._observe(100.0 * self._seed + self._t), reward, terminated, done and not terminated, {}

    def close(self):
        Counter.opened -= 1


@pytest.fixture(autouse=True)
def every_environment_is_closed():
    Counter.opened = 0
    yield
    assert Counter.opened == 0


def evaluator(*, seeds=(0, 1, 2), reference_returns=None, max_episode_steps=None, **options):
    def counter():
        return Counter(**options)

    return Evaluator(counter, seeds=seeds, reference_returns=reference_returns, max_episode_steps=max_episode_steps)


def always(action, *, observation=None, dtype=tf.float32, shape=(1,)):
    """A policy that gives one action, whatever it observes."""
    observation = tf.TensorSpec([1], tf.float32) if observation is None else observation
    value = tf.constant(action, dtype, shape)

    def act(observed):
        rows = tf.shape(tf.nest.flatten(observed)[0])[:1]
        return tf.tile(value[tf.newaxis], tf.concat([rows, tf.ones(len(shape), tf.int32)], 0))

    return FunctionPolicy(observation, tensor_spec.BoundedTensorSpec(shape, dtype, -100, 100), act)


# --- Returns


def test_returns_and_lengths_are_those_of_each_episode_whether_terminated_or_truncated():
    """Actions (o / 1000): o is 0, 1; 100, 101, 102; 200 .. 203."""
    found = evaluator(reference_returns=(0.001, 0.601)).evaluate(LinearPolicy([[0.001]]))
    np.testing.assert_allclose(found.returns, [0.001, 0.303, 0.806], atol=1e-6)
    assert found.lengths.tolist() == [2, 3, 4] and found.seeds == (0, 1, 2) and found.num_clipped == 0
    assert found.mean == pytest.approx(0.37) and found.std == pytest.approx(np.std([0.001, 0.303, 0.806]))
    assert found.score == pytest.approx(100 * (0.37 - 0.001) / 0.6, abs=1e-3)
    assert json.loads(json.dumps(found.as_dict()))["returns"] == found.returns.tolist()
    assert str(found) == "return 0.4 ± 0.3 over 3 episodes, score 61.5"


def test_a_policy_is_traced_once_for_all_evaluations():
    policy, evaluate = LinearPolicy([[0.001]]), evaluator().evaluate
    first = evaluate(policy)
    policy.weights.assign([[0.002]])
    np.testing.assert_allclose(evaluate(policy).returns, 2 * first.returns, atol=1e-6)
    assert policy.num_traces == 1


def test_a_policy_keeps_its_state_over_the_steps_of_each_episode():
    box = spaces.Box(0, 100, (1,), np.float32)
    assert evaluator(action_space=box).evaluate(CountingPolicy()).returns.tolist() == [0 + 1, 0 + 1 + 2, 0 + 1 + 2 + 3]


def test_episodes_are_cut_at_max_episode_steps():
    found = evaluator(ends=False, max_episode_steps=3).evaluate(always(0.5))
    assert found.lengths.tolist() == [3, 3, 3] and found.returns.tolist() == [1.5] * 3


def test_an_episode_without_any_limit_is_given_up(monkeypatch):
    monkeypatch.setattr("rlds2reverb.learners.evaluation._LONGEST_EPISODE", 20)
    with pytest.raises(RuntimeError, match="an episode of counter has not ended after 20 steps.* give max_episode"):
        evaluator(ends=False).evaluate(always(0.5))


# --- Observations


def test_a_policy_may_take_a_part_of_a_dict_of_observations():
    space = spaces.Dict(
        {
            "mission": spaces.Discrete(9),
            "robot": spaces.Dict({"pos": spaces.Box(-1e9, 1e9, (1,), np.float64), "on": spaces.Box(0, 1, (2,), bool)}),
        }
    )
    seen = {"robot": {"on": tf.TensorSpec([2], tf.float32), "pos": tf.TensorSpec([1], tf.float32)}}
    policy = FunctionPolicy(
        seen,
        tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1),
        lambda o: o["robot"]["pos"] / 1000 + o["robot"]["on"][:, :1],
    )

    def observe(value):
        return {"mission": 3, "robot": {"pos": np.array([value]), "on": np.array([False, True])}}

    found = evaluator(observation_space=space, observe=observe).evaluate(policy)
    np.testing.assert_allclose(found.returns, [0.001, 0.303, 0.806], atol=1e-6)


@pytest.mark.parametrize(
    ("observed", "space_dtype", "policy_dtype"),
    [
        (np.array([2**24 + 1]), np.int64, tf.float32),  # float32 has no such number
        (np.array([300]), np.int64, tf.uint8),
        (np.array([1e300]), np.float64, tf.float32),  # would become inf
    ],
)
def test_an_observation_that_the_dtype_would_change_is_refused(observed, space_dtype, policy_dtype):
    space = spaces.Box(-9e9, 9e9, (1,), space_dtype)
    policy = always(0.5, observation=tf.TensorSpec([1], policy_dtype))
    made = evaluator(observation_space=space, observe=lambda value: observed)
    with pytest.raises(ValueError, match=rf"observation does not fit .*{policy_dtype.name} \(episode 0, step 0\)"):
        made.evaluate(policy)


def test_integers_that_keep_their_value_are_taken_as_floats():
    space = spaces.Box(0, 1000, (1,), np.int64)
    made = evaluator(observation_space=space, observe=lambda value: np.array([int(value)]))
    np.testing.assert_allclose(made.evaluate(LinearPolicy([[0.001]])).returns, [0.001, 0.303, 0.806], atol=1e-6)


def test_an_environment_that_observes_another_shape_than_it_says_is_refused():
    made = evaluator(observe=lambda value: np.zeros(1 + int(value == 101)))
    with pytest.raises(
        SpecMismatchError, match=r"observation is float64 \[2\], expected .* own float64 \[1\] \(episode 1, step 1\)"
    ):
        made.evaluate(always(0.5))


def test_an_environment_that_observes_another_dtype_than_it_says_is_refused():
    made = evaluator(observation_space=spaces.Box(0, 9, (1,), np.int64), observe=lambda value: np.array([0.5]))
    with pytest.raises(SpecMismatchError, match=r"is float64 \[1\], expected .* own int64 \[1\] \(episode 0, step 0\)"):
        made.evaluate(always(0.5))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (tf.TensorSpec([2], tf.float32), r"takes float32 \[2\] as observation, .* counter gives float64 \[1\]"),
        (tf.TensorSpec([1], tf.int32), r"takes int32 \[1\] as observation"),
        ({"a": tf.TensorSpec([1], tf.float32)}, r"takes observation\['a'\], the environment counter has observation;"),
    ],
)
def test_a_policy_for_other_observations_is_refused(observation, message):
    with pytest.raises(SpecMismatchError, match=message):
        evaluator().require_match(always(0.5, observation=observation))


# --- Actions


def test_actions_out_of_bounds_are_clipped_and_counted_but_not_for_rounding():
    found = evaluator().evaluate(always(3.0))
    assert found.returns.tolist() == [2, 3, 4] and found.num_clipped == 9
    assert str(found).endswith("; 9 of 9 actions were out of bounds and clipped")
    assert evaluator().evaluate(always(1 + 1e-6)).num_clipped == 0


@pytest.mark.parametrize(
    ("space", "action", "shape", "sums"),
    [
        (spaces.Discrete(3), 2, (), [4, 6, 8]),
        (spaces.Discrete(3, start=5), 7, (), [14, 21, 28]),
        (spaces.MultiDiscrete([2, 4]), [1, 3], (2,), [8, 12, 16]),
        (spaces.MultiBinary(2), [1, 0], (2,), [2, 3, 4]),
    ],
)
def test_discrete_actions_are_given_in_the_dtype_of_the_space(space, action, shape, sums):
    assert evaluator(action_space=space).evaluate(always(action, dtype=tf.int32, shape=shape)).returns.tolist() == sums


@pytest.mark.parametrize(
    ("space", "action", "shape"),
    [(spaces.Discrete(3), 3, ()), (spaces.Discrete(3), -1, ()), (spaces.MultiDiscrete([2, 4]), [2, 0], (2,))],
)
def test_a_discrete_action_that_does_not_exist_is_refused(space, action, shape):
    with pytest.raises(ValueError, match=r"not one of .*Discrete.* \(episode 0, step 0\)"):
        evaluator(action_space=space).evaluate(always(action, dtype=tf.int32, shape=shape))


@pytest.mark.parametrize(
    ("space", "policy", "message"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), always(0.5), r"gives actions float32 \[1\], .* takes float32 \[2\]"),
        (spaces.Discrete(3), always(0.5, shape=()), r"gives actions float32 \[\], .* takes int64 \[\]"),
        (
            spaces.Discrete(3),
            FunctionPolicy(
                tf.TensorSpec([1], tf.float32),
                {"a": tensor_spec.BoundedTensorSpec([1], tf.float32, 0, 1)},
                lambda o: {"a": o},
            ),
            "gives a nest of actions",
        ),
    ],
)
def test_a_policy_for_other_actions_is_refused(space, policy, message):
    with pytest.raises(SpecMismatchError, match=message):
        evaluator(action_space=space).require_match(policy)


def test_an_action_that_is_not_finite_is_refused_with_episode_step_and_cause():
    """Episode 1 observes 102 at its third action; episode 0, which has ended, is not looked at."""
    policy = FunctionPolicy(
        tf.TensorSpec([1], tf.float32),
        tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1),
        lambda o: tf.where((o == 102) | (o == 2), np.nan, 0.5),
    )
    with pytest.raises(ValueError, match=r"the action is \[nan\] \(episode 1, step 2\); the policy has non-finite"):
        evaluator().evaluate(policy)
    made = evaluator(observe=lambda value: np.array([np.nan if value == 201 else value]))
    with pytest.raises(ValueError, match=r"\(episode 2, step 1\); its observation is not finite either"):
        made.evaluate(LinearPolicy([[0.001]]))


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"the reward is nan \(episode 0, step 0\); mend the environment"):
        evaluator(reward=np.nan).evaluate(always(0.5))


# --- Arguments


def test_seeds_and_episodes_have_to_agree():
    assert Evaluator(Counter).seeds == tuple(range(10)) and Evaluator(Counter, num_episodes=2).num_episodes == 2
    with pytest.raises(ValueError, match="there are 2 seeds, expected 3, one an episode"):
        Evaluator(Counter, num_episodes=3, seeds=[1, 2])
    with pytest.raises(ValueError, match="there are 0 seeds, expected at least one"):
        Evaluator(Counter, seeds=[])
    with pytest.raises(ValueError, match="num_episodes is 0"):
        Evaluator(Counter, num_episodes=0)
    with pytest.raises(ValueError, match="max_episode_steps is 0"):
        Evaluator(Counter, max_episode_steps=0)
    with pytest.raises(ValueError, match="reference returns are both 1"):
        Evaluator(Counter, reference_returns=(1, 1))


def test_what_is_no_environment_is_refused():
    with pytest.raises(ValueError, match="Gymnasium has no environment 'Pendulumm-v1': .*Pendulum"):
        Evaluator("Pendulumm-v1")
    with pytest.raises(TypeError, match="make_env returned int, expected a gymnasium.Env"):
        Evaluator(lambda: 1)
    with pytest.raises(TypeError, match="counter observes Text.*, expected numbers of a fixed shape"):
        evaluator(observation_space=spaces.Text(3))
    with pytest.raises(TypeError, match="counter takes actions of Dict.*, expected a Box or a discrete space"):
        evaluator(action_space=spaces.Dict({"a": spaces.Discrete(2)}))


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch):
    def lacks_mujoco(**options):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    gymnasium.register("Lacking-v0", lacks_mujoco)
    with pytest.raises(ImportError, match=r"Lacking-v0 needs what is not installed \(MuJoCo .*pip install '.\[eval\]'"):
        Evaluator("Lacking-v0")
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"evaluation needs gymnasium, .*pip install '.\[eval\]'"):
        Evaluator("Pendulum-v1")


# --- Saved policies, and real environments


@pytest.fixture(scope="module")
def saved_pendulum(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    save_policy(PENDULUM, folder)
    return load_policy(folder)


def test_pendulum_gives_the_same_returns_twice_and_with_the_saved_policy(saved_pendulum):
    evaluator = Evaluator("Pendulum-v1", seeds=[3, 5], max_episode_steps=60)
    first, again = evaluator.evaluate(PENDULUM), evaluator.evaluate(PENDULUM)
    assert first.returns.tolist() == again.returns.tolist() and first.num_clipped == again.num_clipped > 0
    assert first.returns[0] != first.returns[1] and first.lengths.tolist() == [60, 60]
    np.testing.assert_allclose(evaluator.evaluate(saved_pendulum).returns, first.returns, rtol=1e-4)


def test_an_episode_of_pendulum_is_the_one_that_a_plain_loop_gives():
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=4)
    total, weights = 0.0, PENDULUM.weights.numpy()
    for _ in range(200):
        observation, reward, _, truncated, _ = env.step(np.clip(observation @ weights, -2, 2))
        total += reward
    assert truncated
    found = Evaluator("Pendulum-v1", seeds=[4, 9]).evaluate(PENDULUM)
    assert found.returns[0] == pytest.approx(total, rel=1e-3) and found.lengths.tolist() == [200, 200]


def test_hopper_of_mujoco_gives_the_same_returns_twice():
    pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install '.[eval]'")
    policy = LinearPolicy(np.random.default_rng(0).normal(0, 0.5, (11, 3)))
    evaluator = Evaluator("Hopper-v5", num_episodes=3, reference_returns=(18.62, 2806.03))
    first, again = evaluator.evaluate(policy), evaluator.evaluate(policy)
    assert first.returns.tolist() == again.returns.tolist() and first.lengths.tolist() == again.lengths.tolist()
    assert (first.lengths > 1).all() and -1 < first.score < 10


def test_a_policy_that_was_saved_for_another_batch_size_is_refused(tmp_path):
    save_policy(LinearPolicy([[0.001]]), tmp_path, batch_size=2)
    policy = load_policy(tmp_path)
    np.testing.assert_allclose(evaluator(seeds=[0, 1]).evaluate(policy).returns, [0.001, 0.303], atol=1e-6)
    with pytest.raises(
        SpecMismatchError, match="saved for batches of 2, expected any size or 3; .* evaluate 2 episodes"
    ):
        evaluator().evaluate(policy)


def test_what_is_no_policy_is_refused(tmp_path):
    with pytest.raises(TypeError, match="str is not a policy, expected a TF-Agents TFPolicy or a SavedModel"):
        evaluator().evaluate("policy")
    with pytest.raises(ValueError, match="has no SavedModel of a policy"):
        load_policy(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "module"))
    with pytest.raises(ValueError, match="is a SavedModel, but not of a policy"):
        load_policy(tmp_path / "module")


# --- Reference returns


@pytest.mark.parametrize(
    "document",
    [
        {"Hopper-v5": [18.62, 2806.03]},
        {"Hopper-v5": {"ref_min": 18.62, "ref_max": 2806.03, "ref_max_n": 20}},
        {"note": "x", "measured": {"Hopper-v5": {"ref_min": 18.62, "ref_max": 2806.03}}},
    ],
)
def test_reference_returns_are_read_from_json(document, tmp_path):
    path = tmp_path / "references.json"
    path.write_text(json.dumps(document))
    assert read_reference_returns(path, "Hopper-v5") == (18.62, 2806.03)
    evaluation = Evaluation(np.array([2806.03]), np.array([9]), (0,), read_reference_returns(path, "Hopper-v5"))
    assert evaluation.score == pytest.approx(100)
    with pytest.raises(ValueError, match="no reference returns of Ant-v5, only of Hopper-v5"):
        read_reference_returns(path, "Ant-v5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1, 2]", "has no reference returns, expected"),
        (
            '{"Hopper-v5": {"ref_min": 1.63, "ref_max": null}}',
            r"has \[1.63, None\] for Hopper-v5, expected two different",
        ),
        ('{"Hopper-v5": [1, 1]}', "expected two different numbers, RANDOM and EXPERT"),
        ('{"Hopper-v5": "x"}', "has x for Hopper-v5"),
    ],
)
def test_reference_returns_that_are_not_two_numbers_are_refused(text, message, tmp_path):
    path = tmp_path / "references.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_reference_returns(path, "Hopper-v5")
