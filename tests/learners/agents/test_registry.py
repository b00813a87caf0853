import gin
import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC

from rlds2reverb.learners.agents import get_hyperparameters, make_agent, resolve_hyperparameters
from rlds2reverb.learners.agents.iql import IQLAgent
from rlds2reverb.learners.algorithms import ALGORITHMS


@pytest.fixture
def clear_gin():
    yield
    gin.clear_config()


def test_unknown_algorithm_raises_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"algo must be one of .*, got 'td3bc'; did you mean 'td3_bc'\?"):
        make_agent("td3bc", TIME_STEP_SPEC, ACTION_SPEC)


def test_unknown_hyperparameter_raises_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"iql has no hyperparameter 'expectil'; did you mean 'expectile'\?"):
        make_agent("iql", TIME_STEP_SPEC, ACTION_SPEC, expectil=0.9)
    with pytest.raises(TypeError, match=r"iql has no hyperparameter 'qqq'; use one of actor_learning_rate, "):
        resolve_hyperparameters("iql", qqq=0.9)


def test_get_hyperparameters_returns_the_defaults_of_the_algorithm():
    assert get_hyperparameters("td3_bc")["alpha"].default == 2.5
    assert get_hyperparameters("td3")["alpha"].default is None
    assert get_hyperparameters("double_dqn")["double"].default is True
    assert get_hyperparameters("iql")["expectile"].default == 0.7
    for name in ALGORITHMS:
        assert {"observation_mean", "observation_std", "seed"} <= get_hyperparameters(name).keys()
        assert ("action_mask" in get_hyperparameters(name)) == (ALGORITHMS[name].actions == "discrete")


def test_overrides_precede_gin_and_gin_precedes_the_defaults(clear_gin):
    gin.parse_config("rlds2reverb.IQLAgent.expectile = %e\ne = 0.9\nIQLAgent.temperature = 10.0")
    get_hyperparameters("dqn")  # Registers the class with gin.
    gin.parse_config("DQNAgent.learning_rate = 0.5")
    values = resolve_hyperparameters("iql", temperature=1)
    assert (values["expectile"], values["temperature"], values["max_weight"]) == (0.9, 1.0, 100.0)
    values = resolve_hyperparameters("discrete_cql")
    assert (values["learning_rate"], values["conservative_weight"]) == (0.5, 1.0)
    for agent in (
        make_agent("iql", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,), temperature=1.0),
        IQLAgent(TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,), temperature=1.0),
    ):
        assert (agent.expectile, agent.temperature) == (0.9, 1.0)


@pytest.mark.parametrize("construct", [IQLAgent, lambda *specs: make_agent("iql", *specs)])
def test_value_that_gin_binds_out_of_range_raises_without_gin_s_context(construct, clear_gin):
    gin.parse_config("IQLAgent.expectile = 2.0")
    with pytest.raises(ValueError, match=r"^expectile must be a number in \(0, 1\), got 2\.0; the default is 0\.7$"):
        construct(TIME_STEP_SPEC, ACTION_SPEC)


def test_errors_of_constructors_do_not_mention_gin():
    with pytest.raises(ValueError, match="^the action spec must be a BoundedTensorSpec") as caught:
        make_agent("iql", TIME_STEP_SPEC, TIME_STEP_SPEC.observation)
    assert "configurable" not in str(caught.value)
