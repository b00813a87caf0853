"""The rule: a call copied from a document of DI-engine, ALF or TF-Agents works, or its error names the replacement."""

import functools
import inspect
import math
import warnings
from collections import deque

import gymnasium
import internals
import numpy as np
import pytest
from reference_impls import assert_equal_nests
from small_agents import MeanAgent, batches, items
from tf_agents.policies import random_tf_policy
from tf_agents.specs import tensor_spec

import rlds2reverb
from rlds2reverb import TableConfig, adders, envs, learners, replay
from rlds2reverb.adders import di_engine
from rlds2reverb.adders.di_engine import Adder
from rlds2reverb.envs import suite_dm_control, suite_gym
from rlds2reverb.learners import InMemoryDataset, Learner, RunDirectory, hooks
from rlds2reverb.learners.hooks import (
    LearnerHook,
    LogShowHook,
    SaveCkptHook,
    hooks_from_config,
    make_hooks,
    register_learner_hook,
)
from rlds2reverb.replay import AdvancedReplayBuffer, BufferConfig, BufferManager, NaiveReplayBuffer
from rlds2reverb.system.replacements import read_replacements
from rlds2reverb.training.config import TrainingConfig
from rlds2reverb.types import sample_info

STEPS = [
    {"obs": t, "action": 0, "reward": 1.0, "next_obs": t + 1, "done": t == 4, "value": 0.5, "logit": None}
    for t in range(5)
]


def transition(reward):
    """Returns an item that is a transition for `MeanAgent`."""
    zeros = {"observation": np.zeros(2, np.float32), "next_observation": np.zeros(2, np.float32)}
    return {**zeros, "action": np.zeros(1, np.float32), "reward": np.float32(reward), "discount": np.float32(1)}


@pytest.fixture
def manager():
    config = {"replay_buffer_size": 100, "max_use": math.inf, "thruput_controller": {"sample_min_limit_ratio": 1}}
    with BufferManager({"a": {"type": "advanced", **config}}) as manager:
        manager.push_data([transition(reward) for reward in range(20)], "a")
        yield manager


# --- DI-engine's Adder


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (lambda: Adder(False, 4), "use_cuda"),
        (lambda: Adder(True, unroll_len=4), "use_cuda"),
        (lambda: Adder(use_cuda=False, unroll_len=4, last_fn_type="last"), "use_cuda"),
        (lambda: Adder(False, 4, "last", None), "use_cuda"),
    ],
)
def test_adder_ignores_use_cuda_with_a_warning(make, flag):
    with pytest.warns(UserWarning, match=f"{flag} has no effect"):
        adder = make()
    assert len(adder.get_train_sample(STEPS)) == len(Adder(4).get_train_sample(STEPS)) == 2
    assert len(adder.get_train_sample(STEPS, 2)) == len(Adder().get_train_sample(STEPS, 2)) == 3


@pytest.mark.parametrize("function", [Adder.get_gae, di_engine.get_gae], ids=["class", "module"])
def test_get_gae_ignores_cuda_with_a_warning(function):
    expected = Adder.get_gae(STEPS, 0.0, 0.9, 0.9)
    with pytest.warns(UserWarning, match="cuda has no effect"):
        assert function(STEPS, 0.0, 0.9, 0.9, False) == expected
    with pytest.warns(UserWarning, match="cuda has no effect"):
        assert Adder.get_gae_with_default_last_value(STEPS, True, 0.9, 0.9, cuda=False) == expected


def test_trajectory_length_can_be_the_text_inf():
    assert Adder.get_traj(deque(STEPS), "inf") == STEPS
    assert_equal_nests(Adder(4).get_nstep_return_data(STEPS, 2, "inf"), Adder.get_nstep_return_data(STEPS, 2))
    assert "value_gamma" not in Adder.get_nstep_return_data(STEPS, 2, correct_terminate_gamma=False)[0]
    with pytest.raises(ValueError, match="traj_len must be a length, got a bool; pass cum_reward by name"):
        Adder.get_nstep_return_data(STEPS, 2, True)


def be_mine(receiver, *args, **kwargs):
    return "mine" if isinstance(receiver, Adder) else f"of {receiver}"


OVERRIDES = {
    "method": be_mine,
    "class": classmethod(lambda *args, **kwargs: "mine"),
    "static": staticmethod(lambda *args, **kwargs: "mine"),
}


