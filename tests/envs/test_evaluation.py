"""Evaluation of policies: hand-computed returns in tiny environments, and reproducible ones in real environments."""

import json
import threading
import time

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from policies import PENDULUM, CountingPolicy, FunctionPolicy, LinearPolicy, save_policy
from tf_agents.specs import tensor_spec

from rlds2reverb.envs import Evaluator
from rlds2reverb.errors import SpecMismatchError
from rlds2reverb.policies.saved_policies import load_policy
from rlds2reverb.types.evaluations import Evaluation, read_reference_returns


class Counter(gymnasium.Env):
    """An environment that returns 100 * seed + t and rewards the action; episode `seed` ends after `seed + 2` steps."""

    num_open = 0

    def __init__(
        self, *, action_space=None, observe=None, observation_space=None, ends=True, reward=None, success=None
    ):
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if action_space is None else action_space
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self._observe = observe or (lambda value: np.array([value], np.float64))
        self._ends, self._reward, self._success = ends, reward, success
        self.actions = []
        Counter.num_open += 1

    def reset(self, *, seed=None, options=None):
        self._seed, self._t = seed, 0
        return self._observe(100.0 * seed), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._t += 1
        done = self._ends and self._t == self._seed + 2
        reward = float(np.sum(action)) if self._reward is None else self._reward
        terminated = done and self._seed % 2 == 0
        info = {} if self._success is None else {self._success: float(done == (self._seed < 2))}
        return self._observe(100.0 * self._seed + self._t), reward, terminated, done and not terminated, info

    def close(self):
        Counter.num_open -= 1


@pytest.fixture(autouse=True)
def check_environments_are_closed():
    Counter.num_open = 0
    yield
    assert Counter.num_open == 0


def make_evaluator(*, seeds=(0, 1, 2), reference_returns=None, max_episode_steps=None, **options):
    def counter():
        return Counter(**options)

    return Evaluator(counter, seeds=seeds, reference_returns=reference_returns, max_episode_steps=max_episode_steps)


def constant_policy(action, *, observation=None, dtype=tf.float32, shape=(1,)):
    """Returns a policy with a constant action."""
    observation = tf.TensorSpec([1], tf.float32) if observation is None else observation
    value = tf.constant(action, dtype, shape)

    def act(observation):
        rows = tf.shape(tf.nest.flatten(observation)[0])[:1]
        return tf.tile(value[tf.newaxis], tf.concat([rows, tf.ones(len(shape), tf.int32)], 0))

    return FunctionPolicy(observation, tensor_spec.BoundedTensorSpec(shape, dtype, -100, 100), act)


# --- Returns


def test_returns_and_lengths_of_terminated_and_truncated_episodes():
    """The action is o / 1000, where the observations o are 0, 1; 100, 101, 102; and 200 .. 203."""
    evaluation = make_evaluator(reference_returns=(0.001, 0.601)).evaluate(LinearPolicy([[0.001]]))
    np.testing.assert_allclose(evaluation.returns, [0.001, 0.303, 0.806], atol=1e-6)
    assert evaluation.lengths.tolist() == [2, 3, 4] and evaluation.seeds == (0, 1, 2) and evaluation.num_clipped == 0
    assert evaluation.mean == pytest.approx(0.37) and evaluation.std == pytest.approx(np.std([0.001, 0.303, 0.806]))
    assert evaluation.score == pytest.approx(100 * (0.37 - 0.001) / 0.6, abs=1e-3)
    assert json.loads(json.dumps(evaluation.as_dict()))["returns"] == evaluation.returns.tolist()
    assert str(evaluation) == "return 0.4 ± 0.3 over 3 episodes, score 61.5"


def test_discounted_return_is_the_mean_over_steps_of_the_rewards_that_follow():
    """Episodes of 2, 3 and 4 steps with rewards 1; the second one is truncated, so that only its first step is used."""
    evaluator = Evaluator(lambda: Counter(reward=1.0), seeds=(0, 1, 2), discount=0.5)
    evaluation = evaluator.evaluate(constant_policy([0.0]))
    assert evaluation.discounted_return == pytest.approx(np.mean([1.5, 1, 1.75, 1.875, 1.75, 1.5, 1]))
    assert evaluation.as_dict()["discounted_return"] == evaluation.discounted_return
    one = Evaluator(lambda: Counter(reward=1.0), seeds=(2,), discount=0).evaluate(constant_policy([0.0]))
    assert one.discounted_return == 1
    assert make_evaluator().evaluate(constant_policy([0.0])).discounted_return is None
    with pytest.raises(ValueError, match=r"discount must be .* got 1.5"):
        Evaluator(Counter, discount=1.5)


