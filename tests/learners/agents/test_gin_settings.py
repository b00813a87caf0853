"""Reading of gin files with settings of algorithms and runs."""

import gin
import pytest

from rlds2reverb.learners.agents import IQLAgent, read_gin, resolve_hyperparameters


@pytest.fixture(autouse=True)
def clear_gin():
    yield
    gin.clear_config()


def test_bindings_of_the_agent_and_the_run_are_returned():
    options, hyperparameters = read_gin(
        ["IQLAgent.expectile = 0.9\nIQLAgent.hidden_sizes = [64, 64]\ntrain.gamma = 0.995", "train.gamma = 0.5"], "iql"
    )
    assert options == {"gamma": 0.5}
    assert hyperparameters == {"expectile": 0.9, "hidden_sizes": (64, 64)}


def test_macros_blocks_includes_and_modules_are_supported(tmp_path):
    included, main = tmp_path / "included.gin", tmp_path / "main.gin"
    included.write_text("rlds2reverb.IQLAgent.temperature = %beta\n")
    main.write_text(
        f"include '{included}'\nIQLAgent:\n    expectile = 0.9\n    hidden_sizes = (%width, %width)\n"
        "beta = 10\nwidth = 32\n"
    )
    assert read_gin(main, "iql").hyperparameters == {"temperature": 10.0, "expectile": 0.9, "hidden_sizes": (32, 32)}


def test_reading_neither_changes_nor_uses_the_state_of_gin():
    gin.parse_config(f"{IQLAgent.__name__}.temperature = 7.0")  # Its import registers it.
    before = gin.config_str()
    gin.finalize()
    assert read_gin("IQLAgent.expectile = 0.9", "iql").hyperparameters == {"expectile": 0.9}
    assert gin.config_str() == before and gin.config_is_locked()
    values = resolve_hyperparameters("iql", **read_gin("IQLAgent.expectile = 0.9", "iql").hyperparameters)
    assert (values["expectile"], values["temperature"]) == (0.9, 7.0)


def test_bindings_of_other_agents_are_ignored_beside_those_of_the_agent():
    bindings = "IQLAgent.expectile = 0.9\nTD3BCAgent.alpha = 1.0"
    assert read_gin(bindings, "td3").hyperparameters == {"alpha": 1.0}
    with pytest.raises(ValueError, match=r"the settings are for IQLAgent, TD3BCAgent, not for CQLAgent \(algo\)"):
        read_gin(bindings, "cql")


def test_only_listed_options_of_the_run_are_accepted():
    assert read_gin("train.steps = 5", "iql", options=["steps"]).options == {"steps": 5}
    with pytest.raises(ValueError, match=r"line 1: train has no option 'gama'; did you mean 'gamma'\?"):
        read_gin("train.gama = 0.9", "iql")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("IQLAgent.expctile = 0.7", r"line 1: IQLAgent has no hyperparameter 'expctile'; did you mean 'expectile'\?"),
        ("\nIQLAgent.expectile = 7", r"line 2: expectile must be a number in \(0, 1\), got 7; the default is 0\.7"),
        ("IQLAgent.hidden_sizes = 256", r"line 1: hidden_sizes must be a sequence of integers .*, got 256; write"),
        ("IQLAgent.seed = 1", r"line 1: IQLAgent\.seed cannot be set because the run determines it; set seed instead"),
        ("IQLAgent.discount = 0.9", r"IQLAgent\.discount cannot be set .*; set gamma instead"),
        ("IQLAgent.num_updates = 9", r"IQLAgent\.num_updates cannot be set .*; set steps instead"),
        ("IQLAgnt.expectile = 0.7", r"line 1: IQLAgnt is no agent; did you mean 'IQLAgent'\?"),
        ("other.IQLAgent.expectile = 0.7", r"line 1: other\.IQLAgent is no agent"),
        ("xyz:\n    alpha = 1", r"line 1: xyz is no agent; use one of AWACAgent, BCAgent, "),
        ("eval/IQLAgent.expectile = 0.7", r"line 1: eval/IQLAgent cannot have a scope; write IQLAgent"),
        ("IQLAgent.expectile = @f()", r"a value cannot be a reference, got @f; write the value itself"),
        ("IQLAgent.expectile = %e", r"line 1: the macro %e is not defined; add 'e = VALUE'"),
        ("IQLAgent.expectile = %e\ne = %e", r"line 1: the macro %e is not defined"),
        ("IQLAgent.expectile = ", r"line 1: Unable to parse value; fix this line"),
        ("IQLAgent.hidden_sizes = (64,", r"line [12]: (unexpected )?EOF in multi-line statement; close it"),
        ("IQLAgent.expectile = 0.9.5", r"line 1: Expected newline; fix this line"),
        ("\nIQLAgent.expectile 3", r"line 2: .*; fix this line"),
        ("include 'missing.gin'", r"cannot read the gin file missing\.gin: .*; check the path"),
    ],
)
def test_invalid_file_raises_with_its_path_and_line(tmp_path, content, message):
    path = tmp_path / "mine.gin"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_gin(path, "iql")
    assert str(caught.value).startswith(f"{path}, line ") or "missing.gin" in str(caught.value)
    assert "configurable" not in str(caught.value) and "\n" not in str(caught.value)


def test_file_that_includes_itself_raises(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(f"include '{path}'")
    with pytest.raises(ValueError, match="includes itself; remove the include statement"):
        read_gin(path, "iql")
    with pytest.raises(ValueError, match="cannot read the gin file .*; check the path"):
        read_gin(tmp_path / "missing.gin", "iql")
