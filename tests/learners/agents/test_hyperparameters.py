"""Types and ranges of hyperparameters."""

import numpy as np
import pytest
from agent_data import ACTION_SPEC, TIME_STEP_SPEC

from rlds2reverb.learners.agents import (
    BCAgent,
    get_agent_class,
    get_hyperparameters,
    make_agent,
    parse_hyperparameter,
    resolve_hyperparameters,
)
from rlds2reverb.learners.algorithms import ALGORITHMS

#: Defaults of hyperparameters that are published values; see the papers that the agents' documentation names.
DEFAULTS = {
    "awac": {"actor_hidden_sizes": (256,) * 4, "actor_weight_decay": 1e-4, "lambda_": 1, "log_std_bounds": (-6, 0)},
    "bc": {"learning_rate": 3e-4},
    "cql": {"hidden_sizes": (256,) * 3, "actor_learning_rate": 1e-4, "critic_learning_rate": 3e-4, "min_q_weight": 5,
            "num_samples": 10, "deterministic_backup": True, "max_q_backup": False},
    "cal_ql": {"hidden_sizes": (256,) * 2, "actor_learning_rate": 1e-4, "max_q_backup": True, "failure_reward": None},
    "crl": {"latent_size": 512, "alpha": 0.1, "value_goals": (0, 1, 0), "actor_goals": (0, 1, 0)},
    "decision_transformer": {"return_scale": 1000, "context_length": 20, "width": 128, "num_layers": 3, "num_heads": 1,
                             "dropout": 0.1, "learning_rate": 1e-4, "weight_decay": 1e-4, "num_warmup_updates": 10_000,
                             "clip_norm": 0.25},
    "discrete_bcq": {"target_update_period": 8000, "threshold": 0.3, "logit_penalty": 0.01},
    "dqn": {"learning_rate": 6.25e-5, "adam_epsilon": 1.5e-4, "discount": 0.99, "target_update_period": 2000,
            "target_update_rate": 1, "double": False, "conservative_weight": 0},
    "fql": {"hidden_sizes": (512,) * 4, "alpha": 10, "flow_steps": 10, "q_agg": "mean", "normalize_q_loss": False},
    "gciql": {"alpha": 0.3, "expectile": 0.9, "value_goals": (0.2, 0.5, 0.3), "value_geometric": True},
    "gcivl": {"alpha": 10, "expectile": 0.9, "hidden_sizes": (512,) * 3, "target_update_rate": 0.005},
    "hiql": {"expectile": 0.7, "high_alpha": 3, "low_alpha": 3, "subgoal_steps": 25, "representation_size": 10},
    "iql": {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "value_learning_rate": 3e-4, "discount": 0.99,
            "expectile": 0.7, "temperature": 3, "max_weight": 100, "num_updates": 1_000_000, "hidden_sizes": (256, 256),
            "target_update_rate": 0.005, "log_std_bounds": (-5, 2)},
    "rebrac": {"hidden_sizes": (256,) * 3, "actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3,
               "actor_penalty": 0.1, "critic_penalty": 0.01},
    "sac": {"temperature_learning_rate": 3e-4, "initial_temperature": 1, "num_critics": 2, "log_std_bounds": (-20, 2)},
    "spot": {"support_weight": 0.1, "num_density_updates": 100_000, "density_hidden_sizes": (750, 750),
             "density_learning_rate": 1e-3, "kl_weight": 0.5},
    "td3_bc": {"policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2, "exploration_noise": 0.1, "alpha": 2.5},
    "xql": {"loss_temperature": 2, "max_clip": 7},
}  # fmt: skip

INVALID = [
    ("iql", "expectile", -2, "a number in (0, 1), got -2; the default is 0.7"),
    ("iql", "expectile", 1, "a number in (0, 1), got 1"),
    ("iql", "actor_learning_rate", -1, "a number > 0, got -1"),
    ("iql", "actor_learning_rate", "fast", "a number > 0, got 'fast'; the default is 0.0003"),
    ("iql", "temperature", -0.1, "a number >= 0, got -0.1"),
    (
        "iql",
        "hidden_sizes",
        256,
        "a sequence of integers >= 1, such as (256, 256), got 256; write (256,) for one layer",
    ),
    (
        "iql",
        "hidden_sizes",
        True,
        "a sequence of integers >= 1, such as (256, 256), got True; the default is (256, 256)",
    ),
    ("iql", "hidden_sizes", "wide", "a sequence of integers >= 1, such as (256, 256), got 'wide'"),
    ("iql", "hidden_sizes", "", "a sequence of integers >= 1, such as (256, 256), got ''"),
    ("iql", "hidden_sizes", (256, 0), "a sequence of integers >= 1, such as (256, 256), got (256, 0)"),
    ("iql", "hidden_sizes", (2.5,), "a sequence of integers >= 1, such as (256, 256), got (2.5,)"),
    ("iql", "num_updates", 0, "an integer >= 1 or None, got 0"),
    ("iql", "log_std_bounds", (2, -5), "two ascending numbers in [-20, 20], got (2, -5)"),
    ("iql", "log_std_bounds", (1,), "two ascending numbers in [-20, 20], got (1,)"),
    ("iql", "discount", 1.5, "a number in [0, 1], got 1.5"),
    ("iql", "seed", -1, "an integer in [0, 4294967295], got -1"),
    ("iql", "observation_mean", "high", "an array or a nest of arrays, got 'high'"),
    ("awac", "lambda_", 0, "a number > 0, got 0"),
    ("awac", "target_update_rate", 7, "a number in (0, 1], got 7"),
    ("awac", "target_update_rate", 0, "a number in (0, 1], got 0"),
    ("cql", "num_samples", 0, "an integer >= 1, got 0"),
    ("cql", "num_bc_updates", -1, "an integer >= 0, got -1"),
    ("cql", "deterministic_backup", "maybe", "True or False, got 'maybe'"),
    ("cql", "deterministic_backup", 1, "True or False, got 1"),
    ("td3_bc", "policy_delay", 0, "an integer >= 1, got 0"),
    ("td3_bc", "policy_delay", 1.5, "an integer >= 1, got 1.5"),
    ("bc", "distribution", "cauchy", "'deterministic' or 'gaussian', got 'cauchy'"),
    ("dqn", "exploration_epsilon", 2, "a number in [0, 1], got 2"),
]


@pytest.mark.parametrize(("algo", "name", "value", "message"), INVALID)
def test_invalid_value_raises_before_anything_is_built(algo, name, value, message):
    expected = f"{name} must be {message}"
    for build in (
        lambda: resolve_hyperparameters(algo, **{name: value}),
        lambda: make_agent(algo, None, None, **{name: value}),
        lambda: get_agent_class(algo)(None, None, **{name: value}),
        lambda: parse_hyperparameter(algo, name, str(value)),
    ):
        with pytest.raises(ValueError) as caught:
            build()
        assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), True, np.bool_(True), None, "0.5", [0.5], np.array([0.5])]
)
def test_numbers_must_be_finite_and_neither_booleans_nor_strings_nor_arrays(value):
    with pytest.raises(ValueError, match=r"expectile must be a number in \(0, 1\), got "):
        resolve_hyperparameters("iql", expectile=value)