def test_policy_is_traced_once_for_all_evaluations():
    policy, evaluate = LinearPolicy([[0.001]]), make_evaluator().evaluate
    first = evaluate(policy)
    policy.weights.assign([[0.002]])
    np.testing.assert_allclose(evaluate(policy).returns, 2 * first.returns, atol=1e-6)
    assert policy.num_traces == 1


def test_policy_state_is_kept_within_each_episode():
    box = spaces.Box(0, 100, (1,), np.float32)
    assert make_evaluator(action_space=box).evaluate(CountingPolicy()).returns.tolist() == [
        0 + 1,
        0 + 1 + 2,
        0 + 1 + 2 + 3,
    ]


def test_episodes_are_truncated_at_max_episode_steps():
    evaluation = make_evaluator(ends=False, max_episode_steps=3).evaluate(constant_policy(0.5))
    assert evaluation.lengths.tolist() == [3, 3, 3] and evaluation.returns.tolist() == [1.5] * 3


def test_endless_episodes_are_truncated_counted_and_reported(monkeypatch):
    monkeypatch.setattr("rlds2reverb.envs.evaluation.MAX_UNLIMITED_STEPS", 20)
    evaluator = make_evaluator(ends=False)
    assert not evaluator.is_limited and evaluator.max_episode_steps == 20
    message = "counter has no time limit, and 3 of 3 episodes were truncated after 20 steps; set max_episode_steps"
    with pytest.warns(RuntimeWarning, match=message):
        evaluation = evaluator.evaluate(constant_policy(0.5))
    assert (
        evaluation.lengths.tolist() == [20] * 3 and evaluation.num_cut_off == evaluation.as_dict()["num_cut_off"] == 3
    )
    terminated = make_evaluator().evaluate(constant_policy(0.5))
    monkeypatch.setattr("rlds2reverb.envs.evaluation.MAX_UNLIMITED_STEPS", int(terminated.lengths.max()))
    assert make_evaluator().evaluate(constant_policy(0.5)).num_cut_off == terminated.num_cut_off == 0


@pytest.mark.parametrize("name", ["success", "is_success"])
def test_success_of_the_last_steps_is_counted(name):
    evaluation = make_evaluator(success=name).evaluate(constant_policy(0.5))
    assert evaluation.successes.tolist() == [True, True, False] and evaluation.success_rate == 2 / 3
    assert evaluation.as_dict()["success_rate"] == 2 / 3 and ", success 67%" in str(evaluation)


def test_success_is_unknown_in_environments_without_it():
    evaluation = make_evaluator().evaluate(constant_policy(0.5))
    assert evaluation.successes is None and evaluation.as_dict()["success_rate"] is None
    assert "success" not in str(evaluation)


# --- Observations


def test_policy_may_ignore_entries_of_a_dict_of_observations():
    space = spaces.Dict(
        {
            "mission": spaces.Discrete(9),
            "robot": spaces.Dict({"pos": spaces.Box(-1e9, 1e9, (1,), np.float64), "on": spaces.Box(0, 1, (2,), bool)}),
        }
    )
    policy_spec = {"robot": {"on": tf.TensorSpec([2], tf.float32), "pos": tf.TensorSpec([1], tf.float32)}}
    policy = FunctionPolicy(
        policy_spec,
        tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1),
        lambda o: o["robot"]["pos"] / 1000 + o["robot"]["on"][:, :1],
    )

    def observe(value):
        return {"mission": 3, "robot": {"pos": np.array([value]), "on": np.array([False, True])}}

    evaluation = make_evaluator(observation_space=space, observe=observe).evaluate(policy)
    np.testing.assert_allclose(evaluation.returns, [0.001, 0.303, 0.806], atol=1e-6)


@pytest.mark.parametrize(
    ("observation", "space_dtype", "policy_dtype"),
    [
        (np.array([2**24 + 1]), np.int64, tf.float32),  # This integer is not representable in float32.
        (np.array([300]), np.int64, tf.uint8),
    ],
)
def test_observation_outside_the_policy_dtype_raises(observation, space_dtype, policy_dtype):
    space = spaces.Box(-9e9, 9e9, (1,), space_dtype)
    policy = constant_policy(0.5, observation=tf.TensorSpec([1], policy_dtype))
    evaluator = make_evaluator(observation_space=space, observe=lambda value: observation)
    with pytest.raises(ValueError, match=rf"not representable in .*{policy_dtype.name} \(episode 0, step 0\)"):
        evaluator.evaluate(policy)


