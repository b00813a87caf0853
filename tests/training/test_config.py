"""`TrainingConfig`: every option is declared once, and checked before any data are read."""

import subprocess
import sys
from pathlib import Path

import gin
import numpy as np
import pytest

from rlds2reverb.datasets.transforms import REWARD_RECIPES, ClipActions, ScaleRewards
from rlds2reverb.training import TrainingConfig, train
from rlds2reverb.training.config import declared_options, options_table

WINDOWS = {"algo": "decision_transformer"}


def test_defaults_are_those_of_the_algorithm():
    iql, td3_bc, rebrac = map(TrainingConfig, ("iql", "td3_bc", "rebrac"))
    assert (iql.batch_size, iql.normalize_observations, iql.env) == (256, False, "auto")
    assert (td3_bc.normalize_observations, rebrac.batch_size) == (True, 1024)
    assert TrainingConfig("td3_bc", normalize_observations=False, batch_size=8).normalize_observations is False


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"algo": "iqll"}, ValueError, "algo must be one of awac, .*, got 'iqll'; did you mean 'iql'?"),
        ({"steps": 0}, ValueError, "steps must be an integer >= 1, got 0"),
        ({"steps": 2.5}, ValueError, "steps must be an integer >= 0 or None, got 2.5"),
        ({"seed": -1}, ValueError, r"seed must be an integer in \[0, 2147483647\], got -1"),
        ({"seed": 2**31}, ValueError, r"seed must be an integer in \[0, 2147483647\], got 2147483648"),
        ({"gamma": 1.5}, ValueError, r"gamma must be a number in \[0, 1\], got 1.5"),
        ({"epochs": 0}, ValueError, "epochs must be an integer >= 1 or None, got 0"),
        ({"epochs": 2, "steps": 30}, ValueError, r"epochs cannot be combined with 30 updates; .* \(steps\)"),
        ({"epochs": 2, "sampler": "prioritized"}, ValueError, r"epochs requires a uniform .* \(sampler='uniform'\)"),
        ({"top_percent": 0}, ValueError, r"top_percent must be a number in \(0, 100\] or None, got 0"),
        ({"top_percent": 101}, ValueError, r"top_percent must be a number in \(0, 100\] or None, got 101"),
        (
            {"sampler": "prioritised"},
            ValueError,
            "sampler must be 'uniform', 'prioritized', or a function that returns weights, got 'prioritised'",
        ),
        ({"deterministic": 1}, ValueError, "deterministic must be True or False, got 1"),
        ({"reward": "iql"}, ValueError, "the reward recipe must be iql_locomotion, .*, got 'iql'"),
        (
            {"reward": ClipActions()},
            TypeError,
            "or ScaleRewardsByReturns, got a ClipActions; for other transforms, use",
        ),
        ({"reference_returns": (1, 1)}, ValueError, "the two reference returns must be finite and differ, got 1 and 1"),
        ({"reference_returns": (1, float("nan"))}, ValueError, "must be finite and differ, got 1 and nan"),
        ({"reference_returns": 3}, ValueError, "reference_returns must be two numbers, 'd4rl', or the path"),
        ({"algo": "rebrac", "n_step": 2}, ValueError, "n_step must be 1 for rebrac, which learns from the next"),
        ({"chunk_length": 2, "n_step": 2}, ValueError, "n_step must be 1 with chunks of actions"),
        ({"chunk_length": 2, "algo": "rebrac"}, ValueError, "chunk_length must be 1 for rebrac, which does not"),
        ({"chunk_length": 2, "algo": "dqn"}, ValueError, "chunk_length must be 1 for dqn, which does not"),
        (
            {"chunk_length": 2, "execution_horizon": 3},
            ValueError,
            "execution_horizon must be at most chunk_length, which is 2, got 3",
        ),
        (WINDOWS | {"n_step": 2}, ValueError, "n_step must be 1 for decision_transformer, which learns from windows"),
        (
            WINDOWS | {"reward": ScaleRewards(2.0)},
            ValueError,
            "reward must be None for decision_transformer, whose policy",
        ),
        (WINDOWS | {"online_steps": 9}, ValueError, "online_steps must be 0 for decision_transformer, which learns"),
        (WINDOWS | {"random_shift": 4}, ValueError, "random_shift must be 0 for decision_transformer, which does not"),
        (WINDOWS | {"sampler": "prioritized"}, ValueError, "sampler must be 'uniform' for decision_transformer"),
        (
            {"algo": "bc", "sampler": "prioritized"},
            ValueError,
            "sampler must be 'uniform' for bc, which has no TD errors",
        ),
        (
            {"deterministic": True, "sampler": "prioritized"},
            ValueError,
            r"deterministic=True requires a uniform sampler; .* \(sampler='uniform'\)",
        ),
        ({"hyperparameters": [1]}, TypeError, r"hyperparameters must be a dict such as {'alpha': 2.5}, got \[1\]"),
        ({"drop_fields": "reward"}, TypeError, r"drop_fields must be a list of paths, such as \['reward'\]"),
        ({"hyperparameters": {"discount": 0.9}}, ValueError, r"'discount' cannot be set, .*; set .* \(gamma\)"),
    ],
)
def test_invalid_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        TrainingConfig(**{"algo": "iql", **options})


