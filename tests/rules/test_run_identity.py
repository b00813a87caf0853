"""The rule that runs, environments and data are identified by what they are, and not by their names.

Each option of a training run either identifies it, so that a change is refused when the run continues, or is listed
here as free, because the logged numbers keep their meaning.
"""

import dataclasses
import functools
import importlib
import itertools
import json
import linecache
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from agent_data import change
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.spaces import Discrete
from small_agents import MeanAgent, batches

from rlds2reverb import CheckpointError, TableConfig, TrainingConfig, ingest, load
from rlds2reverb.adders import NStep
from rlds2reverb.learners import Learner, load_run
from rlds2reverb.learners.curves import label_runs
from rlds2reverb.learners.hooks import LearnerHook
from rlds2reverb.learners.hooks.hook_list import HookList
from rlds2reverb.learners.run_directory import RunDirectory
from rlds2reverb.learners.run_identity import differences
from rlds2reverb.system.code_fingerprints import fingerprint_code
from rlds2reverb.training import restore_environment
from rlds2reverb.training.config import declared_options
from rlds2reverb.training.environment_spec import describe_env, restore_env
from rlds2reverb.training.evaluation_environment import environment_key, resolve_environment
from rlds2reverb.training.experiments import run_plan
from rlds2reverb.training.placement import Outcome
from rlds2reverb.training.plans import plan_seeds
from rlds2reverb.training.sources import find_fingerprint, open_data
from rlds2reverb.training.training import require_same_run
from rlds2reverb.types.evaluations import Evaluation

#: Values of options for the tests of identity; `change` returns those of the others.
CHANGED = {
    "algo": "td3",
    "steps": 90,
    "hyperparameters": {"alpha": 1.0},
    "execution_horizon": 1,
    "observation_offsets": (-1, 0),
    "sampler": "prioritized",
    "store_dir": "stores",
    "online_steps": 3000,
    "online_replay": "reverb",
    "action_mask": "legal",
    "env": dataclasses.replace(gymnasium.spec("Pendulum-v1"), max_episode_steps=5),
    "reference_returns": (0.0, 50.0),
    "hooks": ("my_module:MyHook",),
    "track": (),
    "drop_fields": ("observation/x",),
    "reward": "scale:2",
    "normalize_observations": False,
    "action_bounds": (-2.0, 2.0),
}
#: Options that may change, and why the logged numbers keep their meaning.
FREE = {
    "deterministic": "the numbers are the same up to rounding",
    "allow_config_mismatch": "it allows the changes of the others",
    "jit_compile": "the numbers are the same up to rounding",
    "store_dir": "the batches are the same",
    "online_steps": "more steps continue the run; fewer are refused",
    "eval_every": "each evaluation is logged with its step",
    "eval_episodes": "each evaluation is logged with its number of episodes, and estimates the same mean",
    "reference_returns": "the scores of earlier evaluations are computed again",
    "checkpoint_every": "not logged",
    "checkpoint_every_secs": "not logged",
    "keep_checkpoints": "not logged",
    "log_every": "each entry is logged with its step",
    "hooks": "the user's code",
    "track": "not logged",
}
OFFLINE = {"sampler"}  # Excluded by an online phase.


def find_key(config):
    return environment_key(resolve_environment(config.env, None))


def write_run(folder, config, *, step=10, **identity):
    """Writes what a run with a checkpoint leaves behind."""
    name, spec = find_key(config)
    document = {"configuration": config.as_dict(), "identity": {**config.identity(name, spec), **identity}}
    document |= {"environment": name, "environment_spec": spec, "reference_returns": config.reference_returns}
    with RunDirectory(folder) as directory:
        directory.writes_events = False
        directory.log(step, {"loss": 1.0})
        returns = np.array([30.0])
        directory.log_evaluation(step, Evaluation(returns, np.array([1]), (0,), config.reference_returns))
        directory.write_config(document)
    (folder / "checkpoints" / f"{step:010d}").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainingConfig)])
def test_change_of_an_option_is_refused_or_free(name, tmp_path):
    phase = {} if name in OFFLINE else {"online_steps": 2000}
    before = TrainingConfig("td3_bc", steps=100, env="Pendulum-v1", **phase)
    now = before.replace(**{name: CHANGED[name] if name in CHANGED else change(declared_options()[name])})
    write_run(tmp_path, before)
    require_same_run(tmp_path, before, find_key(before))
    if name in FREE:
        require_same_run(tmp_path, now, find_key(now))
    else:
        with pytest.raises(CheckpointError, match="contains a different run: .* was .*, is now .*; use a different"):
            require_same_run(tmp_path, now, find_key(now))
        assert declared_options()[name].identifies or name in ("env", "hyperparameters", "steps", "epochs")