def test_integer_observations_are_cast_to_floats_if_exact():
    space = spaces.Box(0, 1000, (1,), np.int64)
    evaluator = make_evaluator(observation_space=space, observe=lambda value: np.array([int(value)]))
    np.testing.assert_allclose(evaluator.evaluate(LinearPolicy([[0.001]])).returns, [0.001, 0.303, 0.806], atol=1e-6)


def test_observation_with_the_wrong_shape_raises():
    evaluator = make_evaluator(observe=lambda value: np.zeros(1 + int(value == 101)))
    with pytest.raises(
        SpecMismatchError, match=r"observation is float32 \[2\], but .* is float32 \[1\]; .* \(episode 1, step 0\)"
    ):
        evaluator.evaluate(constant_policy(0.5))


def test_observation_with_the_wrong_dtype_raises():
    evaluator = make_evaluator(
        observation_space=spaces.Box(0, 9, (1,), np.int64), observe=lambda value: np.array([0.5])
    )
    with pytest.raises(
        SpecMismatchError, match=r"does not match its space \(float64 is not int64\); .* \(episode 0, step 0\)"
    ):
        evaluator.evaluate(constant_policy(0.5))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (tf.TensorSpec([2], tf.float32), r"expects observation as float32 \[2\], but counter returns float32 \[1\]"),
        (tf.TensorSpec([1], tf.int32), r"expects observation as int32 \[1\]"),
        ({"a": tf.TensorSpec([1], tf.float32)}, r"expects observation\['a'\], but counter returns observation;"),
    ],
)
def test_policy_with_mismatched_observations_raises(observation, message):
    with pytest.raises(SpecMismatchError, match=message):
        make_evaluator().require_match(constant_policy(0.5, observation=observation))


# --- Actions


def test_actions_out_of_bounds_are_clipped_and_counted():
    evaluation = make_evaluator().evaluate(constant_policy(3.0))
    assert evaluation.returns.tolist() == [2, 3, 4] and evaluation.num_clipped == 9
    assert str(evaluation).endswith("; 9 of 9 actions were out of bounds and clipped")
    assert make_evaluator().evaluate(constant_policy(1 + 1e-6)).num_clipped == 0


@pytest.mark.parametrize(
    ("space", "action", "shape", "sums"),
    [
        (spaces.Discrete(3), 2, (), [4, 6, 8]),
        (spaces.Discrete(3, start=5), 7, (), [14, 21, 28]),
        (spaces.MultiDiscrete([2, 4]), [1, 3], (2,), [8, 12, 16]),
        (spaces.MultiBinary(2), [1, 0], (2,), [2, 3, 4]),
    ],
)
def test_discrete_actions_are_cast_to_the_dtype_of_the_space(space, action, shape, sums):
    assert (
        make_evaluator(action_space=space)
        .evaluate(constant_policy(action, dtype=tf.int32, shape=shape))
        .returns.tolist()
        == sums
    )


@pytest.mark.parametrize(
    ("space", "action", "shape"),
    [(spaces.Discrete(3), 3, ()), (spaces.Discrete(3), -1, ()), (spaces.MultiDiscrete([2, 4]), [2, 0], (2,))],
)
def test_discrete_action_out_of_range_raises(space, action, shape):
    with pytest.raises(ValueError, match=r"action must be in .*Discrete.* \(episode 0, step 0\)"):
        make_evaluator(action_space=space).evaluate(constant_policy(action, dtype=tf.int32, shape=shape))


@pytest.mark.parametrize(
    ("space", "policy", "message"),
    [
        (
            spaces.Box(-1, 1, (2,), np.float32),
            constant_policy(0.5),
            r"returns actions float32 \[1\], but counter expects float32 \[2\]",
        ),
        (
            spaces.Discrete(3),
            constant_policy(0.5, shape=()),
            r"returns actions float32 \[\], but counter expects int64 \[\]",
        ),
        (
            spaces.Discrete(3),
            FunctionPolicy(
                tf.TensorSpec([1], tf.float32),
                {"a": tensor_spec.BoundedTensorSpec([1], tf.float32, 0, 1)},
                lambda o: {"a": o},
            ),
            "returns a nest of actions",
        ),
    ],
)
def test_policy_with_mismatched_actions_raises(space, policy, message):
    with pytest.raises(SpecMismatchError, match=message):
        make_evaluator(action_space=space).require_match(policy)


