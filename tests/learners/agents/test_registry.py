import gin
import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC
from rlds2reverb.learners.agents import AGENTS, get_hyperparameters, make_agent


def test_unknown_agent_raises_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"agent must be one of .*, got 'td3bc'; did you mean 'td3_bc'\?"):
        make_agent("td3bc", TIME_STEP_SPEC, ACTION_SPEC)


def test_unknown_hyperparameter_raises_with_the_nearest_name():
    with pytest.raises(
        TypeError, match=r"hyperparameters of iql must be among .*'expectil'; did you mean 'expectile'\?"
    ):
        make_agent("iql", TIME_STEP_SPEC, ACTION_SPEC, expectil=0.9)
    with pytest.raises(TypeError, match=r"got 'qqq'$"):
        make_agent("iql", TIME_STEP_SPEC, ACTION_SPEC, qqq=0.9)


def test_get_hyperparameters_returns_published_defaults_and_presets():
    assert get_hyperparameters("td3_bc")["alpha"] == 2.5
    assert get_hyperparameters("td3")["alpha"] is None
    assert get_hyperparameters("iql")["expectile"] == 0.7
    for name in AGENTS:
        assert {"observation_mean", "observation_std", "seed"} <= get_hyperparameters(name).keys()


def test_gin_sets_hyperparameters_that_are_not_overridden():
    try:
        gin.parse_config("rlds2reverb.IQLAgent.expectile = 0.9\nrlds2reverb.IQLAgent.temperature = 10.0")
        agent = make_agent("iql", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,), temperature=1.0)
    finally:
        gin.clear_config()
    assert (agent._expectile, agent._temperature) == (0.9, 1.0)
