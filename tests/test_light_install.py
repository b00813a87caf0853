"""The light installation: datasets are read, checked, converted and batched without TensorFlow and Reverb.

The packages that it leaves out are hidden from the processes of these tests, which also pass in an environment with
requirements/light.txt alone; `make test-light`, which creates one with the newest NumPy, also runs those marked slow.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
LEFT_OUT = (
    "tensorflow",
    "tensorflow_datasets",
    "tf_agents",
    "reverb",
    "rlds",
    "grpc",
    "matplotlib",
    "pyarrow",
)
SOURCES = {
    "d4rl": "d4rl/pendulum_mixed-v2.hdf5",
    "ogbench": "formats/ogbench/pointmaze-medium-navigate-v0.npz",
    "neorl": "formats/neorl/Hopper-v3-low-2-val-noise.npz",
    "robomimic": "formats/robomimic/d2_image_no_next_obs.hdf5",
    "vd4rl": "formats/vd4rl/cartpole_swingup",
    "atari": "formats/atari/replay_logs",
}
BATCHES = """
import sys
from rlds2reverb import StepOffsets, Transitions, Windows, batches

for items in (Transitions(3), StepOffsets({"observation": [-1, 0], "action": range(4)}), Windows(5)):
    batch = next(iter(batches(sys.argv[1], 8, items=items)))
    assert len(batch["action"]) == 8
batch = next(iter(batches(sys.argv[2], 8, store_dir="store")))
assert batch["observation"]["agentview_image"].dtype == "uint8"
print(sorted(name for name in sys.argv[3:] if name in sys.modules))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment variables with which the packages cannot be imported."""
    folder = tmp_path_factory.mktemp("hidden")
    for name in LEFT_OUT:
        error = f"ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"
        (folder / f"{name}.py").write_text(f"raise {error}\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def call(environment, folder, *arguments):
    program = "import sys; from rlds2reverb.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "name", [name if name == "robomimic" else pytest.param(name, marks=pytest.mark.slow) for name in SOURCES]
)
def test_files_are_inspected_and_checked(name, environment, tmp_path):
    inspected, checked = (call(environment, tmp_path, command, DATA / SOURCES[name], "--json")
                          for command in ("inspect", "validate"))  # fmt: skip
    assert json.loads(inspected.stdout)["episodes"] == json.loads(checked.stdout)["episodes"], inspected.stderr


@pytest.mark.slow
def test_spaces_of_files_are_kept(environment, tmp_path):
    """They need Gymnasium, which the light installation therefore has."""
    shutil.copyfile(DATA / SOURCES["d4rl"], tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5", "r+") as file:
        file["metadata/action_space"] = np.bytes_('{"low": -2.0, "high": 2.0, "shape": [1], "dtype": "float32"}')
    written = call(environment, tmp_path, "convert", "data.hdf5", "--format", "d4rl", "--out", "again.hdf5")
    assert written.returncode == 0, written.stderr
    with h5py.File(tmp_path / "again.hdf5") as file:
        space = json.loads(file["metadata/action_space"][()])
    assert space["high"] == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d4rl", "robomimic"])
def test_files_are_converted(name, environment, tmp_path):
    (tmp_path / "map.yaml").write_text("{select: {length: [1, null]}, cast: {observation: float64}}")
    command = ("convert", DATA / SOURCES["d4rl"], "--format", name, "--out", "out.hdf5", "--map", "map.yaml")
    written = call(environment, tmp_path, *command)
    assert written.returncode == 0, written.stderr
    again = json.loads(call(environment, tmp_path, "inspect", "out.hdf5", "--json").stdout)
    assert (again["episodes"], again["steps"]) == (80, 16_080)


@pytest.mark.slow
def test_batches_of_all_kinds_of_items(environment, tmp_path):
    command = [sys.executable, "-c", BATCHES, DATA / SOURCES["d4rl"], DATA / SOURCES["robomimic"], *LEFT_OUT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("inspect", DATA / "formats/rlds/a1"),
            "requires tensorflow_datasets, which the light installation leaves out",
        ),
        (
            ("convert", DATA / SOURCES["d4rl"], "--format", "rlds", "--out", "out"),
            "requires tensorflow_datasets, which the light installation leaves out; install rlds2reverb with",
        ),
        (("train", "--algo", "bc", "--data", DATA / SOURCES["d4rl"], "--run-dir", "run"), "this command requires "),
    ],
)
def test_what_requires_the_whole_package_says_so(arguments, message, environment, tmp_path):
    done = call(environment, tmp_path, *arguments)
    assert done.returncode == 1 and message in done.stderr and not list(tmp_path.iterdir())
    assert "Traceback" not in done.stderr and done.stderr.count("; ") == 1
