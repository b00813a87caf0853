"""The rule that what a run determines reaches the agent, built-in or custom, or is refused or noted by name."""

from typing import Annotated

import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC, change

from rlds2reverb import TrainingConfig
from rlds2reverb.learners.agents import BCAgent, IQLAgent, Range, get_hyperparameters, make_agent
from rlds2reverb.training.config import declared_options
from rlds2reverb.training.config_validation import describe_unused
from rlds2reverb.training.progress import Progress
from rlds2reverb.training.sources import open_environment
from rlds2reverb.training.table_data import require_table_options

RUN = {"seed": 3, "gamma": 0.5, "steps": 7, "env": None}


class PassesOn(IQLAgent):
    """An agent with one more hyperparameter."""

    def __init__(self, time_step_spec, action_spec, *, penalty=0.01, **kwargs):
        super().__init__(time_step_spec, action_spec, hidden_sizes=(8,), **kwargs)


class PassesOnTwice(PassesOn):
    """An agent whose base class passes its arguments on, too."""

    def __init__(self, time_step_spec, action_spec, **kwargs):
        super().__init__(time_step_spec, action_spec, **kwargs)


class Swallows(IQLAgent):
    """An agent that does not pass its arguments on."""

    def __init__(self, time_step_spec, action_spec, **kwargs):
        super().__init__(time_step_spec, action_spec, hidden_sizes=(8,))


class Fixes(IQLAgent):
    """An agent that sets an argument itself."""

    def __init__(self, time_step_spec, action_spec, **kwargs):
        super().__init__(time_step_spec, action_spec, discount=0.9, **kwargs)


def make_with_any(time_step_spec, action_spec, **kwargs):
    return IQLAgent(time_step_spec, action_spec, **kwargs)


class Clones(BCAgent):
    """An agent without a discount."""


class Declares(IQLAgent):
    penalty: Annotated[float, Range(0)] = 0.01


def test_attributes_of_subclasses_are_hyperparameters():
    values = TrainingConfig(Declares, **RUN, hyperparameters={"penalty": 2}).resolved_hyperparameters
    made = make_agent(Declares, TIME_STEP_SPEC, ACTION_SPEC, **values)
    assert (made.penalty, made.discount, values["expectile"]) == (2.0, 0.5, 0.7)
    with pytest.raises(ValueError, match="penalty must be a number >= 0, got -1"):
        make_agent(Declares, TIME_STEP_SPEC, ACTION_SPEC, penalty=-1)


@pytest.mark.parametrize("agent", ["iql", PassesOn, PassesOnTwice, Declares])
def test_agent_receives_what_the_run_determines(agent):
    values = TrainingConfig(agent, **RUN).resolved_hyperparameters
    assert (values["seed"], values["discount"], values["num_updates"]) == (3, 0.5, 7)
    made = make_agent(agent, TIME_STEP_SPEC, ACTION_SPEC, **values)
    assert (made.seed, made.discount) == (3, 0.5)
    assert get_hyperparameters(agent)["expectile"].default == 0.7


def test_inherited_default_is_not_recorded_unless_it_is_set():
    assert "hidden_sizes" not in TrainingConfig(PassesOn, **RUN).resolved_hyperparameters
    options = {**RUN, "hyperparameters": {"expectile": 0.9}}
    assert TrainingConfig(PassesOn, **options).resolved_hyperparameters["expectile"] == 0.9


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Swallows, "accepts discount, num_updates, seed, but does not pass them on"),
        (Fixes, "do not set discount in its code"),
    ],
)
def test_agent_that_does_not_apply_an_option_is_refused(agent, message):
    values = TrainingConfig(agent, **RUN).resolved_hyperparameters
    with pytest.raises(ValueError, match=message):
        make_agent(agent, TIME_STEP_SPEC, ACTION_SPEC, **values)


def test_options_that_a_function_does_not_accept_are_refused_or_noted():
    with pytest.raises(
        ValueError, match="gamma cannot be set, because .*make_with_any has no argument discount or gam"
    ):
        _ = TrainingConfig(make_with_any, **RUN).resolved_hyperparameters
    notes = describe_unused(TrainingConfig(make_with_any, steps=7, env=None))
    assert [note.about for note in notes] == ["gamma", "seed"]
    assert not describe_unused(TrainingConfig(Clones, steps=7, env=None))