@pytest.mark.parametrize("kind", OVERRIDES)
@pytest.mark.parametrize("is_instance", [True, False])
def test_all_functions_of_the_adder_can_be_overridden(kind, is_instance):
    if kind == "method" and not is_instance:
        pytest.skip("a method needs an instance")
    names = [name for name in vars(Adder) if not name.startswith("_")]
    assert len(names) == 5
    for name in names:
        subclass = type("Mine", (Adder,), {name: OVERRIDES[kind]})
        receiver = subclass(4) if is_instance else subclass
        assert getattr(receiver, name)(STEPS) == "mine"
    subclass = type("Mine", (Adder,), {"get_gae": OVERRIDES[kind]})
    receiver = subclass(4) if is_instance else subclass
    assert receiver.get_gae_with_default_last_value(STEPS, True, 0.9, 0.9) == "mine"


def test_an_override_can_call_the_function_that_it_overrides():
    class First(Adder):
        def get_train_sample(self, data):
            return super().get_train_sample(data)[:1]

    assert len(First(2).get_train_sample(STEPS)) == 1


# --- Keys of updates and items


@pytest.mark.parametrize("key", ["priorities", "td_error", "info", "replay_unique_ids", "prio", "IS"])
@pytest.mark.parametrize("holder", ["buffer", "manager"])
def test_update_with_an_unknown_key_raises_and_changes_nothing(manager, holder, key):
    target = manager if holder == "manager" else manager["a"]
    with pytest.raises(ValueError, match=f"info has no key '{key}'"):
        target.update({"replay_unique_id": ["a_0"], "priority": [9.0], key: [9.0]})
    assert manager["a"].highest_priority == 1.0


@pytest.mark.parametrize(("key", "right"), [("priorities", "priority"), ("collect_iters", "collect_iter")])
def test_items_with_a_misnamed_option_raise(key, right):
    with NaiveReplayBuffer("a") as buffer:
        for push in (buffer.append, lambda item: buffer.extend([item]), buffer.extend_columns):
            with pytest.raises(ValueError, match=f"an item cannot have the field '{key}'; use '{right}'"):
                push({"x": np.ones(1), key: np.ones(1)})


def test_options_of_columns_have_the_effect_of_those_of_items():
    with AdvancedReplayBuffer("a", {"priority_eps": 0.0}) as buffer:
        buffer.extend_columns({"x": np.ones(2), "priority": np.array([0.0, 5.0]), "collect_iter": np.array([3, 4])})
        (item,) = buffer.sample(1)
        assert (item["priority"], item["collect_iter"]) == (5.0, 4)


@pytest.mark.parametrize("is_list", [True, False])
def test_manager_update_accepts_the_priority_info_of_the_learner(manager, tmp_path, is_list):
    with Learner(tmp_path, MeanAgent(), manager["a"].dataset(4)) as learner:
        batch = manager.sample(4, 0) if is_list else manager["a"].sample_batch(4)
        learner.train(batch)
        info = learner.priority_info
        assert list(info) == ["replay_unique_id", "replay_buffer_idx", "priority"]
        if is_list:
            assert info["replay_buffer_idx"].tolist() == [item["replay_buffer_idx"] for item in batch]
            assert info["replay_unique_id"].tolist() == [item["replay_unique_id"] for item in batch]
            assert info["priority"].tolist() == [item["reward"] for item in batch]
            assert manager.update(info) == manager.update({"a": info}) == 4
        assert manager["a"].update(info) == 4
        learner.train(batches().element_spec and next(iter(batches())))
        assert learner.priority_info == {} and manager.update(learner.priority_info) == 0


def test_learner_of_a_mixture_has_a_priority_info_for_its_manager(tmp_path):
    configs = {name: BufferConfig(max_size=50, priority_eps=0.0, alpha=1.0) for name in "ab"}
    with BufferManager(configs, sample_ratio={"a": 1, "b": 1}) as manager:
        for name in "ab":
            manager.push_data([transition(reward) for reward in range(8)], name)
        with Learner(tmp_path, MeanAgent(), manager.dataset(4)) as learner:
            learner.start(1)
            assert manager.update(learner.priority_info) == 4
            assert learner.priority_info["dataset_index"].tolist() == [0, 0, 1, 1]


# --- Buffers, their manager and tables


def test_manager_samples_with_the_learner_iteration_before_the_ratio(manager):
    assert len(manager.sample(4, 0)) == len(manager.sample(4, 0, {"a": 1})) == len(manager.sample(4, {"a": 1}, 0)) == 4
    assert len(manager.sample_batch(4, 0).info.key) == 4
    assert manager.count() == manager.count("a") == 20
    manager.clear(["a"])
    assert manager.count("a") == 0
    assert manager["a"].config == BufferConfig(max_size=100)


