"""The presets in training/presets.ini: each one can be read and sets published values."""

from pathlib import Path

import gin
import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC

from rlds2reverb import TrainingConfig
from rlds2reverb.datasets.transforms import parse_reward
from rlds2reverb.learners.agents import make_agent, read_gin
from rlds2reverb.learners.algorithms import get_algorithm
from rlds2reverb.training import presets
from rlds2reverb.training.presets import get_preset, preset_names

PRESETS = Path(presets.__file__).with_suffix(".ini")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_sets_an_agent(name):
    algo = name.split("-")[0]
    options, hyperparameters = read_gin([get_preset(name)], algo)
    assert f"{get_algorithm(algo).class_name}." in get_preset(name)[1]
    assert f"[{name}]\n# " in PRESETS.read_text()  # The source of the settings.
    assert options or hyperparameters
    assert "reward" not in options or parse_reward(options["reward"])


def test_a_preset_sets_the_agent_and_the_run():
    options, hyperparameters = read_gin([get_preset("rebrac-antmaze-umaze")], "rebrac")
    assert options == {"gamma": 0.999, "batch_size": 256, "reward": "scale:100"}
    agent = make_agent("rebrac", TIME_STEP_SPEC, ACTION_SPEC, hidden_sizes=(4,), **hyperparameters)
    assert (agent.actor_penalty, agent.critic_penalty) == (0.003, 0.002)
    assert gin.config_str() == ""


def test_penalties_of_rebrac_match_the_paper():
    """Checks one row per domain of the table of best penalties (Tarasov et al. 2023, appendix)."""
    for name, penalties in {
        "halfcheetah-medium": (0.001, 0.01),
        "hopper-medium-replay": (0.05, 0.5),
        "walker2d-expert": (0.01, 0.5),
        "antmaze-large-diverse": (0.002, 0.002),
    }.items():
        _, values = read_gin([get_preset(f"rebrac-{name}")], "rebrac")
        assert (values["actor_penalty"], values["critic_penalty"]) == penalties, name


def test_ensembles_of_hopper_match_the_paper():
    """Hopper requires many critics, of which EDAC needs a tenth (An et al. 2021, abstract)."""
    _, sac_n = read_gin([get_preset("sac_n-hopper-medium")], "sac_n")
    _, edac = read_gin([get_preset("edac-hopper")], "edac")
    assert sac_n == {"num_critics": 500} and edac == {"num_critics": 50, "diversity_weight": 1.0}


def test_unknown_preset_raises_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"unknown preset 'iql-antmase'; did you mean 'iql-antmaze'\?"):
        get_preset("iql-antmase")
    with pytest.raises(ValueError, match=r"unknown preset 'x'; use one of cal_ql-antmaze, "):
        get_preset("x")


def test_weights_of_spot_match_the_authors():
    for name, weight in {"halfcheetah": 0.05, "hopper": 0.1, "walker2d-medium-expert": 0.5}.items():
        assert read_gin([get_preset(f"spot-{name}")], "spot")[1] == {"support_weight": weight}
    others = {"actor_learning_rate": 1e-4, "dropout": 0.0, "actor_final_scale": 1e-3, "critic_final_scale": 3e-3}
    for name, weight in {"antmaze-umaze": 0.25, "antmaze-medium-play": 0.05, "antmaze": 0.025}.items():
        assert read_gin([get_preset(f"spot-{name}")], "spot")[1] == {"support_weight": weight, **others}


def test_preset_of_xql_has_no_schedule():
    config = TrainingConfig.from_gin("xql", presets=["xql-antmaze"])
    assert config.resolved_hyperparameters["num_updates"] is None