# --- Every option, in every kind of run

#: A value of each option that is not its default, and what happens in runs on a dataset (d), on a table (t), without data
#: (o), and without an environment (n): where it is refused, and where a note says that it has no effect. It is applied in
#: all others, for which the tests of the option itself are responsible. An option that is not listed has the value of
#: `change`, and is applied in all runs.
OPTIONS = {
    "algo": ("td3", "", ""),
    "steps": (7, "o", ""),
    "epochs": (2, "to", ""),
    "deterministic": (True, "t", ""),
    "hyperparameters": ({"expectile": 0.8}, "", ""),
    "n_step": (3, "t", ""),
    "chunk_length": (2, "t", ""),
    "observation_offsets": ((-1, 0), "t", ""),
    "execution_horizon": (1, "", ""),
    "action_mask": ("legal", "", ""),
    "sampler": ("prioritized", "o", ""),
    "store_dir": ("store", "to", ""),
    "top_percent": (10.0, "to", ""),
    "validation": (0.5, "to", ""),
    "online_steps": (3_000, "n", ""),
    "online_ratio": (0.25, "o", "dtn"),
    "updates_per_step": (2.0, "", "dtn"),
    "update_every": (5, "", "dtn"),
    "warmup_steps": (5, "", "dtn"),
    "num_envs": (2, "", "dtn"),
    "online_replay": ("reverb", "", "dtn"),
    "replay_size": (5, "", "dtn"),
    "env": ("Pendulum-v1", "", ""),
    "eval_every": (5, "", "n"),
    "eval_episodes": (5, "", "n"),
    "eval_max_episode_steps": (5, "", "n"),
    "reference_returns": ((0.0, 1.0), "", "n"),
    "hooks": (("log_show_after_iter=10",), "", ""),
    "track": ((), "", ""),
    "drop_fields": (("observation/a",), "to", ""),
    "cut_at_terminal": (True, "to", ""),
    "reward": ("scale:2", "t", ""),
    "normalize_observations": (True, "to", ""),
    "clip_actions": (True, "to", ""),
    "action_bounds": ((-2.0, 2.0), "o", ""),
}


def fit(kind, **options):
    """Returns the configuration of a run, as it is checked before any data are read."""
    env = None if kind == "n" else "Pendulum-v1"
    options = {"env": env, **({"online_steps": 2_000, "steps": 0} if kind == "o" else {}), **options}
    config = TrainingConfig(options.pop("algo", "iql"), **options)
    if kind == "t":
        config = config.without_statistics()
        require_table_options(config)
    if kind == "n" and config.online_steps:
        open_environment([], config, Progress(quiet=True))
    return config.without_data() if kind == "o" else config


@pytest.mark.parametrize("kind", "dton")
@pytest.mark.parametrize("option", declared_options())
def test_every_option_is_applied_refused_or_noted_by_name(option, kind):
    value, refused, noted = OPTIONS.get(option) or (change(declared_options()[option]), "", "")
    others = {"chunk_length": 2, "algo": "fql"} if option in ("chunk_length", "execution_horizon") else {}
    if option == "execution_horizon" and kind == "t":
        return  # Chunks of tables are refused already.
    if option == "env" and kind == "n":
        return
    options = {**others, option: value}
    if kind in refused:
        with pytest.raises(ValueError, match=option):
            fit(kind, **options)
        return
    config = fit(kind, **options)
    notes = [note.about for note in describe_unused(config)]
    assert (option in notes) == (kind in noted), notes
    saved = config.as_dict()[option]
    assert saved == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(("pair", "expected"), [
    ("train.hooks=my_module:Hook", ("my_module:Hook",)),
    ("train.drop_fields=observation/x", ("observation/x",)),
    ("train.track=wandb", ("wandb",)),
    ("train.action_bounds=(-1,1)", (-1, 1)),
    ("train.observation_offsets=(-1,0)", (-1, 0)),
])  # fmt: skip
def test_set_makes_one_value_a_list_where_an_option_takes_several(pair, expected):
    from rlds2reverb.cli.train import read_options, train

    name = pair.partition("=")[0].removeprefix("train.")
    with train.make_context("train", ["--data", "x", "--run-dir", "y", "--algo", "bc", "--set", pair]) as context:
        assert read_options(context.params)[name] == expected
