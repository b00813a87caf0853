"""Every code block of the README and the docs runs, one after the other, as a reader would run them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").is_file() else ""


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """A folder with nothing but the file that the examples begin with."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "hopper_medium-v2.hdf5").symlink_to(data / "d4rl/hopper_medium-v2.hdf5")
    return folder


def test_the_python_blocks_run_in_order_and_print_what_they_say(folder, capsys):
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, re.S)
    assert len(blocks) >= 6
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code, said in blocks:
            exec(compile(code, "README.md", "exec"), names)
            printed = capsys.readouterr().out
            assert not said or printed == said
    assert names["loss"] != 0 and len(names["mixed"].info.IS) == 64


def test_the_commands_run_as_they_stand_there(folder):
    commands = re.findall(r"^\$ (rlds2reverb .*)$", README, re.M)
    assert commands
    for command in commands:
        arguments = [sys.executable, "-m", "rlds2reverb.cli", *shlex.split(command)[1:]]
        subprocess.run(arguments, cwd=folder, check=True, capture_output=True, timeout=100)


def test_every_file_that_a_text_links_to_is_there():
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for text in texts:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text.read_text()):
            assert (text.parent / target).exists(), f"{text.name} links to {target}"