# --- Hooks


class Recorder(LearnerHook):
    """A hook as in DI-engine's documents: it passes all arguments on, and uses the names of `BaseLearner`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.freq = kwargs["ext_args"].freq
        self.seen = []

    def __call__(self, engine):
        if engine.last_iter.val % self.freq == 0:
            self.seen.append(engine.last_iter.val)
            engine.info(f"{engine.name} of {engine.world_size} at {engine.train_iter}")
            engine.debug("details")
            engine.logger.info("text")
            engine.tb_logger.add_scalar("mine/seen", len(self.seen), engine.last_iter.val)
            engine.log_buffer["scalar"]["seen"] = float(len(self.seen))


class Named(LearnerHook):
    def __init__(self, *args, ext_args={}, **kwargs):  # noqa: B006 - as in DI-engine's documents
        super().__init__(*args, **kwargs)
        self.freq = ext_args.freq

    def __call__(self, engine):
        pass


def test_hooks_of_the_documents_work(tmp_path, caplog):
    config = {"type": "recorder", "priority": 10, "position": "after_iter", "ext_args": {"freq": 2}}
    register_learner_hook("recorder", Recorder)
    made = hooks_from_config({"mine": config})
    with caplog.at_level("INFO"), Learner(tmp_path, MeanAgent(), batches(), hooks=made) as learner:
        learner.start(5)
        assert made[0].seen == [0, 2, 4] and learner.log_buffer["seen"] == 3.0
        learner.train(next(iter(batches())), 128)
        assert learner.collector_envstep == 128
        with pytest.raises(KeyError, match="log_buffer has no key 'histogram'"):
            learner.log_buffer["histogram"]
    assert "[RANK0]: learner of 1 at 2" in caplog.text and list((tmp_path / "train").iterdir())
    assert set(Recorder.positions) == {"before_run", "after_run", "before_iter", "after_iter"}


def test_ext_args_have_attributes():
    register_learner_hook("named", Named)
    (hook,) = hooks_from_config({"named": {"position": "after_iter", "ext_args": {"freq": 3}}})
    assert hook.freq == 3
    with pytest.raises(AttributeError, match="ext_args has no 'frq'; did you mean 'freq'"):
        Recorder("mine", position="after_iter", ext_args={"freq": 3}).ext_args.frq  # noqa: B018


@pytest.mark.parametrize(
    ("text", "kind", "every"),
    [("log_show_after_iter=10", LogShowHook, 10), ("save_ckpt_after_iter=5", SaveCkptHook, 5),
     ("save_ckpt_after_run", SaveCkptHook, 10_000), ("save_ckpt_after_run=True", SaveCkptHook, 10_000)],
)  # fmt: skip
def test_shorthand_of_hooks_can_be_text(text, kind, every):
    (hook,) = make_hooks(TrainingConfig("bc", hooks=[text]).hooks)
    assert (type(hook), hook.every) == (kind, every)
    assert make_hooks(["log_show_after_iter=False"]) == []
    with pytest.raises(ValueError, match="got 'log_show_after_itr=5'; did you mean 'log_show_after_iter'"):
        TrainingConfig("bc", hooks=["log_show_after_itr=5"])


# --- Errors that name the replacement

ERRORS = {
    "selector as text": (lambda: TableConfig("replay", sampler="prioritized"), TypeError, "Selector.parse"),
    "remover as text": (lambda: TableConfig("replay", remover="fifo"), TypeError, "Selector.parse"),
    "limiter as text": (lambda: TableConfig("t", rate_limiter="min_size:1"), TypeError, "RateLimiter.parse"),
    "name first": (lambda: AdvancedReplayBuffer({"replay_buffer_size": 1}), ValueError, "pass it before the config"),
    "unknown option": (lambda: BufferManager({"a": {"max_sise": 1}}), ValueError, "did you mean 'max_size'"),
    "no config": (lambda: BufferManager({"buffer_name": ["a"]}), TypeError, "must be a BufferConfig or a dict"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_names_the_replacement(name):
    call, kind, message = ERRORS[name]
    with warnings.catch_warnings(), pytest.raises(kind, match=message):
        warnings.simplefilter("ignore")
        call()


class Untrained(Learner):
    def __init__(self):
        pass


#: Calls of DI-engine's documents with arguments that do not exist here, and what the error says about them.
CALLS = {
    "manager": (lambda: BufferManager({"a": {}}, None), "no argument 'tb_logger'; use .*BufferManager.monitors"),
    "manager's name": (
        lambda: BufferManager({"a": {}}, None, "exp", "buffer"),
        "no argument 'tb_logger'; use .*BufferManager.monitors",
    ),
    "manager's update": (lambda: new_buffer(BufferManager).update({}, 1, 2), "update: too many positional arguments"),
    "replace": (
        lambda: new_buffer().sample(4, replace=True),
        "sample has no argument 'replace'; use with_replacement=",
    ),
    "fourth": (
        lambda: new_buffer().sample(4, 0, None, True),
        "sample has no argument 'replace'; use with_replacement=",
    ),
    "missing size": (lambda: new_buffer().sample(), "sample: missing a required argument: 'size'"),
    "strict": (lambda: new_buffer().load_state_dict({}, strict=False), "no argument 'strict': a state is complete"),
    "deepcopy": (lambda: new_buffer(BufferManager).load_state_dict({}, True), "no argument 'deepcopy': a state is"),
    "envstep": (lambda: new_buffer().append({"x": 1}, 5), "'cur_collector_envstep': pass the iteration of the learner"),
    "start": (lambda: Untrained().start(), "argument: 'num_iterations'; use .*Learner.start with num_iterations="),
    "name": (lambda: Untrained().save_checkpoint("best"), "no argument 'ckpt_name': checkpoints have the numbers"),
    "name=": (lambda: Untrained().save_checkpoint(ckpt_name="best"), "no argument 'ckpt_name': checkpoints have the"),
    "workers": (lambda: Learner("a", 1, 2, 3), "Learner has no argument 'dist_info'; use strategy= of"),
    "typing error": (lambda: new_buffer().sample(szie=4), "sample has no argument 'szie'; did you mean 'size'"),
}


def new_buffer(kind=AdvancedReplayBuffer):
    """Returns a buffer or a manager whose constructor was not called."""
    return object.__new__(kind)


@pytest.mark.parametrize("name", CALLS)
def test_error_of_a_call_names_what_replaces_its_arguments(name):
    call, message = CALLS[name]
    with pytest.raises(TypeError, match=message) as caught:
        call()
    assert caught.value.__context__ is None


def test_errors_inside_of_a_call_are_unchanged(manager):
    with pytest.raises(TypeError, match="^'int' object is not iterable$"):
        manager.clear(3)


# --- ALF's environments


def load(**options):
    return suite_gym.load("CartPole-v1", **options)


def test_suites_accept_auto_reset_and_no_env_id():
    with load(env_id=None, auto_reset=False, max_episode_steps=1, env_wrappers=[envs.ActionObservation]) as env:
        env.reset()
        env.step(np.int64(0))
        with pytest.raises(RuntimeError, match="the episode has ended; call reset"):
            env.step(np.int64(0))
    box = gymnasium.spaces.Box(-1, 1, (2,))
    image = gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)
    assert envs.ObservationClip(Constant(box), -0.1, 0.1).observation_space.high.max() == np.float32(0.1)
    assert envs.EpisodicRandomFrameCrop(Constant(image), 0.5, "channels_last", False).observation_space.shape[0] == 2
    assert envs.EpisodicRandomFrameCrop(Constant(image)).observation_space.shape == (3, 3, 3)
    assert envs.FrameFlip(Constant(image), 1, 0, "channels_last").observation_space.shape == (4, 4, 3)


class Constant(gymnasium.Env):
    """An environment with a given observation space, whose info has numbers."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, observation_space):
        self.observation_space = observation_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.low, {"cost": 0.0, "place": np.zeros(2)}

    def step(self, action):
        return self.observation_space.low, 1.0, False, False, {"cost": 2.0, "place": np.zeros(2)}