def test_long_values_are_shortened_in_messages():
    with pytest.raises(ValueError, match=r"got \[0\.0, [0., ]{54}\.\.\.; the default"):
        resolve_hyperparameters("iql", expectile=np.zeros(1000))


def test_values_become_python_s_own_types():
    values = resolve_hyperparameters(
        "cql",
        hidden_sizes=np.array([8, 4]),
        min_q_weight=np.int64(5),
        num_samples=np.float32(3),
        deterministic_backup=np.bool_(False),
        lagrange_threshold=None,
        num_bc_updates=1e6,
    )
    expected = {
        "hidden_sizes": (8, 4),
        "min_q_weight": 5.0,
        "num_samples": 3,
        "deterministic_backup": False,
        "lagrange_threshold": None,
        "num_bc_updates": 1_000_000,
    }
    assert {name: values[name] for name in expected} == expected
    assert all(type(values[name]) is type(value) for name, value in expected.items())
    assert all(type(size) is int for size in values["hidden_sizes"])


@pytest.mark.parametrize(
    ("algo", "name", "text", "value"),
    [
        ("iql", "expectile", " 0.9 ", 0.9),
        ("iql", "actor_learning_rate", "1e-4", 1e-4),
        ("iql", "hidden_sizes", "64,64", (64, 64)),
        ("iql", "hidden_sizes", "[64]", (64,)),
        ("iql", "hidden_sizes", "(64,)", (64,)),
        ("iql", "num_updates", "1e6", 1_000_000),
        ("iql", "num_updates", "none", None),
        ("td3_bc", "alpha", "None", None),
        ("dqn", "double", "true", True),
        ("dqn", "double", "False", False),
        ("bc", "distribution", "gaussian", "gaussian"),
        ("bc", "distribution", "'gaussian'", "gaussian"),
        ("iql", "observation_mean", "[0.0, 1.0]", [0.0, 1.0]),
    ],
)
def test_text_is_parsed_by_the_type_of_the_hyperparameter(algo, name, text, value):
    assert parse_hyperparameter(algo, name, text) == value


def test_text_for_an_unknown_hyperparameter_raises_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"iql has no hyperparameter 'expectil'; did you mean 'expectile'\?"):
        parse_hyperparameter("iql", "expectil", "0.9")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_hyperparameter_has_a_valid_default_and_a_description(algo):
    for name, option in get_hyperparameters(algo).items():
        assert option.text.endswith(".") and "\n" not in option.text, name
        assert option.type == "array" or option.check(option.default) == option.default, name
        assert (
            option.type in ("array", "boolean", "network")
            or option.range
            or name in ("target_entropy", "target_return", "action_mask", "failure_reward")
        ), name


def test_positional_and_unknown_arguments_of_a_constructor_raise_as_usual():
    with pytest.raises(TypeError, match="positional"):
        BCAgent(TIME_STEP_SPEC, ACTION_SPEC, None)
    with pytest.raises(TypeError, match="BCAgent has no hyperparameter 'alpha'"):
        BCAgent(TIME_STEP_SPEC, ACTION_SPEC, alpha=1)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_published_values(name):
    declared = get_hyperparameters(get_agent_class(name))
    assert {option: declared[option].default for option in DEFAULTS[name]} == DEFAULTS[name]
