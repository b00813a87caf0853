"""Hooks from configurations in DI-engine's two formats, and the order of hooks."""

import math
import signal

import pytest
from small_agents import MeanAgent, batches

from rlds2reverb.learners import Learner, hooks as hooks_package
from rlds2reverb.learners.hooks import (
    HOOKS,
    EarlyStopHook,
    EvaluateHook,
    LearnerHook,
    LoadCkptHook,
    LogReduceHook,
    LogShowHook,
    Phase,
    SaveCkptHook,
    TriggerHook,
    hooks_from_config,
    merge_hooks,
    register_learner_hook,
)


class Nothing(LearnerHook):
    def __init__(self, name="nothing", priority=50, *, position="after_iter", every=1):
        super().__init__(name, priority, position=position, every=every)

    def __call__(self, learner):
        pass


def describe(hooks):
    return [(type(hook), hook.name, hook.priority, hook.position, hook.every) for hook in hooks]


def test_shorthand_creates_hooks():
    config = {
        "load_ckpt_before_run": "some/path",
        "save_ckpt_after_iter": 500,
        "save_ckpt_after_run": True,
        "log_show_after_iter": 20,
        "log_reduce_after_iter": 20,
    }
    hooks = hooks_from_config(config)
    assert describe(hooks) == [
        (LoadCkptHook, "load_ckpt", 20, "before_run", 1),
        (SaveCkptHook, "save_ckpt", 20, "after_iter", 500),
        (SaveCkptHook, "save_ckpt_after_run", 20, "after_run", 10_000),
        (LogShowHook, "log_show", 20, "after_iter", 20),
        (LogReduceHook, "log_reduce", 10, "after_iter", 20),
    ]
    assert hooks[0].load_path == "some/path"
    (latest,) = hooks_from_config({"load_ckpt_before_run": True})
    assert latest.load_path == "latest"


def test_false_none_and_empty_values_disable_hooks():
    config = {"save_ckpt_after_iter": False, "log_show_after_iter": None, "load_ckpt_before_run": ""}
    assert hooks_from_config(config) == []


def test_true_selects_the_default_interval():
    (hook,) = hooks_from_config({"save_ckpt_after_iter": True})
    assert hook.every == 10_000
    (hook,) = hooks_from_config({"log_show_after_iter": True})
    assert hook.every == 100


def test_long_form_creates_hooks():
    config = {
        "mine": {"name": "saves", "type": "save_ckpt", "priority": 7, "position": "after_run"},
        "log_show": {"ext_args": {"freq": 30}},
        "load_ckpt": {"position": "before_run", "ext_args": {"load_path": "p"}},
    }
    hooks = hooks_from_config(config)
    assert describe(hooks) == [
        (SaveCkptHook, "saves", 7, "after_run", 10_000),
        (LogShowHook, "log_show", 20, "after_iter", 30),
        (LoadCkptHook, "load_ckpt", 20, "before_run", 1),
    ]


@pytest.mark.parametrize(
    "config, message",
    [
        ({"save_ckpt_after_itr": 5}, "unknown hook 'save_ckpt_after_itr'; did you mean 'save_ckpt_after_iter'?"),
        ({"zzz": 5}, "unknown hook 'zzz'; use one of load_ckpt_before_run, "),
        ({"mine": {"type": "save_ckp"}}, "hook 'mine' has the unknown type 'save_ckp'; did you mean 'save_ckpt'?"),
        ({"mine": {"type": "log_show", "freq": 3}}, "hook 'mine' has the unknown key 'freq'; use name, type, priority"),
        ({"mine": {"type": "log_show", "ext_args": {"often": 3}}}, "'mine' has the unknown key 'often'; use freq"),
        ({"early_stop": {"ext_args": {"patient": 3}}}, "unknown key 'patient'; use freq, metric, patience"),
        ({"load_ckpt": {"position": "after_run"}}, "position of hook 'load_ckpt' must be 'before_run'"),
        ({"save_ckpt_after_iter": 0}, "every must be an integer >= 1, got 0"),
        ({"mine": {"type": "save_ckpt", "position": "sometimes"}}, "position must be one of .*, got 'sometimes'"),
    ],
)
def test_invalid_configuration_raises(config, message):
    with pytest.raises(ValueError, match=message):
        hooks_from_config(config)


@pytest.mark.parametrize(
    "config, message",
    [
        ([], r"config must be a dict of hooks, such as .*, got \[\]"),
        (
            {"log_show": {"ext_args": 100}},
            r"ext_args of hook 'log_show' must be a dict, such as {'freq': 100}, got 100",
        ),
        ({"save_ckpt": 100}, r"the value of hook 'save_ckpt' must be a dict, such as {'type': 'save_ckpt'}, got 100"),
    ],
)
def test_configuration_of_a_wrong_type_raises(config, message):
    with pytest.raises(TypeError, match=message):
        hooks_from_config(config)


