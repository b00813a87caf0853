"""The rule that what a run determines reaches the agent, built-in or custom, or is refused or noted by name."""

from typing import Annotated

import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC

from rlds2reverb import TrainingConfig
from rlds2reverb.learners.agents import BCAgent, IQLAgent, Range, get_hyperparameters, make_agent

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
    notes = TrainingConfig(make_with_any, steps=7, env=None).describe_unused()
    assert [note.about for note in notes] == ["gamma", "seed"]
    assert not TrainingConfig(Clones, steps=7, env=None).describe_unused()