def test_fewer_updates_than_made_are_refused(tmp_path):
    config = TrainingConfig("bc", steps=18, env=None)
    write_run(tmp_path, config, step=18)
    require_same_run(tmp_path, config.replace(steps=19), (None, None))
    for changes in ({"steps": 6}, {"steps": 6, "allow_config_mismatch": True}):
        with pytest.raises(CheckpointError, match="steps must be at least 18, .* got 6"):
            require_same_run(tmp_path, config.replace(**changes), (None, None))


@pytest.mark.parametrize("steps", [0, 100])
def test_fewer_environment_steps_than_collected_are_refused(steps, tmp_path):
    config = TrainingConfig("td3_bc", steps=steps, online_steps=1500, env="Pendulum-v1")
    write_run(tmp_path, config, step=steps + 500)
    require_same_run(tmp_path, config.replace(online_steps=1600), find_key(config))
    message = (
        f"online_steps must be at least 1,500, for the {steps + 500} updates that .*, got 1,200; collect more steps"
    )
    with pytest.raises(CheckpointError, match=message):
        require_same_run(tmp_path, config.replace(online_steps=1200), find_key(config))
    if steps:
        with pytest.raises(CheckpointError, match="steps must be at least 600, .* got 590; set more steps"):
            require_same_run(tmp_path, config.replace(steps=90, allow_config_mismatch=True), find_key(config))


# --- environments

LIMIT = 3


def make_pendulum(g=10.0):
    return gymnasium.make("Pendulum-v1", g=g, max_episode_steps=LIMIT)


def make_with_helper():
    return make_pendulum()


def close_over(value):
    return lambda: gymnasium.make("Pendulum-v1", g=value)


def make_class(g):
    class Mine(PendulumEnv):
        num_made = 0

        def __init__(self):
            super().__init__(g=g)

    return Mine


def make_spec(**changes):
    return dataclasses.replace(gymnasium.spec("Pendulum-v1"), **changes)


def wrap(**arguments):
    return gymnasium.wrappers.ClipReward(gymnasium.make("Pendulum-v1"), **arguments).spec


@dataclasses.dataclass
class Settings:
    g: float


