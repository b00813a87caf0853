"""The environment of a run: chosen by the user, described by the dataset, or derived from its name."""

import json
import sys

import gymnasium
import pytest

from rlds2reverb.datasets import Source
from rlds2reverb.envs import Evaluator
from rlds2reverb.training.evaluation_environment import resolve_environment, resolve_reference_returns
from rlds2reverb.training.sources import open_source
from rlds2reverb.types.locations import TableLocation

PENDULUM = {
    "id": "Pendulum-v1",
    "entry_point": "x:Y",
    "kwargs": {},
    "max_episode_steps": 200,
    "additional_wrappers": [],
}
HOPPER = Source("hopper.hdf5", "d4rl", iter)
DISABLE = "evaluation can be disabled (env=None)"


def make_source(name="dataset", **spec):
    env_spec = json.dumps({**PENDULUM, **spec}) if spec is not None else None
    return Source(name, "minari", lambda: iter(()), env_spec=env_spec)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Source("hopper_medium-v2.hdf5", "d4rl", iter), "Hopper-v5"),
        (Source("walker2d-expert.hdf5", "d4rl", iter), "Walker2d-v5"),
        (Source("robot_logs.hdf5", "d4rl", iter), None),
        (Source("d4rl_mujoco_hopper/v2-medium", "rlds", iter), "Hopper-v5"),
        (Source("pendulum_mixed-v2.hdf5", "d4rl", iter), "Pendulum-v1"),
        (Source("episodes of make_hopper", "memory", iter), None),
        (TableLocation("hopper:8000"), None),
        (None, None),
    ],
)
def test_environment_is_derived_from_the_name_of_the_file(source, name):
    got = resolve_environment("auto", source)
    if name:
        assert got.name == got.make_env == name
        assert got.note == f"evaluating in {name}, derived from the name of the dataset; {DISABLE}"
    else:
        assert got.make_env is None and "the environment of the dataset is unknown; choose one" in got.note


@pytest.mark.parametrize(("file", "name"), [("halfcheetah.hdf5", "HalfCheetah-v5"), ("robot_logs.hdf5", None)])
def test_environment_is_not_derived_from_the_folder_of_the_file(data, tmp_path, file, name):
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / file).symlink_to(data / "d4rl/pendulum_mixed-v2.hdf5")
    for path in (tmp_path / "ant" / file, str(tmp_path / "ant" / file)):
        assert resolve_environment("auto", open_source(path)).make_env == name


@pytest.mark.parametrize(("folder", "name"), [("ant/halfcheetah", "HalfCheetah-v5"), ("ant/tables", None)])
def test_environment_of_tables_is_derived_from_the_name_of_their_directory(tmp_path, folder, name):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "rlds2reverb.json").touch()
    assert resolve_environment("auto", open_source(tmp_path / folder)).make_env == name


def test_minari_datasets_bring_their_own_environment(data):
    source = open_source(data / "minari/mujoco/hopper/dev-v0")
    assert source.action_space.shape == (3,) and json.loads(source.env_spec)["id"] == "Hopper-v5"
    got = resolve_environment("auto", source)
    assert got.make_env == "Hopper-v5"
    assert got.note == f"evaluating in Hopper-v5, the environment of the dataset; {DISABLE}"