@pytest.mark.drill("F12")
def test_non_finite_action_raises_with_its_cause():
    """Episode 1 observes 102 before its third action; episode 0 has already ended and is ignored."""
    policy = FunctionPolicy(
        tf.TensorSpec([1], tf.float32),
        tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1),
        lambda o: tf.where((o == 102) | (o == 2), np.nan, 0.5),
    )
    with pytest.raises(
        ValueError, match=r"action must be finite, got \[nan\] \(episode 1, step 2\); the policy has non-finite"
    ):
        make_evaluator().evaluate(policy)
    evaluator = make_evaluator(observe=lambda value: np.array([np.nan if value == 201 else value]))
    with pytest.raises(ValueError, match=r"observation must be finite, got \[nan\]; .* \(episode 2, step 0\)"):
        evaluator.evaluate(LinearPolicy([[0.001]]))


def test_non_finite_reward_raises():
    with pytest.raises(
        ValueError, match=r"reward must be finite in float32, got nan; fix the environment.* \(episode 0, step 0\)"
    ):
        make_evaluator(reward=np.nan).evaluate(constant_policy(0.5))


# --- Arguments


def test_invalid_evaluator_arguments_raise():
    assert Evaluator(Counter).seeds == tuple(range(10)) and Evaluator(Counter, num_episodes=2).num_episodes == 2
    with pytest.raises(ValueError, match="seeds must contain one seed per episode .3., got 2"):
        Evaluator(Counter, num_episodes=3, seeds=[1, 2])
    with pytest.raises(ValueError, match="each of seeds must be an integer >= 0, got -1"):
        make_evaluator(seeds=(0, -1))
    with pytest.raises(TypeError, match="float"):
        make_evaluator(seeds=(0, 1.5))
    with pytest.raises(ValueError, match="seeds must contain at least one seed, got 0"):
        Evaluator(Counter, seeds=[])
    with pytest.raises(ValueError, match="num_episodes must be an integer >= 1, got 0"):
        Evaluator(Counter, num_episodes=0)
    with pytest.raises(ValueError, match="max_episode_steps must be an integer >= 1, got 0"):
        Evaluator(Counter, max_episode_steps=0)
    with pytest.raises(ValueError, match="the two reference returns must be finite and differ"):
        Evaluator(Counter, reference_returns=(1, 1))


def test_invalid_environments_raise():
    with pytest.raises(ValueError, match="Gymnasium has no environment 'Pendulumm-v1'; did you mean 'Pendulum-v1'"):
        Evaluator("Pendulumm-v1")
    with pytest.raises(TypeError, match="make_env must return a gymnasium.Env or an Environment, got int"):
        Evaluator(lambda: 1)
    with pytest.raises(TypeError, match="the observation space must be one of the supported kinds, got Text"):
        make_evaluator(observation_space=spaces.Text(3))
    with pytest.raises(TypeError, match="action space of counter must be a Box or a discrete space, got Dict"):
        make_evaluator(action_space=spaces.Dict({"a": spaces.Discrete(2)}))


def test_missing_dependency_raises_with_the_install_command(monkeypatch):
    def fail_without_mujoco(**options):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    gymnasium.register("NeedsMujoco-v0", fail_without_mujoco)
    with pytest.raises(
        ImportError, match=r"dependency of NeedsMujoco-v0 is not installed \(MuJoCo .*pip install .*mujoco=="
    ):
        Evaluator("NeedsMujoco-v0")
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"environments require Gymnasium .*pip install .*mujoco=="):
        Evaluator("Pendulum-v1")


# --- Saved policies and real environments


@pytest.fixture(scope="module")
def saved_pendulum(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    save_policy(PENDULUM, folder)
    return load_policy(folder)


@pytest.mark.slow
def test_pendulum_returns_are_reproducible_and_match_the_saved_policy(saved_pendulum):
    evaluator = Evaluator("Pendulum-v1", seeds=[3, 5], max_episode_steps=20)
    first, again = evaluator.evaluate(PENDULUM), evaluator.evaluate(PENDULUM)
    assert first.returns.tolist() == again.returns.tolist() and first.num_clipped == again.num_clipped > 0
    assert first.returns[0] != first.returns[1] and first.lengths.tolist() == [20, 20]
    np.testing.assert_allclose(evaluator.evaluate(saved_pendulum).returns, first.returns, rtol=1e-4)


def test_pendulum_return_matches_a_plain_loop():
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=4)
    total, weights = 0.0, PENDULUM.weights.numpy()
    for _ in range(200):
        observation, reward, _, truncated, _ = env.step(np.clip(observation @ weights, -2, 2))
        total += reward
    assert truncated
    evaluation = Evaluator("Pendulum-v1", seeds=[4, 9]).evaluate(PENDULUM)
    assert evaluation.returns[0] == pytest.approx(total, rel=1e-3) and evaluation.lengths.tolist() == [200, 200]


