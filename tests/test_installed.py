"""Tests of the installed package: modules, command line, types and presets. CI runs them against the wheel."""

import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import rlds2reverb
import rlds2reverb.adders
import rlds2reverb.cli
import rlds2reverb.replay
import rlds2reverb.reverb.sampling

#: A typical user script with annotated variables.
SCRIPT = """
from pathlib import Path

from rlds2reverb import IngestOptions, IngestReport, EpisodeAdder, Items, Episode, ReplayServer, TableConfig, TrajectoryWindows, ingest, load
from rlds2reverb.adders import GAE, StepEpisodes, NStep, StepWindows, compose

any_adders: list[EpisodeAdder] = [TrajectoryWindows(), NStep(3, 0.99), StepWindows(5), StepEpisodes(9), compose(GAE(0.9, 0.9), NStep(2, 0.9))]
report: IngestReport = ingest(load("x.hdf5"), Path("out"), adder=NStep(3, 0.99), options=IngestOptions(key_seed=1))
items: Items = NStep(3, 0.99)(load("x.hdf5").first_episode)
server: ReplayServer = ReplayServer([TableConfig()])
"""


def test_every_module_can_be_imported():
    core = [str(Path(rlds2reverb.__file__).parent)]  # In a checkout, the package's path includes other folders.
    names = [module.name for module in pkgutil.walk_packages(core, "rlds2reverb.")]
    for layer in (rlds2reverb.adders, rlds2reverb.cli):
        names += [module.name for module in pkgutil.walk_packages(layer.__path__, f"{layer.__name__}.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert len(names) > 90


@pytest.mark.slow  # The test of the wheel also runs it.
def test_command_line_converts_and_prints_help(data, tmp_path):
    command = [sys.executable, "-m", "rlds2reverb.cli"]
    shutil.copy(data / "d4rl/hopper_medium-v2.hdf5", tmp_path)
    for arguments in (["--version"], ["convert", "hopper_medium-v2.hdf5", "--out", "out"], ["serve", "--help"]):
        subprocess.run([*command, *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    assert (tmp_path / "out/rlds2reverb.json").is_file()


PUBLIC = {
    "rlds2reverb": rlds2reverb,
    "rlds2reverb.adders": rlds2reverb.adders,
    "rlds2reverb.replay": rlds2reverb.replay,
    "rlds2reverb.reverb.sampling": rlds2reverb.reverb.sampling,
}


def public_names(module):
    """Returns the names in `__all__`, or all names without a leading underscore that are not modules."""
    names = [name for name in vars(module) if name[0] != "_" and not isinstance(vars(module)[name], types.ModuleType)]
    return sorted(set(getattr(module, "__all__", names)) - {"annotations"})


def make_script_of_all_names():
    """Returns a script that uses each public name and then an undefined name, and the number of its last line."""
    lines = [f"import {module}" for module in PUBLIC]
    lines += [f"{module}.{name}" for module, contents in PUBLIC.items() for name in public_names(contents)]
    return "\n".join([*lines, "rlds2reverb.no_such_name", ""]), len(lines) + 1


@pytest.mark.slow
def test_user_script_passes_the_type_check(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["--ignore-missing-imports", "--disable-error-code", "import-untyped", "--follow-imports", "silent"]
    command = [sys.executable, "-m", "mypy", *arguments, "--cache-dir", str(tmp_path / "cache")]
    checked = subprocess.run([*command, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    script, last_line = make_script_of_all_names()
    (tmp_path / "names.py").write_text(script)
    checked = subprocess.run([*command, "names.py"], cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and errors[0].startswith(f"names.py:{last_line}: error: Module has no attribute"), (
        checked.stdout
    )


@pytest.mark.slow
def test_pyright_resolves_every_public_name(tmp_path):
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    try:
        subprocess.run([*command[:3], "--version"], capture_output=True, check=True, timeout=100)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("pyright is not installed, or cannot fetch what it needs")
    script, last_line = make_script_of_all_names()
    (tmp_path / "names.py").write_text(script)
    checked = subprocess.run([*command, "names.py"], cwd=tmp_path, capture_output=True, text=True)
    errors = [entry for entry in json.loads(checked.stdout)["generalDiagnostics"] if entry["severity"] == "error"]
    assert [entry["range"]["start"]["line"] + 1 for entry in errors] == [last_line], errors
    assert "no_such_name" in errors[0]["message"]


def test_presets_are_installed():
    from rlds2reverb.training.presets import preset_names

    assert {"iql-antmaze", "rebrac-hopper-medium"} <= set(preset_names())
