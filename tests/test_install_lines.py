"""The installation commands of the README, run as they stand there.

Only the download of packages is replaced: a stand-in for uv makes the packages of this environment importable in the
new one, and git fetches a copy of this checkout instead of the public repository.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Copies the data of the following examples, which then leave the checkout as it is.
EXAMPLES = "cp -r tests/data/d4rl ../examples && cd ../examples"
REPOSITORY = "https://github.com/rlds2reverb/rlds2reverb.git"

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or not shutil.which("git") or not shutil.which("make"),
    reason="requires a git checkout, git and make",
)

UV = f"""#!{sys.executable}
import subprocess, sys
from pathlib import Path

python, *arguments = sys.argv[sys.argv.index("--python") + 1 :]
if "-r" in arguments:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    Path(site_packages, "locked.pth").write_text({sysconfig.get_path("purelib")!r})
else:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)
"""


def installation_lines():
    """Returns the commands in the first bash block of the README's section on installation."""
    section = (ROOT / "README.md").read_text().split("## Install\n")[1].split("\n## ")[0]
    block = re.search(r"```bash\n(.*?)```", section, re.S)[1]
    return [line.split(" #")[0].strip() for line in block.splitlines()]


def pip_line():
    """Returns the README's command for an installation without make."""
    return re.search(r"`(python3\.11 -m pip install [^`]+)`", (ROOT / "README.md").read_text())[1]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Provides a git repository with the tracked files of this checkout as they are now."""
    repository = tmp_path_factory.mktemp("repository")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, repository / name)
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (["init", "--quiet"], ["add", "--all", "--force"], [*author, "commit", "--quiet", "-m", "Copy"]):
        subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True)
    return repository


@pytest.fixture
def shell(tmp_path, repository):
    """Returns a function that runs lines in bash, in an empty directory, and returns the process."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(UV)
    (tmp_path / "bin/uv").chmod(0o755)
    (tmp_path / "work").mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "VIRTUAL_ENV"))},
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": f"{sys.base_prefix}/bin/python3.{sys.version_info[1]}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": REPOSITORY,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(*lines, **variables):
        program = "\n".join(["set -e", *lines])
        return subprocess.run(
            ["bash", "-c", program],
            cwd=tmp_path / "work",
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=290,
        )

    return run


def test_readme_installs_with_the_documented_commands():
    install = f"git clone {REPOSITORY} && cd rlds2reverb && make install && source .venv/bin/activate"
    assert installation_lines() == [install, "make demo"]
    assert EXAMPLES in (ROOT / "docs/start.md").read_text()


@pytest.mark.slow
def test_make_install_creates_an_environment_with_the_command(tmp_path, shell):
    process = shell(installation_lines()[0], "command -v rlds2reverb", "rlds2reverb --version")
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[0] == str(tmp_path / "work/rlds2reverb/.venv/bin/rlds2reverb")
    assert "rlds2reverb, version " in process.stdout
    assert "source .venv/bin/activate" in process.stderr


@pytest.mark.slow
def test_all_installation_lines_succeed(shell):
    process = shell(*installation_lines())
    assert process.returncode == 0, process.stdout + process.stderr
    assert "bc trained in build/demo" in process.stdout


@pytest.mark.slow
def test_pip_installs_the_checkout(tmp_path, repository, shell):
    version = f"python3.{sys.version_info[1]}"
    process = shell(
        f"{sys.executable} -m venv --without-pip venv",
        f"echo {sysconfig.get_path('purelib')} >venv/lib/{version}/site-packages/locked.pth",
        "source venv/bin/activate",
        f"git clone --quiet {REPOSITORY} checkout && cd checkout",
        pip_line().replace("python3.11", version),
        "cd .. && rm -r checkout && rlds2reverb train --list-presets",
        # Dependencies come from this environment; without isolation, so do the build requirements.
        PIP_NO_DEPS="1",
        PIP_NO_INDEX="1",
        PIP_NO_BUILD_ISOLATION="0",
    )
    assert process.returncode == 0, process.stderr
    assert "iql-antmaze" in process.stdout.splitlines()


def test_make_without_a_target_lists_the_targets(repository):
    process = subprocess.run(["make"], cwd=repository, capture_output=True, text=True, check=True)
    targets = [line.split()[0] for line in process.stdout.splitlines()]
    assert {"install", "demo", "test", "clean"} <= set(targets) and not (repository / ".venv").exists()


def test_documents_name_the_target_that_installs_an_extra():
    rows = re.findall(r"^\| (`.+?) \|.*\| `make ([\w-]+)`[^|]*\|$", (ROOT / "docs/versions.md").read_text(), re.M)
    targets = {extra: target for extras, target in rows for extra in re.findall(r"`([\w-]+)`", extras)}
    assert targets["eval"] == "install" and targets["film"] == "dev"
    pattern = re.compile(r"\[extra\]\(versions\.md#extras\)\s`([\w-]+)`,\swhich\s`make\s([\w-]+)`\sinstalls")
    named = [match for path in (ROOT / "docs").glob("*.md") for match in pattern.findall(path.read_text())]
    assert len(named) >= 5 and all(targets[extra] == target for extra, target in named), named