#: Functions that return two environments of one name that differ.
PAIRS = {
    "kwargs": lambda: (make_spec(kwargs={"g": 1.0}), make_spec(kwargs={"g": 2.0})),
    "kwargs or none": lambda: ("Pendulum-v1", make_spec(kwargs={"g": 2.0})),
    "arrays": lambda: (make_spec(kwargs={"x": np.arange(2)}), make_spec(kwargs={"x": np.arange(3)})),
    "types of arrays": lambda: (make_spec(kwargs={"x": np.float32(1)}), make_spec(kwargs={"x": np.float64(1)})),
    "tuples": lambda: (make_spec(kwargs={"x": (1, 2)}), make_spec(kwargs={"x": (1, 3)})),
    "limit": lambda: ("Pendulum-v1", make_spec(max_episode_steps=5)),
    "wrappers": lambda: ("Pendulum-v1", wrap(min_reward=-1.0)),
    "arguments of wrappers": lambda: (wrap(min_reward=-1.0), wrap(min_reward=-2.0)),
    "class": lambda: ("Pendulum-v1", make_spec(entry_point=f"{__name__}:Other")),
    "constant of a lambda": lambda: (
        lambda: gymnasium.make("Pendulum-v1"),
        lambda: gymnasium.make("Pendulum-v1", g=1.0),
    ),
    "enclosed number": lambda: (close_over(1.0), close_over(2.0)),
    "enclosed array": lambda: (close_over(np.arange(2)), close_over(np.arange(3))),
    "enclosed object": lambda: (close_over(Settings(1.0)), close_over(Settings(2.0))),
    "enclosed function": lambda: (close_over(close_over(1.0)), close_over(close_over(2.0))),
    "class of one name": lambda: (make_class(1.0), make_class(2.0)),
    "registered class": lambda: tuple(make_spec(entry_point=make_class(g)) for g in (1.0, 2.0)),
    "enclosed class": lambda: (close_over(make_class(1.0)), close_over(make_class(2.0))),
    "argument of a partial": lambda: (functools.partial(make_pendulum, 1.0), functools.partial(make_pendulum, 2.0)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_environments_of_one_name_differ_in_their_descriptions(pair):
    one, other = (json.loads(json.dumps(describe_env(env))) for env in PAIRS[pair]())
    again, _ = (json.loads(json.dumps(describe_env(env))) for env in PAIRS[pair]())
    assert one == again != other
    assert TrainingConfig("bc", env=one).as_dict()["env"] == one


@pytest.mark.parametrize("part", ["Env", "Wrap"])
def test_changed_code_behind_text_entry_points_of_environments_and_wrappers_is_refused(part, tmp_path, monkeypatch):
    code = """
from gymnasium import Wrapper
from gymnasium.envs.classic_control import PendulumEnv
class Env(PendulumEnv):
    number = 1
class Wrap(Wrapper):
    number = 1
"""
    monkeypatch.syspath_prepend(tmp_path)

    def describe(text):
        (tmp_path / "text_entry_points.py").write_text(text)
        sys.modules.pop("text_entry_points", None)
        importlib.invalidate_caches()
        linecache.clearcache()
        wrapper = gymnasium.envs.registration.WrapperSpec("Wrap", "text_entry_points:Wrap", {})
        spec = make_spec(entry_point="text_entry_points:Env", additional_wrappers=(wrapper,))
        return json.loads(json.dumps(describe_env(spec)))

    before = describe(code)
    assert before == describe(code + "# The same code.\n")
    restore_env(before)
    head, tail = code.split(f"class {part}")
    now = describe(f"{head}class {part}{tail.replace('number = 1', 'number = 2', 1)}")
    (difference,) = differences({"environment_spec": before}, {"environment_spec": now}).values()
    owner = "environment_spec" if part == "Env" else "environment_spec.additional_wrappers"
    assert owner in difference
    with pytest.raises(ValueError, match=f"because text_entry_points:{part} has changed; pass it to use it"):
        restore_env(before)


def test_counters_of_a_class_do_not_change_its_description():
    env = make_class(1.0)
    before = describe_env(env)
    env.num_made += 1
    assert describe_env(env) == before


@pytest.mark.parametrize("name", ["LIMIT", "make_pendulum"])
def test_functions_whose_global_variables_changed_differ(name, monkeypatch):
    before = describe_env(make_with_helper)
    monkeypatch.setitem(globals(), name, 4 if name == "LIMIT" else lambda: gymnasium.make("Pendulum-v1"))
    now = describe_env(make_with_helper)
    assert now["$function"] == before["$function"] and now["code"] != before["code"]
    with pytest.raises(ValueError, match=r"because .*:make_with_helper has changed; pass it to use it \(env\)"):
        restore_env(before)


class Other(PendulumEnv):
    """An environment whose arguments are not numbers."""

    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments


def test_environments_are_made_again_from_their_descriptions(tmp_path):
    arguments = {"x": np.arange(2, dtype=np.float32), "y": (1, 2), "make": make_pendulum, "n": None}
    spec = make_spec(entry_point=Other, kwargs=arguments, max_episode_steps=7)
    spec.additional_wrappers = wrap(min_reward=-1.0).additional_wrappers
    write_run(tmp_path, TrainingConfig("bc", env=spec))
    environment = restore_environment(load_run(tmp_path))
    made = gymnasium.make(environment.make_env)
    assert environment.spec == describe_env(spec) and environment.name == "Pendulum-v1"
    assert made.spec.max_episode_steps == 7 and isinstance(made, gymnasium.wrappers.ClipReward)
    restored = made.unwrapped.arguments
    assert restored["x"].dtype == np.float32 and restored["y"] == (1, 2) and restored["make"] is make_pendulum
    for env in ("Pendulum-v1", make_pendulum):
        write_run(tmp_path, TrainingConfig("bc", env=env))
        assert restore_environment(load_run(tmp_path)).make_env == env
    write_run(tmp_path, TrainingConfig("bc", env=functools.partial(make_pendulum, g=2.0)))
    assert restore_environment(load_run(tmp_path)).make_env().unwrapped.g == 2.0
    write_run(tmp_path, TrainingConfig("bc", env=close_over(1.0)))
    with pytest.raises(ValueError, match=r"because .*<lambda> cannot be imported; pass .* \(env\)"):
        restore_environment(load_run(tmp_path))


def test_descriptions_may_be_written_by_hand():
    spec = restore_env({"id": "Pendulum-v1", "kwargs": {"g": 2.0}})
    assert (spec.kwargs, spec.max_episode_steps) == ({"g": 2.0}, 200)
    with pytest.raises(ValueError, match=r"must contain only id, .* got \['limit'\]"):
        restore_env({"id": "Pendulum-v1", "limit": 3})


def test_runs_in_different_environments_form_different_curves(tmp_path):
    envs = ["Pendulum-v1", make_spec(kwargs={"g": 2.0}), make_spec(max_episode_steps=5), *map(close_over, (1.0, 2.0))]
    for number, (env, seed) in enumerate(itertools.product(envs, (0, 1))):
        write_run(tmp_path / str(number), TrainingConfig("bc", env=env, seed=seed))
    groups = label_runs([load_run(tmp_path / str(number)) for number in range(2 * len(envs))])
    assert [len(group) for group in groups.values()] == [2] * len(envs)
    labels = label_runs([load_run(tmp_path / str(number)) for number in range(4)])
    assert list(labels) == ["bc", "bc, env g 2"]
    write_run(tmp_path / "wrapped", TrainingConfig("bc", env=wrap(min_reward=-1.0)))
    labels = label_runs([load_run(tmp_path / name) for name in ("0", "wrapped")])
    assert list(labels) == ["bc", "bc, env wrappers ClipReward"]


def test_planned_runs_carry_the_environments_that_a_script_has_registered():
    gymnasium.register("rlds2reverbMine-v0", Other, max_episode_steps=5)
    (plan,) = plan_seeds("a", TrainingConfig("bc", env="rlds2reverbMine-v0"), 1)
    sent = cloudpickle.dumps(plan)
    del gymnasium.registry["rlds2reverbMine-v0"]
    try:
        assert cloudpickle.loads(sent).config == plan.config
        assert gymnasium.spec("rlds2reverbMine-v0").max_episode_steps == 5
    finally:
        gymnasium.registry.pop("rlds2reverbMine-v0", None)


@pytest.mark.slow
def test_evaluations_of_another_environment_are_removed(tmp_path):
    def train(g, until):
        spec = {"id": "Pendulum-v1", "kwargs": {"g": g}}
        identity = {"environment": "Pendulum-v1", "environment_spec": spec}
        with Learner(tmp_path, MeanAgent(), batches(), identity=identity) as learner:
            learner.load_checkpoint(allow_config_mismatch=True)
            with learner.running():
                learner.advance(until)
                learner.record_evaluation(Evaluation(np.array([100.0 / until]), np.array([1]), (0,)))
                learner.save_checkpoint()

    train(10.0, 1)
    train(10.0, 2)
    assert load_run(tmp_path).evaluations["step"].tolist() == [1, 2]
    train(1.0, 4)
    assert load_run(tmp_path).evaluations["step"].tolist() == [4] and load_run(tmp_path).best_return == 25


# --- experiments


def make_episodes(reward=1.0):
    random = np.random.default_rng(0)
    return [{"observations": random.normal(size=(9, 3)), "actions": random.uniform(-1, 1, (8, 1)),
             "rewards": np.full(8, reward), "terminated": False}]  # fmt: skip


def place_fake(runs, root, report):
    """Writes what complete runs leave behind."""
    for run in runs:
        write_run(root / run.name, run.config, data=find_fingerprint(run.source, run.config))
        report(run.name, Outcome("complete", 10))
    return ""


def run(root, source, **options):
    return run_plan(plan_seeds(source, TrainingConfig("bc", **{"steps": 10, **options}), 2), root, place=place_fake)


@pytest.mark.parametrize("table", [None, "items"])
def test_fingerprint_of_a_directory_does_not_depend_on_action_bounds(tmp_path, table):
    (log,) = make_episodes()
    log = {name: np.float32(log[name]) for name in ("observations", "rewards")} | {"terminated": False}
    source = load([{**log, "actions": np.arange(8) % 2}])  # Without bounds, the number of actions is unknown.
    tables = [TableConfig(table or "replay")]
    ingest(source, tmp_path / "tables", adder=NStep(1, 0.99), tables=tables)
    config = TrainingConfig("dqn", env=None)
    location = tmp_path / "tables" if table is None else (tmp_path / "tables", table)
    with open_data(location, config, action_space=Discrete(2)) as data:
        assert find_fingerprint(location, config) == data.fingerprint
        assert find_fingerprint(tmp_path / "tables", config) == data.fingerprint


def test_fingerprint_is_that_of_the_data():
    for config in (TrainingConfig("bc", env=None), TrainingConfig("iql", env=None, cut_at_terminal=True)):
        assert find_fingerprint(make_episodes(), config) == open_data(make_episodes(), config).fingerprint
    assert find_fingerprint(None, config) == "none" and find_fingerprint("localhost:8000", config) is None


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"source": make_episodes(2.0)}, "data was"),
        pytest.param(
            *({"env": "Pendulum-v1"}, {"env": make_spec(kwargs={"g": 2.0})}, "env was Pendulum-v1, is now {'id'"),
            marks=pytest.mark.slow,
        ),
        pytest.param({"env": close_over(1.0)}, {"env": close_over(2.0)}, r"env\.code was", marks=pytest.mark.slow),
        ({"env": make_spec(kwargs={"g": 1.0})}, {"env": make_spec(kwargs={"g": 2.0})}, r"env\.kwargs\.g was 1\.0, is"),
        pytest.param({}, {"steps": 9}, "steps must be at least 10", marks=pytest.mark.slow),
    ],
    ids=["content", "arguments", "functions", "values", "steps"],
)
def test_complete_experiment_does_not_return_results_of_other_runs(before, now, message, tmp_path):
    before = {"source": make_episodes(), "env": None, **before}
    assert run(tmp_path, **before).is_complete and run(tmp_path, **before).is_complete
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, **{**before, **now})