def test_invalid_hyperparameters_raise_without_data():
    for hyperparameters, message in (
        ({"expectile": -2}, "expectile"),
        ({"expctile": 0.8}, "did you mean 'expectile'"),
        ({"hidden_sizes": 256}, "hidden_sizes"),
        ({"actor_learning_rate": "fast"}, "actor_learning_rate"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            TrainingConfig("iql", hyperparameters=hyperparameters).resolved_hyperparameters  # noqa: B018


def test_own_statistics_of_observations_are_part_of_the_identity():
    def get_identity(**values):
        return TrainingConfig("iql", hyperparameters=values).identity(None)

    first, second = (get_identity(observation_mean=np.full(2, mean), observation_std=np.ones(2)) for mean in (0.0, 1.0))
    assert first != second and first["hyperparameter observation_mean"] == [0, 0]
    assert not any(name.startswith("hyperparameter observation") for name in get_identity())


def test_the_run_determines_discount_schedule_and_seed():
    values = TrainingConfig("iql", gamma=0.9, steps=30, seed=4).resolved_hyperparameters
    assert (values["discount"], values["num_updates"], values["seed"]) == (0.9, 30, 4)
    assert TrainingConfig("iql", hyperparameters={"num_updates": None}).resolved_hyperparameters["num_updates"] is None


def test_epochs_determine_the_steps_once_the_items_are_counted():
    config = TrainingConfig("iql", epochs=3, batch_size=8)
    assert (config.steps, config.num_updates, config.replace(seed=1).steps) == (None, None, None)
    assert config.resolved_hyperparameters["num_updates"] == 1_000_000  # The published number stands for it.
    resolved = config.for_items(10)
    assert (resolved.steps, resolved.num_updates, resolved.resolved_hyperparameters["num_updates"]) == (4, 4, 4)
    assert TrainingConfig.from_dict(resolved.as_dict()) == config and resolved.replace() == config
    assert resolved.identity(None) == config.replace(epochs=9).identity(None)
    online = config.replace(online_steps=20, warmup_steps=10, env="Pendulum-v1")
    assert (online.for_items(10).num_updates, online.for_items(10).identity(None)["steps"]) == (14, 4)
    with pytest.raises(ValueError, match=r"depends on the dataset; call for_items\(\) first"):
        online.count_updates(15)
    with pytest.raises(ValueError, match="epochs requires a dataset"):
        online.without_data()


def test_run_that_ends_before_its_policy_learns_raises(tmp_path):
    log = {
        "observations": np.zeros((7, 1), np.float32),
        "actions": np.zeros((6, 1)),
        "rewards": np.zeros(6),
        "terminated": True,
    }
    message = "num_density_updates must be less than the 3 updates of the run, got 3; the policy of spot learns only"
    for length in ({"steps": 3}, {"epochs": 1}):  # Three batches in an epoch.
        options = {**length, "hyperparameters": {"num_density_updates": 3}, "batch_size": 2, "env": None}
        with pytest.raises(ValueError, match=message):
            train([log], "spot", tmp_path, progress=False, **options)


def test_epochs_and_steps_replace_each_other(tmp_path):
    assert TrainingConfig("bc", steps=5).replace(epochs=2).steps is None
    assert TrainingConfig("bc", epochs=2).replace(epochs=None).steps == 100_000
    (tmp_path / "mine.gin").write_text("train.steps = 7")
    config = TrainingConfig.from_gin("bc", gin_files=[tmp_path / "mine.gin"], epochs=2)
    assert (config.steps, config.epochs) == (None, 2)
    (tmp_path / "mine.gin").write_text("train.epochs = 7")
    config = TrainingConfig.from_gin("bc", gin_files=[tmp_path / "mine.gin"], steps=2)
    assert (config.steps, config.epochs) == (2, None)


def test_updates_are_due_for_each_step_after_the_warm_up():
    options = {"env": "Pendulum-v1", "steps": 5, "online_steps": 108, "warmup_steps": 10, "updates_per_step": 1 / 49}
    config = TrainingConfig("sac", **options)
    assert [config.count_updates(num) for num in (0, 10, 58, 59, 108, 500)] == [5, 5, 5, 6, 7, 7]
    assert [config.count_online_steps(num) for num in (6, 7)] == [59, 108]


def test_as_dict_and_from_dict_are_inverse():
    config = TrainingConfig("cql", drop_fields=("observation/a",), reference_returns=(0, 1), top_percent=10)
    assert TrainingConfig.from_dict(config.as_dict()) == config.replace(reference_returns=[0, 1])
    for references in (None, "d4rl", Path("returns.json")):
        assert config.replace(reference_returns=references).reference_returns == references
    assert TrainingConfig("bc", env=len).as_dict()["env"]["$function"] == "builtins:len"
    with pytest.raises(ValueError, match="only options of TrainingConfig, got .*'stepz'"):
        TrainingConfig.from_dict({"algo": "bc", "stepz": 3})
    with pytest.raises(ValueError, match="must contain 'algo'"):
        TrainingConfig.from_dict({"steps": 3})


def test_options_override_gin_files_which_override_presets(tmp_path):
    before = gin.config_str()
    preset = TrainingConfig.from_gin("rebrac", presets=["rebrac-antmaze-umaze"])
    assert (preset.gamma, preset.reward, preset.batch_size) == (0.999, "scale:100", 256)
    assert preset.resolved_hyperparameters["actor_penalty"] == 0.003
    (tmp_path / "mine.gin").write_text("ReBRACAgent.actor_penalty = 0.5\ntrain.gamma = 0.9\ntrain.eval_every = 7")
    options = {"presets": ["rebrac-antmaze-umaze"], "gin_files": [tmp_path / "mine.gin"]}
    config = TrainingConfig.from_gin("rebrac", batch_size=8, **options)
    assert (config.gamma, config.batch_size, config.eval_every, config.reward) == (0.9, 8, 7, "scale:100")
    assert config.resolved_hyperparameters["actor_penalty"] == 0.5
    assert gin.config_str() == before
    with pytest.raises(ValueError, match="iql-antmace.*did you mean 'iql-antmaze'"):
        TrainingConfig.from_gin("iql", presets=["iql-antmace"])
    with pytest.raises(TypeError, match="there is no option 'stepz'; did you mean 'steps'?"):
        TrainingConfig.from_gin("iql", stepz=2)


def test_identity_contains_what_distinguishes_runs():
    identity = TrainingConfig("iql", hyperparameters={"expectile": 0.8}).identity("Hopper-v5")
    assert identity["algo"] == "iql" and identity["environment"] == "Hopper-v5" and identity["gamma"] == 0.99
    assert identity["hyperparameter expectile"] == 0.8
    names = identity.keys()
    assert not names & {"steps", "keep_checkpoints", "allow_config_mismatch", "log_every", "hyperparameter num_updates"}
    longer = TrainingConfig("iql", steps=7, keep_checkpoints=9, hyperparameters={"expectile": 0.8})
    assert longer.identity("Hopper-v5") == identity


def test_every_option_is_described():
    options = declared_options()
    for name, option in options.items():
        assert option.text.endswith((".", "].", "}.")) and option.group, name
        assert option.describe_values() and option.describe_default(), name
    defaults = {name: options[name].describe_default() for name in ("seed", "algo", "clip_actions")}
    assert defaults == {"seed": "0", "algo": "required", "clip_actions": "no"}
    assert options["top_percent"].describe_values() == "a number in (0, 100] or None"
    assert options["steps"].describe_values() == "an integer >= 0 or None"
    assert all(name in options["reward"].text for name in REWARD_RECIPES)
    assert "rlds2reverb agents" in options["algo"].text


def test_documentation_contains_the_table_of_options():
    page = Path(__file__).parents[2] / "docs" / "training.md"
    if not page.is_file():
        pytest.skip("the documentation is not available when an installed wheel is tested")
    assert options_table() in page.read_text(), (
        "docs/training.md is out of date; replace its table with the output of "
        'python -c "from rlds2reverb.training.config import options_table; print(options_table())"'
    )


def test_configurations_need_no_tensorflow():
    code = (
        "import sys; from rlds2reverb.training import TrainingConfig; TrainingConfig('iql', reward='scale:2'); "
        "assert 'tensorflow' not in sys.modules and 'tf_agents' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_deterministic_online_phase_requires_memory():
    options = {"env": "Pendulum-v1", "online_steps": 5000, "deterministic": True}
    assert TrainingConfig("td3", online_replay="memory", **options).deterministic
    with pytest.raises(
        ValueError, match=r"deterministic=True requires collected data in memory; .*online_replay='memory'"
    ):
        TrainingConfig("td3", online_replay="reverb", **options)


def test_online_phase_adds_its_options_to_the_identity_of_a_run():
    config = TrainingConfig("td3", env="Pendulum-v1", online_steps=5000)
    names = config.online_options()
    assert {"online_ratio", "updates_per_step", "warmup_steps", "replay_size", "steps"} <= {*names}
    assert not {"gamma", "seed", "batch_size", "n_step"} & {*names}
    assert "steps" not in config.replace(online_steps=0).online_options()