def test_hopper_returns_are_reproducible():
    pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install '.[eval]'")
    policy = LinearPolicy(np.random.default_rng(0).normal(0, 0.5, (11, 3)))
    evaluator = Evaluator("Hopper-v5", num_episodes=3, reference_returns=(18.62, 2806.03))
    first, again = evaluator.evaluate(policy), evaluator.evaluate(policy)
    assert first.returns.tolist() == again.returns.tolist() and first.lengths.tolist() == again.lengths.tolist()
    assert (first.lengths > 1).all() and -1 < first.score < 10


def test_policy_saved_for_a_different_batch_size_raises(tmp_path):
    save_policy(LinearPolicy([[0.001]]), tmp_path, batch_size=2)
    policy = load_policy(tmp_path)
    np.testing.assert_allclose(make_evaluator(seeds=[0, 1]).evaluate(policy).returns, [0.001, 0.303], atol=1e-6)
    with pytest.raises(
        SpecMismatchError, match="saved for batches of 2, but 3 episodes are evaluated; .* evaluate 2 episodes"
    ):
        make_evaluator().evaluate(policy)


def test_invalid_policies_raise():
    with pytest.raises(
        TypeError, match="policy must be a TF-Agents TFPolicy or the return value of load_policy, got a str"
    ):
        make_evaluator().evaluate("policy")


# --- Kinds of environments


def test_environments_specs_and_functions_give_the_returns_of_their_id():
    environment = gymnasium.make("Pendulum-v1", max_episode_steps=5)
    expected = Evaluator("Pendulum-v1", seeds=[3], max_episode_steps=5).evaluate(PENDULUM)
    for env in (environment, environment.spec, lambda: gymnasium.make("Pendulum-v1", max_episode_steps=5)):
        evaluator = Evaluator(env, seeds=[3])
        assert evaluator.evaluate(PENDULUM).returns.tolist() == expected.returns.tolist()
        assert evaluator.name == ("<lambda>" if callable(env) else "Pendulum-v1")
    assert environment.reset(seed=0)[0].shape == (3,)  # It was not closed.
    environment.close()


def test_module_of_an_environment_is_imported(tmp_path, monkeypatch):
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gymnasium.registry))
    assert Evaluator("my_envs:Mine-v0", seeds=[3]).evaluate(PENDULUM).lengths.tolist() == [5]
    with pytest.raises(ValueError, match="Gymnasium cannot create 'no_envs:Mine-v0': .*; check the name of the module"):
        Evaluator("no_envs:Mine-v0")


def test_environments_that_cannot_be_made_raise():
    environment = Counter()
    with pytest.raises(ValueError, match="the environment Counter has no spec.*; pass a function that creates one"):
        Evaluator(environment)
    environment.close()
    with pytest.raises(TypeError, match="an environment must be the id of one, .* got a int"):
        Evaluator(3)


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
    with pytest.raises(ValueError, match="no reference returns for Ant-v5, only for Hopper-v5"):
        read_reference_returns(path, "Ant-v5")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1, 2]", "must contain reference returns such as"),
        (
            '{"Hopper-v5": {"ref_min": 1.63, "ref_max": null}}',
            r"for Hopper-v5 in .* must be two different numbers, .*, got \[1.63, None\]",
        ),
        ('{"Hopper-v5": [1, 1]}', "must be two different numbers, RANDOM and EXPERT, got .1, 1."),
        ('{"Hopper-v5": "x"}', "must be two different numbers.*, got x"),
    ],
)
def test_invalid_reference_returns_raise(content, message, tmp_path):
    path = tmp_path / "references.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_reference_returns(path, "Hopper-v5")


# --- Environments that hang


@pytest.mark.slow
def test_each_environment_has_the_timeout_for_its_creation():
    class Slow(Counter):
        def __init__(self):
            super().__init__()
            time.sleep(0.4)

    assert Evaluator(Slow, num_episodes=4, timeout_secs=1).evaluate(constant_policy(0.5)).returns.shape == (4,)


@pytest.mark.drill("user code")
def test_hanging_environment_raises_with_its_stack_trace():
    release = threading.Event()

    class Hanging(Counter):
        def step(self, action):
            if self._t == 2:
                release.wait()
            return super().step(action)

        def close(self):
            """Does nothing; it is not called, because the environment hangs."""

    with pytest.raises(TimeoutError, match=r"(?s)release.wait.*\n.*environments of Hanging did not answer within 2 s$"):
        Evaluator(Hanging, seeds=[0, 3], timeout_secs=2).evaluate(constant_policy(0.5))
    release.set()
    Counter.num_open = 0
