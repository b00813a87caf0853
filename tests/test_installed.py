"""What is installed is whole: every module is there, the command works, and types fit. CI runs it against the wheel."""

import importlib
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import rlds2reverb.adders
import rlds2reverb.cli

import rlds2reverb
import rlds2reverb.replay

#: What a user writes, with a type for everything that is passed on.
SCRIPT = """
from pathlib import Path

from rlds2reverb import IngestOptions, IngestReport, ItemAdder, Items, Episode, ReplayServer, TableConfig, Windows, ingest, load
from rlds2reverb.adders import GAE, EpisodeItems, NStep, Sequence, compose

any_adders: list[ItemAdder] = [Windows(), NStep(3, 0.99), Sequence(5), EpisodeItems(9), compose(GAE(0.9, 0.9), NStep(2, 0.9))]
report: IngestReport = ingest(load("x.hdf5"), Path("out"), adder=NStep(3, 0.99), options=IngestOptions(key_seed=1))
items: Items = NStep(3, 0.99)(load("x.hdf5").first_episode)
server: ReplayServer = ReplayServer([TableConfig()])
"""


def test_every_module_of_the_package_can_be_imported():
    trunk = [str(Path(rlds2reverb.__file__).parent)]  # a bare checkout has more on its path
    found = [module.name for module in pkgutil.walk_packages(trunk, "rlds2reverb.")]
    for branch in (rlds2reverb.adders, rlds2reverb.cli):
        found += [module.name for module in pkgutil.walk_packages(branch.__path__, f"{branch.__name__}.")]
    for name in found:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert len(found) > 90


def test_the_command_converts_and_describes_itself(data, tmp_path):
    command = [sys.executable, "-m", "rlds2reverb.cli"]
    shutil.copy(data / "d4rl/hopper_medium-v2.hdf5", tmp_path)
    for arguments in (["--version"], ["convert", "hopper_medium-v2.hdf5", "--out", "out"], ["serve", "--help"]):
        subprocess.run([*command, *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    assert (tmp_path / "out/rlds2reverb.json").is_file()


def test_a_users_script_passes_a_type_check(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["--ignore-missing-imports", "--disable-error-code", "import-untyped", "--follow-imports", "silent"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, "--cache-dir", str(tmp_path / "cache"), "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
