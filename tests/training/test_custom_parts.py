"""Custom agents, hooks and networks, as objects and by name, in Python and on the command line."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Literal

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.behavioral_cloning import behavioral_cloning_agent
from tf_agents.agents.cql import cql_sac_agent
from tf_agents.agents.ddpg import actor_network, critic_network, ddpg_agent
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.networks import actor_distribution_network
from tf_agents.trajectories import time_step

from rlds2reverb import SpecMismatchError, Training, TrainingConfig, load, load_run, register_agent, train
from rlds2reverb.cli.main import USER_ERROR, run
from rlds2reverb.learners import algorithms
from rlds2reverb.learners.agents import BCAgent, FullyConnected, GCIQLAgent, Range, ReBRACAgent
from rlds2reverb.learners.agents.registry import get_agent_class
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.training import restore_environment
from rlds2reverb.training.sources import open_data

SMALL = {"env": None, "batch_size": 8, "log_every": 20, "progress": False, "steps": 4}
MODULE = '''
import gymnasium
from rlds2reverb.learners.agents import BCAgent
from rlds2reverb.learners.hooks import LearnerHook


class MyBC(BCAgent):
    """Cloning."""


def make_env():
    return gymnasium.make("Pendulum-v1", max_episode_steps=5)


class Count(LearnerHook):
    def __init__(self, every=10, *, path=None):
        super().__init__("count", position="after_iter", every=every)
        self.path = path

    def __call__(self, learner):
        if self.path:
            with open(self.path, "a") as file:
                file.write(f"{learner.step} ")
        else:
            print("step", learner.step)
'''


@pytest.fixture(scope="module")
def pendulum(data):
    return data / "d4rl" / "pendulum_mixed-v2.hdf5"


@pytest.fixture(autouse=True)
def forget_custom_agents(monkeypatch):
    """Undoes registrations at the end of a test."""
    monkeypatch.setattr(algorithms, "CUSTOM_ALGORITHMS", {})


@pytest.fixture
def custom_module(tmp_path, monkeypatch):
    """Provides the name of a module in the current directory, which is not on the path."""
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


def make_ddpg(time_step_spec, action_spec, *, learning_rate: Annotated[float, Range(0, 1)] = 1e-3, discount=0.99):
    """Creates DDPG.

    Args:
      learning_rate: rate of both optimisers.
    """
    observation_spec = time_step_spec.observation
    return ddpg_agent.DdpgAgent(
        time_step_spec,
        action_spec,
        actor_network.ActorNetwork(observation_spec, action_spec, fc_layer_params=(4,)),
        critic_network.CriticNetwork((observation_spec, action_spec), joint_fc_layer_params=(4,)),
        tf.keras.optimizers.legacy.Adam(learning_rate),
        tf.keras.optimizers.legacy.Adam(learning_rate),
        gamma=discount,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )


def make_cloning(time_step_spec, action_spec):
    return behavioral_cloning_agent.BehavioralCloningAgent(
        time_step_spec,
        action_spec,
        actor_network.ActorNetwork(time_step_spec.observation, action_spec, fc_layer_params=(4,)),
        tf.keras.optimizers.legacy.Adam(),
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )


def make_cql_sac(time_step_spec, action_spec, *, discount=0.99):
    observation_spec = time_step_spec.observation
    actor = actor_distribution_network.ActorDistributionNetwork(
        observation_spec,
        action_spec,
        fc_layer_params=(4,),
        continuous_projection_net=tanh_normal_projection_network.TanhNormalProjectionNetwork,
    )
    return cql_sac_agent.CqlSacAgent(
        time_step_spec,
        action_spec,
        critic_network.CriticNetwork((observation_spec, action_spec), joint_fc_layer_params=(4,)),
        actor,
        *(tf.keras.optimizers.legacy.Adam() for _ in range(3)),
        1.0,
        2,
        include_critic_entropy_term=False,
        use_lagrange_cql_alpha=False,
        gamma=discount,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
    )


def make_checked(time_step_spec, action_spec, size, mode: Literal["a", "b"] = "a", flag: bool = False, **others):
    return BCAgent(time_step_spec, action_spec, hidden_sizes=(size,))


@pytest.mark.slow
def test_function_that_creates_an_agent_trains_resumes_and_loads(pendulum, tmp_path):
    options = {**SMALL, "hyperparameters": {"learning_rate": 1e-4}, "gamma": 0.9, "log_every": 2}
    first = train(pendulum, make_ddpg, tmp_path, **options)
    again = train(pendulum, f"{__name__}:make_ddpg", tmp_path, **{**options, "steps": 8})
    assert again.progress["step"].tolist() == [2, 4, 6, 8]
    assert first.identity["algo"] == again.identity["algo"] == f"{__name__}:make_ddpg"
    loaded = load_run(tmp_path)
    assert loaded.config["hyperparameters"] == {"learning_rate": 1e-4, "discount": 0.9}
    assert TrainingConfig.from_dict(loaded.configuration).resolved_hyperparameters["learning_rate"] == 1e-4
    action = loaded.policy.action(time_step.restart(np.zeros((3, 3), np.float32), 3)).action
    assert action.shape == (3, 1) and np.isfinite(action).all()


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_cloning, make_cql_sac])
def test_agents_of_tf_agents_train_on_the_items_they_require(make, pendulum, tmp_path):
    with Training(pendulum, TrainingConfig(make, steps=4, env=None, batch_size=8), tmp_path) as training:
        run = training.run()
        assert training.learner.step == 4
    action = run.policy.action(time_step.restart(np.zeros((3, 3), np.float32), 3)).action
    assert action.shape == (3, 1) and np.isfinite(action).all()


def test_algorithm_without_td_errors_is_rejected_for_prioritized_sampling():
    with pytest.raises(ValueError, match="sampler must be 'uniform' for .*, which has no TD errors"):
        TrainingConfig(f"{BCAgent.__module__}:BCAgent", sampler="prioritized")


def test_hyperparameters_of_a_function_are_its_arguments():
    algo = f"{__name__}:make_checked"
    values = TrainingConfig(algo, hyperparameters={"size": 3, "other": [1]}).resolved_hyperparameters
    assert values == {"size": 3, "mode": "a", "flag": False, "other": [1]}
    for hyperparameters, error, message in (
        ({}, ValueError, "make_checked requires the hyperparameter 'size', which has no default"),
        ({"size": 3, "mode": "c"}, ValueError, "mode must be 'a' or 'b', got 'c'"),
        ({"size": 3, "flag": 1}, ValueError, "flag must be True or False, got 1"),
    ):
        with pytest.raises(error, match=message):
            TrainingConfig(algo, hyperparameters=hyperparameters).resolved_hyperparameters  # noqa: B018
    with pytest.raises(ValueError, match=r"learning_rate must be a number in \[0, 1\], got 2"):
        TrainingConfig(make_ddpg, hyperparameters={"learning_rate": 2}).resolved_hyperparameters  # noqa: B018
    with pytest.raises(TypeError, match="has no hyperparameter 'learning_rat'; did you mean 'learning_rate'"):
        TrainingConfig(make_ddpg, hyperparameters={"learning_rat": 2}).resolved_hyperparameters  # noqa: B018
    with pytest.raises(ValueError, match="requires an agent with the hyperparameters observation_mean"):
        TrainingConfig(make_ddpg, normalize_observations=True).resolved_hyperparameters  # noqa: B018


def test_registered_agent_has_what_was_declared(tmp_path):
    class Mine(ReBRACAgent):
        pass

    register_agent("mine", Mine, batch_size=16, normalizes_observations=True)
    config = TrainingConfig("mine")
    assert (config.batch_size, config.normalize_observations, config.algo) == (16, True, "mine")
    assert TrainingConfig(Mine).batch_size == 16
    algorithm = get_algorithm("mine")
    assert (algorithm.items, algorithm.actions, algorithm.has_td_errors) == ("trajectories", "continuous", True)
    (tmp_path / "mine.gin").write_text("Mine.actor_penalty = 0.5")
    assert TrainingConfig.from_gin("mine", gin_files=[tmp_path / "mine.gin"]).hyperparameters == {"actor_penalty": 0.5}


def test_pickled_configuration_contains_the_agent():
    register_agent("mine", lambda *specs: make_ddpg(*specs), batch_size=16)
    pickled = cloudpickle.dumps(TrainingConfig("mine"))
    algorithms.CUSTOM_ALGORITHMS.clear()
    assert cloudpickle.loads(pickled) == TrainingConfig("mine") and get_algorithm("mine").batch_size == 16


def test_invalid_registrations_raise():
    for arguments, error, message in (
        (("iql", make_ddpg), ValueError, "a different agent is already registered as 'iql'"),
        (("a:b", make_ddpg), ValueError, "must be a string without a colon, got 'a:b'"),
        (("x", lambda spec: None), TypeError, r"must accept the arguments \(time_step_spec, action_spec\)"),
        (("x", 3), TypeError, "an agent must be a class or function that creates it, got 3"),
    ):
        with pytest.raises(error, match=message):
            register_agent(*arguments)
    with pytest.raises(ValueError, match="actions must be one of 'continuous', 'discrete', got 'any'"):
        register_agent("x", make_ddpg, actions="any")


def test_declared_actions_are_checked_before_the_data_are_read(pendulum, tmp_path):
    register_agent("discrete_ddpg", lambda *specs: make_ddpg(*specs), actions="discrete")
    with pytest.raises(SpecMismatchError, match="discrete_ddpg requires discrete actions"):
        train(pendulum, "discrete_ddpg", tmp_path, **SMALL)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:x", "algo is 'no_such_module:x', but there is no module 'no_such_module'"),
        ("rlds2reverb.learners.agents:IQLAgen", "has no 'IQLAgen'; did you mean 'IQLAgent'"),
        ("math:pi", "algo is 'math:pi', but an agent must be a class or function that creates it, got 3.14"),
        ("math:sqrt", r"algo is 'math:sqrt', but math:sqrt must accept the arguments \(time_step_spec, action_spec\)"),
        ("math:", "algo must be one of awac"),
        ("math:pi + 1", "must be written as 'my_module:name'"),
        ("math:pow(open('x'), 2)", "must be written as 'my_module:name'"),
    ],
)
def test_references_to_nothing_raise(reference, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(reference)


def test_object_that_is_no_agent_is_rejected(pendulum, tmp_path):
    def make_nothing(time_step_spec, action_spec):
        return None

    def make_error(time_step_spec, action_spec):
        raise ValueError("bad size")

    with pytest.raises(ValueError, match="make_nothing must return a TFAgent, got None"):
        train(pendulum, make_nothing, tmp_path, **SMALL)
    with pytest.raises(ValueError, match="make_error raised an error: bad size"):
        train(pendulum, make_error, tmp_path, **SMALL)


class Steps(LearnerHook):
    """A hook that records the steps at which it is called."""

    calls = ()

    def __init__(self, every=2):
        super().__init__("steps", position="after_iter", every=every)

    def __call__(self, learner):
        Steps.calls += ((self.every, learner.step),)


def test_hooks_are_objects_classes_names_or_configurations(pendulum, tmp_path):
    Steps.calls = ()
    hooks = [Steps(4), Steps, f"{__name__}:Steps(every=3)", {"save_ckpt_after_iter": 2}]
    config = TrainingConfig("bc", steps=4, env=None, batch_size=8, hooks=hooks)
    with Training(pendulum, config, tmp_path) as training:
        training.learner.start(4)
    assert sorted(Steps.calls) == [(2, 2), (2, 4), (3, 3), (4, 4)]
    assert (tmp_path / "checkpoints" / f"{2:010d}").is_dir()
    assert load_run(tmp_path).configuration["hooks"] == [f"{__name__}:Steps"] * 2 + hooks[2:]


@pytest.mark.parametrize(
    ("hooks", "error", "message"),
    [
        ("my_module:MyHook", TypeError, r"hooks must be a list, such as \['my_module:MyHook'\]"),
        (["save"], ValueError, "hooks must be written as 'my_module:MyHook', got 'save'"),
        ([3], TypeError, "hooks must contain hooks, dicts or text"),
        (["math:pi"], ValueError, "hooks must contain instances or subclasses of LearnerHook, got 3.14"),
        ([LearnerHook], ValueError, "hook .*LearnerHook requires arguments"),
        ([f"{__name__}:Steps(evry=3)"], ValueError, "Steps does not accept these arguments: .*'evry'"),
        ([{"save_after": 3}], ValueError, "unknown hook 'save_after'"),
    ],
)
def test_invalid_hooks_raise_before_the_data_are_read(hooks, error, message, tmp_path):
    with pytest.raises(error, match=message):
        train("no-such-file", "bc", tmp_path, hooks=hooks, **SMALL)


@pytest.mark.usefixtures("no_policies")
def test_command_line_finds_agents_hooks_and_environments_in_the_current_directory(custom_module, pendulum, capfd):
    assert run(["agents", f"{custom_module}:MyBC"]) == 0
    out = capfd.readouterr().out
    assert f"agent                 {custom_module}:MyBC" in out and "learning_rate = 0.0003  (a number > 0)" in out
    command = ["train", "--algo", f"{custom_module}:MyBC", "--data", str(pendulum), "--run-dir", "run"]
    command += [
        "--env",
        f"{custom_module}:make_env",
        "--eval-episodes",
        "2",
        "--set",
        "hidden_sizes=(4,)",
        "--batch-size",
        "8",
        "--hook",
        f"{custom_module}:Count(2, path='steps.txt')",
    ]
    assert run([*command, "--hook", f"{custom_module}:Count", "--steps", "4"]) == 0
    assert run([*command, "--steps", "6"]) == 0
    assert Path("steps.txt").read_text() == "2 4 6 "
    assert load_run("run").identity["algo"] == f"{custom_module}:MyBC"
    capfd.readouterr()
    environment = restore_environment(load_run("run"))
    assert environment.name == f"{custom_module}:make_env" and environment.make_env().spec.max_episode_steps == 5
    assert run(["train", "--algo", f"{custom_module}:MyB", "--data", "x", "--run-dir", "run"]) == USER_ERROR
    assert "has no 'MyB'; did you mean 'MyBC'" in capfd.readouterr().err


@pytest.mark.slow
def test_environments_of_functions_are_made_again(custom_module, pendulum, capfd):
    made = f"{custom_module}:make_env"
    command = ["train", "--algo", "bc", "--data", str(pendulum), "--run-dir", "run", "--steps", "2"]
    assert run([*command, "--env", made, "--eval-episodes", "2"]) == 0
    for options in ((), ("--env", made)):
        capfd.readouterr()
        assert run(["eval", "run", "--episodes", "2", "--json", *options]) == 0
        answer = json.loads(capfd.readouterr().out)
        assert (answer["environment"], answer["policies"][0]["lengths"]) == (made, [5, 5])
    assert run(["eval", "run", "--env", f"{custom_module}:make_envs"]) == USER_ERROR
    assert f"no environment '{custom_module}:make_envs'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("code", "error"), [("int('abc')", ValueError), ("open('nowhere')", OSError), ("import nowhere", ImportError)]
)
def test_errors_of_custom_code_are_raised_with_their_traceback(custom_module, pendulum, code, error):
    with Path(f"{custom_module}.py").open("a") as file:
        file.write(f"\n\nclass Wrong(Count):\n    def __init__(self):\n        {code}\n")
    command = ["train", "--algo", "bc", "--data", str(pendulum), "--run-dir", "run", "--hook", f"{custom_module}:Wrong"]
    with pytest.raises(error) as caught:
        run(command)
    assert [entry.path.name for entry in caught.traceback if entry.path.name == f"{custom_module}.py"]


def test_networks_are_part_of_the_identity():
    networks = {"actor_network": FullyConnected((4,)), "critic_network": FullyConnected((4,), layer_norm=True)}
    config = TrainingConfig("td3", hyperparameters=networks)
    named = config.as_dict()["hyperparameters"]
    assert named["actor_network"].startswith(
        "rlds2reverb.learners.agents.custom_networks:FullyConnected(hidden_sizes=(4,)"
    )
    same = TrainingConfig.from_dict(config.as_dict())
    assert same.resolved_hyperparameters["critic_network"] == networks["critic_network"]
    assert same.identity(None) == config.identity(None) != TrainingConfig("td3").identity(None)


@pytest.mark.slow
def test_networks_by_name_continue_a_run_with_the_same_networks(pendulum, tmp_path):
    networks = {"actor_network": FullyConnected((4,)), "critic_network": FullyConnected((4,), layer_norm=True)}
    train(pendulum, "td3", tmp_path, hyperparameters=networks, **SMALL)
    named = load_run(tmp_path).configuration["hyperparameters"]
    assert train(pendulum, "td3", tmp_path, hyperparameters=named, **{**SMALL, "steps": 6}).progress["step"][-1] == 6


@pytest.mark.slow
@pytest.mark.parametrize("networks", [{}, {"value_network": FullyConnected((4,))}], ids=["convolutions", "own"])
def test_runs_on_images_are_bit_identical_if_they_are_continued(networks, data, tmp_path):
    source = data / "rlds" / "physics_rlds" / "pendulum_pixels" / "1.0.0"
    hyperparameters = {"hidden_sizes": (4,), "num_updates": 9, **networks}
    config = TrainingConfig("iql", env=None, batch_size=8, deterministic=True, hyperparameters=hyperparameters)
    weights = []
    for folder, ends in (("once", [4]), ("twice", [2, 4])):
        for steps in ends:
            with Training(source, config.replace(steps=steps), tmp_path / folder) as training:
                run_ = training.run()
        weights.append([variable.numpy() for variable in training.agent.trainable_variables])
    for one, two in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, two)
    action = run_.predict({"image": np.zeros((48, 48, 3), np.uint8), "state": [0, 0, 0]})
    assert action.shape == (1,) and np.isfinite(action).all()


@pytest.mark.parametrize("base", ["iql", "gciql", "decision_transformer", "dqn", "bc"])
def test_subclass_needs_the_data_of_its_base_class(base):
    mine, theirs = get_algorithm(type("Mine", (get_agent_class(base),), {})), get_algorithm(base)
    for name in ("items", "actions", "batch_size", "has_td_errors", "normalizes_observations", "step_info"):
        assert getattr(mine, name) == getattr(theirs, name)
    assert mine.learns_from_rewards is (base != "gciql")


@pytest.mark.slow
def test_subclass_of_a_goal_agent_learns_without_rewards(data, tmp_path):
    class Mine(GCIQLAgent):
        pass

    path = data / "formats/ogbench/pointmaze-medium-navigate-v0-val.npz"
    options = {**SMALL, "hyperparameters": {"hidden_sizes": (4,)}}
    assert train(path, Mine, tmp_path, **options).configuration["algo"].endswith("Mine")


def weigh_by_return(steps):
    """Returns the return of an episode."""
    return steps["reward"].sum()


def test_train_samples_in_proportion_to_weights(tmp_path):
    episodes = [
        {
            "observations": np.full((5, 1), number, np.float32),
            "actions": np.zeros((4, 1), np.float32),
            "rewards": np.full(4, number, np.float32),
            "terminated": False,
        }
        for number in range(3)
    ]
    reference = f"{__name__}:weigh_by_return"
    options = {"env": None, "reward": "scale:5"}  # The weights are those of the dataset's own rewards.
    configs = [TrainingConfig("bc", sampler=sampler, **options) for sampler in (weigh_by_return, reference)]
    for config in configs:
        with open_data(load(episodes), config) as data:
            items = data.items.resize(6000).sample_indices(0)[0]
        assert np.bincount(items // 4, minlength=3) / 6000 == pytest.approx([0, 1 / 3, 2 / 3], abs=0.03)
    assert configs[0].identity(None) == configs[1].identity(None) != TrainingConfig("bc", **options).identity(None)
    assert configs[0].as_dict()["sampler"] == reference
