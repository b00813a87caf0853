"""Rule: advice works in the environment and for the input in which it is given."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlds2reverb import load
from rlds2reverb.datasets.readers.json_files import read_json
from rlds2reverb.system.installation import install_command


@pytest.mark.parametrize(
    ("name", "package"), [("minari", "minari[arrow,hdf5,hf]=="), ("beam", "apache-beam=="), ("torch", "torch")]
)
def test_installation_keeps_all_installed_versions(name, package, monkeypatch, tmp_path):
    command = install_command(name)
    python, freeze, packages = re.fullmatch(r"(\S+) -m pip install -c <\((.*)\) (.*)", command).groups()
    assert (
        packages.replace("'", "").startswith(package) and "tensorflow" not in packages and "rlds2reverb" not in packages
    )
    assert shutil.which(python) and freeze == f"{python} -m pip freeze --exclude-editable"
    monkeypatch.chdir(tmp_path)
    assert install_command(name).startswith(sys.executable)  # From any directory.


@pytest.mark.slow
def test_constraints_of_the_installation_name_every_installed_package():
    command = install_command("minari").replace("pip install", "pip install --dry-run --no-index")
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "Would install" not in run.stdout


@pytest.mark.parametrize("layer", ["", ".adders", ".learners", ".envs", ".training", ".cli"])
def test_no_message_installs_an_extra_of_the_checkout(layer):
    folder = Path(importlib.import_module(f"rlds2reverb{layer}").__file__).parent
    for path in folder.rglob("*.py"):
        assert not re.search(r"pip install ['\"]?(\.|rlds2reverb)\[", path.read_text()), path


@pytest.mark.parametrize(
    ("existing", "name", "advice"),
    [
        (["empty.hdf5"], "hoper.hdf5", "check the path"),
        (["empty.hdf5", "hopper.hdf5"], "hoper.hdf5", "did you mean 'hopper.hdf5'"),
        (["hopper.npz"], "hoper.hdf5", "did you mean 'hopper.npz'"),
        (["hopper.txt"], "hoper.hdf5", "check the path"),
    ],
)
def test_missing_file_suggests_only_similar_datasets(existing, name, advice, tmp_path):
    for file in existing:
        (tmp_path / file).touch()
    with pytest.raises(FileNotFoundError, match=advice):
        load(str(tmp_path / name))


def test_name_of_the_hub_is_downloaded_first(tmp_path):
    hub = r"there is no path 'lerobot/pusht'.*, or if it is one of LeRobot's, run hf download --repo-type dataset lerobot/"
    with pytest.raises(FileNotFoundError, match=hub):
        load("lerobot/pusht", data_dir=str(tmp_path))
    with pytest.raises(FileNotFoundError) as raised:
        load("d4rl_mujoco_hopper", data_dir=str(tmp_path))
    assert "LeRobot" not in str(raised.value)


def test_whole_json_file_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "info.json").write_text('{"fps": 30}', encoding="utf-8-sig")
    assert read_json(tmp_path / "info.json") == {"fps": 30}