def test_evaluation_sums_the_env_info_of_each_episode():
    def make():
        return Constant(gymnasium.spaces.Box(-1, 1, (2,)))

    policy = load_saved_policy(make)
    evaluation = envs.evaluate(make, policy, 2, max_episode_steps=3, info_fields=["cost"])
    assert evaluation.env_info["cost"].tolist() == [6.0, 6.0] and evaluation.as_dict()["env_info/cost"] == 6.0
    with pytest.raises(ValueError, match="info_fields must name single numbers, but 'place' is"):
        envs.Evaluator(make, info_fields=["place"])


def load_saved_policy(make):
    env = envs.to_py_environment(envs.GymnasiumEnvironment(make()))
    spec = tensor_spec.from_spec((env.time_step_spec(), env.action_spec()))
    return random_tf_policy.RandomTFPolicy(*spec)


@pytest.mark.parametrize("name", read_replacements()["ALF suite_gym.load"])
def test_options_of_alf_are_refused_by_the_suites(name):
    if name == "suite_gym.load":
        return
    for call in (
        load,
        functools.partial(envs.create_environment, "CartPole-v1"),
        functools.partial(suite_dm_control.load, "a:b"),
    ):
        with pytest.raises(TypeError, match=f"has no argument '{name}'(; use| instead|:) "):
            call(**{name: None})