def test_environment_registered_anew_with_other_arguments_is_noticed(tmp_path):
    for g in (1.0, 2.0):
        gymnasium.registry.pop("rlds2reverbMine-v0", None)
        gymnasium.register("rlds2reverbMine-v0", PendulumEnv, kwargs={"g": g})
        if g == 1.0:
            run(tmp_path, make_episodes(), env="rlds2reverbMine-v0")
    with pytest.raises(CheckpointError, match=r"environment_spec\.kwargs\.g was 1.0, is now 2.0"):
        run(tmp_path, make_episodes(), env="rlds2reverbMine-v0")
    del gymnasium.registry["rlds2reverbMine-v0"]


def test_scores_follow_the_reference_returns_of_the_call(tmp_path):
    options = {"source": make_episodes(), "env": "Pendulum-v1"}
    for references, score in ((None, None), ((0.0, 100.0), 30.0), ((0.0, 50.0), 60.0), (None, None)):
        (row,) = run(tmp_path, **options, reference_returns=references).rows
        assert row.scores.get("last", (None,))[0] == score
        assert load_run(tmp_path / "seed_1").reference_returns == references
        assert load_run(tmp_path / "seed_1").configuration["reference_returns"] == (references and [*references])


# --- hooks


class Count(LearnerHook):
    """A hook with a state."""

    def __init__(self, name="count", *, every=1, limit=0):
        super().__init__(name, position="after_iter", every=every)
        self.limit, self.number = limit, 0

    def __call__(self, learner):
        pass

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class Sum(Count):
    """A hook of a different class with the same name."""