def test_published_configurations_of_di_engine_create_hooks():
    """The shorthand of ding/worker/learner/base_learner.py, and the long form of DI-engine's documentation."""
    shorthand = {
        "load_ckpt_before_run": "",
        "log_show_after_iter": 100,
        "save_ckpt_after_iter": 10000,
        "save_ckpt_after_run": True,
        "log_reduce_after_iter": True,
    }
    assert [hook.name for hook in hooks_from_config(shorthand)] == [
        "log_show",
        "save_ckpt",
        "save_ckpt_after_run",
        "log_reduce",
    ]
    long_form = {
        "load_ckpt": {
            "name": "load_ckpt",
            "type": "load_ckpt",
            "priority": 20,
            "position": "before_run",
            "ext_args": {"load_path": ""},
        },
        "log_show": {
            "name": "log_show",
            "type": "log_show",
            "priority": 20,
            "position": "after_iter",
            "ext_args": {"freq": 100},
        },
        "save_ckpt_after_run": {
            "name": "save_ckpt_after_run",
            "type": "save_ckpt",
            "priority": 20,
            "position": "after_run",
        },
        "log_reduce": {"name": "log_reduce", "type": "log_reduce", "priority": 10.5, "position": "after_iter"},
    }
    assert describe(hooks_from_config(long_form)) == [
        (LoadCkptHook, "load_ckpt", 20, "before_run", 1),
        (LogShowHook, "log_show", 20, "after_iter", 100),
        (SaveCkptHook, "save_ckpt_after_run", 20, "after_run", 10_000),
        (LogReduceHook, "log_reduce", 10.5, "after_iter", 100),
    ]


def test_hooks_are_constructed_as_in_di_engine():
    hooks = [
        LoadCkptHook("load_ckpt", 20, position="before_run", ext_args={"load_path": "some/path"}),
        SaveCkptHook("save_ckpt", 20, position="after_iter", ext_args={"freq": 500}),
        LogShowHook("log_show", 20, position="after_iter", ext_args={"freq": 100}),
        LogReduceHook("log_reduce", 10, position="after_iter", ext_args={"freq": 30}),
    ]
    assert describe(hooks) == [
        (LoadCkptHook, "load_ckpt", 20, "before_run", 1),
        (SaveCkptHook, "save_ckpt", 20, "after_iter", 500),
        (LogShowHook, "log_show", 20, "after_iter", 100),
        (LogReduceHook, "log_reduce", 10, "after_iter", 30),
    ]
    assert hooks[0].load_path == "some/path"
    with pytest.raises(TypeError, match="ext_args of hook 'log_show' must be a dict, such as {'freq': 100}, got 100"):
        LogShowHook(ext_args=100)


def test_early_stop_is_configured_by_ext_args():
    (hook,) = hooks_from_config({"early_stop": {"ext_args": {"metric": "loss", "freq": 2, "patience": 3}}})
    assert describe([hook]) == [(EarlyStopHook, "early_stop", 15, "after_iter", 2)]
    assert (hook.metric, hook.patience) == ("loss", 3)
    (default,) = hooks_from_config({"early_stop": {}})
    assert default.metric == "evaluation/mean_return"


def test_class_with_ext_args_receives_them_unchanged(monkeypatch):
    class DiEngineHook(Nothing):
        def __init__(self, *args, ext_args=None, **kwargs):
            super().__init__(*args, **kwargs)
            self.ext_args = ext_args

    monkeypatch.setattr(hooks_package.configuration, "HOOKS", {**HOOKS, "mine": DiEngineHook, "nothing": Nothing})
    (hook,) = hooks_from_config({"mine": {"position": "before_iter", "priority": 7, "ext_args": {"freq": 3}}})
    assert describe([hook]) == [(DiEngineHook, "mine", 7, "before_iter", 1)] and hook.ext_args == {"freq": 3}
    (hook,) = hooks_from_config({"nothing": {"ext_args": {"freq": 3}}})
    assert hook.every == 3
    with pytest.raises(ValueError, match="hook 'nothing' of type 'nothing' does not accept its arguments: .*often"):
        hooks_from_config({"nothing": {"ext_args": {"often": 3}}})


def test_registered_hook_is_created_by_its_name(monkeypatch):
    monkeypatch.setattr(hooks_package.configuration, "HOOKS", dict(HOOKS))
    assert register_learner_hook("nothing", Nothing) is Nothing
    register_learner_hook("nothing", Nothing)  # Registering a class again is allowed.
    (hook,) = hooks_from_config({"mine": {"type": "nothing", "priority": 3}})
    assert describe([hook]) == [(Nothing, "mine", 3, "after_iter", 1)]
    with pytest.raises(ValueError, match="a different hook is already registered as 'log_show'"):
        register_learner_hook("log_show", Nothing)
    with pytest.raises(TypeError, match="hook must be a subclass of LearnerHook"):
        register_learner_hook("print", print)


def test_merge_hooks_sorts_by_priority_and_is_stable():
    first = [Nothing("a", 20), Nothing("b", 10)]
    second = [Nothing("c", 10), Nothing("d", 20), Nothing("e", 0)]
    assert [hook.name for hook in merge_hooks(first, second)] == ["e", "b", "c", "a", "d"]