@pytest.mark.parametrize("name", read_replacements()["ALF create_environment"])
def test_arguments_of_create_environment_are_refused(name):
    if name != "create_environment":
        with pytest.raises(TypeError, match=f"create_environment has no argument '{name}'(; use|:) "):
            envs.create_environment("CartPole-v1", **{name: 1})


CLASSES = [Learner, RunDirectory, envs.Environment, AdvancedReplayBuffer, BufferManager]


@pytest.mark.parametrize("holder", CLASSES, ids=lambda holder: holder.__name__)
def test_attributes_of_other_libraries_exist_or_have_a_replacement(holder):
    sections = [section for section in read_replacements() if section.split(" ", 1)[1] in holder.replaces]
    assert len(sections) == len(holder.replaces)
    part = type(holder.__name__, (holder,), dict.fromkeys(getattr(holder, "__abstractmethods__", ())))
    for section in sections:
        for name, text in read_replacements()[section].items():
            if text != "same" and not hasattr(part, name):
                with pytest.raises(AttributeError, match=f"no attribute '{name}'(; use .* in place of|: )"):
                    getattr(object.__new__(part), name)


MODULES = [rlds2reverb, learners, hooks, replay, adders, envs]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_classes_of_other_libraries_exist_or_have_a_replacement(module):
    names = [section.split(" ", 1)[1] for section in read_replacements()]
    names += [name for section, texts in read_replacements().items() if "names" in section for name in texts]
    names = [name for name in names if name[0].isupper() and name not in module.__all__]
    assert len(names) > 100
    for name in names:
        with pytest.raises(ImportError, match=f"there is no {name}(; use .* in place of|: )"):
            exec(f"from {module.__name__} import {name}")
    assert not hasattr(module, "NoSuchName")


HOLDERS = [envs.DiscreteAction, envs.ThreadEnvironment, AdvancedReplayBuffer, BufferManager, Learner]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_constructors_name_a_similar_argument(holder):
    parameter = [*inspect.signature(holder).parameters][-1]
    with pytest.raises(TypeError, match=f"has no argument '{parameter}x'; did you mean '{parameter}'"):
        holder(**{f"{parameter}x": 1})


def test_typing_errors_name_the_own_option_first():
    with pytest.raises(TypeError, match="has no argument 'gym_wraper'; did you mean 'gym_wrappers'"):
        load(gym_wraper=[])
    with pytest.raises(
        TypeError, match="create_environment has no argument 'num_paralel'; did you mean 'num_parallel'"
    ):
        envs.create_environment("CartPole-v1", num_paralel=2)
    with pytest.raises(TypeError, match="has no argument 'sutton_barto_rewrd'; did you mean 'sutton_barto_reward'"):
        load(sutton_barto_rewrd=True)
    with pytest.raises(TypeError, match="pass it as suite="):
        envs.create_environment("CartPole-v1", suite_gym.load)
    with pytest.raises(TypeError, match="use Multitask for several"):
        envs.create_environment(["CartPole-v1"])
    load(sutton_barto_reward=True, render_mode="rgb_array").close()


# --- Batches that contain items several times


def test_a_batch_of_more_items_than_there_are_is_noted_once(caplog, monkeypatch):
    monkeypatch.setattr(sample_info, internals.NOTED_SIZES, set())
    columns = {"x": np.ones(4), "observation": np.ones((4, 2)), "action": np.ones((4, 1))}
    rows = {"observations": np.ones((4, 2)), "actions": np.ones((4, 1)), "rewards": np.ones(4)}
    rows |= {"terminals": np.arange(4) == 3, "timeouts": np.zeros(4, bool)}
    with NaiveReplayBuffer("a", {"sample_min_limit_ratio": 0}) as buffer:
        buffer.extend_columns(columns)
        samples = [
            lambda size: buffer.sample(size),
            lambda size: next(iter(rlds2reverb.batches(rows, size))),
            lambda size: InMemoryDataset(items(np.arange(4.0)), size).read(0, 1),
        ]
        for number, sample in enumerate(samples):
            caplog.clear()
            sample(4)
            assert not caplog.text
            sample(10 + number)
            sample(10 + number)
            assert caplog.text.count(f"a batch of {10 + number} contains some of the") == 1