def test_states_of_hooks_do_not_depend_on_their_order():
    def make():
        return [Count(), Count(every=2), Count(limit=3), Sum(), Count("other")]

    for order in itertools.permutations(range(5)):
        hooks = make()
        saved = HookList(hooks)
        for number, hook in enumerate(hooks, 1):
            hook.number = number
        states = json.loads(json.dumps(saved.state_dict()))
        hooks = make()
        HookList([hooks[index] for index in order]).load_state_dict(states)
        assert [hook.number for hook in hooks] == [1, 2, 3, 4, 5]


def test_hook_without_a_hash_keeps_its_state():
    class Mutable(Count):
        __hash__ = None  # As that of a dataclass.

    hook, restored = Mutable(), Mutable()
    hook.number = 7
    HookList([restored]).load_state_dict(HookList([hook]).state_dict())
    assert restored.number == 7


def test_hook_with_other_settings_keeps_its_state():
    first, new, changed = Count(limit=1), Count("new"), Count(limit=2)
    hooks = HookList([first])
    first.number = 7
    HookList([new, changed]).load_state_dict(hooks.state_dict())
    assert (new.number, changed.number) == (0, 7)


# --- code


class Penalty:
    """A callable object with a state and a counter."""

    weight = 1.0

    def __init__(self, k):
        self.k, self.num_calls = k, 0

    def __call__(self):
        self.num_calls += 1
        return self.k * self.weight * LIMIT


def test_code_of_objects_covers_their_classes_and_states_but_not_counters(monkeypatch):
    penalty = Penalty(1)
    before = fingerprint_code(penalty)
    penalty()
    assert before == fingerprint_code(penalty) != fingerprint_code(Penalty(2))
    assert (
        fingerprint_code(penalty.__call__)
        == fingerprint_code(Penalty(1).__call__)
        == fingerprint_code(penalty.__call__)
    )
    for name, value in {"weight": 2.0, "__call__": lambda self: self.k}.items():
        with monkeypatch.context() as patched:
            patched.setattr(Penalty, name, value)
            assert fingerprint_code(penalty) != before
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert fingerprint_code(penalty) != before
