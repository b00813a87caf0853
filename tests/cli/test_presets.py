"""The gin files in cli/presets: each one can be read and sets published values."""

import gin
import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC
from rlds2reverb.sources.transforms import parse_reward
from rlds2reverb.cli.presets import preset_names, preset_path, read_configs
from rlds2reverb.learners.agents import AGENTS, is_set_by_gin, make_agent


@pytest.fixture(autouse=True)
def clear_gin():
    yield
    gin.clear_config()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_sets_an_agent(name):
    options = read_configs([preset_path(name)])
    algo = name.split("-")[0]
    text = preset_path(name).read_text()
    assert text.startswith("# ") and f"{AGENTS[algo].__name__}." in text
    assert set(options) <= {"gamma", "batch_size", "reward", "normalize_observations"}
    assert "reward" not in options or parse_reward(options["reward"])
    make_agent(algo, TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,))


def test_a_preset_sets_the_agent_and_the_run():
    options = read_configs([preset_path("rebrac-antmaze-umaze")])
    assert options == {"gamma": 0.999, "batch_size": 256, "reward": "scale:100"}
    agent = make_agent("rebrac", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,))
    assert (agent._actor_penalty, agent._critic_penalty) == (0.003, 0.002)
    assert (
        is_set_by_gin("ReBRACAgent.actor_penalty")
        and not is_set_by_gin("ReBRACAgent.discount")
        and not is_set_by_gin("NoSuch.thing")
    )


def test_penalties_of_rebrac_match_the_paper():
    """Checks one row per domain of the table of best penalties (Tarasov et al. 2023, appendix)."""
    for name, penalties in {
        "halfcheetah-medium": (0.001, 0.01),
        "hopper-medium-replay": (0.05, 0.5),
        "walker2d-expert": (0.01, 0.5),
        "antmaze-large-diverse": (0.002, 0.002),
    }.items():
        gin.clear_config()
        read_configs([preset_path(f"rebrac-{name}")])
        values = [gin.query_parameter(f"ReBRACAgent.{kind}_penalty") for kind in ("actor", "critic")]
        assert tuple(values) == penalties, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("IQLAgent.expctile = 0.7", "Configurable 'IQLAgent' doesn't have a parameter named 'expctile'"),
        ("NoAgent.alpha = 1", "No configurable matching 'NoAgent'"),
        ("IQLAgent.expectile = ", "Unable to parse value"),
    ],
)
def test_an_invalid_file_is_named_in_the_error(tmp_path, text, message):
    path = tmp_path / "mine.gin"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{path}: {message}"):
        read_configs([path])