def test_arguments_of_the_own_environment_are_kept():
    got = resolve_environment("auto", make_source(kwargs={"g": 5.0}, max_episode_steps=7))
    evaluator = Evaluator(got.make_env, num_episodes=1)
    assert got.name == evaluator.name == "Pendulum-v1"
    assert got.make_env.kwargs == {"g": 5.0} and got.make_env.max_episode_steps == 7
    assert gymnasium.spec("Pendulum-v1").kwargs == {}
    assert resolve_environment("auto", make_source(kwargs=None, additional_wrappers=None)).make_env == "Pendulum-v1"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"id": "Mine-v0", "entry_point": "evil_module.envs:Mine"}, "Mine-v0 is not registered with Gymnasium; "
         "import its module (env='evil_module:Mine-v0')"),
        ({"id": "cube-v0", "entry_point": "ogbench.manipspace:Cube"}, "cube-v0 is not registered with Gymnasium; run "),
        ({"id": "Mine-v0", "entry_point": "__main__:Mine"}, "Mine-v0 is not registered with Gymnasium; import its module (env="),
        ({"additional_wrappers": [{"name": "W", "entry_point": "evil_module:W", "kwargs": None}]}, "its Pendulum-v1 has "
         "wrappers that may import other modules; pass a function that creates it (env="),
        ({"id": "GymV26Environment-v0", "kwargs": {"env_id": "evil_module:X-v0"}}, "its GymV26Environment-v0 has "
         "arguments that may import other modules"),
        ({"id": ["Pendulum-v1"]}, "its description is not registered"),
    ],
)  # fmt: skip
def test_what_a_dataset_names_is_never_imported(tmp_path, monkeypatch, spec, reason):
    (tmp_path / "evil_module.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    got = resolve_environment("auto", make_source("hopper", **spec))
    assert got.make_env is None and got.note.startswith("no evaluation in the dataset's environment, because ")
    assert reason in got.note and "evil_module" not in sys.modules


def test_damaged_description_has_a_note():
    got = resolve_environment("auto", Source("x", "minari", iter, env_spec="{"))
    assert got.make_env is None and "because its description is not registered with Gymnasium" in got.note


def test_environments_of_every_kind_are_accepted():
    def make_pendulum():
        return gymnasium.make("Pendulum-v1", max_episode_steps=3)

    environment = make_pendulum()
    assert resolve_environment(None, HOPPER) is resolve_environment("none", HOPPER) is None
    for env, name in (
        ("Pendulum-v1", "Pendulum-v1"),
        (environment, "Pendulum-v1"),
        (environment.spec, "Pendulum-v1"),
        (make_pendulum, "make_pendulum"),
    ):
        got = resolve_environment(env, HOPPER)
        evaluator = Evaluator(got.make_env, num_episodes=1)
        assert got.name == evaluator.name == name and got.note is None and evaluator.action_space.high == 2
    environment.close()


def test_objects_that_cannot_make_environments_raise():
    from gymnasium.envs.classic_control import PendulumEnv

    with pytest.raises(ValueError, match="the environment PendulumEnv has no spec.*; pass a function that creates one"):
        resolve_environment(PendulumEnv(), None)
    with pytest.raises(TypeError, match="an environment must be the id of one.* got a int"):
        resolve_environment(3, None)


def test_missing_gymnasium_is_only_a_note(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "gymnasium.envs.registration", None)
    got = resolve_environment("auto", HOPPER)
    assert got.make_env is None
    assert got.note.startswith("no evaluation, because Hopper-v5 is not installed; run ")
    assert got.note.endswith("'gymnasium[mujoco]<2,>=1' mujoco==3.3.7")
    assert resolve_environment("Hopper-v5", None).make_env == "Hopper-v5"
    with pytest.raises(ImportError, match="environments require Gymnasium"):
        resolve_environment(lambda: None, None)


def test_reference_returns_come_from_d4rl_a_file_or_the_user(tmp_path):
    (tmp_path / "returns.json").write_text('{"Hopper-v5": [18.6, 2806]}')
    assert resolve_reference_returns(None, "Hopper-v5") is None
    assert resolve_reference_returns((1, 2), "Hopper-v5") == (1.0, 2.0)
    assert resolve_reference_returns("d4rl", "Hopper-v5") == pytest.approx((-20.272305, 3234.3))
    assert resolve_reference_returns(tmp_path / "returns.json", "Hopper-v5") == (18.6, 2806.0)
    with pytest.raises(ValueError, match="D4RL has no reference returns for Pendulum-v1; pass two numbers or a JSON"):
        resolve_reference_returns("d4rl", "Pendulum-v1")