def test_merge_hooks_sorts_by_phase_before_priority():
    hooks = [LogShowHook(priority=0), SaveCkptHook(priority=1), Nothing(priority=2), EarlyStopHook(priority=2)]
    hooks += [LogReduceHook(priority=90), EvaluateHook(print, priority=99), LoadCkptHook(priority=99)]
    assert [(type(hook), hook.phase) for hook in merge_hooks(hooks, [])] == [
        (LoadCkptHook, Phase.LOAD),
        (EvaluateHook, Phase.EVALUATE),
        (Nothing, Phase.OTHER),
        (EarlyStopHook, Phase.OTHER),
        (SaveCkptHook, Phase.SAVE),
        (LogReduceHook, Phase.REDUCE_LOG),
        (LogShowHook, Phase.LOG),
    ]


def test_hook_is_due_at_multiples_of_its_interval():
    hook = Nothing(every=4)
    assert [done for done in range(13) if hook.is_due(done)] == [4, 8, 12]
    assert [hook.next_due(done) for done in (0, 3, 4, 5)] == [4, 4, 8, 8]
    before = Nothing(position="before_iter", every=4)
    assert [done for done in range(9) if before.is_due(done)] == [0, 4, 8]
    with pytest.raises(ValueError, match="priority must be a number in .*, got -1"):
        Nothing(priority=-1)


class Owner:
    """The attributes of a learner that these hooks use."""

    def __init__(self):
        self.step, self.log_buffer, self.recorded_at = 10, {"loss": 2.0}, {}


def test_log_reduce_hook_applies_its_function():
    owner = Owner()
    LogReduceHook()(owner)
    assert owner.log_buffer == {"loss": 2.0}
    LogReduceHook(reduce=lambda numbers: {name: value / 2 for name, value in numbers.items()})(owner)
    assert owner.log_buffer == {"loss": 1.0}


def test_early_stop_counts_nan_as_no_improvement():
    owner = Owner()
    hook, stopped = EarlyStopHook(metric="loss", patience=2), []
    owner.latest, owner.stop = {}, lambda reason: stopped.append(owner.latest["loss"])
    for value in (float("nan"), 1.0, 2.0, 3.0, float("nan"), 3.0):
        owner.latest = {"loss": value}
        hook(owner)
    assert stopped == [3.0]


def test_early_stop_counts_each_evaluation_once_also_after_a_restart():
    owner, stopped = Owner(), []
    owner.latest, owner.stop = {"evaluation/mean_return": 1.0, "loss": 2.0}, stopped.append
    states = [{"best": -math.inf, "num_without_gain": 0}]
    for recorded_at in (100, 100, 100, 200, 200, 300, 300):
        owner.recorded_at = {"evaluation/mean_return": recorded_at, "loss": 300}
        hook = EarlyStopHook(every=10, patience=2)
        hook.load_state_dict(states[-1])
        hook(owner)
        states.append(hook.state_dict())
    assert [state["num_without_gain"] for state in states] == [0, 0, 0, 0, 1, 1, 2, 2] and len(stopped) == 1


@pytest.mark.slow
def test_continued_run_begins_with_the_evaluation_that_a_signal_has_stopped(tmp_path):
    def stop(policy):
        signal.raise_signal(signal.SIGINT)

    def open_learner(evaluate):
        hooks = [EvaluateHook(evaluate, every=4, position=position) for position in ("before_run", "after_iter")]
        hooks = [LoadCkptHook(), *hooks, SaveCkptHook(position="after_run")]
        return Learner(tmp_path, MeanAgent(), batches(), hooks=hooks)

    with open_learner(lambda policy: None if learner.step else 9.0) as learner:
        learner.start(4)
        assert learner.evaluated_at == 0 and learner.best_return == -math.inf  # It only shows where the run starts.
    for _ in range(2):
        with open_learner(stop) as learner:
            learner.start(8)
            assert learner.step == 4 and learner.evaluated_at == 0
    steps = []
    with open_learner(lambda policy: steps.append(learner.step) or 5.0) as learner:
        learner.start(8)
    assert steps == [4, 8]
    with open_learner(stop) as learner:
        learner.start(8)
        assert not learner.is_stopped_by_signal and learner.best_return == 5.0


@pytest.mark.slow
def test_learner_records_when_each_number_was_logged(tmp_path):
    with Learner(tmp_path, MeanAgent(), batches(), hooks=[LogShowHook(every=4)]) as learner:
        learner.start(2)
        learner.record_evaluation(5.0)
        learner.start(6)
        learner.save_checkpoint()
        recorded_at = {
            name: learner.recorded_at[name] for name in ("evaluation/mean_return", "loss", "updates_per_sec")
        }
    assert recorded_at == {"evaluation/mean_return": 2, "loss": 6, "updates_per_sec": 6}
    with Learner(tmp_path, MeanAgent(), batches()) as learner:
        assert learner.load_checkpoint() and recorded_at.items() <= learner.recorded_at.items()


def test_trigger_hook_passes_the_number_of_iterations():
    calls = []
    TriggerHook(calls.append, every=10)(Owner())
    assert calls == [10]
